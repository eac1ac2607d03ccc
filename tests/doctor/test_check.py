import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from mt.config.data import CleaningConfig
from mt.config.loading import load_config
from mt.data.tokenizer import Tokenizer
from mt.doctor.check import check_corpora
from mt.doctor.corpus_report import dump_cleaning
from mt.doctor.findings import KINDS, CorpusReport, Finding
from mt.doctor.tally import measure_fertility
from tests.factories import Program

Pairs = list[tuple[str, str]]

ENGLISH = ["red", "green", "blue", "white", "black", "brown", "grey", "pink", "gold", "silver"]
GERMAN = ["rot", "gruen", "blau", "weiss", "schwarz", "braun", "grau", "rosa", "golden", "silbern"]
RUSSIAN = ["красный", "зелёный", "синий", "белый", "чёрный", "бурый", "серый", "розовый"]
RUSSIAN += ["золотой", "серебряный"]
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


def _clean(first: int, count: int, targets: list[str] = GERMAN) -> Pairs:
    """Return distinct pairs without a defect: the digits of consecutive numbers as words."""
    rows = [list(map(int, str(number))) for number in range(first, first + count)]
    return [
        (f"a {' '.join(ENGLISH[d] for d in row)}.", f"x {' '.join(targets[d] for d in row)}.")
        for row in rows
    ]


def _write(folder: Path, split: str, pairs: Pairs) -> None:
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{split}.{language}").write_bytes(text.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with three clean splits."""
    for split, first in (("train", 1000), ("valid", 5000), ("test", 7000)):
        _write(tmp_path, split, _clean(first, 300 if split == "train" else 50))
    return tmp_path


def _source(folder: Path, name: str, language: str = "de") -> str:
    path = folder / name
    return f"{{source: {path}.en, target: {path}.de, target_language: {language}}}"


def _recipe(folder: Path, train: str = "", test_language: str = "de") -> Path:
    """Write a recipe; `train` replaces the training corpus."""
    path = folder / "recipe.yaml"
    path.write_text(
        "data:\n  source_language: en\n  target_language: de\n"
        f"  train: {train or _source(folder, 'train')}\n  valid: {_source(folder, 'valid')}\n"
        f"  tests: {{test: {_source(folder, 'test', test_language)}}}\n",
        encoding="utf-8",
    )
    return path


def _mixture(folder: Path, other: Pairs, test: Pairs, code: str = "ru") -> Path:
    """Write a recipe with a German training corpus, and another and a test in `code`."""
    for name, pairs in (("german", _clean(1000, 200)), ("other", other), ("test", test)):
        _write(folder, name, pairs)
    sources = f"german: {_source(folder, 'german')}, other: {_source(folder, 'other', code)}"
    return _recipe(folder, f"{{corpora: {{{sources}}}}}", code)


def _check(recipe: Path) -> CorpusReport:
    return check_corpora(load_config(recipe).data)


def _find(report: CorpusReport, split: int = 0) -> dict[tuple[str, str], Finding]:
    return {
        (finding.kind, finding.side): finding
        for finding in report.splits[split].findings
        if finding.kind != "other_language"
    }


def test_a_clean_corpus_has_no_warning(folder: Path) -> None:
    report = _check(_recipe(folder))
    assert [_find(report, split) for split in range(3)] == [{}, {}, {}]
    assert [split.pairs for split in report.splits] == [300, 50, 50]
    source = report.splits[0].source
    assert source.characters == sum(len(pair[0]) for pair in _clean(1000, 300))
    assert source.fertility is None


def test_each_planted_defect_is_found_at_its_line_alone_and_the_advice_is_valid(
    folder: Path,
) -> None:
    pairs = _clean(1000, 300)
    for index, pair in enumerate(PLANTED.values()):
        pairs[10 * index + 4] = pair
    pairs[290] = pairs[0]
    _write(folder, "train", pairs)
    recipe = _recipe(folder)
    report = _check(recipe)
    findings = {k: f for k, f in _find(report).items() if not f.kind.startswith("duplicate")}
    assert {key: f.lines for key, f in findings.items()} == {
        key: (10 * index + 5,) for index, key in enumerate(PLANTED)
    }
    assert {(f.count, f.of) for f in findings.values()} == {(1, 300)}
    elsewhere = {"shift", "unrelated", "uneven", "other_language", "two_scripts"}
    elsewhere |= {kind for kind in KINDS if kind.startswith(("overlap", "duplicate"))}
    assert {kind for kind, _ in PLANTED} | elsewhere == set(KINDS)
    with recipe.open("a", encoding="utf-8") as file:
        file.write(dump_cleaning(report.cleaning).removeprefix("data:\n"))
    cleaning = load_config(recipe).data.cleaning
    assert (cleaning.control_characters, cleaning.min_characters) == ("strip", 1)
    assert cleaning.normalize_spaces
    assert cleaning.wrong_script
    assert "mojibake" in cleaning.broken_text
    assert (cleaning.max_length_ratio, cleaning.duplicates) == (2.5, "pair")
    assert report.removed["mojibake"] == 2


def test_all_lines_count_and_duplicates_from_the_second_occurrence(folder: Path) -> None:
    pairs = _clean(1000, 300)
    for index in range(100, 300, 10):
        pairs[index] = (f" {pairs[index][0]}", pairs[index][1])
    pairs[40] = pairs[50] = pairs[7]
    pairs[60] = (pairs[8][0], "etwas ganz anderes.")
    pairs[70] = ("something else.", pairs[9][1])
    _write(folder, "train", pairs)
    findings = _find(_check(_recipe(folder)))
    assert findings["outer_space", "source"].share == 20 / 300
    assert {key: (f.count, f.lines) for key, f in findings.items()} == {
        ("outer_space", "source"): (20, (101, 111, 121)),
        ("duplicate_pair", "pair"): (2, (41, 51)),
        ("duplicate_source", "source"): (1, (61,)),
        ("duplicate_target", "target"): (1, (71,)),
    }


def test_overlaps_are_counted_exactly_and_normalized(folder: Path) -> None:
    train, test = _clean(1000, 300), _clean(7000, 50)
    test[3] = train[5]
    test[4] = (train[6][0].upper(), "etwas ganz anderes.")
    test[7] = (train[8][1], train[8][0])
    test[9] = ("a line of its own.", train[7][1].replace("x", "ｘ").removesuffix("."))
    _write(folder, "test", test)
    report = _check(_recipe(folder))
    assert _find(report) == {}
    findings = _find(report, 2)
    assert {f.other for f in findings.values()} == {"train"}
    assert {kind: (f.count, f.lines) for (kind, _), f in findings.items()} == {
        "overlap_pair": (2, (4, 8)),
        "overlap_source": (2, (4, 8)),
        "overlap_target": (2, (4, 8)),
        "overlap_source_normalized": (3, (4, 5, 8)),
        "overlap_target_normalized": (3, (4, 8, 10)),
    }
    assert report.cleaning.overlap == "normalized"


def test_held_out_splits_are_compared_with_each_other(folder: Path) -> None:
    _write(folder, "valid", _clean(5000, 50))
    _write(folder, "test", [*_clean(7000, 49), _clean(5000, 1)[0]])
    report = _check(_recipe(folder))
    assert {f.other for f in _find(report, 2).values()} == {"valid"}
    assert dump_cleaning(report.cleaning) == ""


def test_a_missing_line_is_located(folder: Path, program: Program) -> None:
    lines = [target for _, target in _clean(1000, 300)]
    del lines[150]
    (folder / "train.de").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    report = _check(_recipe(folder))
    shift, uneven = _find(report).values()
    assert (uneven.kind, uneven.side, uneven.count) == ("uneven", "source", 1)
    assert (shift.kind, shift.other) == ("shift", "-1")
    assert abs(shift.lines[0] - 151) <= 50
    (error,) = report.splits[0].errors()
    assert error.startswith(f"the sides go out of step near line {shift.lines[0]}: from there on")
    assert "add what the target side lacks" in error
    assert report.cleaning == CleaningConfig()
    files = (folder / "train.en", folder / "train.de")
    message = program("init", *files)[2]
    assert f"`mt data check {files[0]} {files[1]}` shows where the sides diverge" in message
    status, out, _ = program("data", "check", *files)
    assert (status, f"\n  error: {error}\n" in out) == (0, True)


def test_shuffled_and_swapped_sides_are_reported(folder: Path) -> None:
    sources, targets = map(list, zip(*_clean(1000, 2000, RUSSIAN), strict=True))
    _write(folder, "swapped", list(zip(targets, sources, strict=True)))
    random.Random(1).shuffle(targets)
    _write(folder, "shuffled", list(zip(sources, targets, strict=True)))
    corpora = (f"{name}: {_source(folder, name, 'ru')}" for name in ("swapped", "shuffled"))
    report = _check(_recipe(folder, f"{{corpora: {{{', '.join(corpora)}}}}}"))
    swapped, shuffled = (split.errors() for split in report.splits[:2])
    assert swapped[0].startswith("the sides look swapped: `ru` on the source side, `en` on the ta")
    assert shuffled[0].startswith(KINDS["unrelated"])
    assert ("unrelated", "pair") in _find(report, 1)
    assert ("unrelated", "pair") not in _find(report, 0)


def test_text_in_another_language_is_found(folder: Path) -> None:
    pytest.importorskip("py3langid")
    french = "Voici une phrase française assez longue pour que chacun la reconnaisse."
    german = "Dies ist ein deutscher Satz, der lang genug ist, um erkannt zu werden."
    _write(folder, "train", [("a red house.", "ein rotes Haus."), (french, german)])
    findings = _check(_recipe(folder)).splits[0].findings
    assert Finding("other_language", "source", 1, 2, (2,)) in findings
    assert ("other_language", "target") not in {(f.kind, f.side) for f in findings}


def test_each_corpus_of_a_mixture_is_a_split_with_its_languages(folder: Path) -> None:
    russian, test = _clean(2000, 300, RUSSIAN), _clean(7000, 50, RUSSIAN)
    russian[6] = ("some words here.", "das ist kein Russisch.")
    test[3] = russian[9]
    report = _check(_mixture(folder, russian, test))
    assert [(s.name, s.pairs, s.target.language) for s in report.splits] == [
        ("train.corpora.german", 200, "de"),
        ("train.corpora.other", 300, "ru"),
        ("valid", 50, "de"),
        ("test", 50, "ru"),
    ]
    assert _find(report, 0) == _find(report, 2) == {}
    assert [*_find(report, 1).values()] == [Finding("wrong_script", "target", 1, 300, (7,))]
    assert {(f.kind, f.other, f.lines) for f in _find(report, 3).values()} == {
        (f"overlap_{part}", "train.corpora.other", (4,)) for part in ("pair", "source", "target")
    }
    assert report.cleaning == CleaningConfig(wrong_script=True, overlap="normalized")


def test_skipped_checks_are_noted_once_per_language(folder: Path) -> None:
    pytest.importorskip("py3langid")
    strange = _clean(2000, 300, RUSSIAN), _clean(7000, 50, RUSSIAN)
    assert _check(_mixture(folder, *strange, code="tlh")).notes == (
        "`tlh` was not fully checked: its script is unknown and py3langid does not identify it",
    )


def test_the_command_prints_text_or_json(folder: Path, program: Program) -> None:
    pairs = _clean(1000, 300)
    pairs[122] = ("a <script>alert(1)</script> here.", "ein Test\u200b hier.")
    _write(folder, "train", pairs)
    status, out, _ = program("data", "check", _recipe(folder))
    assert status == 0
    assert "          1  tags or character references of HTML or XML\n" in out
    assert "  ein Test<U+200B> hier.\n" in out
    assert 'broken_text: ["markup"]' in out
    status, out, _ = program("data", "check", _recipe(folder), "--json")
    (finding,) = [f for f in json.loads(out)["splits"][0]["findings"] if f["kind"] == "markup"]
    assert finding["lines"] == [123]


def test_an_unreadable_corpus_is_a_one_line_error(folder: Path, program: Program) -> None:
    (folder / "train.de").unlink()
    status, out, err = program("data", "check", _recipe(folder))
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and "train.de: no such file" in err
    (folder / "train.de").write_text("", encoding="utf-8")
    assert "the corpus is empty" in program("data", "check", _recipe(folder))[2]


def test_tokens_and_lost_characters_are_counted(finished_run: Path) -> None:
    vocabulary = Tokenizer.load(finished_run / "tokenizer").source
    lines = ["one two", "three ☃ ☃é", ""]
    counts = measure_fertility(lines, vocabulary, "en")
    assert counts.tokens == sum(len(vocabulary.processor.encode(line)) for line in lines)
    assert (counts.characters, counts.words) == (17, 5)
    assert counts.lost == ()  # spelled in bytes
    is_byte = vocabulary.processor.is_byte
    without_bytes = tuple(
        b"" if is_byte(index) else text for index, text in enumerate(vocabulary.token_bytes)
    )
    poor = measure_fertility(lines, replace(vocabulary, token_bytes=without_bytes), "zh")
    assert (poor.words, poor.lost) == (None, (("☃", 2), ("é", 1)))
