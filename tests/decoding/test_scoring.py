import math
import shutil
from pathlib import Path

import pytest

from mt.decoding import scoring
from mt.decoding.scoring import ForcedScore, Totals, score_files
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import load_translator
from mt.errors import DataError, UserError
from mt.export.export import export_ctranslate2
from mt.special_ids import EOS


def test_sums_means_and_perplexity() -> None:
    totals = Totals()
    for log_probs in ((-1.0, -0.5, -0.75), (-0.25,)):
        totals.add(ForcedScore(("x",) * len(log_probs), log_probs))
    assert ForcedScore(("a", "b", "c"), (-1.0, -0.5, -0.75)).as_text() == "-2.250000\t3\t-0.750000"
    assert totals.as_text() == (
        f"perplexity {math.exp(2.5 / 4):.4f} per token, log-probability -2.5000, "
        "4 tokens with end marks, 2 sentences"
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

    score = TorchEngine.score

    def watched(engine: TorchEngine, *pairs: list[list[int]]) -> list[list[float]]:
        windows.append(len(pairs[0]))
        return score(engine, *pairs)

    monkeypatch.setattr(scoring, "_LINES_AT_ONCE", 3)
    monkeypatch.setattr(TorchEngine, "score", watched)
    found = score_files(finished_run, sources=sources, targets=targets, device="cpu")
    first = next(found)
    assert windows == [3], "no more is read than is asked for"
    everything = [first, *found]
    assert windows == [3, 3, 1]
    assert [each.tokens for each in everything] == [each.tokens for each in expected]
    for one, other in zip(everything, expected, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_the_scores_of_files_are_those_of_their_tokens(
    finished_run: Path, files: tuple[Path, Path]
) -> None:
    sources, targets = files
    found = list(score_files(finished_run, sources=sources, targets=targets, device="cpu"))
    translator = load_translator(finished_run, device="cpu")
    assert isinstance(translator.engine, TorchEngine)
    engine, tokenizer = translator.engine, translator.tokenizer
    lines = zip(
        sources.read_text(encoding="utf-8").split("\n")[:-1],
        targets.read_text(encoding="utf-8").split("\n")[:-1],
        strict=True,
    )
    for (source, target), score in zip(lines, found, strict=True):
        (source_ids,), (ids,) = tokenizer.encode_source([source]), tokenizer.encode_target([target])
        [alone] = engine.score([source_ids], [ids])
        assert score.log_probs == pytest.approx(alone, abs=1e-5)
        assert score.tokens == tuple(tokenizer.target.processor.id_to_piece(ids))
        assert score.tokens[-1] == "</s>"


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
    with pytest.raises(UserError, match="line 12: 9 tokens, the model has 8 positions"):
        scoring._check_positions(8, [[4, EOS], [4] * 8 + [EOS]], [[4, EOS], [EOS]], first=11)


@pytest.fixture
def exported(finished_run: Path, tmp_path: Path) -> Path:
    assert export_ctranslate2(finished_run, tmp_path / "ct2", device="cpu").failure is None
    return tmp_path / "ct2"


def test_an_exported_model_scores_as_its_run_does(
    exported: Path, finished_run: Path, files: tuple[Path, Path]
) -> None:
    sources, targets = files
    ours, theirs = (
        list(score_files(each, sources=sources, targets=targets, device="cpu"))
        for each in (finished_run, exported)
    )
    assert [each.tokens for each in theirs] == [each.tokens for each in ours]
    for one, other in zip(theirs, ours, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def test_scoring_is_no_matter_of_the_choice_among_translations(
    finished_run: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    config = run / "config.yaml"
    text = config.read_text()
    assert "mbr: null" in text
    config.write_text(text.replace("mbr: null", "mbr: chrf"))
    ours, theirs = (
        list(score_files(each, sources=files[0], targets=files[1], device="cpu"))
        for each in (finished_run, run)
    )
    assert theirs == ours
