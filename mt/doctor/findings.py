"""What the doctor found: the words for each kind of finding, and the report that holds them."""

from dataclasses import dataclass

MOST_LINES_TOLD = 3

KINDS = {
    "shift": "the sides slip apart near this line",
    "uneven": "one side has more lines than the other",
    "overlap_pair": "pairs that are in another split too",
    "overlap_source": "source sides that are in another split too",
    "overlap_target": "target sides that are in another split too",
    "overlap_pair_normalized": "pairs in another split, or hardly different there",
    "overlap_source_normalized": "source sides in another split, or hardly different there",
    "overlap_target_normalized": "target sides in another split, or hardly different there",
    "empty": "pairs with an empty side",
    "mojibake": "text that was decoded wrongly",
    "wrong_script": "text in a script of another language",
    "other_language": "text in another language",
    "nul": "NUL characters",
    "u0085": "U+0085, a line end to some programs",
    "u2028": "U+2028 or U+2029, line ends to some programs",
    "carriage_return": "carriage returns inside a line",
    "crlf": "lines that end in CRLF",
    "byte_order_mark": "U+FEFF inside the text",
    "invisible": "zero-width spaces or soft hyphens",
    "pieces": "text cut into subwords (▁, @@, ##)",
    "markup": "tags or character references of HTML or XML",
    "length_ratio": "pairs with one side far longer",
    "numbers": "pairs whose numbers differ",
    "identical": "pairs with the same text on both sides",
    "tokenized": "text cut into words (spaces before punctuation, escapes)",
    "duplicate_pair": "pairs that were there before",
    "duplicate_source": "source sides that were there before",
    "duplicate_target": "target sides that were there before",
    "tab": "tabs inside the text",
    "outer_space": "spaces at an end of a line",
}
"""Kinds of finding in plain words; what harms most comes first.

Hardly different is what differs in case, spacing, punctuation and width alone.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a split."""

    kind: str
    """A key of `KINDS`."""
    side: str
    """`source` or `target`, or `pair` for what concerns both."""
    count: int
    of: int
    """How many lines or pairs were looked at."""
    lines: tuple[int, ...]
    """The first three of them, from 1."""
    other: str = ""
    """The split that an overlap is with, or how far a shift goes."""

    @property
    def share(self) -> float:
        """Which part of what was looked at it is, from 0 to 1."""
        return self.count / max(1, self.of)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values lie between each two edges."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """What one side of a split amounts to; lengths are in characters."""

    language: str
    lines: int
    characters: int
    longest: int
    lengths: Histogram


@dataclass(frozen=True, slots=True)
class Example:
    """A pair that some finding points at."""

    line: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class SplitReport:
    """All about one split."""

    name: str
    description: str
    source: Side
    target: Side
    ratios: Histogram
    """Logarithms to base 2 of the target's length over the source's, in letters."""
    findings: tuple[Finding, ...]
    """In the order of `KINDS`."""
    examples: tuple[Example, ...]

    @property
    def pairs(self) -> int:
        """How many lines have one opposite."""
        return min(self.source.lines, self.target.lines)


@dataclass(frozen=True, slots=True)
class Report:
    """What the doctor has to say about the corpora of a config."""

    splits: tuple[SplitReport, ...]
    notes: tuple[str, ...]
    """What could not be looked at, and why."""
    cleaning: str
    """A `data.cleaning` section in YAML; empty where there is nothing to clean."""


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings with the worst kind first, those without a case left out."""
    rank = {kind: number for number, kind in enumerate(KINDS)}
    return tuple(sorted((f for f in findings if f.count), key=lambda f: rank[f.kind]))
