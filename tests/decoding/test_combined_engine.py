"""Choice of the engine of a run, and searches in CTranslate2 and PyTorch by one engine."""

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mt.config import DecodingConfig
from mt.decoding.ctranslate2_engine import CombinedEngine, CTranslate2Engine
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.runs import EXPORT_FOLDER
from tests.decoding.test_ctranslate2_engine import sources
from tests.factories import Program, Refused, run_process

LINES = ["one two three", "", "four 17", "five six seven eight nine", "two two", "six"]


def load(run: Path, engine: str = "auto", **keys: object) -> Translator:
    overrides = [f"decoding.engine={engine}", *(f"decoding.{key}={keys[key]}" for key in keys)]
    return Translator.load(run, overrides=overrides, device="cpu")


@pytest.fixture
def run(run: Path, exported_run: Path) -> Path:
    """Return a copy of the finished run with its export."""
    shutil.copytree(exported_run, run / EXPORT_FOLDER)
    return run


@pytest.fixture
def in_ctranslate2(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the numbers of searches done by CTranslate2, by call."""
    counts: list[int] = []
    search = CTranslate2Engine.best_as_in_torch

    def counted(engine: CTranslate2Engine, *arguments: Any) -> Any:
        best = [*search(engine, *arguments)]
        counts.append(len(best))
        return best

    monkeypatch.setattr(CTranslate2Engine, "best_as_in_torch", counted)
    return counts


@pytest.mark.parametrize(
    ("keys", "takes_all"),
    [
        ({"search": "greedy", "max_length_extra": 3}, True),
        ({"search": "greedy", "no_repeat_ngram": 2}, True),
        ({"search": "greedy", "max_length_extra": 1000}, False),
        ({"beam": 4, "max_length_extra": 10}, False),
        ({"beam": 2, "length_normalization": "none", "max_length_ratio": 0.5}, False),
        ({"beam": 3, "max_length_extra": 1000}, False),
    ],
)
def test_searches_are_those_of_pytorch(
    keys: dict[str, Any],
    takes_all: bool,
    run: Path,
    original: Translator,
    in_ctranslate2: list[int],
) -> None:
    engine, some = load(run).engine, sources(60, longest=30)
    decoding = DecodingConfig.model_validate(keys)
    prefixes = [(7, 8)[: number % 3] for number in range(60)] if "search" in keys else ()
    expected = original.engine.translate_ids(some, decoding, prefixes=prefixes)
    best = engine.translate_ids(some, decoding, prefixes=prefixes)
    assert [(each.ids, each.finished) for each in best] == [
        (each.ids, each.finished) for each in expected
    ]
    assert [each.score for each in best] == pytest.approx([x.score for x in expected], abs=1e-3)
    [count] = in_ctranslate2
    assert 0 < count <= len(some)
    assert (count == len(some)) == takes_all


@pytest.mark.parametrize(
    ("keys", "count", "prefixes"),
    [
        ({"beam": 4}, 2, ()),
        ({"beam": 4}, 1, [(7,), (), (), ()]),
        ({"no_repeat_ngram": 2}, 1, ()),
        ({"length_normalization": "average"}, 1, ()),
        ({"length_penalty": 0.7}, 1, ()),
        ({"search": "sample"}, 1, ()),
    ],
)
def test_other_searches_are_done_by_pytorch(
    keys: dict[str, Any],
    count: int,
    prefixes: Sequence[Sequence[int]],
    run: Path,
    original: Translator,
    in_ctranslate2: list[int],
) -> None:
    engine, some = load(run).engine, sources(4)
    decoding = DecodingConfig.model_validate({"max_length_extra": 10, **keys})
    expected = original.engine.n_best_ids(some, decoding, count, prefixes=prefixes)
    assert engine.n_best_ids(some, decoding, count, prefixes=prefixes) == expected
    assert not in_ctranslate2


def test_alignments_and_scores_are_those_of_pytorch(run: Path, original: Translator) -> None:
    translator = load(run)
    translations = list(translator.stream(LINES))
    assert [each.text for each in translations] == original.translate(LINES)
    assert translator.find_links(translations) == original.find_links(translations)
    combined, plain, some = translator.engine, original.engine, sources(3)
    assert isinstance(combined, CombinedEngine)
    assert isinstance(plain, TorchEngine)
    assert combined.score(some, some) == plain.score(some, some)


def test_lines_and_statuses_of_the_program_do_not_depend_on_the_engine(
    run: Path, program: Program, tmp_path: Path
) -> None:
    text, report = tmp_path / "text", tmp_path / "report"
    text.write_text("".join(f"{line}\n" for line in LINES))
    results = []
    for engine in ("torch", "auto", "ctranslate2"):
        call = ["translate", run, text, "--device", "cpu", "--report", report]
        status, out, _ = program(*call, "--set", f"decoding.engine={engine}")
        results.append((status, out, report.read_text()))
    assert results[0][0] == 0
    assert results.count(results[0]) == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"search": "sample"}, r"`decoding\.search: sample`: not with `decoding\.engine"),
        ({"no_repeat_ngram": 3}, r"`decoding\.no_repeat_ngram`: not with `decoding\.engine"),
        ({"length_penalty": 1.0}, r"`decoding\.length_penalty`: not with `decoding\.engine"),
        (
            {"length_normalization": "average"},
            r"`decoding\.length_normalization: average`: not with",
        ),
        ({"precision": "bf16"}, r"`decoding\.precision: bf16`: not with `decoding\.engine"),
        ({"ensemble": "[elsewhere]"}, r"`decoding\.ensemble`: not with `decoding\.engine"),
    ],
)
def test_settings_that_ctranslate2_does_not_have_are_an_error(
    keys: dict[str, Any], message: str, run: Path
) -> None:
    with pytest.raises(UserError, match=message):
        load(run, "ctranslate2", **keys)


def change_record(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = run / EXPORT_FOLDER / "export.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def damage_model(run: Path) -> None:
    path = run / EXPORT_FOLDER / "model.bin"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: shutil.rmtree(run / EXPORT_FOLDER), "there is no export"),
        (lambda run: change_record(run, lambda x: x.update(weights="0")), "of other weights"),
        (lambda run: change_record(run, lambda x: x.update(quantization="int8")), "is quantized"),
        (
            lambda run: change_record(run, lambda x: x["parity"].update(identical=0)),
            "translates some lines otherwise",
        ),
        (damage_model, r"model\.bin: damaged"),
    ],
)
def test_an_export_that_does_not_stand_for_the_run_is_not_used(
    spoil: Callable[[Path], None],
    message: str,
    run: Path,
    in_ctranslate2: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    spoil(run)
    assert all(load(run).translate(["one", "two", "six"]))
    assert not in_ctranslate2
    advice = f"which is slower; `mt export {run} --to ctranslate2` writes an export"
    there = (run / EXPORT_FOLDER).exists()
    assert [text.endswith(advice) for text in caplog.messages] == [True] * there
    with pytest.raises(UserError, match=message):
        load(run, "ctranslate2")


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="one set of kernels")
def test_export_that_the_processor_cannot_run(run: Path) -> None:
    code = """import sys; from mt import Translator; from mt.errors import UserError
print(type(Translator.load(sys.argv[1], device="cpu").engine).__name__)
try: Translator.load(sys.argv[1], overrides=["decoding.engine=ctranslate2"], device="cpu")
except UserError as error: print(error)"""
    environment = {**os.environ, "CT2_FORCE_CPU_ISA": "an abacus"}
    engine, error = run_process(sys.executable, "-c", code, run, env=environment).splitlines()
    assert engine == "TorchEngine"
    assert re.search(r"model\.bin: .* an abacus", error)


def test_engine_that_cannot_be_imported(
    run: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert isinstance(load(run).engine, TorchEngine)
    [warning] = caplog.messages
    assert warning.startswith("CTranslate2 cannot be imported here (")
    reason = warning.rpartition(";")[0]
    assert refused("translate", run / EXPORT_FOLDER) == reason
    assert refused("export", run, "--to", "ctranslate2") == reason
    assert refused("train", run, "--set", "training.export=int8") == reason


def test_export_in_an_unfinished_run_is_not_used(
    finished_run: Path, exported_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    shutil.copytree(exported_run, run / EXPORT_FOLDER, dirs_exist_ok=True)
    (run / "model.json").unlink()
    assert isinstance(load(run).engine, TorchEngine)
    with pytest.raises(UserError):
        load(run, "ctranslate2")
