import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mt.config import DecodingConfig
from mt.config.loading import load_config
from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.engine import Engine, length_limit
from mt.decoding.load import read_run
from mt.decoding.translator import Translator, load_translator
from mt.errors import RunError, UserError
from mt.export.ctranslate2 import write_model
from mt.export.export import export_ctranslate2
from mt.special_ids import EOS, PAD

DECODING = DecodingConfig(beam=4, max_length_extra=10)


@pytest.fixture(scope="module")
def folder(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("exports") / "ct2"
    assert export_ctranslate2(finished_run, output, device="cpu").failure is None
    return output


@pytest.fixture(scope="module")
def exported(folder: Path) -> Translator:
    return load_translator(folder)


@pytest.fixture(scope="module")
def original(finished_run: Path) -> Translator:
    return load_translator(finished_run, device="cpu")


def sources(count: int, longest: int = 12) -> list[list[int]]:
    draw = random.Random(1)
    return [
        [*(draw.randrange(EOS + 1, 280) for _ in range(draw.randrange(1, longest))), EOS]
        for _ in range(count)
    ]


def both(
    exported: Translator, original: Translator, decoding: DecodingConfig, count: int = 1
) -> list[tuple[Any, Any]]:
    some = sources(40)
    ours, theirs = (each.engine.n_best_ids(some, decoding, count) for each in (original, exported))
    return list(zip(ours, theirs, strict=True))


@pytest.mark.parametrize("given", ["3", "3,1", "many", "0"])
def test_as_many_batches_at_a_time_as_openmp_may_have_threads(
    folder: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    engine = load_translator(folder).engine
    assert isinstance(engine, CTranslate2Engine)
    found = engine.translator.num_translators
    assert found == 3 if given.startswith("3") else found >= 1


def test_greedy_finds_what_ours_does(exported: Translator, original: Translator) -> None:
    decoding = DecodingConfig(search="greedy", max_length_extra=10)
    for [ours], [theirs] in both(exported, original, decoding):
        assert theirs.ids == ours.ids
        assert theirs.finished == ours.finished
        assert theirs.score == pytest.approx(ours.score, abs=1e-4)


@pytest.mark.parametrize("normalization", ["gnmt", "none"])
def test_beam_search_finds_what_ours_does(
    normalization: Any, exported: Translator, original: Translator
) -> None:
    decoding = DECODING.model_copy(update={"length_normalization": normalization})
    pairs = both(exported, original, decoding)
    alike = [(ours, theirs) for [ours], [theirs] in pairs if ours.ids == theirs.ids]
    assert len(alike) >= len(pairs) - 1
    for ours, theirs in alike:
        assert theirs.log_prob == pytest.approx(ours.log_prob, abs=1e-4)
        assert theirs.score == pytest.approx(ours.score, abs=1e-4)


def test_an_average_is_the_log_probability_by_the_length(exported: Translator) -> None:
    decoding = DECODING.model_copy(update={"length_normalization": "average"})
    for found in exported.engine.translate_ids(sources(20), decoding):
        assert found.score == pytest.approx(found.log_prob / (len(found.ids) + found.finished))


def test_n_best_lists_are_sorted_and_distinct(exported: Translator) -> None:
    for hypotheses in exported.engine.n_best_ids(sources(20), DECODING, 4):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert 1 <= len({hypothesis.ids for hypothesis in hypotheses}) == len(hypotheses) <= 4


def test_blocking_ngrams_and_a_minimum_are_those_of_ours(
    exported: Translator, original: Translator
) -> None:
    decoding = DecodingConfig(
        search="greedy", no_repeat_ngram=2, min_length_ratio=1.5, max_length_extra=20
    )
    for source, ([ours], [theirs]) in zip(
        sources(40), both(exported, original, decoding), strict=True
    ):
        assert theirs.ids == ours.ids
        assert len(theirs.ids) + theirs.finished >= 1.5 * len(source)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_neighbours_and_order_change_nothing(batch_size: int, exported: Translator) -> None:
    some = sources(60, longest=30)
    whole = exported.engine.translate_ids(some, DECODING)
    decoding = DECODING.model_copy(update={"batch_size": batch_size})
    mixed = list(range(len(some)))
    random.Random(2).shuffle(mixed)
    again = exported.engine.translate_ids([some[number] for number in mixed], decoding)
    assert [each.ids for each in again] == [whole[number].ids for number in mixed]


def test_each_source_has_its_own_length_limit(exported: Translator, original: Translator) -> None:
    """Also beside a longer one, and one that does not end by itself."""
    decoding = DecodingConfig(search="greedy", max_length_ratio=0.5, max_length_extra=1)
    some = sources(40, longest=30)
    found = exported.engine.translate_ids(some, decoding)
    for one, other in zip(found, original.engine.translate_ids(some, decoding), strict=True):
        assert (one.ids, one.finished) == (other.ids, other.finished)
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
    assert any(not hypothesis.finished for hypothesis in found)
    for source, hypothesis in zip(some, found, strict=True):
        length = len(hypothesis.ids) + hypothesis.finished
        limit = length_limit(len(source), decoding)
        assert length == limit if not hypothesis.finished else length <= limit


def test_what_the_limit_has_cut_counts_only_where_nothing_is_whole(exported: Translator) -> None:
    decoding = DecodingConfig(beam=4, max_length_ratio=0.8, max_length_extra=2)
    lists = exported.engine.n_best_ids(sources(60), decoding, 4)
    kinds = [{hypothesis.finished for hypothesis in hypotheses} for hypotheses in lists]
    assert all(len(kind) == 1 for kind in kinds)
    assert {False} in kinds
    assert {True} in kinds


def test_long_sources_and_translations_are_not_cut(exported: Translator) -> None:
    """CTranslate2 by itself reads 1,024 tokens and writes 256; its own refusal comes later."""
    decoding = DecodingConfig(
        search="greedy", min_length_ratio=0.5, max_length_ratio=0.5, max_length_extra=1
    )
    source = [*([20, 21, 22, 23] * 150), EOS]
    [found] = exported.engine.translate_ids([source], decoding)
    assert len(found.ids) >= 300


def test_tokens_that_say_nothing_are_never_generated(finished_run: Path, tmp_path: Path) -> None:
    run = read_run(finished_run)
    weights = {name: tensor.numpy().copy() for name, tensor in run.weights.items()}
    embedding = weights["target_embedding.weight"]
    [usual] = load_translator(finished_run).engine.translate_ids(sources(1), DECODING)
    embedding[PAD] = 1.2 * embedding[usual.ids[0]]
    write_model(
        tmp_path, run.config.model, weights, tokenizer=run.tokenizer, positions=200,
        quantization=None,
    )  # fmt: skip
    engine = CTranslate2Engine(tmp_path, device="cpu", tokenizer=run.tokenizer, positions=200)
    loose = engine.translator.translate_batch(
        [[engine.source_tokens[token] for token in source] for source in sources(20)],
        beam_size=4,
        max_decoding_length=20,
    )
    pad = run.tokenizer.target.processor.id_to_piece(PAD)
    assert any(pad in result.hypotheses[0] for result in loose), "nothing was put to the test"
    for hypotheses in engine.n_best_ids(sources(20), DECODING, 4):
        assert all(PAD not in hypothesis.ids for hypothesis in hypotheses)


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"search": "sample"}, "decoding.search"), ({"repetition_penalty": 1.2}, "repetition")],
)
def test_what_it_does_otherwise_is_refused(
    changes: dict[str, Any], key: str, exported: Translator
) -> None:
    with pytest.raises(UserError, match=key):
        exported.engine.translate_ids(sources(2), DECODING.model_copy(update=changes))


def test_a_damaged_or_foreign_file_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
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
    with pytest.raises(RunError, match="of format 99"):
        load_translator(broken)


def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="mps"):
        load_translator(folder, device="mps")


def test_it_translates_without_torch(folder: Path) -> None:
    code = (
        "import sys; from mt.decoding.translator import load_translator; from pathlib import Path;"
        "print(load_translator(Path(sys.argv[1])).translate(['one two', '', 'three'])[1:2]);"
        "print(sorted({'torch', 'datasets', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['']\n[]\n", done.stderr


def test_overrides_and_the_config_of_the_run_are_kept(folder: Path, finished_run: Path) -> None:
    translator = load_translator(folder, overrides=["decoding.beam=3"])
    expected = load_config(finished_run / "config.yaml").decoding
    assert translator.decoding == expected.model_copy(update={"beam": 3})
    assert isinstance(translator.engine, Engine)
