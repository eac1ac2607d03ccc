"""The doctor's report in a few lines of plain text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mt.doctor.findings import KINDS, MOST_LINES_TOLD, Finding, Report, SplitReport

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
