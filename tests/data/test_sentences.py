"""Sentences of a line."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.data.sentences import line_shape, split_sentences, whole_line
from mt.runs import LineStatistics


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


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("de", "Das Boot liegt seit dem 9. März im 4. Dock. | Am 24./25. Juni fährt es."),
        ("de", "Sie las über COVID-19. | Dann schlief sie."),
        ("cs", "Přišla 12. března a bydlí v 3. Patře. | Karel IV. Veliký spal."),
        ("fr", "Hier M. Renard vit l'art. 7, né en 30 av. J.-C. à Nîmes. | Il dort."),
        ("pl", "Rzeka płynie od 1987 r. Potem wyschła. | Wiatr wieje."),
        ("ru", "Мост по ст. 8 закона построил А. Б. Волков. | Он спит."),
        ("es", "Viven aprox. 40 gatos. | El perro duerme."),
        ("en", "An ASP.NET page likes .NET and README.MD, System.Text, ui.R or F.B.I. Files."),
        ("en", "See Vol. II of fig. 8. It rains. | Then stop! | 40 stop."),
        ("en", "Cats sleep... and dogs don't! - he said."),
        ("en", "Dr. Owl buys milk. | $40 is enough. | {name} pays."),
        ("hi", "डॉ. मोर आए। | वे गए।"),
        ("tr", "Kuş 7. Katta uyur. | O da uyur."),
        ("ka", "ჩიტი მღერის. | ის ფრინავს."),
        ("chr", "ᎠᏂᏍ ᎦᏓ. | ᎣᏂᏍ ᎦᎸ."),
        ("ar", "هذا طائر. | وهو نائم."),
        ("th", "นกร้องเพลง. | แมวนอน."),
        ("zh", "他用ABC。 | DEF很好。 | 他走了! | 你们好. | 我也好。"),
    ],
)
def test_no_sentence_ends_where_it_may_continue(language: str, line: str) -> None:
    joiner = "" if language == "zh" else " "
    sentences = line.split(" | ")
    assert [*split_sentences(joiner.join(sentences), language).texts] == sentences


def test_missing_space_ends_a_sentence_between_words_in_lower_case() -> None:
    assert split_sentences("The owl naps.The cat naps.", "en").texts == (
        "The owl naps.",
        "The cat naps.",
    )


CORPUS = [
    *["Frau Abt. Eule ruht am 7. Bach."] * 3,
    *["Heute ruht die Abt. dort.", "Die Eule ruht dort."],
    *["Um 9 ruht sie bis 12."] * 20,
]


def test_corpus_of_single_sentences_names_the_words_that_end_none() -> None:
    shape = line_shape(CORPUS, "de")
    assert shape.inner == {"0": (3, 23), "Abt": (3, 4)}
    line = "Dort ruht Frau Abt. Fuchs."
    assert split_sentences(line, "de").texts == ("Dort ruht Frau Abt.", "Fuchs.")
    assert split_sentences(line, "de", shape).texts == (line,)
    assert line_shape(CORPUS[1:], "de").inner == {"0": (2, 22)}


@pytest.mark.parametrize(("inner", "ends"), [(0, True), (2, False), (3, False)])
def test_corpus_tells_whether_a_number_ends_a_sentence(inner: int, ends: bool) -> None:
    shape = line_shape(CORPUS[:inner] + CORPUS[-20 + inner :], "xx")
    assert shape.inner["0"] == (inner, 20)
    assert len(split_sentences("She is 7. He is 9.", "en", shape).texts) == 1 + ends
    assert len(split_sentences("She is 7. He is 9.", "en").texts) == 1


def test_lines_of_several_sentences_name_no_words() -> None:
    joined = [f"{first} {second}" for first, second in pairwise(CORPUS)]
    assert line_shape(joined, "de").inner == {}


def test_small_letter_begins_a_sentence_only_where_the_corpus_has_it_so() -> None:
    line = "the owl naps. the cat naps."
    assert split_sentences(line, "en").texts == (line,)
    shape = line_shape([line.lower() for line in CORPUS], "en")
    assert split_sentences(line, "en", shape).texts == ("the owl naps.", "the cat naps.")


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
    assert line_shape(["One. Two. Three.", "", " ", "One."], "en") == LineStatistics(2)
    assert line_shape(["", " "], "en") == LineStatistics(1)


def test_sentences_without_a_mark_end_before_a_frequent_first_word() -> None:
    captions = [
        *["A dog sees a cat and two cats"] * 60,
        *["Two cats see Anna and a dog"] * 60,
        *["Anna Miller sleeps, says Anna."] * 60,
    ]
    shape = line_shape(captions, "en")
    assert shape == LineStatistics(1, ("A", "Two"))
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
    assert split_sentences("A Man Sleeps In A Bed", "en", LineStatistics(1, ("A", "In"))).texts == (
        "A Man Sleeps In A Bed",
    )
    marked = [text.removesuffix(".") + "." for text in captions]
    assert line_shape(marked, "en") == LineStatistics(1)
