"""What can be wrong with a pair: each check finds what it should, and is silent on good text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.data import pair_checks as checks

GOOD = {
    "en": "\"Don't,\" she said: 3.5% of AT&T's staff (10 people) earn < $1,000; the rest don't!",
    "de": "„Spaß“, sagte er, »Maß« – um 6.30 Uhr: Öl, Äpfel… Grüße aus Köln! A & B § 5 «so»",
    "fr": "« Été », dit-il : à l’aube ! Où ça ? Déjà vu ; l’œuvre naît, ça ira…",
    "pt": "NÃO, MANHÃ À TARDE; coração, irmãs, pão de ló. ÃO!",
    "ro": "ÎN ȚARĂ, Â și Î sunt litere; când? Până mâine.",
    "pl": "Zażółć gęślą jaźń. ŻÓŁĆ! Łódź, Ąę.",
    "sv": "ÄR DET ÅR? Åsa och Öland: ÅÄÖ. 10 Å² är lite.",
    "vi": "Tôi không biết. Ông Ân ở Đà Nẵng, Ãi là gì?",
    "zh": "“你好，”他说：“价格是3.5元（约50%）！”……",
    "ja": "「はい」、と彼は言った。ＡＢＣは１０個です！",
    "ko": "안녕하세요? 저는 3시에 왔어요. 그래요!",
    "ru": "Привет, мир! Это «тест» — в 6:30. Что?",
    "ar": "مرحبا، كيف حالك؟ نعم.",
    "he": "שלום, מה שלומך? כן.",
    "th": "สวัสดีครับ คุณสบายดีไหม",
    "el": "Γεια σου, κόσμε! Τι κάνεις;",
}
"""Correct text with much punctuation."""


@pytest.mark.parametrize("language", GOOD)
def test_good_text_is_left_alone(language: str) -> None:
    text = GOOD[language]
    assert not checks.has_mojibake(text)
    assert not checks.holds_tokens(text)
    assert not checks.looks_tokenized(text, language)
    assert not checks.has_control_characters(text)
    assert not checks.has_markup(text)
    assert not checks.in_wrong_script(text, language)


@pytest.mark.parametrize("language", sorted(set(GOOD) - {"en"}))
@pytest.mark.parametrize("codec", ["latin-1", "cp1252"])
def test_text_in_the_wrong_encoding_is_found(language: str, codec: str) -> None:
    """Every language is recoded as programs do it: what cp1252 lacks stays a Latin-1 control."""
    damaged = "".join(
        bytes([byte]).decode(codec, errors="ignore") or chr(byte)
        for byte in GOOD[language].encode()
    )
    assert checks.has_mojibake(damaged)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a \ufffd b",
            "Itâ€™s",
            "50Â°",
            "FuÃŸ",
            "KÃ¶ln",
            "dÃ©jÃ\xa0",
            "ï»¿Start",
            "ï¿½",
            "锟斤拷",
        ),
        "ðŸ˜€",
    ],
)
def test_short_marks_of_a_wrong_encoding(text: str) -> None:
    assert checks.has_mojibake(text)


@given(st.text(alphabet=st.characters(max_codepoint=0x7F)))
def test_ascii_is_no_mojibake(text: str) -> None:
    assert not checks.has_mojibake(text)


def test_empty_and_identical_sides() -> None:
    assert checks.has_empty_side(" \u3000", "x")
    assert checks.has_empty_side("x", "")
    assert not checks.has_empty_side("x", ".")
    assert checks.has_identical_sides("Maria ", " Maria")
    assert not checks.has_identical_sides("Maria", "maria")
    assert not checks.has_identical_sides("10:30", "10:30")


def test_lengths_are_compared_in_letters_with_ten_added() -> None:
    assert checks.weighted_length(" ab\u3000三 か ") == 2 + 3 + 2
    assert checks.length_ratio("a" * 40, "b" * 10) == 50 / 20
    assert checks.length_ratio("b" * 10, "a" * 40) == 50 / 20
    assert checks.length_ratio("三" * 10, "a" * 30) == 1.0
    assert checks.length_ratio("", "") == 1.0


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("This is English.", "zh"),
        ("这是中文。", "en"),
        ("Это по-русски.", "he"),
        ("ひらがな", "zh"),
        ("中文中文", "ja-Latn"),
    ],
)
def test_the_wrong_script(text: str, language: str) -> None:
    assert checks.in_wrong_script(text, language)


def test_a_few_foreign_letters_are_not_the_wrong_script() -> None:
    assert not checks.in_wrong_script("我用Twitter。", "zh")
    assert checks.in_wrong_script("我用Twitter。", "zh", min_share=0.6)
    assert not checks.in_wrong_script("12 + 3", "zh")


@pytest.mark.parametrize("text", ["un@@ do", "end@@", "▁The ▁cat", "play ##ing"])
def test_tokens(text: str) -> None:
    assert checks.holds_tokens(text)


@pytest.mark.parametrize("text", ["a@@b", "me@@x.org", "## Title", "C# code", "#tag"])
def test_no_tokens(text: str) -> None:
    assert not checks.holds_tokens(text)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("He said , no .", "en"),
        ("He is here .", "en"),
        ("do n't go", "en"),
        ("it 's me", "en"),
        ("don &apos;t", "en"),
        ("-LRB- a -RRB-", "en"),
        ("well @-@ known", "en"),
        ("Il est là .", "fr"),
        ("我 爱 你", "zh"),
        ("他 是 学生 。", "zh"),
        ("彼 ら は 行 っ た", "ja"),
        ("你好 ，世界", "zh"),
    ],
)
def test_tokenized(text: str, language: str) -> None:
    assert checks.looks_tokenized(text, language)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where , oh where, is it?", "en"),  # as many marks without a space as with one
        ("Où ça ?", "fr"),
        ("the '90s, the boys' room", "en"),
        ("Use .NET, not .com", "en"),
        ("你好 世界 和平友好的人们", "zh"),
        ("저는 밥을 먹었어요.", "ko"),
        ("and so on ...", "en"),
    ],
)
def test_not_tokenized(text: str, language: str) -> None:
    assert not checks.looks_tokenized(text, language)


@pytest.mark.parametrize("character", ["\0", "\x07", "\r", "\x7f", "\x85", "\u2028", "\u2029"])
def test_control_characters(character: str) -> None:
    assert checks.has_control_characters(f"a{character}b")
    cleaned = checks.without_control_characters(f"a{character}b")
    assert cleaned == ("a b" if character in "\r\x85\u2028\u2029" else "ab")


def test_a_tab_and_joiners_are_no_control_characters() -> None:
    text = "a\tb\u200cc\u00ad"
    assert not checks.has_control_characters(text)
    assert checks.without_control_characters(text) == text


@pytest.mark.parametrize(
    "text", ["<b>x</b>", "a <br/> b", '<a href="x">', "&nbsp;", "&#160;", "&#xA0;"]
)
def test_markup(text: str) -> None:
    assert checks.has_markup(text)


@pytest.mark.parametrize("text", ["I <3 you", "a < b > c", "R&D;", "x & y;", "<- left", "< b >"])
def test_no_markup(text: str) -> None:
    assert not checks.has_markup(text)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("in 1990", "1991年"),
        ("10 of 20", "10 von 200"),
        ("1.5 kg", "1,6 kg"),
        ("３ cats", "4 Katzen"),
        ("5万", "4万"),
    ],
)
def test_numbers_that_differ(source: str, target: str) -> None:
    assert checks.numbers_differ(source, target)
    assert checks.numbers_differ(target, source)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("1,000.50 euros", "1.000,50 Euro"),
        ("10 000", "10,000"),
        ("at 6:30", "um 6 Uhr 30"),
        ("3 cats", "drei Katzen"),
        ("May 5, 2010", "2010年5月5日"),
        ("7 December 1941", "7.12.1941"),
        ("40,000 words", "4万字"),
        ("１２個", "12 tokens"),
        ("٣ قطط", "3 cats"),
        ("007", "7"),
        ("0 or 1", "1 oder 0"),
        ("4 m²", "vier m³"),
        ("9" * 5000, "9" * 5000),
        ("", ""),
    ],
)
def test_numbers_that_agree(source: str, target: str) -> None:
    assert not checks.numbers_differ(source, target)
    assert not checks.numbers_differ(target, source)


@given(st.text(), st.text())
def test_no_text_is_too_odd(source: str, target: str) -> None:
    assert checks.numbers_differ(source, source) is False
    assert checks.numbers_differ(source, target) is checks.numbers_differ(target, source)
    assert checks.length_ratio(source, target) == checks.length_ratio(target, source) >= 1
    once = checks.normalized(source)
    assert checks.normalized(f"  {source}\n") == once
    assert not checks.has_control_characters(checks.without_control_characters(source))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Hello, World!", "hello world"),
        ("ＡＢＣ，１２", "abc12"),
        ("Straße", "STRASSE"),
        ("你好 ， 世界 。", "你好世界"),
        ("...", " ... "),
    ],
)
def test_normalized_texts_are_equal(text: str, other: str) -> None:
    assert checks.normalized(text) == checks.normalized(other)


@pytest.mark.parametrize(("text", "other"), [("C++", "C"), ("कि", "की"), ("?", "!"), ("a1", "a2")])
def test_normalized_texts_that_differ(text: str, other: str) -> None:
    assert checks.normalized(text) != checks.normalized(other)
