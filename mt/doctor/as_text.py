"""The doctor's report in a few lines of plain text."""

from collections.abc import Iterator

from mt.doctor.findings import KINDS, Finding, Report, SplitReport


def as_text(report: Report) -> str:
    """Return the report for a terminal: for each split what is wrong, the worst first."""
    lines = [line for split in report.splits for line in (*_split_lines(split), "")]
    lines += [f"note: {note}" for note in report.notes]
    if report.cleaning:
        lines += ["To clean the training pairs, put into the config:", "", report.cleaning]
    else:
        lines.append("Nothing to clean in the training pairs.")
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
    for finding in split.findings:
        yield (
            f"  {finding.count:>9,} {_percent(finding.share)}  {in_words(finding)}{_lines(finding)}"
        )
    if not split.findings:
        yield "  nothing was found"


def _percent(share: float) -> str:
    return f"{100 * share:>5.1f}%" if share >= 0.0005 else " <0.1%"


def _lines(finding: Finding) -> str:
    if not finding.lines:
        return ""
    more = ", ..." if finding.count > len(finding.lines) else ""
    word = "line" if len(finding.lines) == 1 else "lines"
    return f"; {word} {', '.join(map(str, finding.lines))}{more}"
