"""The doctor's report as one page that needs no other file: tables, examples, histograms in SVG."""

from collections.abc import Callable, Iterable
from html import escape

from mt.doctor.as_text import in_words
from mt.doctor.findings import Example, Finding, Histogram, Report, SplitReport

_MOST_CHARACTERS = 300
_BAR_WIDTH, _HEIGHT, _FOOT = 14, 120, 18

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mt data check</title>
<style>
body {{ font: 15px/1.45 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .2em .7em; text-align: left; vertical-align: top; }}
td, th {{ border-bottom: 1px solid #ddd; }}
td.number {{ text-align: right; white-space: nowrap; }}
svg {{ margin: .5em 1em .5em 0; }} rect {{ fill: #4477aa; }} text {{ font-size: 10px; }}
pre {{ background: #f4f4f4; padding: .7em; }} .text {{ color: #444; }}
</style>
</head>
<body>
<h1>What is in the corpora</h1>
{body}
</body>
</html>
"""


def as_html(report: Report) -> str:
    """Return the page; text of the corpora is escaped and cut after 300 characters."""
    parts = [_split(split) for split in report.splits]
    parts += [f"<p>Note: {escape(note)}</p>" for note in report.notes]
    if report.cleaning:
        parts.append(f"<h2>Suggested cleaning</h2>\n<pre>{escape(report.cleaning)}</pre>")
    return _PAGE.format(body="\n".join(parts))


def _split(split: SplitReport) -> str:
    examples = {example.line: example for example in split.examples}
    rows = "\n".join(_row(finding, examples) for finding in split.findings)
    table = f"<table>\n{_HEAD}\n{rows}\n</table>" if rows else "<p>Nothing was found.</p>"
    pictures = "\n".join(
        _picture(histogram, title, label)
        for histogram, title, label in (
            (split.source.lengths, f"Characters of a line, {split.source.language}", _length),
            (split.target.lengths, f"Characters of a line, {split.target.language}", _length),
            (split.ratios, "Length of target over source", _ratio),
        )
    )
    return (
        f"<h2>{escape(split.name)}</h2>\n"
        f"<p>{escape(split.description)}: {split.pairs:,} pairs</p>\n{table}\n{pictures}"
    )


_HEAD = "<tr><th>count</th><th>share</th><th>what</th><th>lines</th></tr>"


def _row(finding: Finding, examples: dict[int, Example]) -> str:
    shown = [_example(line, examples.get(line)) for line in finding.lines]
    return (
        f'<tr><td class="number">{finding.count:,}</td>'
        f'<td class="number">{100 * finding.share:.2f}%</td>'
        f"<td>{escape(in_words(finding))}</td><td>{''.join(shown)}</td></tr>"
    )


def _example(line: int, example: Example | None) -> str:
    if example is None:  # past the end of the shorter side
        return f"<div>{line}</div>"
    texts = (escape(text[:_MOST_CHARACTERS]) for text in (example.source, example.target))
    return f'<div>{line}: <span class="text">{" | ".join(texts)}</span></div>'


def _picture(histogram: Histogram, title: str, label: Callable[[float], str]) -> str:
    """Draw a histogram; every fourth edge is labelled."""
    most = max(1, *histogram.counts)
    bars = _bars(histogram.counts, most)
    labels = "".join(
        f'<text x="{number * _BAR_WIDTH}" y="{_HEIGHT + 12}">{label(edge)}</text>'
        for number, edge in enumerate(histogram.edges)
        if number % 4 == 0
    )
    width = _BAR_WIDTH * (len(histogram.counts) + 2)
    return (
        f"<figure><figcaption>{escape(title)}; the highest bar is {most:,}</figcaption>"
        f'<svg width="{width}" height="{_HEIGHT + _FOOT}" role="img">{bars}{labels}</svg></figure>'
    )


def _bars(counts: Iterable[int], most: int) -> str:
    return "".join(
        f'<rect x="{number * _BAR_WIDTH}" y="{_HEIGHT - height:.1f}" '
        f'width="{_BAR_WIDTH - 1}" height="{height:.1f}"><title>{count:,}</title></rect>'
        for number, count in enumerate(counts)
        for height in [_HEIGHT * count / most]
    )


def _length(edge: float) -> str:
    return f"{edge:.0f}"


def _ratio(edge: float) -> str:
    return f"{2**edge:.2g}"
