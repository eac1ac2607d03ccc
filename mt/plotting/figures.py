"""Style, fonts and output files of all pictures."""

import functools
import logging
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from mt.decoding.files import check_output, open_output
from mt.errors import UserError, install_hint

SIGNED, WEIGHTS, HIDDEN = "RdBu_r", "viridis", "#d9d9d9"
"""Colour maps of signed values (zero is white) and of weights; grey for masked cells."""
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00")
"""Colours that the colour-blind can distinguish (Okabe and Ito 2008)."""
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
"""Metadata to leave out, by format, so that the same input gives the same bytes."""
_DOTS_PER_INCH = 120
_MOST_DOTS = 16_000
_CJK_PACKAGE, _CJK_FILE = "notojp_matplotlib", "fonts/NotoSansCJKjp-Regular.otf"
_CJK_FAMILIES = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "Droid Sans Fallback",
)
_MISSING_GLYPH = re.compile(r"Glyph (\d+) ")
_logger = logging.getLogger(__name__)


def check_picture(path: Path) -> None:
    """Raise UserError where no picture can be written to `path`."""
    if _format(path) not in _METADATA:
        raise UserError(f"{path}: not a picture; the name must end in .png or .svg")
    check_output(path)


def write_picture(path: Path, draw: Callable[[], Figure]) -> None:
    """Write the figure that `draw` returns as PNG or SVG, by the suffix of `path`.

    The same figure gives the same bytes, whatever the user's matplotlib settings. An existing file
    is replaced when the new one is complete. Characters without a glyph give one warning.
    """
    with _style(), _missing_glyphs_in_one_warning():
        figure = draw()
        kind = _format(path)
        inches = max(figure.get_size_inches())
        dots = min(_DOTS_PER_INCH, _MOST_DOTS / inches)
        if kind == "png" and dots < _DOTS_PER_INCH / 2:
            _logger.warning("%s: the picture is large and its text tiny; use .svg instead", path)
        with open_output(path) as file:
            figure.savefig(file, format=kind, dpi=dots, metadata=_METADATA[kind])


def line_look(number: int) -> dict[str, Any]:
    """Return colour and dashes of line `number`; the first 35 all differ."""
    dashes = _DASHES[number % len(_DASHES)]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": dashes}


def legend_beside(axes: Axes, **look: Any) -> None:
    """Put the legend to the right of the axes, where it hides no line."""
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), handlelength=3, **look)


@dataclass(frozen=True)
class Tokens:
    """Tokens along an axis, the axis label, and the language code of the tokens."""

    tokens: tuple[str, ...]
    axis: str
    language: str


def label_tokens(axes: Axes, rows: Tokens, columns: Tokens) -> None:
    """Label the rows and columns of a heat map with tokens, in the glyphs of their language."""
    # Chinese and Japanese have different shapes of the same character.
    axes.yaxis.set_ticks(
        range(len(rows.tokens)), [*map(printable, rows.tokens)], language=rows.language
    )
    labels = [downwards(printable(token)) for token in columns.tokens]
    axes.xaxis.set_ticks(
        range(len(labels)), [text for text, _ in labels], language=columns.language
    )
    for label, (_, degrees) in zip(axes.get_xticklabels(), labels, strict=True):
        label.set_rotation(degrees)
    axes.tick_params(length=0, labelsize=8)


def downwards(text: str) -> tuple[str, int]:
    """Return a text for a narrow column, and the degrees to rotate it.

    Text with wide characters, such as Chinese, is written from top to bottom; other words are
    rotated, single characters are not.
    """
    if any(unicodedata.east_asian_width(character) in "WF" for character in text):
        return "\n".join(text), 0
    return text, 90 if len(text) > 1 else 0


def printable(token: str) -> str:
    """Return a token with unprintable characters, such as tabs, as escapes."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)
    return "".join(escaped)


@functools.cache
def font_families() -> tuple[str, ...]:
    """Return the fonts to search for a glyph, in order: Latin and others, then CJK."""
    package = find_spec(_CJK_PACKAGE)  # importing it would change matplotlib's settings
    path = Path(package.origin).parent / _CJK_FILE if package and package.origin else None
    if path is not None and path.is_file():
        fontManager.addfont(path)
        return "DejaVu Sans", "Noto Sans CJK JP"
    installed = set(fontManager.get_font_names())
    return "DejaVu Sans", *[name for name in _CJK_FAMILIES if name in installed][:1]


def _format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": list(font_families()),
                "font.size": 9,
                "axes.titlesize": 10,
                "figure.titlesize": 12,
                "figure.labelsize": 9,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "text.parse_math": False,  # a dollar sign is a token like any other
                "svg.fonttype": "path",  # the viewer may not have the font
                "svg.hashsalt": "mt",
            }
        )
        yield


@contextmanager
def _missing_glyphs_in_one_warning() -> Iterator[None]:
    """Log matplotlib's warnings about single glyphs as one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    missing: dict[str, None] = {}
    for warning in caught:
        if found := _MISSING_GLYPH.match(str(warning.message)):
            missing[chr(int(found[1]))] = None
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if missing:
        remedy = "" if find_spec(_CJK_PACKAGE) else f"; for a CJK font: {install_hint('plot')}"
        _logger.warning("no font has %s: shown as boxes%s", " ".join(missing), remedy)
