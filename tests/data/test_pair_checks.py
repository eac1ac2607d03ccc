import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.config.data import CleaningConfig, Direction
from mt.data import filters as checks
from mt.data.filters import Cleaning, identify, in_other_language
from mt.data.pairs import SentencePair
from mt.errors import DataError

GOOD = {
    "en": "\"Don't,\" she said: 3.5% of AT&T's staff (10 people) earn < $1,000; the rest don't!",
    "de": "„Spaß“, sagte er, »Maß« – um 6.30 Uhr: Öl, Äpfel… Grüße aus Köln! A & B § 5 «so»",
    "fr": "« Été », dit-il : à l’aube ! Où ça ? Déjà vu ; l’œuvre naît, ça ira…",
    "pt": "NÃO, MANHÃ À TARDE; coração, irmãs, pão de ló. ÃO!",
    "ro": "ÎN ȚARĂ, Â și Î sunt litere; când? Până mâine.",
    "pl": "Zażółć gęślą jaźń. ŻÓŁĆ! Łódź, Ąę.",
    "sv": "ÄR DET ÅR? Åsa och Öland: ÅÄÖ. 10 Å är lite.",
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
def test_good_text_passes(language: str) -> None:
    text = GOOD[language]
    assert not checks.has_mojibake(text)
    assert not checks.holds_tokens(text)
    assert not checks.looks_tokenized(text, language)
    assert not checks.has_markup(text)
    assert not checks.in_wrong_script(text, language)


@pytest.mark.parametrize("language", sorted(set(GOOD) - {"en"}))
@pytest.mark.parametrize("codec", ["latin-1", "cp1252"])
def test_wrong_encoding_is_found(language: str, codec: str) -> None:
    """As in programs, bytes without a character in cp1252 become Latin-1 controls."""
    damaged = "".join(
        bytes([byte]).decode(codec, errors="ignore") or chr(byte)
        for byte in GOOD[language].encode()
    )
    assert checks.has_mojibake(damaged)


def has_control_characters(text: str) -> bool:
    cleaning = Cleaning(CleaningConfig(control_characters="reject"), Direction("en", "de"))
    return not list(cleaning.clean([SentencePair("x", text)]))


Check = Callable[[str], bool]
DEFECTS: dict[Check, list[str]] = {
    checks.has_mojibake: [
        *("a \ufffd b", "Itâ€™s", "50Â°", "FuÃŸ", "KÃ¶ln", "dÃ©jÃ\xa0", "ï»¿Start", "ï¿½"),
        *("锟斤拷", "ðŸ˜€"),
    ],
    checks.holds_tokens: ["un@@ do", "end@@", "▁The ▁cat", "play ##ing"],
    has_control_characters: ["\0", "\x07", "\r", "\x7f", "\x85", "\u2028", "\u2029"],
    checks.has_markup: ["<b>x</b>", "a <br/> b", '<a href="x">', "&nbsp;", "&#160;", "&#xA0;"],
}
FINE: dict[Check, list[str]] = {
    checks.has_mojibake: ["".join(map(chr, range(0x80)))],
    checks.holds_tokens: ["a@@b", "me@@x.org", "## Title", "C# code", "#tag"],
    has_control_characters: ["a\tb\u200cc\u00ad"],
    checks.has_markup: ["I <3 you", "a < b > c", "R&D;", "x & y;", "<- left", "< b >"],
}


@pytest.mark.parametrize("check", DEFECTS)
def test_check_finds_its_defect_and_nothing_similar(check: Check) -> None:
    assert [text for text in DEFECTS[check] if not check(text)] == []
    assert [text for text in FINE[check] if check(text)] == []


def test_empty_and_identical_sides() -> None:
    assert checks.has_empty_side(" \u3000", "x")
    assert checks.has_empty_side("x", "")
    assert not checks.has_empty_side("x", ".")
    assert checks.has_identical_sides("Maria ", " Maria")
    assert not checks.has_identical_sides("Maria", "maria")
    assert not checks.has_identical_sides("10:30", "10:30")


def test_length_ratio_counts_letters_plus_ten() -> None:
    assert checks.weighted_length(" ab\u3000三 か ") == 2 + 3 + 2
    assert checks.length_ratio("a" * 40, "b" * 10) == 50 / 20
    assert checks.length_ratio("b" * 10, "a" * 40) == 50 / 20
    assert checks.length_ratio("三" * 10, "a" * 30) == 1.0
    assert checks.length_ratio("", "") == 1.0


@pytest.mark.parametrize(
    ("text", "language"),
    [
        *(("This is English.", "zh"), ("这是中文。", "en"), ("Это по-русски.", "he")),
        *(("ひらがな", "zh"), ("中文中文", "ja-Latn")),
    ],
)
def test_wrong_script_is_found(text: str, language: str) -> None:
    assert checks.in_wrong_script(text, language)


TOKENIZED = [
    *(("He said , no .", "en"), ("He is here .", "en"), ("do n't go", "en"), ("it 's me", "en")),
    *(("don &apos;t", "en"), ("-LRB- a -RRB-", "en"), ("well @-@ known", "en")),
    *(("Il est là .", "fr"), ("我 爱 你", "zh"), ("他 是 学生 。", "zh"), ("你好 ，世界", "zh")),
    ("彼 ら は 行 っ た", "ja"),
]
NATURAL = [
    ("Where , oh where, is it?", "en"),  # as many marks without a space as with one
    *(("Où ça ?", "fr"), ("the '90s, the boys' room", "en"), ("Use .NET, not .com", "en")),
    *(("你好 世界 和平友好的人们", "zh"), ("저는 밥을 먹었어요.", "ko"), ("and so on ...", "en")),
]


def test_tokenized_text_is_found_in_each_language() -> None:
    assert [each for each in TOKENIZED if not checks.looks_tokenized(*each)] == []
    assert [each for each in NATURAL if checks.looks_tokenized(*each)] == []


@settings(max_examples=30)
@given(st.text(), st.text())
def test_checks_are_symmetric_and_changes_idempotent(source: str, target: str) -> None:
    assert checks.length_ratio(source, target) == checks.length_ratio(target, source) >= 1
    once = checks.normalized(source)
    assert checks.normalized(f"  {source}\n") == once


@pytest.mark.parametrize(
    ("text", "other"),
    [
        *(("Hello, World!", "hello world"), ("ＡＢＣ，１２", "abc12"), ("Straße", "STRASSE")),
        *(("你好 ， 世界 。", "你好世界"), ("...", " ... ")),
    ],
)
def test_normalized_ignores_case_width_and_punctuation(text: str, other: str) -> None:
    assert checks.normalized(text) == checks.normalized(other)


SENTENCES = {
    "en": "The weather was so nice yesterday that we walked along the river.",
    "de": "Das Wetter war gestern so schön, dass wir am Fluss entlanggegangen sind.",
    "fr": "Il faisait si beau hier que nous nous sommes promenés au bord de la rivière.",
    "zh": "昨天天气非常好，所以我们沿着河边走了很久。",
    "ja": "昨日はとても天気が良かったので、川沿いを歩きました。",
    "ru": "Вчера была такая хорошая погода, что мы гуляли вдоль реки.",
}


@pytest.mark.parametrize("spoken", SENTENCES)
def test_sentence_is_only_in_its_own_language(spoken: str) -> None:
    text = SENTENCES[spoken]
    assert [each for each in SENTENCES if not in_other_language(text, each)] == [spoken]
    language, probability = identify(text)
    assert language == spoken
    assert 0.8 < probability <= 1


@pytest.mark.parametrize(
    ("text", "language"),
    [
        *((SENTENCES["zh"], "zh-TW"), (SENTENCES["zh"], "lzh")),  # variants
        *(("Guten Tag, Maria!", "en"), (SENTENCES["de"], "tlh")),  # too short; unknown
    ],
)
def test_variants_and_what_cannot_be_judged_pass(text: str, language: str) -> None:
    assert not in_other_language(text, language)


def test_missing_package_gives_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    checks.load_identifier.cache_clear()
    try:
        with pytest.raises(DataError, match="pip install .*py3langid"):
            identify("text")
    finally:
        checks.load_identifier.cache_clear()
