import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from mt.config import DecodingConfig, ModelConfig
from mt.decoding import scoring
from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.run import load_translator
from mt.decoding.scoring import ForcedScore, Totals, score_files, score_pairs
from mt.decoding.torch_engine import TorchEngine
from mt.errors import DataError, DivergedError, UserError
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, UNK

VOCABULARY = 40
CPU = torch.device("cpu")


def tiny(**settings: object) -> Transformer:
    config = ModelConfig.model_validate(
        {
            "d_model": 16,
            "d_ff": 32,
            "heads": 2,
            "encoder_layers": 2,
            "decoder_layers": 2,
            **settings,
        }
    )
    model = Transformer(config, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    with torch.no_grad():  # far from uniform
        model.target_embedding.weight.mul_(3)
    return model.eval()


def sentences(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 14, (count,), generator=generator).tolist()
    return [
        [*torch.randint(4, VOCABULARY, (length,), generator=generator).tolist(), EOS]
        for length in lengths
    ]


def by_hand(model: Transformer, source: list[int], target: list[int]) -> list[float]:
    """Return the same numbers from one unpadded pair and PyTorch's own cross-entropy."""
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([[BOS, *target[:-1]]]))
    return (-F.cross_entropy(logits, torch.tensor(target), reduction="none")).tolist()


def test_each_piece_has_the_cross_entropy_of_its_pair_alone() -> None:
    model, sources, targets = tiny(), sentences(30, seed=1), sentences(30, seed=2)
    targets[4] = [7, UNK, 9, EOS]  # a piece that no search would say
    found = score_pairs(model, sources, targets, device=CPU)
    for source, target, log_probs in zip(sources, targets, found, strict=True):
        assert log_probs == pytest.approx(by_hand(model, source, target), abs=1e-5)


@pytest.mark.parametrize("positional", ["sinusoidal", "rotary", "relative_bias"])
def test_batches_change_nothing(positional: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources, targets = tiny(positional=positional), sentences(40, 3), sentences(40, 4)
    expected = score_pairs(model, sources, targets, device=CPU)
    for positions, logits in ((1, 1), (60, 5 * VOCABULARY), (333, 2**24)):
        monkeypatch.setattr(scoring, "_POSITIONS_AT_ONCE", positions)
        monkeypatch.setattr(scoring, "_LOGITS_AT_ONCE", logits)
        found = score_pairs(model, sources[::-1], targets[::-1], device=CPU)[::-1]
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_no_batch_is_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources, targets = tiny(), sentences(50, seed=5), sentences(50, seed=6)
    monkeypatch.setattr(scoring, "_POSITIONS_AT_ONCE", 60)
    sizes, states = [], model.states

    def watched(source: torch.Tensor, target: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        sizes.append(max(source.numel(), target.numel()))
        return states(source, target, real)

    monkeypatch.setattr(model, "states", watched)
    score_pairs(model, sources, targets, device=CPU)
    assert max(sizes) <= 60
    assert len(sizes) < 20, "short sentences share a batch"


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_what_a_search_has_found_has_the_score_that_it_told(search: str) -> None:
    model, sources = tiny(), sentences(20, seed=7)
    settings = {"search": search, "beam": 3, "max_length_extra": 8}
    hypotheses = TorchEngine(model, CPU).translate_ids(
        sources, DecodingConfig.model_validate(settings)
    )
    made = [[*each.ids, *([EOS] if each.finished else [])] for each in hypotheses]
    found = score_pairs(model, sources, made, device=CPU)
    told = [hypothesis.log_prob for hypothesis in hypotheses]
    assert [math.fsum(each) for each in found] == pytest.approx(told, abs=1e-4)


def test_a_model_without_numbers_is_refused() -> None:
    model = tiny()
    with torch.no_grad():
        model.target_embedding.weight[5, 0] = float("nan")
    with pytest.raises(DivergedError, match="not finite"):
        score_pairs(model, [[4, EOS]], [[6, EOS]], device=CPU)


def test_sums_means_and_perplexity() -> None:
    totals = Totals()
    for log_probs in ((-1.0, -0.5, -0.75), (-0.25,)):
        totals.add(ForcedScore(("x",) * len(log_probs), log_probs))
    assert ForcedScore(("a", "b", "c"), (-1.0, -0.5, -0.75)).as_text() == "-2.250000\t3\t-0.750000"
    assert totals.as_text() == (
        f"perplexity {math.exp(2.5 / 4):.4f} per piece, log-probability -2.5000, "
        "4 pieces with end marks, 2 sentences"
    )


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    sources, targets = tmp_path / "s", tmp_path / "t"
    numbers = [
        "one two",
        "three",
        "",
        "four four four four",
        "nine eight",
        "zero",
        "five \u2028 six",
    ]
    sources.write_text("".join(f"{line}\n" for line in numbers), encoding="utf-8")
    targets.write_text("".join(f"{line}\n" for line in numbers[::-1]), encoding="utf-8")
    return sources, targets


def test_files_are_read_window_by_window(
    finished_run: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, targets = files
    expected = list(score_files(finished_run, sources=sources, targets=targets, device="cpu"))
    windows: list[int] = []

    def watched(model: Transformer, *pairs: list[list[int]], device: torch.device) -> object:
        windows.append(len(pairs[0]))
        return score_pairs(model, *pairs, device=device)

    monkeypatch.setattr(scoring, "_LINES_AT_ONCE", 3)
    monkeypatch.setattr(scoring, "score_pairs", watched)
    found = score_files(finished_run, sources=sources, targets=targets, device="cpu")
    first = next(found)
    assert windows == [3], "no more is read than is asked for"
    everything = [first, *found]
    assert windows == [3, 3, 1]
    assert [each.pieces for each in everything] == [each.pieces for each in expected]
    for one, other in zip(everything, expected, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_the_scores_of_files_are_those_of_their_pieces(
    finished_run: Path, files: tuple[Path, Path]
) -> None:
    sources, targets = files
    found = list(score_files(finished_run, sources=sources, targets=targets, device="cpu"))
    translator = load_translator(finished_run, device="cpu")
    assert isinstance(translator.engine, TorchEngine)
    model, tokenizer = translator.engine.model.eval(), translator.tokenizer
    lines = zip(
        sources.read_text(encoding="utf-8").split("\n")[:-1],
        targets.read_text(encoding="utf-8").split("\n")[:-1],
        strict=True,
    )
    for (source, target), score in zip(lines, found, strict=True):
        (source_ids,), (ids,) = tokenizer.encode_source([source]), tokenizer.encode_target([target])
        assert score.log_probs == pytest.approx(by_hand(model, source_ids, ids), abs=1e-5)
        assert score.pieces == tuple(tokenizer.target.processor.id_to_piece(ids))
        assert score.pieces[-1] == "</s>"


def test_what_has_no_score_is_told_before_any_work(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    sources, _ = files
    short, empty, run = tmp_path / "short", tmp_path / "empty", tmp_path / "no-run"
    short.write_text("one\ntwo\n")
    empty.write_text("")
    for targets, told in ((short, "has 7 lines, .*short has 2"), (tmp_path / "x", "no such file")):
        with pytest.raises(DataError, match=told):
            score_files(run, sources=sources, targets=targets, device="cpu")
    with pytest.raises(DataError, match="is empty"):
        score_files(run, sources=empty, targets=empty, device="cpu")
    with pytest.raises(DataError, match="/dev/null: is no regular file"):
        score_files(run, sources=Path("/dev/null"), targets=short, device="cpu")


def test_a_line_beyond_the_last_position_is_named() -> None:
    model = tiny(positional="learned", max_positions=8)
    with pytest.raises(UserError, match="line 12: 9 pieces, the model has 8 positions"):
        scoring._check_positions(model, [[4, EOS], [4] * 8 + [EOS]], [[4, EOS], [EOS]], first=11)


class OtherEngine(Engine):
    """An engine that cannot score, such as that of an exported model."""

    def n_best_ids(self, *_: object) -> list[list[Hypothesis]]:
        raise AssertionError("nothing is translated here")


def test_an_exported_model_is_refused(
    finished_run: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = load_translator(finished_run, device="cpu")
    translator.engine = OtherEngine()
    monkeypatch.setattr(scoring, "load_translator", lambda *_, **__: translator)
    with pytest.raises(UserError, match="is an exported model; score the run"):
        score_files(finished_run, sources=files[0], targets=files[1])
