"""Is each corpus of a mixture looked at by itself, in its own languages?"""

from collections.abc import Callable
from pathlib import Path

import pytest

from mt.config.loading import load_config
from mt.doctor.check import check_corpora
from mt.doctor.findings import Finding, Report

Program = Callable[..., tuple[int, str, str]]
Pairs = list[tuple[str, str]]

WORDS = ["red", "green", "blue", "white", "black", "brown", "grey", "pink", "gold", "silver"]
ROTE = ["rot", "gruen", "blau", "weiss", "schwarz", "braun", "grau", "rosa", "golden", "silbern"]
KRASNYE = ["красный", "зелёный", "синий", "белый", "чёрный", "бурый", "серый", "розовый"]
KRASNYE += ["золотой", "серебряный"]


def _pairs(first: int, count: int, targets: list[str] = ROTE) -> Pairs:
    rows = [list(map(int, str(number))) for number in range(first, first + count)]
    return [
        (" ".join(WORDS[d] for d in row) + ".", " ".join(targets[d] for d in row) + ".")
        for row in rows
    ]


def _write(folder: Path, name: str, pairs: Pairs) -> str:
    """Write a corpus, and return its source in YAML."""
    for number, side in enumerate(("source", "target")):
        text = "".join(f"{pair[number]}\n" for pair in pairs)
        (folder / f"{name}.{side}").write_text(text, encoding="utf-8")
    return f"source: {folder}/{name}.source, target: {folder}/{name}.target"


def _recipe(folder: Path, german: Pairs, russian: Pairs, test: Pairs, code: str = "ru") -> Path:
    path = folder / "recipe.yaml"
    path.write_text(
        "data:\n  source_language: en\n  target_language: de\n  train:\n    corpora:\n"
        f"      german: {{{_write(folder, 'german', german)}}}\n"
        f"      other: {{{_write(folder, 'other', russian)}, target_language: {code}}}\n"
        f"  valid: {{{_write(folder, 'valid', _pairs(5000, 50))}}}\n"
        f"  tests: {{test: {{{_write(folder, 'test', test)}, target_language: {code}}}}}\n",
        encoding="utf-8",
    )
    return path


def _check(recipe: Path, *, processes: int = 1) -> Report:
    return check_corpora(load_config(recipe).data, processes=processes)


def _found(report: Report, split: int) -> list[Finding]:
    return [f for f in report.splits[split].findings if f.kind != "other_language"]


def test_each_corpus_is_a_split_in_its_own_languages(tmp_path: Path) -> None:
    russian, test = _pairs(2000, 300, KRASNYE), _pairs(7000, 50, KRASNYE)
    report = _check(_recipe(tmp_path, _pairs(1000, 200), russian, test))
    assert [(s.name, s.pairs, s.target.language) for s in report.splits] == [
        ("train.corpora.german", 200, "de"),
        ("train.corpora.other", 300, "ru"),
        ("valid", 50, "de"),
        ("test", 50, "ru"),
    ]
    assert [_found(report, split) for split in range(4)] == [[], [], [], []]


def test_what_is_wrong_with_one_is_said_of_that_one(tmp_path: Path) -> None:
    russian, test = _pairs(2000, 300, KRASNYE), _pairs(7000, 50, KRASNYE)
    russian[6] = ("some words here.", "das ist kein Russisch.")
    test[3] = russian[9]
    report = _check(_recipe(tmp_path, _pairs(1000, 200), russian, test))
    assert _found(report, 0) == []
    assert _found(report, 1) == [Finding("wrong_script", "target", 1, 300, (7,))]
    assert {(f.kind, f.other, f.lines) for f in _found(report, 3)} == {
        (f"overlap_{part}", "train.corpora.other", (4,)) for part in ("pair", "source", "target")
    }
    assert "wrong_script: true" in report.cleaning
    assert 'overlap: "normalized"' in report.cleaning


def test_a_slip_is_found_in_the_corpus_that_has_it(tmp_path: Path) -> None:
    russian = _pairs(2000, 600, KRASNYE)
    sources = [source for source, _ in russian]
    del sources[300]
    slipped = list(zip(sources, (target for _, target in russian), strict=False))
    recipe = _recipe(tmp_path, _pairs(1000, 200), slipped, _pairs(7000, 50, KRASNYE))
    report = _check(recipe)
    assert [f.kind for f in _found(report, 0)] == []
    (shift,) = _found(report, 1)
    assert (shift.kind, shift.other) == ("shift", "+1")
    assert abs(shift.lines[0] - 301) <= 50


def test_what_one_corpus_is_full_of_is_not_filtered_for_the_sake_of_another(
    tmp_path: Path,
) -> None:
    cut = [(source.replace(".", " ."), target) for source, target in _pairs(1000, 200)]
    russian = _pairs(2000, 300, KRASNYE)
    russian[5] = ("some words , cut .", "разные слова.")
    report = _check(_recipe(tmp_path, cut, russian, _pairs(7000, 50, KRASNYE)))
    counts = [[(f.kind, f.count) for f in _found(report, split)] for split in (0, 1)]
    assert counts == [[("tokenized", 200)], [("tokenized", 1)]]
    assert report.cleaning == ""


def test_two_processes_find_the_same_of_a_mixture(tmp_path: Path) -> None:
    russian = _pairs(2000, 4500, KRASNYE)
    del russian[2500:2503]
    shifted = list(zip([s for s, _ in russian], [t for _, t in russian[1:]], strict=False))
    recipe = _recipe(tmp_path, _pairs(1000, 200), shifted, _pairs(7000, 50, KRASNYE))
    report = _check(recipe, processes=2)
    assert "shift" in {finding.kind for finding in _found(report, 1)}
    assert report == _check(recipe)


def test_what_is_not_known_of_a_language_is_noted_once(tmp_path: Path, program: Program) -> None:
    pytest.importorskip("py3langid")
    strange = _pairs(2000, 300, KRASNYE), _pairs(7000, 50, KRASNYE)
    recipe = _recipe(tmp_path, _pairs(1000, 200), *strange, code="tlh")
    told = (
        "`tlh` was not looked at in full: not known is in which script it is written and how to "
        "tell it from other languages"
    )
    assert _check(recipe).notes == (told,)
    status, out, _ = program("data", "check", recipe)
    assert status == 0
    assert out.count(f"note: {told}") == 1
    assert _check(_recipe(tmp_path, _pairs(1000, 200), *strange)).notes == ()
