"""Report of `mt data check` as text and as a self-contained HTML page."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec

from mt.doctor.findings import MAX_LINES_SHOWN, Finding, Histogram, Report, SplitReport, in_words
from mt.errors import UserError, install_hint

_SIDES = {"pair": "pair", "source": "source side", "target": "target side"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a report; `words` include the counts of findings other than the first."""

    count: int
    share: float
    words: str
    lines: tuple[int, ...]
    """The first line numbers, at most `MAX_LINES_SHOWN`."""
    has_more_lines: bool


def rows_of(findings: Iterable[Finding]) -> list[Row]:
    """Return the findings in words; duplicates, and overlaps with one split, share a row."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        family = finding.kind.partition("_")[0]
        key: tuple[object, ...] = (family, finding.other)
        if family not in {"overlap", "duplicate"}:
            key = (finding.kind, finding.side, finding.other, finding.lines)
        groups.setdefault(key, []).append(finding)
    return [_row(found) for found in groups.values()]


def percent(share: float) -> str:
    """Return a share as a percentage with one digit, `<0.1%` instead of 0.0%."""
    return f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"


def as_text(report: Report) -> str:
    """Return the report for a terminal: the warnings of each split, the worst first."""
    lines = [line for split in report.splits for line in (*_split_lines(split), "")]
    lines += [f"note: {note}" for note in report.notes]
    if report.cleaning:
        lines += ["To clean the training pairs, add this to the config:", "", report.cleaning]
    else:
        lines.append("No cleaning of the training pairs is suggested.")
    return "\n".join(lines).rstrip("\n")


def _split_lines(split: SplitReport) -> Iterator[str]:
    source, target = split.source, split.target
    yield f"{split.name}: {split.description}"
    yield (
        f"  {split.pairs:,} pairs; {source.language}: {source.characters:,} characters, longest "
        f"{source.longest:,}; {target.language}: {target.characters:,}, longest {target.longest:,}"
    )
    for row in rows_of(split.findings):
        lines = ", ".join(map(str, row.lines)) + (", ..." if row.has_more_lines else "")
        word = "line" if len(row.lines) == 1 and not row.has_more_lines else "lines"
        where = f"; {word} {lines}" if row.lines else ""
        yield f"  {row.count:>9,} {percent(row.share):>6}  {row.words}{where}"
    if not split.findings:
        yield "  no warnings"


def _row(group: Sequence[Finding]) -> Row:
    first, *rest = group
    words = [in_words(first)]
    for prefix, near in (("also", False), ("nearly the same:", True)):
        counted = [
            f"{each.count:,} {_SIDES[each.side]}{'' if each.count == 1 else 's'}"
            for each in rest
            if each.kind.endswith("_normalized") == near
        ]
        words += [f"{prefix} {', '.join(counted)}"] if counted else []
    lines = list(dict.fromkeys(line for finding in group for line in finding.lines))
    return Row(
        first.count,
        first.share,
        "; ".join(words),
        tuple(sorted(lines[:MAX_LINES_SHOWN])),
        len(lines) > MAX_LINES_SHOWN or any(f.count > len(f.lines) for f in group),
    )


_MAX_CHARACTERS = 300
_UNSEEN = re.compile(r"([\x00-\x1f\x7f-\x9f\xad\u200b\u2028\u2029\ufeff]+|^\s+|\s+$)")


def check_html_packages() -> None:
    """Raise UserError unless Jinja2 and matplotlib are installed."""
    missing = [package for package in ("jinja2", "matplotlib") if find_spec(package) is None]
    if missing:
        raise UserError(f"--html needs {' and '.join(missing)}: {install_hint('report')}")


def as_html(report: Report) -> str:
    """Return the report as one page; texts of the corpora are cut after 300 characters."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files("mt.doctor").joinpath("report.html").read_text(encoding="utf-8")
    )
    return template.render(
        report=report,
        rows_of=rows_of,
        percent=percent,
        examples_of=lambda split: {example.line: example for example in split.examples},
        split_unseen=_split_unseen,
        lengths_svg=lambda histogram: _svg(histogram, [f"{e:.0f}" for e in histogram.edges]),
        ratios_svg=lambda histogram: _svg(histogram, [f"{2**e:.2g}" for e in histogram.edges]),
    )


def _split_unseen(text: str) -> list[str]:
    """Return visible text and code points of invisible characters in turn, visible text first."""
    cut = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"
    parts = _UNSEEN.split(cut)
    parts[1::2] = [" ".join(f"U+{ord(character):04X}" for character in p) for p in parts[1::2]]
    return parts


def _svg(histogram: Histogram, labels: Sequence[str]) -> str:
    """Draw a histogram with bars of equal width; every fourth edge has a label."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with rc_context({"svg.hashsalt": "mt", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(3.3, 1.6), layout="constrained")
        axes = figure.add_subplot()
        axes.stairs(histogram.counts, range(len(labels)), fill=True, color="#4477aa")
        axes.set_xticks(range(0, len(labels), 4), labels[::4])
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        out = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing, transparent=True)
    drawing = out.getvalue()
    return drawing[drawing.index("<svg") :]
