"""Tables of reports: aligned text columns in terminal cells, and an HTML page."""

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec

import wcwidth

from mt.errors import UserError, install_hint


def make_printable(text: str) -> str:
    """Return `text` on one line, without control characters."""
    line = "".join(" " if c.isspace() else c for c in text)
    return "".join("\ufffd" if unicodedata.category(c) in {"Cc", "Cs"} else c for c in line)


def clip(text: str, width: int) -> str:
    """Return `text` cut to at most `width` cells, with an ellipsis where it is cut."""
    return text if wcwidth.width(text) <= width else f"{wcwidth.clip(text, 0, width - 1)}…"


def align_columns(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return `rows` as aligned columns; the columns in `right` are right-aligned."""
    pads = dict.fromkeys(right, wcwidth.rjust)
    widths = [max(map(wcwidth.width, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            pads.get(column, wcwidth.ljust)(cell, width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


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
