import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt.config.data import Direction
from mt.decoding.confidence import (
    OMISSION_FEATURES,
    Assessment,
    Calibration,
    find_common_words,
    find_negations,
    load_assessment,
    omission_features,
)
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
        direction=Direction("en", "de"),
        pairs=100,
        signature="s",
        curve=((-2.0, 0.0), (0.0, 100.0)),
        deviation=1.0,
        corpus_offset=0.0,
        common=4,
        negations=({}, {}),
        omission=(0.0,) * OMISSION_FEATURES,
    )
    return replace(made, **changes)


def answer(answers: dict[str, str], made: Calibration | None = None) -> list[Translation]:
    translator = build_translator(Answers(answers), longest=200, language="de", repair="off")
    return (made.assess if made else list)(translator.stream([*answers]))


def test_confidence_is_the_expected_score_of_lines_with_text() -> None:
    answers = {"abc": "xyz", " ": "", "abcdef": "", "a": "x" * 9}
    lines = answer(answers, calibration())
    # EOS counts in the length.
    assert [line.confidence for line in lines] == pytest.approx([62.5, None, 0.0, 55.0])
    assert [line.confidence for line in answer(answers)] == [None] * 4
    assert [line.status for line in lines] == ["ok", "empty", "empty", "ok"]
    flat = calibration(curve=((-0.8, 20.0),))
    assert [line.confidence for line in answer(answers, flat)] == [20.0, None, 0.0, 20.0]


def test_text_in_unknown_characters_that_was_copied_has_no_confidence() -> None:
    translator = build_translator(Answers({}), known=200)
    copied, number = calibration().assess(translator.stream(["漢字漢字漢字", "12"]))
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
        ("ฉันกินข้าว", "กินข้าว", 7),
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


def test_negation_on_one_side_is_named() -> None:
    negations = {"not": True, "not|if|": False}, {"nicht": True}
    answers = {
        "he does not come": "er kommt",
        "he comes": "er kommt nicht",
        "he does not stay": "er bleibt nicht",
        "if not today then later": "wenn heute dann",
        "he never comes": "er kommt",
    }
    lines = answer(answers, calibration(negations=negations))
    assert [line.status for line in lines] == ["negation", "negation", "ok", "ok", "ok"]
    assert lines[0].notes == ("the translation has no negation for `not`",)
    assert lines[1].notes == ("the source has no negation for `nicht`",)


@pytest.mark.parametrize(
    ("text", "language", "negations"),
    [
        ("Он не идёт. Небо.", "ru", [["не", "не|он|", "не||идёт."]]),
        ("味道不错。", "lzh", [["不", "不|道|", "不||错", "不|味道|", "不||错。", "不|道|错"]]),
        ("He can't.", "en-GB", [["n't", "n't|ca|", "n't||."]]),
        ("ის არ მოდის.", "ka", []),
    ],
)
def test_negations_have_the_words_beside_them(
    text: str, language: str, negations: list[list[str]]
) -> None:
    assert find_negations(text, language) == negations


def omission() -> tuple[float, ...]:
    """Return weights for which less than half as many characters as in the source are too few."""
    return (-1.0, *[0.0] * (OMISSION_FEATURES - 2), -0.7)


def test_translations_that_are_too_short_lack_something() -> None:
    answers = {"a" * 40: "b" * 40, "a" * 41: "b" * 20, "a" * 42: "b" * 18}
    lines = answer(answers, calibration(omission=omission()))
    assert [line.status for line in lines] == ["ok", "ok", "omitted"]
    assert lines[2].notes == ("some of the source is not in the translation",)


def test_features_of_omissions_are_finite_for_any_text() -> None:
    for source, text, log_prob in (("", "", 0.0), ("ab c", "d", float("-inf"))):
        row = omission_features(source, text, (1, 1), log_prob)
        assert len(row) == OMISSION_FEATURES
        assert all(abs(value) < 1e4 for value in row)


def test_the_first_status_of_all_is_kept_with_every_note() -> None:
    made = calibration(negations=({"not": True}, {}), omission=omission())
    (line,) = answer({"not 1234": "j"}, made)
    assert line.status == "altered"
    assert line.notes == (
        "not in the translation: `1234`",
        "the translation has no negation for `not`",
        "some of the source is not in the translation",
    )


def test_a_translation_without_a_report_is_not_assessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Answers({"a" * 40: "c" * 10, "ab": "xy"})
    translator = build_translator(engine, longest=200, language="de", repair="off")
    monkeypatch.setattr("mt.decoding.text_files.load_for_files", lambda *_, **__: translator)
    calls = []

    def load(_: object) -> Assessment:
        calls.append(1)
        return calibration(omission=omission()).assess

    monkeypatch.setattr("mt.decoding.text_files.load_assessment", load)
    source, output, report = (tmp_path / name for name in ("in.txt", "out.txt", "report.tsv"))
    source.write_text("a" * 40 + "\nab\n")
    translate_file(tmp_path, FileJob(source, output))
    assert (calls, output.read_text()) == ([], "c" * 10 + "\nxy\n")
    translate_file(tmp_path, FileJob(source, output, report=report))
    first, second = report.read_text().splitlines()
    assert first == "1\tomitted\tsome of the source is not in the translation\t55"
    assert second == "2\tok\t\t67"
    translate_file(tmp_path, FileJob(source, output, form="json"))
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["status"] for record in records] == ["omitted", "ok"]
    assert [record["confidence"] for record in records] == pytest.approx([54.545, 66.667], abs=1e-3)


def test_translations_stay_as_they_are_without_a_calibration() -> None:
    translator = build_translator(Answers({"not a b c d": "a b c d"}), longest=200, repair="off")
    lines = [*translator.stream(["not a b c d"])]
    assert load_assessment(translator)(lines) == lines
