"""Text that a translation repeats unchanged: addresses, placeholders, emoji and numbers."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter

from mt.data.pair_checks import MAGNITUDE, numbers_differ

_ENDS = r"\s<>\"'“”‘’«»，。！？；：、（）【】《》「」"
_COPIED = re.compile(
    rf"(?:https?://|www\.)[^{_ENDS}]*[^{_ENDS}.,;:!?)]"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|\$?\{\w*\}|%\(\w+\)[sdif]|%[sdif](?!\w)|\$[A-Z_][A-Z0-9_]+"
    "|[\u2600-\u27bf\U0001f300-\U0001faff]"
    r"|\.{3,}|[!?]{2,}|([-*=~_#])\1{2,}",
    re.ASCII,
)
_NUMBER = re.compile(rf"\d(?:[.,:/\u00a0\u202f-]?\d)*+(?!\s?{MAGNITUDE.pattern})")
"""A number with digits alone: 1000万 is another one in most languages."""
_COPIED_OR_NUMBER = re.compile(
    rf"{_COPIED.pattern}|[$€£¥]?{_NUMBER.pattern}(?:\s?[%‰€£¥°])?", re.ASCII
)
_SEPARATOR = re.compile("[.,\u00a0\u202f]")
_THOUSANDS = re.compile(rf"{_SEPARATOR.pattern}(?=\d{{3}}(?!\d))")
_GROUP = re.compile(r"\d+")
_NUMBER_WORD = re.compile("[〇零一二两兩三四五六七八九十]")
"""Numbers of two digits are often written in these; in other scripts only smaller ones are."""


def copied_parts(text: str) -> list[str]:
    """Return the addresses, placeholders, emoji and runs of marks of a text."""
    return [part[0] for part in _COPIED.finditer(text)]


def without_copied(text: str) -> str:
    """Return a text with a space in place of each copied part."""
    return _COPIED.sub(" ", text)


def change_words(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to a text except to its copied parts."""
    ends = [0, *(end for part in _COPIED.finditer(text) for end in part.span()), len(text)]
    pieces = [text[start:end] for start, end in pairwise(ends)]
    pieces[::2] = map(change, pieces[::2])
    return "".join(pieces)


def not_copied(source: str, translation: str) -> list[str]:
    """Return the parts of a source that a translation lacks; of its numbers, those that differ.

    A short number that the translation may have in words is no difference, nor are another
    separator and another order of the same groups.
    """
    plain = unicodedata.normalize("NFKC", translation)  # for example `…` as `...`
    wanted = Counter(copied_parts(source))
    lacking = [
        part
        for part, count in wanted.items()
        if max(translation.count(part), plain.count(part)) < count
    ]
    source, translation = without_copied(source), without_copied(translation)
    written = _NUMBER.findall(translation)
    numbers = [number for number in _NUMBER.findall(source) if number not in written]
    if not numbers_differ(source, translation):
        fewest = 3 if _NUMBER_WORD.search(translation) else 2
        known = set(map(_without_thousands, written))
        groups = set(_GROUP.findall(translation))
        numbers = [
            number
            for number in numbers
            if sum(map(str.isdigit, number)) >= fewest
            and _without_thousands(number) not in known
            and not groups.issuperset(_GROUP.findall(number))
            and not MAGNITUDE.search(translation)
        ]
    return lacking + numbers


def _without_thousands(number: str) -> str:
    """Return a number without thousands separators and with a point for the decimal one."""
    return _SEPARATOR.sub(".", _THOUSANDS.sub("", number))


def take_out(text: str) -> tuple[str, list[tuple[int, str]]]:
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


def put_back(
    translation: str, parts: Sequence[tuple[int, str]], place: Callable[[int], int]
) -> str:
    """Return the translation of the rest of `take_out` with the parts.

    `place` returns the place in the translation for one in the rest.
    """
    placed = sorted(((place(offset), part) for offset, part in parts), key=itemgetter(0))
    text, end = "", 0
    for at, part in [*placed, (len(translation), "")]:
        between = translation[end:at]
        text = _beside(text, between) if between[:1].isalnum() else text + between
        text = _beside(text, part)
        end = at
    return text


def _beside(left: str, right: str) -> str:
    """Join two texts, by a space where scripts with spaces need one."""
    last, first = left[-1:], right[:1]
    is_joined = (
        not (left and right)
        or last.isspace()
        or unicodedata.category(last) in {"Ps", "Pi"}
        or first in ".!?~"
        or is_wide(last)
        or is_wide(first)
    )
    return left + right if is_joined else f"{left} {right}"


def is_wide(character: str) -> bool:
    """Test for a letter or mark of scripts without spaces."""
    is_wide = unicodedata.east_asian_width(character) in {"W", "F"}
    return is_wide and unicodedata.category(character) != "So"
