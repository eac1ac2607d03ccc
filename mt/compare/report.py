"""A comparison as one page that needs no other file: tables, plots in SVG, sentences, marked."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mt.compare.compare import Changed, Comparison, differing_parts
from mt.compare.differences import CURVES
from mt.compare.significance import SIGNIFICANT, PairedScore
from mt.compare.slices import LENGTH, MIN_SENTENCES, Slice
from mt.tables import aligned, display_width, printable, wrap

_WIDTH = 100
_TESTS = {"bootstrap": "paired bootstrap", "randomization": "approximate randomisation"}
_LABEL = 13


def as_text(comparison: Comparison) -> str:
    """Return everything but the curves; each signature is named once, below the scores."""
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
    """Yield what is needed to read the scores right, their signatures at the end."""
    tests = sum(score.p_value is not None for row in comparison.scores for score in row)
    yield (
        f"p: {_TESTS[comparison.test]}, {comparison.samples} samples, each system against A; "
        f"below {SIGNIFICANT} a difference counts"
    )
    if tests > 2:
        yield (
            f"with {tests} tests at once some p-value is small by chance; divide {SIGNIFICANT} by "
            f"{tests} to be sure"
        )
    for row in comparison.scores:
        for signature in dict.fromkeys(score.signature for score in row):
            yield f"{row[0].metric}: {signature}"


def p_text(p_value: float) -> str:
    """Return a p-value with as many digits as tell something."""
    digits = 4 if p_value < 0.01 else 3 if p_value < 0.1 else 2
    return f"{p_value:.{digits}f}"


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
    rows = [["metric", "", "score", "95 % interval", "difference", "p", "beside A"]]
    for row in comparison.scores:
        for letter, score in zip(comparison.letters, row, strict=True):
            rows.append([score.metric, letter, *_score_cells(score)])
    return aligned(rows, right=[2, 4, 5])


def _score_cells(score: PairedScore) -> list[str]:
    cells = [f"{score.value:.2f}", score.interval.as_text()]
    if score.difference is None or score.p_value is None:
        return [*cells, "", "", ""]
    return [*cells, f"{score.difference:+.2f}", p_text(score.p_value), score.outcome]


def _slices(comparison: Comparison) -> str:
    """Return a table of BLEU and chrF2 by slice: A's, and the differences of the others."""
    others = comparison.letters[1:]
    heads = ["A", *(f"{letter}-A" for letter in others)]
    metrics = {"BLEU": lambda part: part.bleu, "chrF2": lambda part: part.chrf}
    tables = []
    # Side by side as long as they fit.
    for names in [list(metrics)] if len(others) < 3 else [[name] for name in metrics]:
        head = [f"{name} {each}" if each == "A" else each for name in names for each in heads]
        rows = [[comparison.slices[0].group, "sentences", *head]]
        group = rows[0][0]
        for part in comparison.slices:
            if part.group != group:
                rows.append([part.group, *[""] * (len(head) + 1)])
                group = part.group
            cells = [cell for name in names for cell in _slice_cells(part, metrics[name](part))]
            rows.append([f"  {part.name}", str(part.sentences), *cells])
        tables.append(aligned(rows, right=range(1, len(head) + 2)))
    told = f"slices {comparison.sliced_by}; (n): below {MIN_SENTENCES} sentences, no verdict"
    return "\n\n".join([*tables, "\n".join(wrap(told, _WIDTH))])


def _slice_cells(part: Slice, scores: Sequence[float]) -> list[str]:
    if part.too_small:
        return [f"({scores[0]:.2f})", *("(n)" for _ in scores[1:])]
    return [f"{scores[0]:.2f}", *(f"{score - scores[0]:+.2f}" for score in scores[1:])]


def _differences(comparison: Comparison) -> str:
    """Return what is not the same in all runs; long values are cut."""
    if not comparison.differences:
        return ""
    longest = max(len(each.key) for each in comparison.differences)
    key_width = min(longest, 44)
    room = (_WIDTH - key_width - 2 - 2 * len(comparison.systems)) // len(comparison.systems)
    rows = [["what differs", *comparison.letters]]
    for each in comparison.differences:
        values = ("-" if value is None else value for value in each.values)
        rows.append([_cut(each.key, key_width), *(_cut(value, room) for value in values)])
    return aligned(rows)


def _changed(comparison: Comparison, changed: Changed) -> str:
    letter = comparison.letters[changed.system]
    before, after = changed.chrf
    head = (
        f"line {changed.line}: chrF2 {before:.1f} in A, {after:.1f} in {letter} "
        f"({changed.gain:+.1f})"
    )
    fields = [
        ("source", changed.source),
        *(("reference", reference) for reference in dict.fromkeys(changed.references)),
        ("A", changed.baseline),
        (letter, changed.translation),
    ]
    lines = [head]
    for name, text in fields[0 if changed.source else 1 :]:
        first, *rest = wrap(printable(text), _WIDTH - _LABEL)
        lines += [f"{name:>{_LABEL - 2}}  {first}", *(" " * _LABEL + line for line in rest)]
    return "\n".join(line.rstrip() for line in lines)


def _cut(text: str, width: int) -> str:
    """Return `text` on one line, its middle left out where it is too long."""
    text = printable(text)
    if display_width(text) <= width:
        return text
    half = max((width - 1) // 2, 1)
    return f"{text[:half]}…{text[-half:]}"


COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#aa3377",
    "#8a6d00",
    "#56b4e9",
    "#666666",
    "#000000",
)
"""A colour for each system, told apart by colour-blind readers too (after Okabe and Ito)."""
_WIDTH_charts, _HEIGHT = 480, 240
_LEFT, _TOP, _BOTTOM = 48, 12, 44
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """The numbers of one system."""

    system: int
    """Its place, which chooses the colour."""
    points: tuple[tuple[float, float], ...]


def line_chart(series: Sequence[Series], *, x_name: str) -> str:
    """Draw a line for each system; a single point is a dot."""
    points = [point for each in series for point in each.points]
    x_axis = _axis([x for x, _ in points])
    y_axis = _axis([y for _, y in points])
    inner = [*_grid(y_axis), *_x_ticks(x_axis), _x_name(x_name)]
    for each in series:
        colour = COLOURS[each.system]
        places = [(_x(x, x_axis), _y(y, y_axis)) for x, y in each.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        inner.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        inner += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">'
            f"<title>{at:g}: {value:.2f}</title></circle>"
            for (x, y), (at, value) in zip(places, each.points, strict=True)
        ]
    return _svg(inner)


def bar_chart(groups: Sequence[tuple[str, Sequence[float]]], *, x_name: str) -> str:
    """Draw a group of bars for each name, from 0; a bar is a system."""
    most = max(value for _, values in groups for value in values)
    axis = 0.0, _ticks(0.0, max(most, 1.0))[-1]
    inner = [*_grid(axis), _x_name(x_name)]
    room = (_WIDTH_charts - _LEFT) / len(groups)
    for place, (name, values) in enumerate(groups):
        left, width = _LEFT + room * (place + 0.1), room * 0.8 / len(values)
        for number, value in enumerate(values):
            top = _y(value, axis)
            inner.append(
                f'<rect x="{left + number * width:.1f}" y="{top:.1f}" width="{width * 0.92:.1f}" '
                f'height="{_HEIGHT - _BOTTOM - top:.1f}" fill="{COLOURS[number]}">'
                f"<title>{escape(name)}: {value:.2f}</title></rect>"
            )
        inner.append(_text(_LEFT + room * (place + 0.5), _HEIGHT - _BOTTOM + 16, name, "middle"))
    return _svg(inner)


def p_value_chart(rows: Sequence[tuple[str, int, float]], *, limit: float) -> str:
    """Draw p-values on a logarithmic axis; a row is a name, a system and its p-value.

    Left of the line at `limit` a difference counts.
    """
    least = min(0.001, *(p for _, _, p in rows))
    decades = math.ceil(-math.log10(least) - 0.1)  # 1/1001 is as good as 0.001
    height = 24 * len(rows) + _BOTTOM + _TOP
    left, bottom = 96, height - _BOTTOM

    def place(p: float) -> float:
        return left + (_WIDTH_charts - left - 16) * (1 + math.log10(p) / decades)

    inner = []
    for power in range(decades + 1):
        at = place(10.0**-power)
        inner.append(_line(at, _TOP, at, bottom, "#ddd"))
        inner.append(_text(at, bottom + 16, f"{10.0**-power:g}", "middle"))
    inner.append(_line(place(limit), _TOP, place(limit), bottom, "#b00020"))
    inner.append(_text(place(limit), bottom + 32, f"{limit:g}", "middle"))
    for number, (name, system, p) in enumerate(rows):
        y = _TOP + 24 * number + 12
        inner.append(_text(left - 10, y + 4, name, "end"))
        inner.append(
            f'<circle cx="{place(p):.1f}" cy="{y}" r="6" fill="{COLOURS[system]}">'
            f"<title>p = {p:.4f}</title></circle>"
        )
    return _svg(inner, height)


_Axis = tuple[float, float]


def _axis(values: Sequence[float]) -> _Axis:
    """Return round limits that hold all values."""
    ticks = _ticks(min(values), max(values))
    return ticks[0], ticks[-1]


def _ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers, the first at most `low`, the last at least `high`."""
    # A single value has an axis too, whose numbers differ as they are written.
    raw = max((high - low) / _TICKS, 1e-4 * max(abs(high), 1.0))
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _x(value: float, axis: _Axis) -> float:
    return _LEFT + (_WIDTH_charts - _LEFT - 20) * (value - axis[0]) / (axis[1] - axis[0])


def _y(value: float, axis: _Axis) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (value - axis[0]) / (axis[1] - axis[0])


def _grid(axis: _Axis) -> Iterator[str]:
    """Yield horizontal lines and their numbers."""
    for tick in _ticks(*axis):
        y = _y(tick, axis)
        yield _line(_LEFT, y, _WIDTH_charts, y, "#ddd")
        yield _text(_LEFT - 6, y + 4, f"{tick:g}", "end")


def _x_ticks(axis: _Axis) -> Iterator[str]:
    for tick in _ticks(*axis):
        yield _text(_x(tick, axis), _HEIGHT - _BOTTOM + 16, f"{tick:g}", "middle")


def _x_name(name: str) -> str:
    return _text((_LEFT + _WIDTH_charts) / 2, _HEIGHT - 6, name, "middle")


def _line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(inner: Sequence[str], height: float = _HEIGHT) -> str:
    return f'<svg viewBox="0 0 {_WIDTH_charts} {height:g}" role="img">{"".join(inner)}</svg>'


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mt compare</title>
<style>
body {{ font: 15px/1.5 sans-serif; color: #111; background: #fff; }}
body {{ max-width: 64em; margin: 1.5em auto; padding: 0 1em; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5em; }} h2 {{ font-size: 1.2em; margin-top: 1.8em; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .2em .6em; text-align: left; vertical-align: top; overflow-wrap: normal; }}
td, th {{ border-bottom: 1px solid #ddd; }}
td.number, th.number {{ text-align: right; white-space: nowrap; }}
td.value {{ overflow-wrap: anywhere; min-width: 9em; }} td.key {{ white-space: nowrap; }}
tr.group th {{ padding-top: .9em; }}
.better {{ color: #00662a; }} .worse {{ color: #a30000; }} .few {{ color: #666; }}
.plots {{ display: flex; flex-wrap: wrap; gap: 1em; }}
figure {{ margin: 0; flex: 1 1 22em; max-width: 32em; }} figcaption {{ font-weight: bold; }}
svg {{ width: 100%; height: auto; }} svg text {{ font: 13px sans-serif; fill: #111; }}
.key-of-colours span {{ display: inline-block; width: .8em; height: .8em; margin-right: .4em; }}
.key-of-colours {{ list-style: none; padding: 0; }}
.sentence {{ border: 1px solid #ddd; border-radius: 6px; padding: .5em .8em; margin: .8em 0; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .15em .8em; margin: .3em 0; }}
dt {{ color: #555; }} dd {{ margin: 0; }} mark {{ background: #ffe39c; color: #111; }}
@media (max-width: 40em) {{ td, th {{ padding: .2em .35em; font-size: .93em; }} }}
small {{ color: #444; }} .notes {{ color: #444; font-size: .9em; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def as_html(comparison: Comparison) -> str:
    """Return the page; all text that is not ours is escaped."""
    parts = [
        "<h1>Comparison of translations</h1>",
        _legend(comparison),
        _scores_html(comparison),
        *_plots(comparison),
        _slices_html(comparison),
        *_differences_html(comparison),
        *_all_changed(comparison),
    ]
    return _PAGE.format(body="\n".join(parts))


def _legend(comparison: Comparison) -> str:
    items = [
        f'<li><span style="background:{colour}"></span><b>{letter}</b> {escape(name)}</li>'
        for colour, letter, name in zip(
            COLOURS, comparison.letters, comparison.systems, strict=False
        )
    ]
    items[0] = items[0].replace("</li>", " (baseline)</li>")
    return (
        f'<ul class="key-of-colours">{"".join(items)}</ul>\n'
        f"<p>{comparison.sentences:,} sentences of {escape(comparison.test_set)}, "
        f"translated into <code>{escape(comparison.target_language)}</code>.</p>"
    )


def _scores_html(comparison: Comparison) -> str:
    head = _row("th", ["metric", "", "score", "95 % interval", "difference", "p", "beside A"], "")
    rows = [
        _score_row(letter, score)
        for row in comparison.scores
        for letter, score in zip(comparison.letters, row, strict=True)
    ]
    told = "".join(f"<div>{escape(note)}</div>" for note in notes(comparison))
    return f'<h2>Scores</h2>\n{_table([head, *rows])}\n<div class="notes">{told}</div>'


def _score_row(letter: str, score: PairedScore) -> str:
    cells = [score.metric, letter, f"{score.value:.2f}", score.interval.as_text(), "", "", ""]
    if score.difference is not None and score.p_value is not None:
        cells[4:] = [f"{score.difference:+.2f}", p_text(score.p_value), score.outcome]
    return _row("td", cells, score.outcome if score.outcome in {"better", "worse"} else "")


def _row(tag: str, cells: Sequence[str], outcome: str) -> str:
    """Return a row of the scores, its numbers flush right."""
    styles = ["", "", "number", "number", "number", "number", outcome]
    shown = (
        f'<{tag} class="{style}">{escape(cell)}</{tag}>'
        for style, cell in zip(styles, cells, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"


def _table(rows: Sequence[str]) -> str:
    inner = "\n".join(rows)
    return f'<div class="wide"><table>\n{inner}\n</table></div>'


def _plots(comparison: Comparison) -> Iterator[str]:
    tested = [
        (f"{score.metric}, {letter}", place, score.p_value)
        for row in comparison.scores
        for place, (letter, score) in enumerate(zip(comparison.letters, row, strict=True))
        if score.p_value is not None
    ]
    figures = [_figure("p-values", p_value_chart(tested, limit=SIGNIFICANT))]
    figures += list(_length_plots(comparison))
    for key, name in CURVES.items():
        curves = [
            Series(curve.system, curve.points) for curve in comparison.curves if curve.key == key
        ]
        if curves:
            figures.append(_figure(name, line_chart(curves, x_name="updates")))
    inner = "\n".join(figures)
    yield f'<h2>Plots</h2>\n<div class="plots">{inner}</div>'


def _length_plots(comparison: Comparison) -> Iterator[str]:
    """Yield BLEU and chrF2 by length; ranges of too few sentences are left out."""
    parts = [part for part in comparison.slices if part.group == LENGTH and not part.too_small]
    if len(parts) < 2:
        return
    unit = parts[0].name.rpartition(" ")[2]
    names = [part.name.rpartition(" ")[0].replace(" to ", "–") for part in parts]
    for metric, values in (
        ("BLEU", [part.bleu for part in parts]),
        ("chrF2", [part.chrf for part in parts]),
    ):
        groups = list(zip(names, values, strict=True))
        yield _figure(f"{metric} by length", bar_chart(groups, x_name=unit))


def _figure(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _slices_html(comparison: Comparison) -> str:
    heads = [
        f'<th class="number">{metric} {letter}</th>'
        for metric in ("BLEU", "chrF2")
        for letter in comparison.letters
    ]
    rows = [f'<tr><th>slice</th><th class="number">sentences</th>{"".join(heads)}</tr>']
    group = ""
    for part in comparison.slices:
        if part.group != group:
            group = part.group
            rows.append(_group_row(group, len(heads) + 2))
        rows.append(_slice_row(part))
    return (
        f'<h2>Slices</h2>\n<p class="notes">Slices {escape(comparison.sliced_by)}. Small: '
        f"the difference from A. Grey: fewer than {MIN_SENTENCES} sentences, which tell nothing."
        f"</p>\n{_table(rows)}"
    )


def _group_row(name: str, columns: int) -> str:
    return f'<tr class="group"><th colspan="{columns}">{escape(name)}</th></tr>'


def _slice_row(part: Slice) -> str:
    cells = [f"{part.sentences:,}"]
    for scores in (part.bleu, part.chrf):
        cells.append(f"{scores[0]:.2f}")
        for score in scores[1:]:
            beside = "" if part.too_small else f" <small>{score - scores[0]:+.2f}</small>"
            cells.append(f"{score:.2f}{beside}")
    shown = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    style = ' class="few"' if part.too_small else ""
    return f"<tr{style}><td>{escape(part.name)}</td>{shown}</tr>"


def _differences_html(comparison: Comparison) -> Iterator[str]:
    if not comparison.differences:
        return
    heads = "".join(f"<th>{letter}</th>" for letter in comparison.letters)
    rows = [f"<tr><th></th>{heads}</tr>"]
    group = ""
    for each in comparison.differences:
        if each.group != group:
            group = each.group
            rows.append(_group_row(group, len(each.values) + 1))
        values = "".join(
            f'<td class="value">{escape("-" if value is None else value)}</td>'
            for value in each.values
        )
        rows.append(f'<tr><td class="key">{escape(each.key)}</td>{values}</tr>')
    yield f"<h2>What is different about the runs</h2>\n{_table(rows)}"


def _all_changed(comparison: Comparison) -> Iterator[str]:
    if not comparison.changed:
        return
    yield "<h2>Sentences that changed most</h2>"
    yield '<p class="notes">By chrF2 of the sentence; marked is what the other one has not.</p>'
    system = 0
    for changed in comparison.changed:
        if changed.system != system:
            system = changed.system
            yield f"<h3>{comparison.letters[system]} beside A</h3>"
        yield _changed_html(comparison, changed)


def _changed_html(comparison: Comparison, changed: Changed) -> str:
    letter, language = comparison.letters[changed.system], comparison.target_language
    before, after = changed.chrf
    fields = [("source", escape(changed.source))] if changed.source else []
    fields += [
        *(("reference", escape(reference)) for reference in dict.fromkeys(changed.references)),
        ("A", _marked(changed.baseline, changed.translation, language)),
        (letter, _marked(changed.translation, changed.baseline, language)),
    ]
    shown = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in fields)
    outcome = "better" if changed.gain > 0 else "worse"
    return (
        f'<div class="sentence">line {changed.line}: chrF2 {before:.1f} in A, {after:.1f} in '
        f'{letter} <b class="{outcome}">{changed.gain:+.1f}</b><dl>{shown}</dl></div>'
    )


def _marked(text: str, other: str, language: str) -> str:
    """Return `text` with marks around what is not in `other`."""
    return "".join(
        f"<mark>{escape(part)}</mark>" if differs and part.strip() else escape(part)
        for part, differs in differing_parts(text, other, language=language)
    )
