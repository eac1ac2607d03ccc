import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt.decoding.confidence import Calibration, find_common_words
from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.text_files import FileJob, translate_file
from mt.decoding.translator import Translation
from tests.decoding.fakes import build_translator, text_of


class Answers(Engine):
    """An engine with given translations, whose characters have a log-probability of -1."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers

    def n_best_ids(self, sources: Any, decoding: Any, count: int, *, prefixes: Any = ()) -> Any:
        texts = [self.answers[text_of(source[:-1])] for source in sources]
        return [[Hypothesis(tuple(map(ord, text)), -len(text), -1.0, True)] for text in texts]


def calibration(**changes: Any) -> Calibration:
    """Return a calibration that expects a chrF of 100 plus 50 times the mean log-probability."""
    made = Calibration(
        model="m",
        pairs=100,
        signature="s",
        curve=((-2.0, 0.0), (0.0, 100.0)),
        deviation=1.0,
        corpus_offset=0.0,
        common=4,
    )
    return replace(made, **changes)


def answer(answers: dict[str, str], made: Calibration | None = None) -> list[Translation]:
    translator = build_translator(Answers(answers), longest=200, language="de", repair="off")
    translator.calibration = made
    return [*translator.stream([*answers])]


def test_confidence_is_the_expected_score_of_lines_with_text() -> None:
    answers = {"abc": "xyz", " ": "", "abcdef": "", "a": "x" * 9}
    lines = answer(answers, calibration())
    # EOS counts in the length.
    assert [line.confidence for line in lines] == pytest.approx([62.5, None, 0.0, 55.0])
    assert [line.confidence for line in answer(answers)] == [None] * 4
    assert [line.status for line in lines] == ["ok", "empty", "empty", "ok"]
    flat = calibration(curve=((-0.9, 20.0), (-0.8, 20.0)))
    assert [line.confidence for line in answer(answers, flat)] == [20.0, None, 0.0, 20.0]


def test_text_in_unknown_characters_that_was_copied_has_no_confidence() -> None:
    translator = build_translator(Answers({}), known=200)
    translator.calibration = calibration()
    copied, number = translator.stream(["漢字漢字漢字", "12"])
    assert (copied.status, copied.confidence) == ("copied", 0.0)
    assert (number.status, number.confidence) == ("ok", 100.0)


@pytest.mark.parametrize(
    ("source", "text", "count"),
    [
        ("the old man sleeps here.", "the old man sleeps here.", 5),
        ("see the old man, he sleeps", "Siehe the old man, er", 3),
        ("The United Nations met", "Die United Nations tagten", 0),
        ("see https://a.b/c/d and {name}", "siehe https://a.b/c/d und {name}", 0),
        ("他在这里睡觉", "sleeps 这里", 2),
        ("ოთახში ცივა ახლა ძალიან", "ოთახში ცივა ახლა ძალიან", 4),
        ("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "Cherokee", 0),
        ("ฉันกินข้าว", "กินข้าว", 5),
        ("الكلب ينام هنا", "der الكلب ينام hier", 2),
        ("", "...", 0),
    ],
)
def test_common_words_are_counted_in_any_script(source: str, text: str, count: int) -> None:
    assert len(find_common_words(source, text)) == count


@pytest.mark.parametrize(
    ("source", "text", "common", "status"),
    [
        ("We saw it. the old man sleeps", "Wir sahen es. the old man sleeps", 4, "untranslated"),
        ("We saw it. the old man sleeps", "Wir sahen es. the old man sleeps", 5, "ok"),
        ("a b c d", "a b c d", 4, "copied"),
        ("Anna Maria Schmidt liest", "Anna Maria Schmidt liest gern", 4, "ok"),
    ],
)
def test_text_that_stayed_in_the_source_language(
    source: str, text: str, common: int, status: str
) -> None:
    [line] = answer({source: text}, calibration(common=common))
    assert line.status == status
    notes = {"untranslated": "not translated: the old man sleeps", "ok": None}
    assert line.notes[0:] == tuple(filter(None, [notes.get(status, *line.notes)]))


def test_the_first_status_of_all_is_kept_with_every_note() -> None:
    (line,) = answer({"the old man sleeps {n} 2020": "the old man sleeps 20"}, calibration())
    assert line.status == "untranslated"
    assert line.notes == (
        "not translated: the old man sleeps",
        "not in the translation: `{n}`",
        "numbers not in the translation: `2020`",
    )


def test_reports_have_the_confidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Answers({"{n} abc": "c" * 10, "ab": "xy"})
    translator = build_translator(engine, longest=200, language="de", repair="off")
    translator.calibration = calibration()
    monkeypatch.setattr("mt.decoding.text_files.load_for_files", lambda *_: translator)
    model: Any = None
    source, output, report = (tmp_path / name for name in ("in.txt", "out.txt", "report.tsv"))
    source.write_text("{n} abc\nab\n")
    translate_file(model, FileJob(source, output, report=report))
    _, first, second = report.read_text().splitlines()
    assert first.startswith("1\taltered\t55\t{n} abc\t")
    assert first.endswith("\t\tnot in the translation: `{n}`")
    assert second == "2\tok\t67\tab\txy\t\t"
    translate_file(model, FileJob(source, output, form="json"))
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["status"] for record in records] == ["altered", "ok"]
    assert [record["confidence"] for record in records] == pytest.approx([54.545, 66.667], abs=1e-3)
