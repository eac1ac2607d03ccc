"""Style, fonts and output files of all pictures."""

import functools
import logging
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from mt.decoding.text_files import open_output
from mt.errors import UserError, escape_line, install_hint
from mt.files import check_output

SIGNED, WEIGHTS, HIDDEN = "RdBu_r", "viridis", "#d9d9d9"
"""Colour maps of signed values (zero is white) and of weights; grey for masked cells."""
_METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
"""Metadata to leave out, by format, so that the same input gives the same bytes."""
_DOTS_PER_INCH = 120
_MAX_DOTS = 16_000
_CJK_PACKAGE, _CJK_FILE = "notojp_matplotlib", "fonts/NotoSansCJKjp-Regular.otf"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenAxis:
    """Tokens along an axis, the axis label, and the language code of the tokens."""

    tokens: tuple[str, ...]
    label: str
    language: str


def check_picture(path: Path) -> None:
    """Raise UserError where no picture can be written to `path`."""
    if _picture_format(path) not in _METADATA:
        raise UserError(f"{path}: not a picture; the name must end in .png or .svg")
    check_output(path)


def write_picture(path: Path, draw: Callable[[], Figure]) -> None:
    """Write the figure that `draw` returns as PNG or SVG, by the suffix of `path`.

    The same figure gives the same bytes, whatever the user's matplotlib settings. An existing file
    is replaced when the new one is complete. Characters without a glyph give one warning.
    """
    with _use_style(), _warn_once_of_missing_glyphs():
        figure = draw()
        dots = min(_DOTS_PER_INCH, _MAX_DOTS / max(figure.get_size_inches()))
        picture_format = _picture_format(path)
        metadata = _METADATA[picture_format]
        with open_output(path) as file:
            figure.savefig(file, format=picture_format, dpi=dots, metadata=metadata)


def label_tokens(axes: Axes, rows: TokenAxis, columns: TokenAxis) -> None:
    """Label the rows and columns of a heat map with tokens, in the glyphs of their language.

    Tokens of columns with wide characters, such as Chinese, are written from top to bottom; others
    are rotated.
    """
    labels = [escape_line(token) for token in rows.tokens]
    # Chinese and Japanese have different shapes of the same character.
    axes.yaxis.set_ticks(range(len(labels)), labels, language=rows.language)
    labels = [escape_line(token) for token in columns.tokens]
    wide = [any(unicodedata.east_asian_width(c) in "WF" for c in label) for label in labels]
    labels = ["\n".join(x) if is_wide else x for x, is_wide in zip(labels, wide, strict=True)]
    axes.xaxis.set_ticks(range(len(labels)), labels, language=columns.language)
    for label, is_wide in zip(axes.get_xticklabels(), wide, strict=True):
        label.set_rotation(0 if is_wide else 90)
    axes.tick_params(length=0, labelsize=8)


def _picture_format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


@functools.cache
def _find_fonts() -> list[str]:
    """Return the fonts to search for a glyph, in order: Latin and others, then CJK."""
    package = find_spec(_CJK_PACKAGE)  # importing it would change matplotlib's settings
    if package is None or package.origin is None:
        return ["DejaVu Sans"]
    fontManager.addfont(Path(package.origin).parent / _CJK_FILE)
    return ["DejaVu Sans", "Noto Sans CJK JP"]


@contextmanager
def _use_style() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": _find_fonts(),
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
def _warn_once_of_missing_glyphs() -> Iterator[None]:
    """Log matplotlib's warnings about single glyphs as one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph")
        yield
    if any(str(warning.message).startswith("Glyph") for warning in caught):
        remedy = "" if find_spec(_CJK_PACKAGE) else f"; for a CJK font: {install_hint('plot')}"
        _logger.warning("characters without a glyph in any font are shown as boxes%s", remedy)
