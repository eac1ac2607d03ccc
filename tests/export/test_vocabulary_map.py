"""Vocabulary maps of exports to CTranslate2."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mt.data.splits import open_split
from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.load import FinishedRun, read_run
from mt.decoding.translator import load_translator
from mt.errors import RunError
from mt.export import export, vocabulary_map
from mt.export.export import ExportOptions, export_ctranslate2
from mt.runs import read_exported, read_verified_export
from tests.factories import Program

Map = dict[str, set[str]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write maps for small vocabularies too, with few tokens."""
    monkeypatch.setattr(export, "MIN_VOCABULARY", 100)
    monkeypatch.setattr(vocabulary_map, "SIZES", ((2, 1), (12, 30)))


def pieces(finished: FinishedRun, ids: Sequence[int]) -> list[str]:
    return [finished.tokenizer.target.processor.id_to_piece(token) for token in ids]


def read_map(path: Path) -> Map:
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return {key: {*tokens.split()} for key, tokens in rows}


@pytest.mark.usefixtures("small")
def test_a_map_covers_the_references_and_belongs_to_the_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_MAX_LINES", 2)  # of the proof; the cost needs more
    output = tmp_path / "ct2"
    result = export_ctranslate2(run, output, ExportOptions(device="cpu"))
    assert result.failure is None
    allowed, finished = read_map(output / "vmap.txt"), read_run(run)
    inside, sizes = [], []
    for pair in open_split(finished.config.data, "valid").pairs():
        (source,), (target,) = (
            finished.tokenizer.encode_source([pair.source]),
            finished.tokenizer.encode_target([pair.target]),
        )
        tokens = allowed[""].union(*(allowed[token] for token in pieces(finished, source)))
        inside += [token in tokens for token in pieces(finished, target[:-1])]
        sizes.append(len(tokens))
    share, size = sum(inside) / len(inside), sum(sizes) / len(sizes)
    assert share >= 0.995
    assert size < 0.97 * finished.tokenizer.target_size
    assert f"{share:.2%} of the tokens of the references in {size:.0f} of" in result.note
    assert re.search(
        r"BLEU [\d.]+ -> [\d.]+, [\d.]+ -> [\d.]+ sentences/s: for `use_vmap", result.note
    )
    assert "vmap.txt" in read_exported(output).details
    assert (
        export_ctranslate2(run, output, ExportOptions(device="cpu")).failure is None
    )  # in its place
    (output / "vmap.txt").write_text("\tone\n")
    with pytest.raises(RunError, match=r"vmap\.txt"):
        read_verified_export(output)


@pytest.mark.usefixtures("small")
def test_a_search_takes_the_tokens_of_the_map_only_if_it_is_asked_to(
    run: Path, tmp_path: Path
) -> None:
    output, lines = tmp_path / "ct2", ["one two three", "four five"]
    plain = load_translator(run, device="cpu").translate(lines)
    export_ctranslate2(run, output, ExportOptions(device="cpu"))
    translator = load_translator(output)
    assert isinstance(translator.engine, CTranslate2Engine)
    assert translator.translate(lines) == plain
    finished = read_run(run)
    words = pieces(finished, finished.tokenizer.encode_target(["six nine"])[0][:-1])
    (source, *_) = pieces(finished, finished.tokenizer.encode_source(["one"])[0])
    (output / "vmap.txt").write_text(f"\t{words[0]}\n{source}\t{words[-1]}\n", encoding="utf-8")

    def search(line: str, *, uses_map: bool) -> set[str]:
        engine = CTranslate2Engine(
            output, device="cpu", tokenizer=finished.tokenizer, positions=1024
        )
        engine.uses_vocabulary_map = uses_map
        ids = finished.tokenizer.encode_source([line])
        ((best, *_),) = engine.n_best_ids(ids, finished.config.decoding, 1)
        return {*pieces(finished, best.ids)}

    assert search("one", uses_map=True) <= {words[0], words[-1]}
    assert search("four", uses_map=True) <= {words[0]}
    assert not search("one two three", uses_map=False) <= {words[0], words[-1]}


def break_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave run and limits as they are."""


def require_more(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (export, vocabulary_map):
        monkeypatch.setattr(module, "MIN_COVERAGE", 1.1)


def cost_more(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_MAP_COST", -0.01)


def forget_corpora(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "corpora.json").unlink()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("harm", "sample", "note"),
    [
        (
            require_more,
            None,
            r" with 100\.00% of the tokens of the references: 110\.0% are required$",
        ),
        (cost_more, None, r" with 100\.00% of the tokens .* sentences/s: it may cost -0\.01 BLEU$"),
        (forget_corpora, None, r", which needs the training corpora: \S*corpora\.json"),
        (break_nothing, "lines.en", r": \S*lines\.en has no references$"),
    ],
)
def test_an_export_without_a_map_gives_the_reason(
    harm: Any,
    sample: str | None,
    note: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "lines.en").write_text("one two\nthree\n")
    harm(run, monkeypatch)
    result = export_ctranslate2(
        run,
        tmp_path / "ct2",
        ExportOptions(device="cpu", sample=tmp_path / sample if sample else None),
    )
    assert result.failure is None
    assert re.match(f"no vocabulary map{note}", result.note)
    assert not (tmp_path / "ct2" / "vmap.txt").exists()
    assert read_verified_export(tmp_path / "ct2")


def test_a_small_vocabulary_has_no_map(run: Path, tmp_path: Path, program: Program) -> None:
    output = tmp_path / "ct2"
    status, out, _ = program("export", run, "--to", "ctranslate2", "--output", output)
    assert status == 0
    assert "vocabulary map" not in out
    assert not (output / "vmap.txt").exists()
