"""Sentences of a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.data.sentences import line_shape, split_sentences, whole_line
from mt.runs import LineShape


@pytest.mark.parametrize(
    ("language", "parts"),
    [
        ("en", ["Dr. Smith paid $3.50 at 5 p.m. in Paris.", " ", "He left."]),
        ("en", ['"Why?" she asked.', "\t ", "See https://a.b/c.d?e=f.", " ", "Done"]),
        ("en", ["Wait... what?", " ", "The U.S. economy grew.", "  ", "Version 2.0.1 is out!"]),
        ("en", ["1. First item.", " ", "2. Second item.  ..."]),
        ("de", ["Am 3. Oktober war es kalt, z. B. dort.", " ", "Ludwig XIV. war König."]),
        ("de", ['Er sagte: „Komm her!"', " ", "Dann ging er."]),
        ("fr", ["M. Dupont est là.", " ", "« Bonjour ! » dit-il.", " ", "Pourquoi ?"]),
        ("es", ["¿Qué tal?", " ", "¡Bien!", " ", "Sr. López vino."]),
        ("zh-CN", ["我累了。", "", "价格是3.5元……吗？", "", "“走吧。”", "", "他说！"]),
        ("ja", ["疲れた。", "", "「行こう。」", "", "元気？"]),
        ("hi", ["मैं थक गया हूँ।", " ", "आज ठंड है।"]),
        ("xx", ["Languages without rules.", " ", "They are split as English."]),
    ],
)
def test_sentence_ends_are_those_of_the_language(language: str, parts: list[str]) -> None:
    sentences = split_sentences("".join(parts), language)
    assert [*sentences.texts] == parts[::2]
    assert [*sentences.gaps] == ["", *parts[1::2], ""]


PIECES = st.sampled_from(
    ["A word", "Mr.", ". ", "! ", "?", "。", "\n", "\t", "\u3000", " ", "1", "é"]
)


@given(st.lists(PIECES).map("".join) | st.text(), st.sampled_from(["en", "zh", "de", "th"]))
def test_sentences_and_gaps_give_the_line_again(line: str, language: str) -> None:
    try:
        line.encode()
    except UnicodeEncodeError:
        return
    for sentences in (split_sentences(line, language), whole_line(line)):
        assert len(sentences.gaps) == len(sentences.texts) + 1
        pairs = zip(sentences.gaps, [*sentences.texts, ""], strict=True)
        assert "".join(gap + text for gap, text in pairs) == line
        assert all(text == text.strip() != "" for text in sentences.texts)
        assert not "".join(sentences.gaps).strip()


def test_mean_number_of_sentences_leaves_blank_lines_out() -> None:
    assert line_shape(["One. Two. Three.", "", " ", "One."], "en") == LineShape(2)
    assert line_shape(["", " "], "en") == LineShape(1)


def test_sentences_without_a_mark_end_before_a_frequent_first_word() -> None:
    captions = [
        *["A dog sees a cat and two cats"] * 60,
        *["Two cats see Anna and a dog"] * 60,
        *["Anna Miller sleeps, says Anna."] * 60,
    ]
    shape = line_shape(captions, "en")
    assert shape == LineShape(1, ("A", "Two"))
    line = "5 A man sleeps  Two dogs of Anna eat A cat, A dog and Two. Anna A"
    split = split_sentences(line, "en", shape)
    assert split.texts == (
        "5 A man sleeps",
        "Two dogs of Anna eat",
        "A cat, A dog and Two.",
        "Anna A",
    )
    assert split.gaps == ("", "  ", " ", " ", "")
    assert split_sentences(line, "en").texts == (line.removesuffix(" Anna A"), "Anna A")
    assert split_sentences(line.upper(), "en", shape).texts == (
        *("5 A MAN SLEEPS  TWO DOGS OF ANNA EAT A CAT, A DOG AND TWO.", "ANNA A"),
    )
    assert split_sentences("A Man Sleeps In A Bed", "en", LineShape(1, ("A", "In"))).texts == (
        "A Man Sleeps In A Bed",
    )
    marked = [text.removesuffix(".") + "." for text in captions]
    assert line_shape(marked, "en") == LineShape(1)
