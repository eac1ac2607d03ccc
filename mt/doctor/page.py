"""HTML page of a report: paragraphs, tables and code, in one template for all reports."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec

from mt.errors import UserError, install_hint

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
    template = files("mt.doctor").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(title=title, sections=sections)
