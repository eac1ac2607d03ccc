"""Aligned text columns: wide characters take two terminal cells, combining marks none."""

import unicodedata
from collections.abc import Iterable, Sequence


def measure_width(text: str) -> int:
    """Return the width of `text` in terminal cells (Unicode Standard Annex 11)."""
    return sum(map(_cells, text))


def make_printable(text: str) -> str:
    """Return `text` on one line, without control characters."""
    return "".join(_visible(character) for character in text)


def wrap(text: str, width: int) -> list[str]:
    """Split `text` into lines of at most `width` cells, at a space if possible.

    Only the spaces at the splits are removed; an empty text gives one empty line.
    """
    assert width >= 2, "a wide character would not fit"
    lines = []
    while measure_width(text) > width:
        cut = _longest_prefix(text, width)
        space = text.rfind(" ", 1, cut + 1)
        cut = space if space > 0 else cut
        lines.append(text[:cut].rstrip(" "))
        text = text[cut:].lstrip(" ")
    return [*lines, text]


def clip(text: str, width: int) -> str:
    """Return `text` cut to at most `width` cells, with an ellipsis where it is cut."""
    if measure_width(text) <= width:
        return text
    return f"{text[: _longest_prefix(text, width - 1)]}…"


def align_columns(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return `rows` as aligned columns; the columns in `right` are right-aligned."""
    flush_right = set(right)
    widths = [max(map(measure_width, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            _padded(cell, width, ">" if column in flush_right else "<")
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _cells(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    return "\ufffd" if unicodedata.category(character) in {"Cc", "Cs"} else character


def _longest_prefix(text: str, width: int) -> int:
    cells = 0
    for position, character in enumerate(text):
        cells += _cells(character)
        if cells > width:
            return position
    return len(text)


def _padded(cell: str, width: int, side: str) -> str:
    padding = " " * (width - measure_width(cell))
    return padding + cell if side == ">" else cell + padding
