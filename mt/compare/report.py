"""Report of a comparison: text for a terminal, and a self-contained HTML page with charts."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from io import StringIO
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from mt.compare.compare import LENGTH, MIN_SENTENCES, Changed, Comparison, Slice, differing_parts
from mt.compare.differences import CURVES, Curve
from mt.compare.significance import SIGNIFICANT, PairedScore
from mt.errors import UserError, install_hint
from mt.tables import aligned, display_width, printable, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 100
_LABEL = 13
_TESTS = {"bootstrap": "paired bootstrap", "randomization": "approximate randomisation"}
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#aa3377"),
    *("#8a6d00", "#56b4e9", "#666666", "#000000"),
)
"""Colour of each system, distinct for colour-blind readers (after Okabe and Ito)."""


def as_text(comparison: Comparison) -> str:
    """Return the comparison without charts, at most 100 cells wide except for signatures."""
    parts = [
        _head(comparison),
        _scores(comparison),
        "\n".join(notes(comparison)),
        _slices(comparison),
        _differences(comparison),
        *(_changed(comparison, each) for each in comparison.changed),
    ]
    return "\n\n".join(part for part in parts if part)


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield explanations of the scores and their signatures."""
    tests = sum(score.p_value is not None for row in comparison.scores for score in row)
    yield (
        f"p: {_TESTS[comparison.test]}, {comparison.samples} samples, each system against A; "
        f"a difference is significant below {SIGNIFICANT}"
    )
    yield "difference: score minus that of A, ± half of its 95 % paired bootstrap interval"
    if tests > 2:
        yield (
            f"with {tests} tests, some p-values are small by chance; divide {SIGNIFICANT} by "
            f"{tests} to be sure"
        )
    for row in comparison.scores:
        for signature in dict.fromkeys(score.signature for score in row):
            yield f"{row[0].metric}: {signature}"


def _head(comparison: Comparison) -> str:
    rows = [
        f"{letter}  {_cut(name, _WIDTH - 16)}"
        for letter, name in zip(comparison.letters, comparison.systems, strict=True)
    ]
    rows[0] += "  (baseline)"
    count = f"{comparison.sentences} sentence{'' if comparison.sentences == 1 else 's'}"
    rows.append(f"on {_cut(comparison.test_set, _WIDTH - 30)}: {count}")
    return "\n".join(rows)


def _scores(comparison: Comparison) -> str:
    rows = [["metric", "", "score", "95 % interval", "difference", "p", "against A"]]
    for row in comparison.scores:
        for letter, score in zip(comparison.letters, row, strict=True):
            rows.append([score.metric, letter, *_score_cells(score)])
    return aligned(rows, right=[2, 4, 5])


def _score_cells(score: PairedScore) -> list[str]:
    cells = [f"{score.value:.2f}", score.interval.as_text()]
    if score.difference is None or score.difference_interval is None or score.p_value is None:
        return [*cells, "", "", ""]
    difference = f"{score.difference:+.2f} ± {score.difference_interval.half_width:.2f}"
    digits = 4 if score.p_value < 0.01 else 3 if score.p_value < 0.1 else 2
    return [*cells, difference, f"{score.p_value:.{digits}f}", score.outcome]


def _slices(comparison: Comparison) -> str:
    """Return a table of BLEU and chrF2 by slice: scores of A, differences of the others."""
    others = comparison.letters[1:]
    heads = ["A", *(f"{letter}-A" for letter in others)]
    metrics: dict[str, Callable[[Slice], Sequence[float]]] = {
        "BLEU": lambda part: part.bleu,
        "chrF2": lambda part: part.chrf,
    }
    tables = []
    # Both metrics fit next to each other for up to three systems.
    for names in [list(metrics)] if len(others) < 3 else [[name] for name in metrics]:
        head = [f"{name} {each}" if each == "A" else each for name in names for each in heads]
        rows: list[list[str]] = []
        for group, parts in groupby(comparison.slices, attrgetter("group")):
            rows.append([group, *([""] * (len(head) + 1) if rows else ["sentences", *head])])
            for part in parts:
                cells = [cell for name in names for cell in _slice_cells(part, metrics[name](part))]
                rows.append([f"  {part.name}", str(part.sentences), *cells])
        tables.append(aligned(rows, right=range(1, len(head) + 2)))
    note = f"slices {comparison.sliced_by}; (n): below {MIN_SENTENCES} sentences, no verdict"
    return "\n\n".join([*tables, "\n".join(wrap(note, _WIDTH))])


def _slice_cells(part: Slice, scores: Sequence[float]) -> list[str]:
    if part.too_small:
        return [f"({scores[0]:.2f})", *("(n)" for _ in scores[1:])]
    return [f"{scores[0]:.2f}", *(f"{score - scores[0]:+.2f}" for score in scores[1:])]


def _differences(comparison: Comparison) -> str:
    """Return a table of the differences between runs, long values cut."""
    if not comparison.differences:
        return ""
    key_width = min(max(len(each.key) for each in comparison.differences), 44)
    room = (_WIDTH - key_width - 2 - 2 * len(comparison.systems)) // len(comparison.systems)
    rows = [["what differs", *comparison.letters]]
    for each in comparison.differences:
        values = ("-" if value is None else value for value in each.values)
        rows.append([_cut(each.key, key_width), *(_cut(value, room) for value in values)])
    return aligned(rows)


def _changed(comparison: Comparison, changed: Changed) -> str:
    letter = comparison.letters[changed.system]
    before, after = changed.chrf
    fields = [
        *([("source", changed.source)] if changed.source else []),
        *(("reference", reference) for reference in dict.fromkeys(changed.references)),
        ("A", changed.baseline),
        (letter, changed.translation),
    ]
    lines = [
        f"line {changed.line}: chrF2 {before:.1f} in A, {after:.1f} in {letter} "
        f"({changed.gain:+.1f})"
    ]
    for name, text in fields:
        first, *rest = wrap(printable(text), _WIDTH - _LABEL)
        lines += [f"{name:>{_LABEL - 2}}  {first}", *(" " * _LABEL + line for line in rest)]
    return "\n".join(line.rstrip() for line in lines)


def _cut(text: str, width: int) -> str:
    """Return `text` on one line, with the middle cut out if it is too long."""
    text = printable(text)
    if display_width(text) <= width:
        return text
    half = max((width - 1) // 2, 1)
    return f"{text[:half]}…{text[-half:]}"


def require_html() -> None:
    """Raise UserError unless the packages that `as_html` needs are installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(f"--html needs Jinja2 and matplotlib: {install_hint('report')}") from None


def as_html(comparison: Comparison) -> str:
    """Return a page that loads no other file; equal comparisons give equal bytes."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters["groupby_in_order"] = _groups
    page = files("mt.compare").joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(page).render(
        comparison=comparison,
        colours=COLOURS,
        notes=list(notes(comparison)),
        charts=list(_charts(comparison)),
        score_cells=_score_cells,
        differing_parts=differing_parts,
        min_sentences=MIN_SENTENCES,
    )


def _groups(items: Iterable[Any], name: str) -> list[tuple[Any, list[Any]]]:
    """Group neighbours by an attribute; Jinja's own filter sorts."""
    return [(key, list(group)) for key, group in groupby(items, attrgetter(name))]


def _charts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield a caption and an SVG for each chart."""
    tests = sum(len(row) - 1 for row in comparison.scores)
    draw = partial(_draw_differences, comparison=comparison)
    yield "Difference from A, with 95 % interval", _svg(draw, height=1.2 + 0.3 * tests)
    parts = [part for part in comparison.slices if part.group == LENGTH and not part.too_small]
    if len(parts) > 1:
        for metric, values in (
            ("BLEU", [part.bleu for part in parts]),
            ("chrF2", [part.chrf for part in parts]),
        ):
            yield f"{metric} by length", _svg(partial(_draw_lengths, parts=parts, values=values))
    for key, name in CURVES.items():
        if curves := [curve for curve in comparison.curves if curve.key == key]:
            yield name, _svg(partial(_draw_curves, curves=curves))


def _draw_differences(axes: "Axes", *, comparison: Comparison) -> None:
    names: list[str] = []
    for row in comparison.scores:
        better = " (lower is better)" if row[0].metric == "TER" else ""
        for place, score in enumerate(row):
            if score.difference is None or score.difference_interval is None:
                continue
            interval = score.difference_interval
            colour, y = COLOURS[place], len(names)
            low, high = interval.mean - interval.half_width, interval.mean + interval.half_width
            axes.plot([low, high], [y, y], color=colour, linewidth=2, solid_capstyle="butt")
            axes.plot([score.difference], [y], color=colour, marker="o", linestyle="none")
            names.append(f"{score.metric}, {comparison.letters[place]}{better}")
    axes.axvline(0.0, color="#b00020", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _draw_lengths(
    axes: "Axes", *, parts: Sequence[Slice], values: Sequence[Sequence[float]]
) -> None:
    names = [part.name.rpartition(" ")[0].replace(" to ", "–") for part in parts]
    width = 0.8 / len(values[0])
    for place, scores in enumerate(zip(*values, strict=True)):
        left = [number - 0.4 + place * width for number in range(len(parts))]
        axes.bar(left, scores, width * 0.92, align="edge", color=COLOURS[place])
    axes.set_xticks(range(len(parts)), names)
    axes.set_xlabel(parts[0].name.rpartition(" ")[2])


def _draw_curves(axes: "Axes", *, curves: Sequence[Curve]) -> None:
    for curve in curves:
        updates, values = zip(*curve.points, strict=True)
        axes.plot(updates, values, color=COLOURS[curve.system], marker="o", markersize=4)
    axes.set_xlabel("updates")


def _svg(draw: Callable[["Axes"], None], *, height: float = 3.0) -> str:
    """Return a chart as an SVG element without a date, fonts or unused identifiers."""
    import matplotlib
    from matplotlib.figure import Figure

    buffer = StringIO()
    with matplotlib.rc_context(
        {"svg.hashsalt": "mt", "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    ):
        figure = Figure(figsize=(6.0, height), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#ddd", linewidth=0.6)
        axes.set_axisbelow(True)
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    # Several charts are on one page, where an identifier may occur only once.
    used = set(re.findall(r"#([\w-]+)", svg))
    return re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", svg)
