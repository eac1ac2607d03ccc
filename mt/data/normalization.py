"""Normal form of text in front of a tokenizer; the same in training and use.

Readers see no difference between the forms that are made equal here: composed and decomposed
letters (NFC, Unicode Standard Annex 15), kinds of spaces, invisible marks, widths and ligatures.
ZWJ, ZWNJ and variation selectors stay, because scripts and emoji need them, and so does the wide
punctuation of Chinese and Japanese.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, permutations, product

_JUNK = "\u00ad\u2060\ufeff"
"""Marks of typesetting that belong to no text: soft hyphen, word joiner, byte order mark."""
_MARKS = (
    f"{_JUNK}\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u034f\u061c\u200b\u200e\u200f\u202a-\u202e"
    "\u2061-\u2064\u2066-\u206f\ufff9-\ufffb\U000e0100-\U000e01ef"
)
_LINE_END = "\x0b\x0c\x1c-\x1f\x85\u2028\u2029"
_WIDE = "\uff10-\uff19\uff21-\uff3a\uff41-\uff5a"
_OTHER_FORMS = (
    "\uff61-\uff9f\ufb00-\ufb06\ufb13-\ufb17\ufb50-\ufd3d\ufd50-\ufdc7\ufdf0-\ufdf9\ufe80-\ufefc"
    "\U0001d400-\U0001d7ff"
)
"""Narrow kana, ligatures, forms of Arabic letters, and letters in the styles of formulas."""
_CHANGED = re.compile(rf"[\s{_MARKS}{_WIDE}{_OTHER_FORMS}](?:(?<! )| )")
INVISIBLE = re.compile(f"[{_MARKS}]+")
"""Invisible characters."""
_ENDS = re.compile(
    rf"\A\s*+[{_MARKS}][\s{_MARKS}]*+|(?<![\s{_MARKS}])\s*+[{_MARKS}][\s{_MARKS}]*+\Z"
)
_SPACES = re.compile(r"\s+")
_FORMS = re.compile(
    rf"[{_WIDE}](?:[\uff01-\uff5e\u3000]*(?<=[{_WIDE}]))?(?:[！．？](?=\s|\Z))?|[{_OTHER_FORMS}]+"
)
_LETTER = rf"[^\W_{_WIDE}{_OTHER_FORMS}\u1100-\u11ff]"
_BETWEEN_LETTERS = re.compile(f"(?<={_LETTER})(?={_LETTER})")
"""Places where the forms of both sides do not depend on each other."""
_LONGEST_SEGMENT = 100
_IN_TARGETS = re.compile(f"[{_JUNK}{_LINE_END}]")


def normalize_source(text: str) -> str:
    """Return a source text in its normal form.

    A run of white space becomes one space; at an end with invisible marks, it goes with them.
    Letters and digits of full width become those of ASCII, with the marks between them.
    """
    if _CHANGED.search(text):
        text = INVISIBLE.sub("", _ENDS.sub("", text))
        text = _FORMS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
        text = _SPACES.sub(" ", text)
    return _compose(text)


def normalize_target(text: str) -> str:
    """Return a target text in its normal form.

    It keeps the spaces, widths and marks that its readers expect, such as the no-break spaces of
    French, and loses line ends, soft hyphens, word joiners and byte order marks.
    """
    return _compose(_IN_TARGETS.sub(lambda match: "" if match[0] in _JUNK else " ", text))


def _compose(text: str) -> str:
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return text
    return unicodedata.normalize("NFC", text)


def split_by_form(text: str, normalize: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield the shortest parts of a text, each with its normal form.

    The forms in turn are that of the text. A long part without neighbouring letters stays whole.
    """
    for segment in _BETWEEN_LETTERS.split(text):
        whole = normalize(segment)
        if whole == segment:
            yield from zip(segment, segment, strict=True)
            continue
        begin = first = 0
        for end in range(1, len(segment) + 1) if len(segment) <= _LONGEST_SEGMENT else ():
            left, right = segment[:end], segment[end:]
            # With a letter at the cut, marks beside it are not at an end of the text.
            starts = normalize(left), normalize(f"{left}a")[:-1]
            rests = normalize(right), normalize(f"a{right}")[1:]
            lasts = [len(start) for start in starts for rest in rests if start + rest == whole]
            if lasts and max(lasts) >= first:
                yield segment[begin:end], whole[first : max(lasts)]
                begin, first = end, max(lasts)
        if begin < len(segment):
            yield segment[begin:], whole[first:]


_LAST_CODE, _SELECTORS = 0x30000, range(0xE0100, 0xE01F0)
_FREQUENT_SPACES, _LONGEST_SPACE = " \t\xa0\u202f\u3000", 8


@cache
def list_rules(normalize: Callable[[str], str]) -> dict[str, str]:
    """Return the normal forms of characters, and of sequences that have one of their own.

    These are rules for SentencePiece, which replaces the longest of them at each place. Rare orders
    of combining marks, and the punctuation between letters of full width, are not among them.
    """
    characters = [*map(chr, chain(range(1, _LAST_CODE), _SELECTORS))]
    spaces = [character for character in characters if character.isspace()]
    decompositions = [  # a base and its marks in any order, some of them composed
        unicodedata.normalize("NFC", letters[0] + "".join(order[:count])) + "".join(order[count:])
        for letters in (unicodedata.normalize("NFD", character) for character in characters)
        for order in permutations(letters[1:])
        for count in range(len(order))
    ]
    texts: Iterable[str] = chain(
        (character for character in characters if not "\ud800" <= character <= "\udfff"),
        decompositions,
        map("".join, product(spaces, spaces)),
        map("".join, product(_FREQUENT_SPACES, repeat=3)),
        map("".join, product(_FREQUENT_SPACES, repeat=4)),
        (" " * count for count in range(2, _LONGEST_SPACE + 1)),
        map("".join, product(map(chr, range(0xFF66, 0xFF9E)), "\uff9e\uff9f")),
    )
    return {text: form for text in texts if (form := normalize(text)) != text}
