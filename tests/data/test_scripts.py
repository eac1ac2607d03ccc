"""The script of a language, against what the Unicode database says of single characters."""

import re
import sys
import unicodedata
from collections import Counter

import pytest

from mt.languages import (
    _LANGUAGES,
    _RANGES,
    count_in,
    in_letters,
    letters_in,
    script_share,
    scripts_of,
)

NAMES = {
    "Latin": ("LATIN",),
    "Greek": ("GREEK",),
    "Cyrillic": ("CYRILLIC",),
    "Armenian": ("ARMENIAN",),
    "Georgian": ("GEORGIAN",),
    "Hebrew": ("HEBREW",),
    "Arabic": ("ARABIC",),
    "Devanagari": ("DEVANAGARI",),
    "Thai": ("THAI",),
    "Han": ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH"),
    "Kana": ("HIRAGANA", "KATAKANA"),
    "Hangul": ("HANGUL",),
}
"""How the names of a script's letters begin."""


@pytest.mark.parametrize("script", NAMES)
def test_ranges_hold_the_letters_that_unicode_names_so(script: str) -> None:
    """Blocks above U+1CFF that are rare (phonetic, mathematical, forms) may be missing in part."""
    letters = [
        chr(code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code))[0] == "L"
        and unicodedata.name(chr(code), "").startswith(NAMES[script])
    ]
    inside = {letter for letter in letters if count_in(letter, script)}
    assert {letter for letter in letters if ord(letter) < 0x1D00} <= inside
    assert len(inside) >= 0.8 * len(letters)


def test_no_letter_is_in_two_scripts() -> None:
    letters = "".join(filter(str.isalpha, map(chr, range(sys.maxunicode + 1))))
    found = Counter[str]()
    for script in _RANGES:
        found.update(re.findall(f"[{letters_in(script)}]", letters))
    assert [letter for letter, scripts in found.items() if scripts > 1] == []
    assert len(found) > 95_000


def test_every_script_and_language_of_the_table_is_there_once() -> None:
    codes = [code for codes in _LANGUAGES.values() for code in codes.split()]
    assert len(codes) == len(set(codes))
    assert {script for scripts in _LANGUAGES for script in scripts} == set(_RANGES)


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        ("en", ("Latin",)),
        ("zh-TW", ("Han",)),
        ("lzh", ("Han",)),
        ("jpn", ("Han", "Kana")),
        ("sr", ("Cyrillic", "Latin")),
        ("sr-Latn", ("Latin",)),
        ("zh_Latn", ("Latin",)),
        ("zh_Hant", ("Han",)),
        ("pt-BR", ("Latin",)),
        ("xx", ()),
    ],
)
def test_scripts_of_a_language(language: str, scripts: tuple[str, ...]) -> None:
    assert scripts_of(language) == scripts


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
def test_the_share_of_letters_in_the_script(text: str, language: str, share: float | None) -> None:
    assert script_share(text, language) == share


def test_length_in_letters() -> None:
    assert in_letters("abc d") == 5
    assert in_letters("三十か한é") == 3 + 3 + 2 + 2 + 1
