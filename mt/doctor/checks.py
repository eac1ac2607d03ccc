"""What is looked for in each pair alone: one row for each check and side."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from mt.data.pair_checks import (
    has_empty_side,
    has_identical_sides,
    has_markup,
    has_mojibake,
    holds_pieces,
    in_wrong_script,
    length_ratio,
    looks_tokenized,
    numbers_differ,
)

MAX_LENGTH_RATIO = 2.5
"""Above that one side is called far longer; a greeting may be twice as long as its translation."""

TextCheck = Callable[[str, str], bool]
"""Of a text and its language."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row: what is found, on which side, and how."""

    kind: str
    side: str
    found: Callable[[str, str], bool]
    """Of both texts where `side` is `pair`, else of the text and its language."""


def _holding(characters: str) -> TextCheck:
    pattern = re.compile(f"[{characters}]")
    return lambda text, _language: pattern.search(text) is not None


_PAIR_CHECKS: dict[str, Callable[[str, str], bool]] = {
    "empty": has_empty_side,
    "identical": has_identical_sides,
    "length_ratio": lambda source, target: length_ratio(source, target) > MAX_LENGTH_RATIO,
    "numbers": numbers_differ,
}
_TEXT_CHECKS: dict[str, TextCheck] = {
    "mojibake": lambda text, _language: has_mojibake(text),
    "wrong_script": in_wrong_script,
    "nul": _holding("\0"),
    "u0085": _holding("\x85"),
    "u2028": _holding("\u2028\u2029"),
    "carriage_return": _holding("\r"),
    "byte_order_mark": _holding("\ufeff"),
    "invisible": _holding("\u200b\u00ad"),
    "tab": _holding("\t"),
    "outer_space": lambda text, _language: text != text.strip(),
    "pieces": lambda text, _language: holds_pieces(text),
    "markup": lambda text, _language: has_markup(text),
    "tokenized": looks_tokenized,
}

CHECKS = (
    *(Check(kind, "pair", found) for kind, found in _PAIR_CHECKS.items()),
    *(
        Check(kind, side, found)
        for kind, found in _TEXT_CHECKS.items()
        for side in ("source", "target")
    ),
)
"""All checks of pairs; each costs its share of the time, and none needs the other pairs."""
