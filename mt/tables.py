"""Tables of reports: aligned text columns in terminal cells, and rows for a spreadsheet."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence

import wcwidth

CORRECTION = "correction"
"""Column of a spreadsheet that a reviewer of translations fills."""
FORMULA = r"(?=['\s]*[-=+@－＝＋＠])"
"""Start of a cell that a spreadsheet computes, unless an apostrophe stands before it."""


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


def write_row(cells: Iterable[str]) -> str:
    """Return a row of TSV, quoted as in CSV, with an apostrophe before what may be a formula.

    `mt.data.sources.TsvPairs` reads the same texts.
    """
    row = io.StringIO()
    csv.writer(row, delimiter="\t").writerow([re.sub(f"^{FORMULA}", "'", cell) for cell in cells])
    return row.getvalue().removesuffix("\r\n") + "\n"
