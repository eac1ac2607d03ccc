import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mt.config import DecodingConfig
from mt.config.loading import load_config
from mt.decoding import ctranslate2_engine
from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.engine import Hypothesis, TokenDetails, length_limit
from mt.decoding.load import FinishedRun, read_run
from mt.decoding.preparation import encode_prefixes
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator, load_translator
from mt.errors import RunError, UserError
from mt.export.ctranslate2 import write_model
from mt.special_ids import EOS, PAD
from tests.factories import Program

DECODING = DecodingConfig(beam=4, max_length_extra=10)
TEXTS = ["one two three", "four", "five six seven eight nine", "two two", "three one", "six"]
PREFIXES = ["two", "", "one two one two one two", "three three", "e", "four five"]


def sources(count: int, longest: int = 12) -> list[list[int]]:
    draw = random.Random(1)
    return [
        [*(draw.randrange(EOS + 1, 280) for _ in range(draw.randrange(1, longest))), EOS]
        for _ in range(count)
    ]


def engine_of(translator: Translator) -> CTranslate2Engine:
    assert isinstance(translator.engine, CTranslate2Engine)
    return translator.engine


def written(run: FinishedRun, weights: Any, folder: Path, positions: int) -> CTranslate2Engine:
    """Return the engine of a run as exported for sequences of so many tokens."""
    keys: dict[str, Any] = {"tokenizer": run.tokenizer, "positions": positions}
    write_model(folder, run.config.model, weights, quantization=None, **keys)
    return CTranslate2Engine(folder, device="cpu", **keys)


@pytest.mark.parametrize("normalization", ["gnmt", "none"])
def test_beam_search_equals_that_of_the_run(
    normalization: Any, exported: Translator, original: Translator
) -> None:
    decoding = DECODING.model_copy(update={"length_normalization": normalization})
    some = sources(40)
    ours, theirs = (each.engine.translate_ids(some, decoding) for each in (original, exported))
    for wanted, found in zip(ours, theirs, strict=True):
        assert (found.ids, found.finished) == (wanted.ids, wanted.finished)
        assert found.log_prob == pytest.approx(wanted.log_prob, abs=1e-4)
        assert found.score == pytest.approx(wanted.score, abs=1e-4)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"no_repeat_ngram": 2, "max_length_extra": 20},
        {"max_length_ratio": 0.5, "max_length_extra": 1},
    ],
)
def test_greedy_search_equals_that_of_the_run(
    keys: dict[str, Any], exported: Translator, original: Translator
) -> None:
    settings = {"search": "greedy", "max_length_extra": 10, **keys}
    decoding, some = DecodingConfig.model_validate(settings), sources(40, longest=30)
    ours, theirs = (each.engine.translate_ids(some, decoding) for each in (original, exported))
    for source, wanted, found in zip(some, ours, theirs, strict=True):
        assert (found.ids, found.finished) == (wanted.ids, wanted.finished)
        assert found.log_prob == pytest.approx(wanted.log_prob, abs=1e-4)
        length, limit = len(found.ids) + found.finished, length_limit(len(source), decoding)
        assert length <= limit
        assert found.finished or length == limit
    assert "max_length_ratio" not in keys or any(not each.finished for each in theirs)


@pytest.mark.parametrize(
    "keys",
    [
        {"search": "greedy"},
        {"search": "greedy", "no_repeat_ngram": 2},
        {"search": "greedy", "max_length_ratio": 0.2, "max_length_extra": 3},
        {"beam": 4, "length_normalization": "none"},
        {"beam": 4, "no_repeat_ngram": 2},
        {"beam": 4, "max_length_ratio": 0.2, "max_length_extra": 3},
    ],
)
def test_prefixes_are_forced_and_scored_as_by_the_run(
    keys: dict[str, Any], original: Translator, exported: Translator
) -> None:
    decoding = DecodingConfig.model_validate({"max_length_extra": 20, **keys})
    some = original.tokenizer.encode_source(TEXTS)
    prefixes = [prefix.ids for prefix in encode_prefixes(PREFIXES, original.tokenizer)]
    ours, theirs = (
        each.engine.n_best_ids(some, decoding, 4, prefixes=prefixes)
        for each in (original, exported)
    )
    equal = 0
    for wanted, found, prefix in zip(ours, theirs, prefixes, strict=True):
        # CTranslate2 rarely ends right after a prefix, so that it keeps other beams.
        is_equal = found[0].ids == wanted[0].ids
        assert is_equal or (prefix and "beam" in keys)
        if is_equal:
            equal += 1
            assert found[0].finished == wanted[0].finished
            assert found[0].log_prob == pytest.approx(wanted[0].log_prob, abs=1e-3)
        assert len({each.ids for each in found}) == len(found)
        scores = {each.ids: each.score for each in wanted}
        for each in found:
            assert each.ids[: len(prefix)] == prefix[: len(each.ids)]
            assert each.score == pytest.approx(scores.get(each.ids, each.score), abs=1e-3)
    assert equal >= len(some) - 2


def test_sources_without_a_prefix_do_not_depend_on_the_prefixes_of_others(
    exported: Translator,
) -> None:
    decoding = DecodingConfig(beam=30, length_normalization="none", max_length_extra=10)
    some = [[20 + number, EOS] for number in range(8)]
    [wanted] = exported.engine.n_best_ids(some[:1], decoding, 30)
    assert any(not each.ids for each in wanted), "one is empty"
    prefixes = [(), *[(30, 31)] * 7]
    assert exported.engine.n_best_ids(some, decoding, 30, prefixes=prefixes)[0] == wanted


def test_average_is_the_log_probability_divided_by_the_length(exported: Translator) -> None:
    decoding = DECODING.model_copy(update={"length_normalization": "average"})
    for found in exported.engine.translate_ids(sources(20), decoding):
        assert found.score == pytest.approx(found.log_prob / (len(found.ids) + found.finished))


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batches_and_order_change_nothing(batch_size: int, exported: Translator) -> None:
    some = sources(60, longest=30)
    whole = exported.engine.translate_ids(some, DECODING)
    decoding = DECODING.model_copy(update={"batch_size": batch_size})
    mixed = list(range(len(some)))
    random.Random(2).shuffle(mixed)
    again = exported.engine.translate_ids([some[number] for number in mixed], decoding)
    assert [each.ids for each in again] == [whole[number].ids for number in mixed]


def test_lists_are_ranked_and_unfinished_only_if_none_is_finished(
    exported: Translator,
) -> None:
    decoding = DecodingConfig(beam=4, max_length_ratio=0.8, max_length_extra=2)
    lists = exported.engine.n_best_ids(sources(60), decoding, 4)
    kinds = {tuple({hypothesis.finished for hypothesis in hypotheses}) for hypotheses in lists}
    assert kinds == {(False,), (True,)}
    for hypotheses in lists:
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert 1 <= len({hypothesis.ids for hypothesis in hypotheses}) == len(hypotheses) <= 4


def test_padding_is_never_generated(finished_run: Path, tmp_path: Path) -> None:
    run = read_run(finished_run)
    weights = {name: tensor.numpy().copy() for name, tensor in run.weights.items()}
    embedding = weights["target_embedding.weight"]
    [usual] = load_translator(finished_run).engine.translate_ids(sources(1), DECODING)
    embedding[PAD] = 1.2 * embedding[usual.ids[0]]
    engine = written(run, weights, tmp_path, 200)
    loose = engine.translator.translate_batch(
        [[engine.source_tokens[token] for token in source] for source in sources(20)],
        beam_size=4,
        max_decoding_length=20,
    )
    pad = run.tokenizer.target.processor.id_to_piece(PAD)
    assert any(pad in result.hypotheses[0] for result in loose), "CTranslate2 alone generates it"
    for hypotheses in engine.n_best_ids(sources(20), DECODING, 4):
        assert all(PAD not in hypothesis.ids for hypothesis in hypotheses)


def test_long_sources_and_translations_are_not_cut(
    finished_run: Path, original: Translator, tmp_path: Path
) -> None:
    run = read_run(finished_run)
    weights = {name: tensor.numpy() for name, tensor in run.weights.items()}
    long = written(run, weights, tmp_path, 1200)
    ours = original.engine
    assert isinstance(ours, TorchEngine)
    source, target = [*([20] * 1030), *range(25, 60), EOS], [29, 30, 31, 32, EOS]
    [short], [found] = (long.score([some], [target]) for some in ([*source[:1023], EOS], source))
    assert found == pytest.approx(ours.score([source], [target])[0], abs=1e-4)
    assert found != pytest.approx(short, abs=1e-4), "CTranslate2 alone reads 1,024 tokens"
    hypothesis = Hypothesis(tuple(target[:-1]), 0.0, 0.0, finished=True)
    [details], [expected] = (each.explain([source], [hypothesis]) for each in (long, ours))
    assert details.attention is not None
    assert details.attention == pytest.approx(expected.attention, abs=1e-4)
    decoding = DecodingConfig(search="greedy", max_length_ratio=0.5, max_length_extra=1)
    some, prefix = [[*([20, 21, 22, 23] * 150), EOS]], [20, 21, 22] * 99
    [[translation]] = long.n_best_ids(some, decoding, 1, prefixes=[prefix])
    assert len(translation.ids) >= 297, "CTranslate2 alone writes 256 tokens"


def test_details_do_not_depend_on_the_batch(
    exported: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(exported)
    some = [[20, 21, EOS], [22, EOS], [*range(30, 60), EOS], [23, 24, EOS]]
    targets = [(25,), tuple(range(60, 100)), (26, 27, 28), ()]
    found = [Hypothesis(ids, 0.0, 0.0, finished=True) for ids in targets]
    together = engine.explain(some, found)
    assert together[3] == TokenDetails((), ())
    monkeypatch.setattr(ctranslate2_engine, "FORCED_POSITIONS", 1)
    for one, other, ids in zip(together, engine.explain(some, found), targets, strict=True):
        assert len(one.log_probs) == len(ids)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert one.alignment == other.alignment


def test_json_equals_that_of_the_run(
    exported_run: Path, finished_run: Path, program: Program
) -> None:
    long_line = " ".join(["one two three four five six"] * 10)
    lines = f"one two three four\n\n  seven nine 🦊\n{long_line}\nzero\n"

    def translated(folder: Path) -> list[dict[str, Any]]:
        # Greedy, because beams of so weak a model nearly tie.
        options = ("--json", "--device", "cpu", "--set", "decoding.search=greedy")
        status, out, _ = program("translate", folder, *options, stdin=lines.encode())
        assert status == 0
        return [json.loads(line) for line in out.splitlines()]

    ours, theirs = translated(finished_run), translated(exported_run)
    assert len(ours) == len(theirs) == 5
    assert len(ours[3]["token_log_probs"]) == len(ours[3]["tokens"]) > 20, "a line in parts"
    for one, other in zip(theirs, ours, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"score", "log_prob", "token_log_probs", "alternatives"}:
            assert one[key] == other[key], key
        for key in ("score", "log_prob", "token_log_probs"):
            assert one[key] == pytest.approx(other[key], abs=1e-3)
    assert sum(len(each["alignment"]) for each in ours) > 20


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"search": "sample"}, r"`decoding\.search: sample`: an exported model"),
        ({"mbr": "chrf"}, r"`decoding\.mbr`: an exported model"),
        ({"ensemble": ["other"]}, r"`decoding\.ensemble`: an exported model"),
    ],
)
def test_unsupported_decoding_is_an_error(
    keys: dict[str, Any], message: str, exported: Translator, exported_run: Path
) -> None:
    with pytest.raises(UserError, match=message):
        exported.engine.translate_ids(sources(2), DECODING.model_copy(update=keys))
    overrides = [f"decoding.{key}={value}".replace("'", "") for key, value in keys.items()]
    with pytest.raises(UserError, match=message):
        load_translator(exported_run, overrides=overrides)


def test_damaged_or_foreign_export_is_an_error(exported_run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(exported_run, broken)
    model = broken / "model.bin"
    content = bytearray(model.read_bytes())
    content[-100] ^= 1
    model.write_bytes(content)
    with pytest.raises(RunError, match=r"model\.bin: damaged"):
        load_translator(broken)
    model.unlink()
    with pytest.raises(RunError, match=r"model\.bin: missing"):
        load_translator(broken)
    (broken / "export.json").write_text('{"format": 99}')
    with pytest.raises(RunError, match="format 99"):
        load_translator(broken)


def test_missing_device_is_an_error(exported_run: Path) -> None:
    with pytest.raises(UserError, match="device `mps`: CTranslate2 has .* on this machine"):
        load_translator(exported_run, device="mps")


def test_overrides_apply_to_the_config_of_the_run(exported_run: Path, finished_run: Path) -> None:
    translator = load_translator(exported_run, overrides=["decoding.beam=3"])
    expected = load_config(finished_run / "config.yaml").decoding
    assert translator.decoding == expected.model_copy(update={"beam": 3})


@pytest.mark.parametrize("given", ["3", "3,1", "many", "0"])
def test_number_of_parallel_batches_follows_omp_num_threads(
    exported_run: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    found = engine_of(load_translator(exported_run)).translator.num_translators
    assert found == 3 if given.startswith("3") else found >= 1


def test_export_translates_and_scores_without_torch(exported_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one two\n\nthree\n")
    code = (
        "import sys; from pathlib import Path; run, text = map(Path, sys.argv[1:]);"
        "from mt.decoding.text_files import FileJob, translate_file;"
        "from mt.decoding.scoring import score_files;"
        "translate_file(run, FileJob(text, form='json'));"
        "print(len(list(score_files(run, sources=text, targets=text))));"
        "print(sorted({'torch', 'datasets', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(exported_run), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *records, scores, modules = done.stdout.splitlines()
    assert [json.loads(record)["status"] for record in records][1] == "empty", done.stderr
    assert (len(records), scores, modules) == (3, "3", "[]")
