"""Words and numbers of texts in any script.

A word is a run of letters, marks and digits, with the signs that join it to others (`half-life`,
`C++17`, `cat.txt`, `/usr/bin`). In scripts without spaces each character is a word, and a run of
katakana; dictionaries of ICU say where their words begin and end.
"""

import re
import unicodedata
from collections import Counter
from itertools import accumulate

from icu4py.breakers import WordBreaker

from mt.languages import UNSPACED

_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06ed\u0900-\u0963\u0966-\u0df3\u0f71-\u0f84\u00ad\u200c\u200d"
)
"""Marks inside words that are no letters for regular expressions."""
_RUN = rf"(?:[^\W{UNSPACED}{_KATAKANA}]|[{_MARKS}])+"
WORD = re.compile(
    rf"[{_KATAKANA}]+|[{UNSPACED}]|[/\\@#$<]*{_RUN}(?:[-\u2010\u2011./\\@&+#=~:_·]+{_RUN})*|\S"
)
"""Word, mark, or character of a script without spaces."""
_BETWEEN = re.compile(rf"(?<=[{UNSPACED}])(?=[{UNSPACED}])")
_IN_UNSPACED = re.compile(f"[{UNSPACED}\u3000-\u3004\uff01-\uff65]")
_SEPARATOR = "[.,'’٬．，\u00a0\u202f ]"
_NUMBER = re.compile(rf"\d{{1,3}}(?:{_SEPARATOR}\d{{2,3}}){{0,5}}{_SEPARATOR}\d{{3}}(?!\d)|\d+")
"""Digits, also with separators of thousands, as they are written in India too."""
_DIGIT = re.compile(r"\d")
_OUTER_ZEROS = re.compile("^0+|(?:000)+$")
_POWER = re.compile(r"\d\s?[万萬亿億千百兆만억천백]")
_LONG = 4
"""Digits of a number that is seldom in words."""


def is_unspaced(character: str) -> bool:
    """Test for a letter or mark of scripts without spaces between words."""
    return _IN_UNSPACED.match(character) is not None


def find_inner_places(text: str) -> set[int]:
    """Return the places inside words, where no whole word begins or ends."""
    inner = {at for word in WORD.finditer(text) for at in range(word.start() + 1, word.end())}
    if between := {place.start() for place in _BETWEEN.finditer(text)}:
        inner |= between.difference(accumulate(map(len, WordBreaker(text, "en"))))
    return inner


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
