"""Text in columns: East Asian characters take two cells of a terminal, combining marks none."""

import unicodedata
from collections.abc import Iterable, Sequence


def display_width(text: str) -> int:
    """Return how many cells of a terminal `text` takes (Unicode Standard Annex 11)."""
    return sum(map(_cells, text))


def printable(text: str) -> str:
    """Return `text` on one line, its control characters made harmless to a terminal."""
    return "".join(_visible(character) for character in text)


def wrap(text: str, width: int) -> list[str]:
    """Cut `text` into lines of at most `width` cells: at a space where one is, else anywhere.

    Nothing but the spaces at the cuts is lost; an empty text is one empty line.
    """
    assert width >= 2, "a wide character would not fit"
    lines = []
    while display_width(text) > width:
        cut = _longest_prefix(text, width)
        space = text.rfind(" ", 1, cut + 1)
        cut = space if space > 0 else cut
        lines.append(text[:cut].rstrip(" "))
        text = text[cut:].lstrip(" ")
    return [*lines, text]


def aligned(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return `rows` as lines whose columns start at the same cell; `right`: columns flush right."""
    flush_right = set(right)
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
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
    padding = " " * (width - display_width(cell))
    return padding + cell if side == ">" else cell + padding
