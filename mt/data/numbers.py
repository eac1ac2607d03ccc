"""Numbers in digits: those of a text that its translation lacks."""

import re
import unicodedata
from collections import Counter

_SEPARATOR = "[.,'’٬．，\u00a0\u202f ]"
_NUMBER = re.compile(rf"\d{{1,3}}(?:{_SEPARATOR}\d{{2,3}}){{0,5}}{_SEPARATOR}\d{{3}}(?!\d)|\d+")
"""Digits, also with separators of thousands, as they are written in India too."""
_DIGIT = re.compile(r"\d")
_OUTER_ZEROS = re.compile("^0+|(?:000)+$")
_POWER = re.compile(r"\d\s?[万萬亿億千百兆만억천백]")
_LONG = 4
"""Digits of a number that is seldom in words."""


def missing_numbers(source: str, translation: str) -> list[str]:
    """Return the digits of the numbers of a source that a translation lacks.

    Digits are compared, of any script, without separators and thousands. A shorter number may be in
    words: it is missing only if the translation has another one. Nothing is compared if a power of
    ten is a character, as in 5万.
    """
    if not _DIGIT.search(source) or _POWER.search(source) or _POWER.search(translation):
        return []
    read, written = _read_digits(source), _read_digits(translation)
    return [number for number in read - written if written - read or len(number) >= _LONG]


def numbers_differ(source: str, target: str) -> bool:
    """Return True if each side has a number that the other lacks."""
    return bool(missing_numbers(source, target) and missing_numbers(target, source))


def _read_digits(text: str) -> Counter[str]:
    """Return the digits of each number of a text, in ASCII."""
    numbers = Counter[str]()
    for number in _NUMBER.finditer(text):
        digits = [str(unicodedata.decimal(c)) for c in number[0] if c.isdecimal()]
        numbers[_OUTER_ZEROS.sub("", "".join(digits))] += 1
    del numbers[""]
    return numbers
