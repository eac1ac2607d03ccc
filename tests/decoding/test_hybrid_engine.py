"""Searches in CTranslate2 and PyTorch by one engine, and the cache of its exports."""

import errno
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mt.config import DecodingConfig
from mt.data.corpus_files import cache_folder
from mt.decoding import cached_export, hybrid_engine
from mt.decoding.cached_export import NOT_EXPORTED, CachedExport
from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.hybrid_engine import HybridEngine
from mt.decoding.translator import Translator, load_translator
from mt.errors import UserError
from mt.runs import is_exported, read_exported, write_exported
from tests.decoding.test_ctranslate2_engine import DECODING, sources
from tests.factories import Program

LINES = ["one two three", "", "four 17", "five six seven eight nine", "two two", "six"]
Export = Callable[[Path, Path], tuple[int, str]]


def load(run: Path, engine: str = "auto", **keys: object) -> Translator:
    overrides = [f"decoding.engine={engine}", *(f"decoding.{key}={keys[key]}" for key in keys)]
    return load_translator(run, overrides=overrides, device="cpu")


@pytest.fixture
def exports(exported_run: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list of the exports made, each of which is a copy of one."""
    made: list[Path] = []

    def copy(_: Path, output: Path) -> tuple[int, str]:
        made.append(output)
        shutil.copytree(exported_run, output)
        return 0, ""

    monkeypatch.setattr(cached_export, "run_export", copy)
    monkeypatch.setattr(hybrid_engine, "_WORTH_AN_EXPORT", 3)
    return made


@pytest.fixture
def in_ctranslate2(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the numbers of searches done by CTranslate2, by call."""
    counts: list[int] = []
    search = CTranslate2Engine.best_as_in_torch

    def counted(engine: CTranslate2Engine, *given: Any) -> dict[int, Any]:
        found = search(engine, *given)
        counts.append(len(found))
        return found

    monkeypatch.setattr(CTranslate2Engine, "best_as_in_torch", counted)
    return counts


@pytest.mark.parametrize(
    ("keys", "takes_all"),
    [
        ({"search": "greedy", "max_length_extra": 3}, True),
        ({"search": "greedy", "no_repeat_ngram": 2, "min_length_ratio": 1.5}, True),
        ({"search": "greedy", "max_length_extra": 1000}, False),
        ({"beam": 4, "max_length_extra": 10}, False),
        ({"beam": 2, "length_normalization": "none", "max_length_ratio": 0.5}, False),
        ({"beam": 3, "max_length_extra": 1000}, False),
    ],
)
def test_searches_are_those_of_pytorch(
    keys: dict[str, Any],
    takes_all: bool,
    finished_run: Path,
    original: Translator,
    exports: list[Path],
    in_ctranslate2: list[int],
) -> None:
    engine, some = load(finished_run, "ctranslate2").engine, sources(60, longest=30)
    decoding = DecodingConfig.model_validate(keys)
    prefixes = [(7, 8)[: number % 3] for number in range(60)] if "search" in keys else ()
    wanted = original.engine.translate_ids(some, decoding, prefixes=prefixes)
    found = engine.translate_ids(some, decoding, prefixes=prefixes)
    assert [(each.ids, each.finished) for each in found] == [
        (each.ids, each.finished) for each in wanted
    ]
    assert [each.score for each in found] == pytest.approx([x.score for x in wanted], abs=1e-3)
    [count] = in_ctranslate2
    assert 0 < count <= len(some)
    assert (count == len(some)) == takes_all
    assert len(exports) == 1


@pytest.mark.parametrize(
    ("keys", "count", "prefixes"),
    [
        ({"beam": 4}, 2, ()),
        ({"beam": 4}, 1, [(7,), (), (), ()]),
        ({"no_repeat_ngram": 2}, 1, ()),
        ({"min_length_ratio": 1.5}, 1, ()),
        ({"repetition_penalty": 1.2}, 1, ()),
        ({"coverage_penalty": 0.2}, 1, ()),
        ({"search": "sample"}, 1, ()),
        ({"search": "greedy", "repetition_penalty": 1.2}, 1, ()),
    ],
)
def test_other_searches_are_done_by_pytorch(
    keys: dict[str, Any],
    count: int,
    prefixes: Sequence[Sequence[int]],
    finished_run: Path,
    original: Translator,
    exports: list[Path],
    in_ctranslate2: list[int],
) -> None:
    engine, some = load(finished_run, "ctranslate2").engine, sources(4)
    decoding = DecodingConfig.model_validate({"max_length_extra": 10, **keys})
    wanted = original.engine.n_best_ids(some, decoding, count, prefixes=prefixes)
    assert engine.n_best_ids(some, decoding, count, prefixes=prefixes) == wanted
    assert not in_ctranslate2


def test_export_is_made_once_and_only_for_an_input_that_is_worth_it(
    finished_run: Path, original: Translator, exports: list[Path], in_ctranslate2: list[int]
) -> None:
    translator = load(finished_run)
    assert isinstance(translator.engine, HybridEngine)
    wanted = [each.text for each in original.stream(LINES)]
    assert translator.translate(LINES[:2]) == wanted[:2]
    assert not exports
    for again in (translator, translator, load(finished_run)):
        assert again.translate(LINES) == wanted
    assert load(finished_run).translate(LINES[:1]) == wanted[:1]
    assert len(in_ctranslate2) >= 4
    assert len(exports) == 1
    # What needs attention is computed by PyTorch.
    some = list(translator.stream(LINES))
    assert translator.find_links(some) == original.find_links(some)


def test_distillation_of_a_long_text_makes_an_export(
    finished_run: Path,
    exports: list[Path],
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # The usual 1,500 sentences are for 64 at once.
    monkeypatch.setattr(hybrid_engine, "_WORTH_AN_EXPORT", 1500 // 64)
    text = tmp_path / "more.en"
    text.write_text("".join(f"{line}\n" for line in LINES[2:]) * 8)
    call = ["distill", finished_run, text, "--device", "cpu", "--set", "decoding.batch_size=1"]
    assert program(*call, "--out", tmp_path / "out")[0] == 0
    assert len(exports) == 1


def test_engines_for_which_an_export_is_no_gain(
    finished_run: Path, exports: list[Path], in_ctranslate2: list[int]
) -> None:
    for engine, keys in (("torch", {}), ("auto", {"precision": "bf16"}), ("auto", {"mbr": "chrf"})):
        search = {"search": "sample", "mbr_candidates": 2} if "mbr" in keys else {}
        assert all(load(finished_run, engine, **keys, **search).translate(["one", "two", "six"]))
    assert not exports
    assert not in_ctranslate2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"search": "sample"}, r"`decoding\.search: sample`: not with `decoding\.engine"),
        ({"no_repeat_ngram": 3}, r"`decoding\.no_repeat_ngram`: not with `decoding\.engine"),
        ({"precision": "bf16"}, r"`decoding\.precision: bf16`: not with `decoding\.engine"),
        ({"ensemble": "[elsewhere]"}, "elsewhere: no such run folder"),
    ],
)
def test_settings_that_ctranslate2_does_not_have_are_an_error(
    keys: dict[str, Any], message: str, finished_run: Path
) -> None:
    with pytest.raises(UserError, match=message):
        load(finished_run, "ctranslate2", **keys)


def no_space(_: Path, output: Path) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device", str(output))


def killed(_: Path, output: Path) -> tuple[int, str]:
    output.mkdir()
    (output / "model.bin").write_bytes(b"half")
    return -9, "`mt export` failed"


@pytest.mark.parametrize(
    ("failing", "message", "is_recorded"),
    [
        (lambda *_: (1, f"{NOT_EXPORTED}90 of 100 lines"), "not exported: 90 of 100 lines", True),
        (lambda *_: (2, "error: no valid split"), "error: no valid split", False),
        (killed, "`mt export` failed", False),
        (no_space, "No space left on device", False),
    ],
)
def test_failed_export_is_an_error_only_if_it_is_asked_for(
    failing: Export,
    message: str,
    is_recorded: bool,
    finished_run: Path,
    original: Translator,
    exports: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    calls = list[Path]()

    def run_export(run: Path, output: Path) -> tuple[int, str]:
        calls.append(output)
        return failing(run, output)

    with monkeypatch.context() as patch:
        patch.setattr(cached_export, "run_export", run_export)
        translator, wanted = load(finished_run), original.translate(LINES)
        assert translator.translate(LINES) == translator.translate(LINES) == wanted
        logged = [each.message for each in caplog.records if "PyTorch" in each.message]
        assert len(logged) == len(calls) == 1
        assert message in logged[0]
        with pytest.raises(UserError, match=message):
            load(finished_run, "ctranslate2")
        assert len(calls) == (1 if is_recorded else 2)
    if not is_recorded:
        assert load(finished_run, "ctranslate2").translate(LINES) == wanted
    assert len(exports) == (not is_recorded)


def test_an_export_with_a_different_line_is_not_used(
    exported_run: Path,
    finished_run: Path,
    exports: list[Path],
    in_ctranslate2: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = cached_export.run_export

    def with_a_difference(run: Path, output: Path) -> tuple[int, str]:
        done = copy(run, output)
        exported = read_exported(output)
        parity = {**exported.parity, "identical": exported.parity["identical"] - 1}
        write_exported(output, replace(exported, parity=parity))
        return done

    monkeypatch.setattr(cached_export, "run_export", with_a_difference)
    assert all(load(finished_run).translate(["one", "two", "six"]))
    assert not in_ctranslate2
    with pytest.raises(UserError, match="1 lines of the sample differ from the run's"):
        load(finished_run, "ctranslate2")
    assert len(exports) == 1


def test_unusable_cache_is_an_error_only_if_ctranslate2_is_asked_for(
    finished_run: Path,
    original: Translator,
    exports: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    wanted = original.translate(LINES)

    def check(message: str) -> None:
        assert load(finished_run).translate(LINES) == wanted
        with pytest.raises(UserError, match=message) as raised:
            load(finished_run, "ctranslate2")
        assert "\n" not in str(raised.value)

    load(finished_run, "ctranslate2")
    [model] = (cache_folder() / "ctranslate2").glob("*/model.bin")
    model.write_bytes(model.read_bytes()[:-1])
    check(r"model\.bin: damaged")
    (tmp_path / "file").touch()
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "file"))
    check("Not a directory")
    with monkeypatch.context() as patch:
        patch.setenv("MT_CACHE", "~nobody-of-this-name")
        check("no home folder for the cache was found: set MT_CACHE")
    monkeypatch.setattr(cached_export, "find_spec", lambda _: None)
    check("need CTranslate2: pip install")
    assert util.find_spec("ctranslate2")
    assert len(exports) == 1


def test_an_unfinished_run_has_no_export(
    finished_run: Path, exports: list[Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (run / "model.json").unlink()
    assert all(load(run).translate(["one", "two", "three"]))
    with pytest.raises(UserError, match="the training has not finished"):
        load(run, "ctranslate2")
    assert not exports


def test_processes_at_once_make_one_export(
    finished_run: Path, exports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = cached_export.run_export

    def slow(run: Path, output: Path) -> tuple[int, str]:
        time.sleep(0.2)
        return copy(run, output)

    monkeypatch.setattr(cached_export, "run_export", slow)
    engine = load(finished_run).engine
    assert isinstance(engine, HybridEngine)
    export = engine._export
    stale = export.folder.with_name(f".{export.folder.name}.killed")
    stale.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(CachedExport.open, [export] * 4))
    assert len(exports) == 1
    assert not stale.exists()
    found = [each.translate_ids(sources(3), DECODING) for each in engines]
    assert found.count(found[0]) == 4


def test_a_run_is_exported_by_the_program(
    finished_run: Path, program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hybrid_engine, "_WORTH_AN_EXPORT", 3)
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in LINES))
    report = tmp_path / "report"
    options = ("--device", "cpu", "--report", report, "--set")
    results = []
    for engine in ("torch", "auto", "ctranslate2"):
        named = f"decoding.engine={engine}"
        status, out, _ = program("translate", finished_run, text, *options, named)
        results.append((status, out, report.read_text()))
    assert results[0][0] == 0
    assert results.count(results[0]) == 3
    made = (cache_folder() / "ctranslate2").iterdir()
    assert [is_exported(path) for path in made if path.is_dir()] == [True]
