"""Text that a translation repeats unchanged: addresses, placeholders, emoji and numbers."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter

from mt.languages import FINAL_MARKS, UNSPACED

MAGNITUDE = re.compile("[万萬亿億千百兆만억]")
"""A power of ten in place of zeros."""
_BETWEEN_DIGITS = re.compile("(?<=\\d)[.,:'’٫٬．，\u00a0\u202f](?=\\d)")
_DIGIT_RUN = re.compile(r"\d+")
_ENDS = r"\s<>\"'“”‘’«»，。！？；：、（）【】《》「」"
_NAME = "[A-Za-z0-9_.+-]"
_EMOJI = (
    "[\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\ufe0f\U0001f3fb-\U0001f3ff]*"
)
"""A character with its variation selector and skin tone."""
_COPIED = re.compile(
    rf"(?i:https?://|www\.)[^{_ENDS}]*[^{_ENDS}.,;:!?)]"
    rf"|(?<!{_NAME}){_NAME}++@[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)+"
    r"|(?<!\{)\$?\{++[^{}\s]*+\}++|%(?:\([A-Za-z0-9_]+\)|[0-9]+\$)?[-+0-9.]*[sdif](?![A-Za-z0-9_])"
    r"|\$[A-Z_][A-Z0-9_]+"
    rf"|[\U0001f1e6-\U0001f1ff]{{2}}|[0-9#*]\ufe0f?\u20e3|{_EMOJI}(?:\u200d{_EMOJI})*"
    r"|\.{3,}|[!?！？]{2,}|([-*=~_#])\1{2,}"
)
_HINT = re.compile(
    r"[\d@{%$]|(?i:www\.)|://|[.!?！？*=~_#-]{2}|[\u20e3\u2300-\u2bff\U0001f000-\U0001faff]"
)
"""Occurs in each copied part and number, so that most sentences need no further search."""
_JOINS = "[.,:/'’\u00a0\u202f–-]"
"""Mark inside a number, date, time or range."""
_LETTER = "A-Za-zªºÀ-ÖØ-öø-ʯͰ-Ͽ\u0400-\u052f"
_NUMBER = re.compile(
    rf"(?<![\d{_LETTER}])(?<!\d{_JOINS})(?<![{_LETTER}]-)(?:(?<!\S)[+−-])?"
    rf"(?:\d{{1,3}}(?: \d{{3}})++(?!\d)|\d(?:{_JOINS}?\d)*+)"
    rf"(?!\s?{MAGNITUDE.pattern}|-?[{_LETTER}])"
)
"""A number of digits alone; 1000万 is another one in most languages, H2O and 21st are words."""
_COPIED_OR_NUMBER = re.compile(
    rf"{_COPIED.pattern}|[$€£¥]?{_NUMBER.pattern}(?:\s?(?:[%‰°]|[€£¥](?!\s?\d)))?"
)
_DIGITS = re.compile(rf"\d(?:{_JOINS}?\d| (?=\d{{3}}(?!\d))\d)*+")
_SEPARATOR = re.compile("[.,'’ \u00a0\u202f]")
_THOUSANDS = re.compile(rf"{_SEPARATOR.pattern}(?=\d{{3}}(?!\d))")
_GROUP = re.compile(r"0*(\d+)")
_IN_WORDS = re.compile(f"[0-9〇零一二两兩三四五六七八九十]\\s?{MAGNITUDE.pattern}")
_FEWEST_DIGITS = 3
"""Digits of a number that is not written in words."""


def copied_parts(text: str) -> list[str]:
    """Return the addresses, placeholders, emoji and runs of marks of a text."""
    return [part[0] for part in _COPIED.finditer(text)]


def without_copied(text: str) -> str:
    """Return a text with a space in place of each copied part."""
    return _COPIED.sub(" ", text) if _HINT.search(text) else text


def change_words(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to a text except to its copied parts."""
    ends = [0, *(end for part in _COPIED.finditer(text) for end in part.span()), len(text)]
    pieces = [text[start:end] for start, end in pairwise(ends)]
    pieces[::2] = map(change, pieces[::2])
    return "".join(pieces)


def missing_verbatim(source: str, translation: str) -> list[str]:
    """Return the parts of a source that a translation lacks; of its numbers, those that differ.

    A short number that the translation may have in words is no difference, nor are digits of
    another script, another separator, and another order of the same groups.
    """
    if not _HINT.search(source):
        return []
    plain = unicodedata.normalize("NFKC", translation)  # for example `…` as `...`
    part_counts = Counter(copied_parts(source))
    missing = [
        part
        for part, count in part_counts.items()
        if max(translation.count(part), plain.count(unicodedata.normalize("NFKC", part))) < count
    ]
    source, translation = without_copied(source), _in_ascii_digits(without_copied(translation))
    numbers = [(number, _in_ascii_digits(number)) for number in _NUMBER.findall(source)]
    written = {_without_thousands(number) for number in _DIGITS.findall(translation)}
    groups = Counter(_GROUP.findall(translation))
    differ = numbers_differ(source, translation)
    in_words = _IN_WORDS.search(translation) is not None
    return missing + [
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


def extract_verbatim(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Return a text without its copied parts and numbers, and these with their places in it."""
    rest, parts, end = "", [], 0
    for part in _COPIED_OR_NUMBER.finditer(text):
        rest += text[end : part.start()]
        end = part.end()
        after = text[end : end + 1]
        if rest.endswith(" ") and not after.isalnum():
            rest = rest[:-1]
        elif not rest and after == " ":
            end += 1
        parts.append((len(rest), part[0]))
    return rest + text[end:], parts


def reinsert(
    translation: str, parts: Sequence[tuple[int, str]], map_position: Callable[[int], int]
) -> str:
    """Return the translation of the rest of `extract_verbatim` with the parts.

    `map_position` maps a position in the rest to one in the translation. A run of marks replaces a
    mark before it.
    """
    positioned = sorted(((map_position(offset), part) for offset, part in parts), key=itemgetter(0))
    text, end = "", 0
    for position, part in [*positioned, (len(translation), "")]:
        between = translation[end:position]
        text = _beside(text, between) if between[:1].isalnum() else text + between
        if part[:1] in [*FINAL_MARKS]:
            text = text.rstrip(FINAL_MARKS)
        text = _beside(text, part)
        end = position
    return text


def _beside(left: str, right: str) -> str:
    """Join two texts, by a space where scripts with spaces need one."""
    last, first = left[-1:], right[:1]
    is_joined = (
        not (left and right)
        or last.isspace()
        or unicodedata.category(last) in {"Ps", "Pi"}
        or first in ".!?！？~"
        or is_unspaced(last)
        or is_unspaced(first)
    )
    return left + right if is_joined else f"{left} {right}"


_UNSPACED = re.compile(f"[{UNSPACED}\u3000-\u3004\uff01-\uff65]")


def is_unspaced(character: str) -> bool:
    """Test for a letter or mark of scripts without spaces between words."""
    return _UNSPACED.match(character) is not None
