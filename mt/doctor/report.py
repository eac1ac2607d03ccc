"""The doctor's report as one page that needs no other file: tables, examples, histograms in SVG."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mt.doctor.findings import (
    KINDS,
    MOST_LINES_TOLD,
    Example,
    Finding,
    Histogram,
    Report,
    SplitReport,
)

_SIDES = {"pair": "pair", "source": "source side", "target": "target side"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report; what it counts is in `words` where it tells of several findings."""

    count: int
    share: float
    words: str
    lines: tuple[int, ...]
    """At most three of them, from 1."""
    has_more_lines: bool


def rows_of(findings: Iterable[Finding]) -> list[Row]:
    """Return findings in words, in order; one row for duplicates, and for each split overlapped."""
    matters: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        matters.setdefault(_matter(finding), []).append(finding)
    return [_row(found) for found in matters.values()]


def percent(share: float) -> str:
    """Return a share as a percentage with one digit; what would be 0.0 is told as <0.1%."""
    return f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"


def as_text(report: Report) -> str:
    """Return the report for a terminal: for each split what is wrong, the worst first."""
    lines = [line for split in report.splits for line in (*_split_lines(split), "")]
    lines += [f"note: {note}" for note in report.notes]
    if report.cleaning:
        lines += ["To clean the training pairs, put into the config:", "", report.cleaning]
    else:
        lines.append("No cleaning of the training pairs is suggested.")
    return "\n".join(lines).rstrip("\n")


def in_words(finding: Finding) -> str:
    """Return what was found, without its count: the kind in words, the side, the other split."""
    words = KINDS[finding.kind]
    if finding.kind == "shift":
        return f"{words}: from there on line i translates to line i{finding.other}"
    if finding.other:
        words = f"{words} (`{finding.other}`)"
    named = finding.side == "pair" or finding.side in words
    return words if named else f"{words}, {finding.side} side"


def _split_lines(split: SplitReport) -> Iterator[str]:
    source, target = split.source, split.target
    yield f"{split.name}: {split.description}"
    yield (
        f"  {split.pairs:,} pairs; {source.language}: {source.characters:,} characters, longest "
        f"{source.longest:,}; {target.language}: {target.characters:,}, longest {target.longest:,}"
    )
    for row in rows_of(split.findings):
        yield f"  {row.count:>9,} {percent(row.share):>6}  {row.words}{_lines(row)}"
    if not split.findings:
        yield "  nothing was found"


def _matter(finding: Finding) -> tuple[object, ...]:
    """Return what the findings have in common that are told together."""
    first = finding.kind.partition("_")[0]
    if first in ("overlap", "duplicate"):
        return first, finding.other
    return finding.kind, finding.side, finding.other, finding.lines


def _row(found: Sequence[Finding]) -> Row:
    lead, *rest = found
    lines = list(dict.fromkeys(line for finding in found for line in finding.lines))
    return Row(
        lead.count,
        lead.share,
        "; ".join([in_words(lead), *_besides(rest)]),
        tuple(sorted(lines[:MOST_LINES_TOLD])),  # those of the lead before any other
        len(lines) > MOST_LINES_TOLD or any(f.count > len(f.lines) for f in found),
    )


def _besides(rest: Sequence[Finding]) -> Iterator[str]:
    alike = [_counted(f) for f in rest if not f.kind.endswith("_normalized")]
    loose = [_counted(f) for f in rest if f.kind.endswith("_normalized")]
    if alike:
        yield f"also {', '.join(alike)}"
    if loose:
        yield f"with hardly different ones {', '.join(loose)}"


def _counted(finding: Finding) -> str:
    return f"{finding.count:,} {_SIDES[finding.side]}{'' if finding.count == 1 else 's'}"


def _lines(row: Row) -> str:
    if not row.lines:
        return ""
    more = ", ..." if row.has_more_lines else ""
    word = "line" if len(row.lines) == 1 and not more else "lines"
    return f"; {word} {', '.join(map(str, row.lines))}{more}"


_MOST_CHARACTERS = 300
_BAR_WIDTH, _HEIGHT, _FOOT = 9, 120, 18
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\xad\u200b\u2028\u2029\ufeff]|^\s+|\s+$")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mt data check</title>
<style>
body {{ font: 15px/1.45 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.7em; }} h2 {{ margin-top: 2em; border-top: 2px solid #4477aa; }}
table {{ border-collapse: collapse; table-layout: fixed; width: 100%; }}
td, th {{ padding: .25em .6em; text-align: left; vertical-align: top; overflow-wrap: anywhere; }}
td, th {{ border-bottom: 1px solid #ddd; }}
th.number {{ width: 5em; }} th.what {{ width: 13em; }}
td.number, th.number {{ text-align: right; white-space: nowrap; }}
.example {{ display: grid; grid-template-columns: 4em 1fr 1fr; gap: .9em; }}
.example + .example {{ margin-top: .35em; }}
.example > :first-child {{ text-align: right; color: #777; }}
mark {{ background: #fde68a; font-size: 80%; }}
.pictures {{ display: flex; flex-wrap: wrap; gap: 0 1.5em; }}
figure {{ margin: 1em 0; }} figcaption {{ font-size: 90%; max-width: 19em; }}
svg {{ display: block; max-width: 100%; margin: .4em 0; }} line {{ stroke: #999; }}
rect {{ fill: #4477aa; }} text {{ font-size: 10px; }}
pre {{ background: #f4f4f4; padding: .7em; overflow-x: auto; }}
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
    rows = "\n".join(_row_html(row, examples) for row in rows_of(split.findings))
    head = _HEAD.format(source=escape(split.source.language), target=escape(split.target.language))
    table = f"<table>\n{head}\n{rows}\n</table>" if rows else "<p>Nothing was found.</p>"
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
        f"<p>{escape(split.description)}: {split.pairs:,} pairs</p>\n{table}\n"
        f'<div class="pictures">{pictures}</div>'
    )


_HEAD = (
    '<tr><th class="number">count</th><th class="number">share</th><th class="what">what</th>'
    '<th><div class="example"><span>line</span><span>{source}</span><span>{target}</span></div>'
    "</th></tr>"
)


def _row_html(row: Row, examples: dict[int, Example]) -> str:
    shown = [_example(line, examples.get(line)) for line in row.lines]
    what = re.sub("`(.+?)`", r"<code>\1</code>", escape(row.words))
    return (
        f'<tr><td class="number">{row.count:,}</td>'
        f'<td class="number">{escape(percent(row.share))}</td>'
        f"<td>{what}</td><td>{''.join(shown)}</td></tr>"
    )


def _example(line: int, example: Example | None) -> str:
    texts = () if example is None else (example.source, example.target)  # past the shorter side
    cells = "".join(f"<span>{_shown(text)}</span>" for text in texts)
    return f'<div class="example"><span>{line}</span>{cells}</div>'


def _shown(text: str) -> str:
    """Return a text for the page; what nobody would see is told by its code point."""
    cut = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
    return _UNSEEN.sub(_named, escape(cut))


def _named(found: re.Match[str]) -> str:
    return "".join(f"<mark>U+{ord(character):04X}</mark>" for character in found[0])


def _picture(histogram: Histogram, title: str, label: Callable[[float], str]) -> str:
    """Draw a histogram; every fourth edge is labelled."""
    most = max(1, *histogram.counts)
    bars = _bars(histogram.counts, most)
    labels = "".join(
        f'<text x="{number * _BAR_WIDTH}" y="{_HEIGHT + 12}">{label(edge)}</text>'
        for number, edge in enumerate(histogram.edges)
        if number % 4 == 0
    )
    end = _BAR_WIDTH * len(histogram.counts)
    ground = f'<line x1="0" y1="{_HEIGHT}" x2="{end}" y2="{_HEIGHT}"/>'
    size = f'width="{end + 2 * _BAR_WIDTH}" height="{_HEIGHT + _FOOT}"'
    return (
        f"<figure><figcaption>{escape(title)}; the highest bar is {most:,}</figcaption>"
        f'<svg {size} role="img">{bars}{ground}{labels}</svg></figure>'
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
