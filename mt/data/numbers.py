"""Numbers in digits: the same ones on both sides, and those that a translation lacks."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

MAGNITUDE = re.compile("[万萬亿億千百兆만억]")
"""A power of ten in place of zeros."""
_BETWEEN_DIGITS = re.compile("(?<=\\d)[.,:'’٫٬．，\u00a0\u202f](?=\\d)")
_DIGIT_RUN = re.compile(r"\d+")
_JOINS = "[.,:/'’\u00a0\u202f–-]"
"""Mark inside a number, date, time or range."""
_LETTER = "A-Za-zªºÀ-ÖØ-öø-ʯͰ-Ͽ\u0400-\u052f"
NUMBER = re.compile(
    rf"(?<![\d{_LETTER}])(?<!\d{_JOINS})(?<![{_LETTER}]-)(?:(?<!\S)[+−-])?"
    rf"(?:\d{{1,3}}(?: \d{{3}})++(?!\d)|\d(?:{_JOINS}?\d)*+)"
    rf"(?!\s?{MAGNITUDE.pattern}|-?[{_LETTER}])"
)
"""A number of digits alone; 1000万 is another one in most languages, H2O and 21st are words."""
_DIGITS = re.compile(rf"\d(?:{_JOINS}?\d| (?=\d{{3}}(?!\d))\d)*+")
_SEPARATOR = re.compile("[.,'’ \u00a0\u202f]")
_THOUSANDS = re.compile(rf"{_SEPARATOR.pattern}(?=\d{{3}}(?!\d))")
_GROUP = re.compile(r"0*(\d+)")
_IN_WORDS = re.compile(f"[0-9〇零一二两兩三四五六七八九十]\\s?{MAGNITUDE.pattern}")
_FEWEST_DIGITS = 3
"""Digits of a number that is not written in words."""


def missing_numbers(source: str, translation: str) -> list[str]:
    """Return the numbers of a source that a translation lacks, if both differ.

    A short number that the translation may have in words is no difference, nor are digits of
    another script, another separator, and another order of the same groups.
    """
    translation = _in_ascii_digits(translation)
    numbers = [(number, _in_ascii_digits(number)) for number in NUMBER.findall(source)]
    written = {_without_thousands(number) for number in _DIGITS.findall(translation)}
    groups = Counter(_GROUP.findall(translation))
    differ = numbers_differ(source, translation)
    in_words = _IN_WORDS.search(translation) is not None
    return [
        number
        for number, digits in numbers
        if _without_thousands(digits) not in written
        and Counter(_GROUP.findall(digits)) - groups
        and (differ or (_is_not_written_in_words(digits) and not in_words))
    ]


def numbers_differ(source: str, target: str) -> bool:
    """Return True if each side has a number that the other lacks.

    Numbers are digits of any script without leading zeros. They are compared without separators
    (`1,000` is `1.000`), by groups (`6:30` is `6 Uhr 30`), and in texts with 万 or the like without
    trailing zeros (`40,000` is `4万`); all three must differ. A number on one side alone is no
    difference, since the other may have a number word.
    """
    if not (_DIGIT_RUN.search(source) and _DIGIT_RUN.search(target)):
        return False
    whole_left, whole_right = _BETWEEN_DIGITS.sub("", source), _BETWEEN_DIGITS.sub("", target)
    if not _unlike(_numbers(whole_left), _numbers(whole_right)):
        return False
    if not _unlike(_numbers(source), _numbers(target)):
        return False
    if not MAGNITUDE.search(source + target):
        return True
    return _unlike(
        [number.rstrip("0") for number in _numbers(whole_left)],
        [number.rstrip("0") for number in _numbers(whole_right)],
    )


def _unlike(left: Iterable[str], right: Iterable[str]) -> bool:
    one, other = Counter(left), Counter(right)
    return bool(one - other) and bool(other - one)


def _numbers(text: str) -> list[str]:
    numbers = ("".join(str(int(digit)) for digit in digits) for digits in _DIGIT_RUN.findall(text))
    return [digits.lstrip("0") or "0" for digits in numbers]


def _is_not_written_in_words(number: str) -> bool:
    digits = sum(map(str.isdigit, number))
    return digits >= _FEWEST_DIGITS or digits < len(number.lstrip("+−-"))


def _without_thousands(number: str) -> str:
    """Return a number without sign and thousands separators, with a point for the decimal one."""
    return _SEPARATOR.sub(".", _THOUSANDS.sub("", number.lstrip("+−-")))


def _in_ascii_digits(text: str) -> str:
    if text.isascii():
        return text
    return "".join(
        str(unicodedata.decimal(character)) if character.isdecimal() else character
        for character in text
    )
