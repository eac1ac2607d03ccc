"""Report of `mt data check` as text."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from mt.config.data import CleaningConfig
from mt.doctor.findings import KINDS, MAX_LINES_SHOWN, CorpusReport, Finding, describe
from mt.tables import clip, make_printable

_SIDES = {"pair": "pair", "source": "source side", "target": "target side"}
_SHOWN_LOST = 12
_SHOWN_CELLS = 100
_INVISIBLE = re.compile(r"([\x00-\x1f\x7f-\x9f\xad\u200b\u2028\u2029\ufeff]+|^\s+|\s+$)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a report; `words` include the counts of findings other than the first."""

    kind: str
    count: int
    share: float
    words: str
    lines: tuple[int, ...]
    """The first line numbers, at most `MAX_LINES_SHOWN`."""
    has_more_lines: bool


def make_rows(findings: Iterable[Finding]) -> list[Row]:
    """Return the findings in words; duplicates, and overlaps with one split, share a row."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        family = finding.kind.partition("_")[0]
        key: tuple[object, ...] = (family, finding.other)
        if family not in {"overlap", "duplicate"}:
            key = (finding.kind, finding.side, finding.other, finding.lines)
        groups.setdefault(key, []).append(finding)
    rows = []
    for first, *rest in groups.values():
        words = [describe(first)]
        for prefix, near in (("also", False), ("nearly the same:", True)):
            counts = [
                f"{finding.count:,} {_SIDES[finding.side]}{'' if finding.count == 1 else 's'}"
                for finding in rest
                if finding.kind.endswith("_normalized") == near
            ]
            words += [f"{prefix} {', '.join(counts)}"] if counts else []
        lines = list(dict.fromkeys(line for finding in (first, *rest) for line in finding.lines))
        shown = tuple(sorted(lines[:MAX_LINES_SHOWN]))
        has_more = len(lines) > MAX_LINES_SHOWN
        has_more |= any(finding.count > len(finding.lines) for finding in (first, *rest))
        rows.append(Row(first.kind, first.count, first.share, "; ".join(words), shown, has_more))
    return rows


def format_percent(share: float) -> str:
    """Return a share as a percentage with one digit, `<0.1%` instead of 0.0%."""
    return f"{100 * share:.1f}%" if share >= 0.0005 else "<0.1%"


def as_text(report: CorpusReport) -> str:
    """Return the warnings of each split, the worst first, each with an example."""
    lines = []
    for split in report.splits:
        source, target = split.source, split.target
        lines += [
            f"{split.name}: {split.description}",
            f"  {split.pairs:,} pairs; {source.language}: {source.characters:,} characters, "
            f"longest {source.longest:,}; {target.language}: {target.characters:,}, longest "
            f"{target.longest:,}",
        ]
        for side in (source, target):
            if counts := side.fertility:
                words = ""
                if counts.words is not None:
                    words = f", {counts.tokens / max(1, counts.words):.2f} a word"
                shown = " ".join(
                    f"{make_printable(character)} (U+{ord(character):04X}) {count:,}"
                    for character, count in counts.lost[:_SHOWN_LOST]
                )
                lost = f", with counts: {shown}" if shown else ""
                lines.append(
                    f"  {side.language}: {counts.tokens / max(1, counts.characters):.3f} tokens a "
                    f"character{words}; characters lost: {len(counts.lost):,}{lost}"
                )
        lines += [f"  error: {error}" for error in split.errors()]
        examples = {example.line: example for example in split.examples}
        removed = report.removed if split.name.partition(".")[0] == "train" else {}
        lines += ["  left as it is:"] if removed else []
        for row in make_rows(one for one in split.findings if one.kind not in removed):
            numbers = ", ".join(map(str, row.lines)) + (", ..." if row.has_more_lines else "")
            word = "line" if len(row.lines) == 1 and not row.has_more_lines else "lines"
            where = f"; {word} {numbers}" if row.lines else ""
            lines.append(f"  {row.count:>9,} {format_percent(row.share):>6}  {row.words}{where}")
            if row.lines and (example := examples.get(row.lines[0])):
                for text in (example.source, example.target):
                    codes = _INVISIBLE.sub(
                        lambda run: "".join(f"<U+{ord(c):04X}>" for c in run[0]), text
                    )
                    lines.append(f"{'':19}{clip(codes, _SHOWN_CELLS)}")
        lines += [""] if split.findings else ["  no warnings", ""]
    lines += [f"note: {note}" for note in report.notes]
    lines += ["removed in training, with the cleaning below:"] if report.removed else []
    lines += [f"  {count:>9,}  {KINDS[kind]}" for kind, count in report.removed.items() if count]
    if cleaning := dump_cleaning(report.cleaning):
        lines += ["To clean the training pairs, add this to the config:", "", cleaning]
    elif any(split.errors() for split in report.splits):
        lines.append("No cleaning is suggested for sides that do not match.")
    else:
        lines.append("No cleaning of the training pairs is suggested.")
    return "\n".join(lines).rstrip("\n")


def dump_cleaning(cleaning: CleaningConfig) -> str:
    """Return the keys that differ from the defaults as YAML, or ""."""
    keys = cleaning.model_dump(exclude_defaults=True)
    lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in keys.items())
    return f"data:\n  cleaning:\n{lines}" if lines else ""
