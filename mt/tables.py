"""Tables of reports: aligned text columns, and an HTML page.

Wide characters take two terminal cells, combining marks none.
"""

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec

from mt.errors import UserError, install_hint


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


Cell = str | Sequence[tuple[str, bool]]
"""Text of a cell, or its parts, each with True if it is marked."""


@dataclass(frozen=True, slots=True)
class PageSection:
    """Part of a page, in the order of the fields; what is empty is left out."""

    heading: str
    paragraphs: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    right: Collection[int] = ()
    """Columns of numbers, aligned to the right."""
    code: str = ""


def check_html_package() -> None:
    """Raise UserError unless Jinja2 is installed."""
    if find_spec("jinja2") is None:
        raise UserError(f"an HTML page needs Jinja2: {install_hint('report')}")


def render_page(title: str, sections: Sequence[PageSection]) -> str:
    """Return a page that loads no other file."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = files("mt").joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(title=title, sections=sections)
