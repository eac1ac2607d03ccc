"""Pictures as PNG or SVG, and the curves of trainings."""

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from mt.errors import RunError, UserError, install_hint
from mt.evaluation.run_info import read_events
from mt.files import check_output, replace_file, resolved
from mt.runs import JOURNAL_FILE, check_run_folder

_CURVES = (
    (0, "train", "nll", "training"),
    (0, "validation", "loss", "validation"),
    (1, "validation", "bleu", "BLEU"),
    (1, "validation", "chrf", "chrF2"),
    (2, "train", "learning_rate", "learning rate"),
)
"""Panel, event of the journal, its value and name."""
_TITLES = "cross-entropy, nats per target token", "validation", "learning rate"
_METADATA = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
"""Metadata to leave out, by suffix, so that the same input gives the same bytes."""
_DOTS_PER_INCH = 120
_MAX_DOTS = 16_000
_CJK_PACKAGE, _CJK_FILE = "notojp_matplotlib", "fonts/NotoSansCJKjp-Regular.otf"
_logger = logging.getLogger(__name__)


def plot_trainings(runs: Sequence[Path], output: Path | None = None) -> Path:
    """Draw the curves of runs, finished or not; return the picture, by default RUN/training.png."""
    if output is None and len(runs) > 1:
        raise UserError("name the picture of several runs with --output")
    output = output or runs[0] / "training.png"
    points = {run: read_points(run) for run in runs}
    check_picture(output)
    write_picture(output, partial(draw_curves, points))
    return output


def read_points(run: Path) -> list[dict[str, Any]]:
    """Return the events `train` and `validation` of a run; raise RunError if there are none.

    Of updates that a session repeated, after an interruption, the first record is left out.
    """
    check_run_folder(run)
    points: list[dict[str, Any]] = []
    for event in read_events(run / JOURNAL_FILE):
        if event["event"] in {"start", "resume"}:
            points = [point for point in points if point["update"] <= event["update"]]
        elif event["event"] in {"train", "validation"}:
            points.append(event)
    if not points:
        raise RunError(f"{run}: {JOURNAL_FILE} has no losses yet, nor scores")
    return points


def draw_curves(runs: dict[Path, list[dict[str, Any]]]) -> Figure:
    """Return a figure of runs with their losses, scores and learning rate over the updates."""
    figure = Figure(figsize=(8, 9), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True)
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]  # pairs of a hue
    for (number, (run, points)), (panel, kind, key, name) in product(
        enumerate(runs.items()), _CURVES
    ):
        events = [p for p in points if p["event"] == kind and p.get(key) is not None]
        shade = key in {"loss", "chrf"}
        label = f"{name}: {events[-1].get('label', 'valid')}" if panel == 1 and events else name
        panels[panel].plot(
            [event["update"] for event in events],
            [event[key] for event in events],
            {"train": "-", "validation": ".--" if shade else ".-"}[kind],
            color=colours[(2 * number + shade) % len(colours)],
            label=label if len(runs) == 1 else f"{run}: {label}",
        )
    for axes, title in zip(panels, _TITLES, strict=True):
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    panels[2].set_xlabel("update")
    if len(runs) == 1:
        figure.suptitle(str(*runs))
    return figure


def check_picture(path: Path) -> None:
    """Raise UserError where no picture can be written to `path`."""
    if path.suffix.lower() not in _METADATA:
        raise UserError(f"{path}: not a picture; the name must end in .png or .svg")
    check_output(path)


def write_picture(path: Path, draw: Callable[[], Figure]) -> None:
    """Write the figure that `draw` returns as PNG or SVG, by the suffix of `path`.

    The same figure gives the same bytes, whatever the user's matplotlib settings. An existing file
    is replaced when the new one is complete. Characters without a glyph give one warning.
    """
    with matplotlib.rc_context(), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": find_fonts(),
                "font.size": 9,
                "axes.titlesize": 10,
                "figure.titlesize": 12,
                "figure.labelsize": 9,
                "text.parse_math": False,  # a dollar sign is a token like any other
                "svg.fonttype": "path",  # the viewer may not have the font
                "svg.hashsalt": "mt",
            }
        )
        figure = draw()
        dots = min(_DOTS_PER_INCH, _MAX_DOTS / max(figure.get_size_inches()))
        suffix = path.suffix.lower()
        with replace_file(resolved(path)) as file:
            figure.savefig(file, format=suffix[1:], dpi=dots, metadata=_METADATA[suffix])
    if any(str(warning.message).startswith("Glyph") for warning in caught):
        remedy = "" if find_spec(_CJK_PACKAGE) else f"; for a CJK font: {install_hint('plot')}"
        _logger.warning("characters without a glyph in any font are shown as boxes%s", remedy)


@cache
def find_fonts() -> list[str]:
    """Return the fonts to search for a glyph, in order: Latin and others, then CJK."""
    package = find_spec(_CJK_PACKAGE)  # importing it would change matplotlib's settings
    if package is None or package.origin is None:
        return ["DejaVu Sans"]
    fontManager.addfont(Path(package.origin).parent / _CJK_FILE)
    return ["DejaVu Sans", "Noto Sans CJK JP"]
