"""A comparison as one page that needs no other file: tables, plots in SVG, sentences, marked."""

from collections.abc import Iterator, Sequence
from html import escape

from mt.comparing.as_text import notes, p_text
from mt.comparing.changed import Changed, differing_parts
from mt.comparing.charts import COLOURS, Series, bar_chart, line_chart, p_value_chart
from mt.comparing.compare import Comparison
from mt.comparing.counts import MIN_SENTENCES, Slice
from mt.comparing.differences import CURVES
from mt.comparing.significance import SIGNIFICANT, PairedScore
from mt.comparing.slices import LENGTH

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
        _scores(comparison),
        *_plots(comparison),
        _slices(comparison),
        *_differences(comparison),
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


def _scores(comparison: Comparison) -> str:
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


def _slices(comparison: Comparison) -> str:
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


def _differences(comparison: Comparison) -> Iterator[str]:
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
        yield _changed(comparison, changed)


def _changed(comparison: Comparison, changed: Changed) -> str:
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
