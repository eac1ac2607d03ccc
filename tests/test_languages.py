"""Language codes, scripts and text lengths."""

import sys
import unicodedata

import pytest

from mt.languages import (
    base_language,
    count_in,
    describe_country,
    in_letters,
    in_lower_case,
    in_other_variant,
    in_upper_case,
    joiner_of,
    language_name,
    script_share,
    scripts_of,
    variants_in,
    written_without_spaces,
)

UNICODE_NAMES: dict[str, str | tuple[str, ...]] = {
    **{name: name.upper() for name in ("Latin", "Greek", "Cyrillic", "Armenian", "Georgian")},
    **{name: name.upper() for name in ("Hebrew", "Arabic", "Devanagari", "Thai", "Hangul")},
    "Han": ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH"),
    "Kana": ("HIRAGANA", "KATAKANA"),
}
"""Prefixes of the Unicode names of a script's letters."""


@pytest.mark.parametrize(
    ("base", "codes"),
    [
        ("de", "de deu GER deu_Latn"),
        ("pt", "pt-BR"),
        ("en", "EN_us eng-Latn"),
        ("ar", "arb_Arab ara"),
        ("tlh", "tlh"),
        ("zh", "zh zh-CN zh_Hant ZHO-Hant-TW yue"),
        ("ja", "jpn"),
        ("ko", "kor"),
        ("my", "bur"),
    ],
)
def test_codes_of_a_language_share_a_name(base: str, codes: str) -> None:
    assert {base_language(code) for code in codes.split()} == {base}


def test_language_may_be_written_without_spaces() -> None:
    for code in ["zh", "zho", "zh-CN", "zh_Hant", "lzh", "nan", "JPN", "th", "khm", "mya", "ii"]:
        assert written_without_spaces(code), code
    for code in ["en", "ko", "kor", "de-AT", "vi", "nan-Latn", "zh_Latn_CN", ""]:
        assert not written_without_spaces(code), code


def test_sentences_have_spaces_between_them_where_words_have_none() -> None:
    for code in ["zh", "lzh_Hant", "yue", "jpn", "ii"]:
        assert joiner_of(code) == "", code
    for code in ["th", "lo", "khm", "my", "bo", "dzo", "zh-Latn", "ko", "en", "tlh"]:
        assert joiner_of(code) == " ", code


@pytest.mark.parametrize(
    ("text", "language", "capitals"),
    [
        ("Καλημέρα, πώς είστε; Ναι ή όχι;", "el", "ΚΑΛΗΜΕΡΑ, ΠΩΣ ΕΙΣΤΕ; ΝΑΙ Ή ΟΧΙ;"),
        ("γάιδαρος, ρολόι, άυπνος, προΐσταμαι", "ell_Grek", "ΓΑΪΔΑΡΟΣ, ΡΟΛΟΪ, ΑΫΠΝΟΣ, ΠΡΟΪΣΤΑΜΑΙ"),
        ("ἐν ἀρχῇ ἦν ὁ λόγος", "el", "ΕΝ ΑΡΧΗΙ ΗΝ Ο ΛΟΓΟΣ"),
        ("Die Straße (π = 3,14)", "de", "DIE STRASSE (Π = 3,14)"),
        ("iyi ışık", "tur_Latn", "İYİ IŞIK"),
        ("გამარჯობა, PC ok", "ka", "გამარჯობა, PC OK"),
        ("ᏣᎳᎩ ᎦᏬᏂ", "chr", "ᏣᎳᎩ ᎦᏬᏂ"),
        ("և այլն", "hy", "ԵՎ ԱՅԼՆ"),
        ("ijs, naïf", "nl", "IJS, NAÏF"),
        ("你好 สวัสดี नमस्ते مرحبا", "zh", "你好 สวัสดี नमस्ते مرحبا"),
    ],
)
def test_capitals_are_those_of_the_language(text: str, language: str, capitals: str) -> None:
    assert in_upper_case(text, language) == capitals


def test_lower_case_is_that_of_the_language() -> None:
    assert in_lower_case("IŞIK İÇİN", "tr-TR") == "ışık için"
    assert in_lower_case("IT IS ΟΔΟΣ", "en") == "it is οδος"


@pytest.mark.parametrize("script", UNICODE_NAMES)
def test_scripts_contain_the_letters_of_the_unicode_database(script: str) -> None:
    # Rare blocks above U+1CFF (phonetic, mathematical, forms) may be missing.
    letters = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code))[0] == "L"
        and unicodedata.name(chr(code), "").startswith(UNICODE_NAMES[script])
    ]
    inside = {letter for letter in letters if count_in(letter, script)}
    assert {letter for letter in letters if ord(letter) < 0x1D00} <= inside
    assert len(inside) >= 0.8 * len(letters)
    others = [other for other in UNICODE_NAMES if other != script]
    assert not any(count_in("".join(letters), other) for other in others)


@pytest.mark.parametrize(
    ("codes", "scripts"),
    [
        ("en pt-BR sr-Latn zh_Latn", ("Latin",)),
        ("zh-TW lzh zh_Hant", ("Han",)),
        ("jpn", ("Han", "Kana")),
        ("sr", ("Cyrillic", "Latin")),
        ("xx", ()),
    ],
)
def test_scripts_of_a_language(codes: str, scripts: tuple[str, ...]) -> None:
    assert {scripts_of(code) for code in codes.split()} == {scripts}


@pytest.mark.parametrize(
    ("text", "language", "share"),
    [
        ("two 2", "en", 1.0),
        ("two", "ru", 0.0),
        ("два two", "ru", 0.5),
        ("三ab", "zh", 0.6),  # a Chinese character weighs three letters
        ("かab", "ja", 0.5),
        ("かな", "zh", 0.0),
        ("漢字", "ja", 1.0),
        ("กำ", "th", 1.0),  # U+0E33 is a letter, marks are none
        ("नमस्ते", "hi", 1.0),
        ("Straße", "de", 1.0),
        ("ＡＢ", "en", 1.0),
        ("12, 3!", "en", None),
        ("text", "xx", None),
        ("", "en", None),
    ],
)
def test_share_of_letters_in_the_script(text: str, language: str, share: float | None) -> None:
    assert script_share(text, language) == share


def test_length_in_letters() -> None:
    assert in_letters("abc d") == 5
    assert in_letters("三十か한é") == 3 + 3 + 2 + 2 + 1


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("zh", "Chinese"),
        ("AR", "Arabic"),
        ("nb", "Norwegian Bokmål"),
        ("pt_BR", "Portuguese (pt_BR)"),
        ("deu-Latn", "German"),
        ("srp_Latn", "Serbian (srp_Latn)"),
        ("zho-Hant", "Chinese (zho-Hant)"),
        ("en-Latn-US", "English (en-Latn-US)"),
        ("tlh", "tlh"),
        ("x-a", "x-a"),
    ],
)
def test_language_has_an_english_name_or_its_code(code: str, name: str) -> None:
    assert language_name(code) == name


ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id
ie ig ii ik in io is it iu iw ja ji jv jw ka kg ki kj kk kl km kn ko ks ku kv kw ky la lb lg li ln
lo lt lu lv mg mh mi mk ml mn mo mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi
pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti
tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
"""Codes of languages, with withdrawn ones such as `iw`, without `kr`."""


def test_countries_are_named_with_their_language_and_languages_are_not() -> None:
    countries = {"cn": "zh", "jp": "ja", "kr": "ko", "cz": "cs", "dk": "da", "gr": "el", "ua": "uk"}
    for country, language in {**countries, "us": "en", "vn": "vi", "at": "de"}.items():
        for code in (country, country.upper(), f"{country}-XX"):
            assert f"`{code}` is a country; did you mean `{language}`?" in describe_country(code)
    codes = f"{ISO_639_1} zho cmn_Hans eng_Latn zh-CN pt_BR EN zh-Hans-CN cmn usa und xx".split()
    assert [code for code in codes if describe_country(code)] == []


@pytest.mark.parametrize(
    ("text", "language", "variants"),
    [
        ("我们说中文", "zh", {"simplified"}),
        ("我們說中文", "zh", {"traditional"}),
        ("我們说中文", "zh-TW", {"simplified", "traditional"}),
        ("好人", "zh", set()),
        ("Добро вече, BBC", "sr", {"Cyrillic"}),
        ("Dobro veče", "sr", {"Latin"}),
        ("Dobro veče", "hr", set()),
        ("東京の学校", "ja", set()),
    ],
)
def test_the_script_of_a_text_is_found_among_two(
    text: str, language: str, variants: set[str]
) -> None:
    assert variants_in(text, language) == variants
    assert in_other_variant(text, language) == (language == "zh-TW")
