"""Text that a translation repeats unchanged: addresses, placeholders and symbols."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter

from mt.data.placeholders import GENERAL, is_in_order, is_percentage
from mt.data.words import is_unspaced

_ENDS = r"\s<>\"'“”‘’«»，。！？；：、（）【】《》「」"
_NAME = "[A-Za-z0-9_.+-]"
_SYMBOLS = "".join(
    character
    for character in map(chr, range(0x80, 0x2C00))
    if unicodedata.category(character) == "So" or "\u2190" <= character <= "\u21ff"
)
_SIGNS = rf"{_SYMBOLS}§¶†‡\ue000-\uf8ff\U0001f000-\U0001faff\U000f0000-\U0010fffd"
_SIGN = rf"[{_SIGNS}][\ufe0f\U0001f3fb-\U0001f3ff]*"
"""A symbol, arrow or icon, a word of no language, with its variation selector and skin tone."""
_COPIED = re.compile(
    rf"(?i:https?://|www\.)[^{_ENDS}]*[^{_ENDS}.,;:!?)]|(?<![A-Za-z])[A-Za-z]:\\[^{_ENDS}]*"
    rf"|(?<!{_NAME}){_NAME}++@[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)+"
    rf"|{GENERAL.pattern.pattern}|</?[A-Za-z][^<>\s]*+(?:\s[^<>=\n]++=[^<>\n]*+)?>"
    r"|\\(?:[nrt]|[A-Za-z]++(?:\[\w*\]|\{\w*\})?)"
    r"|(?<!\w)\^[^\W_]\w*+"
    r"|(?<![\w+])[A-Z][A-Za-z0-9]*+(?>(?:\+[A-Z0-9][A-Za-z0-9]*)+)(?![\w+])"
    rf"|[\U0001f1e6-\U0001f1ff]{{2}}|[0-9#*]\ufe0f?\u20e3|{_SIGN}(?:\u200d{_SIGN})*"
    r"|\.{3,}|[!?！？]{2,}|(?P<run>[-*=~_#])(?P=run){2,}"
)
_SENTENCE_MARKS = re.compile("[.!?！？]+")
_BRACKETED, _BRACKET = re.compile(r"\[[^\[\]]*+\]"), re.compile(r"[\[［【〔(（]")
_ITEM = r"(?:(?:[-–—*+>•·]|#(?!\s*\d))+|\(?(?:\d{1,3}|[A-Za-z])\)|\d{1,3}\.)(?=\s)"
_BEFORE = re.compile(rf"(?:(?:(?>(?:{_SIGN}\u200d?)+)(?!\w)|{_ITEM})\s*)*")
"""Signs, and the mark or number of an item of a list."""
_BEHIND = re.compile(rf"(?:\s*[{_SIGNS}\ufe0f\u200d]++(?!\w))*\s*")
_BORDER = re.compile(r"(?<![:\\])(?:\t|\\[nrt](?![a-z]))\s*")


def copied_parts(text: str) -> list[str]:
    """Return the addresses, placeholders, symbols and runs of marks of a text."""
    return [part[0] for part in _COPIED.finditer(text)]


def copied_spans(text: str) -> list[tuple[int, int]]:
    """Return the places of the copied parts of a text: start and end."""
    return [part.span() for part in _COPIED.finditer(text)]


def without_copied(text: str) -> str:
    """Return a text with a space in place of each copied part."""
    return _COPIED.sub(" ", text)


def inner_spans(text: str, *, is_first: bool = True) -> list[tuple[int, int]]:
    """Return the parts of a text between tabs and escaped line ends, start and end of each.

    The signs around a part, and the mark or number of a list before it, are not in it. Dashes
    before a sentence that is not the first of its line are no such mark.
    """
    ends = [(place.start(), place.end()) for place in _BORDER.finditer(text)]
    spans = []
    for (_, start), (end, _) in pairwise([(0, 0), *ends, (len(text), 0)]):
        part = text[start:end]
        before, behind = _BEFORE.match(part), _BEHIND.match(part[::-1])
        first, last = before.end() if before else 0, len(part) - (behind.end() if behind else 0)
        is_ordinal = part[:first].rstrip().endswith(".") and part[first : first + 1].islower()
        if is_ordinal or (part[0:1] in {*"-–—"} and not (is_first or start)):
            first = 0
        if not part[last:].strip():
            last = len(part.rstrip()) if ends else len(part)
        if first < last:
            spans.append((start + first, start + last))
    return spans


def change_words(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to a text except to its copied parts."""
    ends = [0, *(end for part in _COPIED.finditer(text) for end in part.span()), len(text)]
    pieces = [text[start:end] for start, end in pairwise(ends)]
    pieces[::2] = map(change, pieces[::2])
    return "".join(pieces)


def missing_verbatim(source: str, translation: str) -> list[str]:
    """Return the copied parts of a source that a translation lacks, and parts in lost brackets.

    Runs of marks at the end of a sentence are not among them: a translation may have others.
    """
    plain = unicodedata.normalize("NFKC", translation)  # for example `…` as `...`
    bracketed = _BRACKETED.findall(without_copied(source)) if "[" in source else []
    has_brackets = len(bracketed) <= len(_BRACKET.findall(without_copied(translation)))
    return ([] if has_brackets else bracketed) + [
        part
        for part, count in Counter(copied_parts(source)).items()
        if not _SENTENCE_MARKS.fullmatch(part)
        and max(translation.count(part), plain.count(unicodedata.normalize("NFKC", part))) < count
        and not is_percentage(part, plain)
    ]


def extract_verbatim(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Return a text without the copied parts that it must keep, and these with their places."""
    rest, parts, end = "", [], 0
    for part in _COPIED.finditer(text):
        if _SENTENCE_MARKS.fullmatch(part[0]):
            continue
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

    `map_position` maps a position in the rest to one in the translation. Placeholders without a
    name or number stay in order.
    """
    positioned = sorted(((map_position(offset), part) for offset, part in parts), key=itemgetter(0))
    in_order = iter([part for _, part in parts if is_in_order(part)])
    text, end = "", 0
    for position, part in [*positioned, (len(translation), "")]:
        between = translation[end:position]
        text = _beside(text, between) if between[:1].isalnum() else text + between
        text = _beside(text, next(in_order) if is_in_order(part) else part)
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
