"""Is each planted defect counted, exactly, and nothing else?"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mt.config.loading import load_config
from mt.doctor.check import check_corpora
from mt.doctor.findings import KINDS, Finding, Report

Program = Callable[..., tuple[int, str, str]]
Pairs = list[tuple[str, str]]

WORDS = ["red", "green", "blue", "white", "black", "brown", "grey", "pink", "gold", "silver"]
ROTE = ["rot", "gruen", "blau", "weiss", "schwarz", "braun", "grau", "rosa", "gold", "silbern"]


def _clean(first: int, count: int) -> Pairs:
    """Return pairs of which none has a fault and no two have a side in common."""
    digits = [[int(digit) for digit in str(number)] for number in range(first, first + count)]
    return [
        (
            "a " + " ".join(WORDS[d] for d in row) + ".",
            "das " + " ".join(ROTE[d] for d in row) + ".",
        )
        for row in digits
    ]


PLANTED: dict[tuple[str, str], tuple[str, str]] = {
    ("empty", "pair"): ("", "ein leerer Satz."),
    ("identical", "pair"): ("the same on both sides.", "the same on both sides."),
    ("length_ratio", "pair"): ("short text.", "ein sehr langer Satz " * 20 + "ohne Ende."),
    ("numbers", "pair"): ("it was in 1984.", "es war im Jahr 1948."),
    ("mojibake", "source"): ("the cafÃ© on the corner.", "das Lokal an der Ecke."),
    ("mojibake", "target"): ("many trees in a forest.", "viele BÃ¤ume in einem Wald."),
    ("wrong_script", "source"): ("это совсем другой язык.", "das ist kein Englisch."),
    ("wrong_script", "target"): ("this is no German.", "это совсем другая речь."),
    ("nul", "source"): ("a nul\0here.", "eine Null hier."),
    ("u0085", "target"): ("a strange end.", "ein seltsames\x85Ende."),
    ("u2028", "source"): ("two lines\u2028in one.", "zwei Zeilen in einer."),
    ("carriage_return", "target"): ("a return here.", "ein Wagen\rzurück."),
    ("byte_order_mark", "source"): ("a mark \ufeffhere.", "ein Zeichen hier."),
    ("invisible", "target"): ("nothing to see.", "nichts zu\u200b sehen."),
    ("tab", "source"): ("a column\tmore.", "eine Spalte mehr."),
    ("outer_space", "target"): ("some space behind.", "etwas Platz dahinter. "),
    ("tokens", "target"): ("cut into little tokens.", "in klei@@ ne Stücke zerteilt."),
    ("markup", "source"): ("a <b>fat</b> word.", "ein fettes Wort."),
    ("tokenized", "source"): ("some words , and more .", "einige Wörter, und mehr."),
}


def _write(folder: Path, split: str, pairs: Pairs, *, end: str = "\n") -> None:
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}{end}" for pair in pairs)
        (folder / f"{split}.{language}").write_bytes(text.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with three spotless splits."""
    for split, first in (("train", 1000), ("valid", 5000), ("test", 7000)):
        _write(tmp_path, split, _clean(first, 300 if split == "train" else 50))
    return tmp_path


def _recipe(folder: Path) -> Path:
    path = folder / "recipe.yaml"
    splits = {
        name: f"{{source: {folder}/{name}.en, target: {folder}/{name}.de}}"
        for name in ("train", "valid", "test")
    }
    path.write_text(
        "data:\n  source_language: en\n  target_language: de\n"
        f"  train: {splits['train']}\n  valid: {splits['valid']}\n"
        f"  tests: {{test: {splits['test']}}}\n",
        encoding="utf-8",
    )
    return path


def _check(folder: Path, *, processes: int = 1) -> Report:
    return check_corpora(load_config(_recipe(folder)).data, processes=processes)


def _found(report: Report, split: int = 0) -> dict[tuple[str, str], Finding]:
    return {
        (finding.kind, finding.side): finding
        for finding in report.splits[split].findings
        if finding.kind != "other_language"
    }


def test_a_spotless_corpus_has_no_finding(folder: Path) -> None:
    report = _check(folder)
    assert [split.findings for split in report.splits] == [(), (), ()]
    assert report.cleaning == ""
    assert [split.pairs for split in report.splits] == [300, 50, 50]
    source = report.splits[0].source
    assert source.characters == sum(len(pair[0]) for pair in _clean(1000, 300))
    assert sum(source.lengths.counts) == sum(report.splits[0].ratios.counts) == 300


@pytest.mark.parametrize("planted", PLANTED, ids="-".join)
def test_a_planted_defect_is_found_and_nothing_else(planted: tuple[str, str], folder: Path) -> None:
    pairs = _clean(1000, 300)
    pairs[122] = PLANTED[planted]
    _write(folder, "train", pairs)
    found = _found(_check(folder))
    assert set(found) == {planted}
    assert (found[planted].count, found[planted].of) == (1, 300)
    assert found[planted].lines == (123,)


def test_each_kind_of_finding_is_planted_somewhere() -> None:
    elsewhere = {"shift", "uneven", "crlf", "other_language"}
    elsewhere |= {kind for kind in KINDS if kind.startswith(("overlap", "duplicate"))}
    assert {kind for kind, _ in PLANTED} | elsewhere == set(KINDS)


def test_counts_go_on_beyond_the_lines_that_are_named(folder: Path) -> None:
    pairs = _clean(1000, 300)
    for number in range(10, 300, 10):
        pairs[number] = (f" {pairs[number][0]}", pairs[number][1])
    _write(folder, "train", pairs)
    finding = _found(_check(folder))["outer_space", "source"]
    assert (finding.count, finding.lines) == (29, (11, 21, 31))
    assert finding.share == 29 / 300


def test_duplicates_count_from_the_second_on(folder: Path) -> None:
    pairs = _clean(1000, 300)
    pairs[40] = pairs[50] = pairs[7]
    pairs[60] = (pairs[8][0], "etwas ganz anderes.")
    pairs[70] = ("something else.", pairs[9][1])
    _write(folder, "train", pairs)
    found = _found(_check(folder))
    assert {key: (f.count, f.lines) for key, f in found.items()} == {
        ("duplicate_pair", "pair"): (2, (41, 51)),
        ("duplicate_source", "source"): (3, (41, 51, 61)),
        ("duplicate_target", "target"): (3, (41, 51, 71)),
    }


def test_overlap_is_told_exactly_and_but_for_case_punctuation_and_width(folder: Path) -> None:
    train, test = _clean(1000, 300), _clean(7000, 50)
    test[3] = train[5]
    test[4] = (train[6][0].upper(), "etwas ganz anderes.")
    test[9] = ("a line of its own.", train[7][1].replace("d", "ｄ").removesuffix("."))
    _write(folder, "test", test)
    report = _check(folder)
    assert _found(report) == {}
    found = _found(report, 2)
    assert {f.other for f in found.values()} == {"train"}
    assert {kind: (f.count, f.lines) for (kind, _), f in found.items()} == {
        "overlap_pair": (1, (4,)),
        "overlap_source": (1, (4,)),
        "overlap_target": (1, (4,)),
        "overlap_source_normalized": (2, (4, 5)),
        "overlap_target_normalized": (2, (4, 10)),
    }
    assert "overlap: " in report.cleaning


def test_test_splits_are_compared_with_each_other(folder: Path) -> None:
    _write(folder, "test", [*_clean(7000, 49), _clean(5000, 1)[0]])
    report = _check(folder)
    assert {f.other for f in report.splits[2].findings} == {"valid"}
    assert report.cleaning == ""


def test_uneven_sides_are_a_finding_with_a_place(folder: Path) -> None:
    pairs = _clean(1000, 300)
    _write(folder, "train", pairs)
    lines = [pair[1] for pair in pairs if pair is not pairs[150]]
    (folder / "train.de").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    report = _check(folder)
    found = _found(report)
    assert found["uneven", "source"].count == 1
    assert abs(found["shift", "pair"].lines[0] - 151) <= 50
    assert found["shift", "pair"].other == "-1"
    line = min(found["shift", "pair"].lines[0], found["uneven", "source"].lines[0])
    assert report.notes[0].startswith(f"train: mend the slip near line {line} first")


def test_crlf_is_counted(folder: Path) -> None:
    _write(folder, "valid", _clean(5000, 50), end="\r\n")
    report = _check(folder)
    assert {key: f.count for key, f in _found(report, 1).items()} == {
        ("crlf", "source"): 50,
        ("crlf", "target"): 50,
    }


def test_two_processes_find_the_same_as_one(folder: Path) -> None:
    pairs = [*_clean(1000, 300), *PLANTED.values()] * 26
    _write(folder, "train", pairs)
    assert len(pairs) > 2 * 4000
    assert _check(folder, processes=2) == _check(folder)


def test_another_language_is_found(folder: Path) -> None:
    pytest.importorskip("py3langid")
    pairs = _clean(1000, 300)
    pairs[20] = (
        "Voici une phrase française assez longue pour que chacun la reconnaisse.",
        "Dies ist ein deutscher Satz, der lang genug ist, um erkannt zu werden.",
    )
    _write(folder, "train", pairs)
    findings = [f for f in _check(folder).splits[0].findings if f.kind == "other_language"]
    assert 21 in {line for f in findings if f.side == "source" for line in f.lines}


def test_the_suggested_section_is_accepted_by_the_config(folder: Path) -> None:
    _write(folder, "train", [*_clean(1000, 300), *PLANTED.values(), *_clean(1000, 2)])
    report = _check(folder)
    recipe = _recipe(folder)
    text = recipe.read_text(encoding="utf-8")
    assert report.cleaning.startswith("data:\n")
    recipe.write_text(text + report.cleaning.removeprefix("data:\n"), encoding="utf-8")
    cleaning = load_config(recipe).data.cleaning
    assert cleaning.strip_control
    assert cleaning.normalize_spaces
    assert cleaning.mojibake
    assert cleaning.wrong_script
    assert cleaning.max_length_ratio == 2.5
    assert cleaning.duplicates == "pair"


def test_what_most_pairs_have_is_not_to_be_filtered(folder: Path) -> None:
    pairs = [(source.replace(".", " ."), target) for source, target in _clean(1000, 300)]
    _write(folder, "train", pairs)
    report = _check(folder)
    assert _found(report)["tokenized", "source"].count == 300
    assert report.cleaning == ""


def test_the_command_writes_text_json_and_a_page(folder: Path, program: Program) -> None:
    pairs = _clean(1000, 300)
    pairs[122] = ("a <script>alert(1)</script> here.", "ein Test hier.")
    _write(folder, "train", pairs)
    out_json, page = folder / "report.json", folder / "report.html"
    status, out, _ = program("data", "check", _recipe(folder), "--json", out_json, "--html", page)
    assert status == 0
    assert "tags or character references of HTML or XML, source side; line 123" in out
    assert "markup: true" in out
    data = json.loads(out_json.read_text(encoding="utf-8"))
    (finding,) = [f for f in data["splits"][0]["findings"] if f["kind"] == "markup"]
    assert finding["lines"] == [123]
    html = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script" not in html
    assert html.count("<svg") == 9
    assert "http" not in html


def test_what_cannot_be_read_is_an_error_of_one_line(folder: Path, program: Program) -> None:
    (folder / "train.de").unlink()
    status, out, err = program("data", "check", _recipe(folder))
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and "train.de: no such file" in err

    (folder / "train.de").write_text("", encoding="utf-8")
    status, _, err = program("data", "check", _recipe(folder))
    assert status == 2
    assert "the corpus is empty" in err
    status, _, err = program("data", "check", _recipe(folder), "--html", folder / "no/x.html")
    assert status == 2
    assert "there is no folder" in err
