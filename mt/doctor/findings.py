"""What the doctor found: the words for each kind of finding, and the report that holds them."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mt.config.data import CleaningConfig
from mt.data.pair_checks import (
    has_empty_side,
    has_identical_sides,
    has_markup,
    has_mojibake,
    holds_tokens,
    in_wrong_script,
    length_ratio,
    looks_tokenized,
    numbers_differ,
)
from mt.languages import base_language

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
    "tokens": "text cut into subwords (▁, @@, ##)",
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


MAX_LENGTH_RATIO = 2.5
"""Above that one side is called far longer; a greeting may be twice as long as its translation."""
TextCheck = Callable[[str, str], bool]
"""Of a text and its language."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row: what is found, on which side, and how."""

    kind: str
    side: str
    found: Callable[[str, str], bool]
    """Of both texts where `side` is `pair`, else of the text and its language."""


def _holding(characters: str) -> TextCheck:
    pattern = re.compile(f"[{characters}]")
    return lambda text, _language: pattern.search(text) is not None


_PAIR_CHECKS: dict[str, Callable[[str, str], bool]] = {
    "empty": has_empty_side,
    "identical": has_identical_sides,
    "length_ratio": lambda source, target: length_ratio(source, target) > MAX_LENGTH_RATIO,
    "numbers": numbers_differ,
}
_TEXT_CHECKS: dict[str, TextCheck] = {
    "mojibake": lambda text, _language: has_mojibake(text),
    "wrong_script": in_wrong_script,
    "nul": _holding("\0"),
    "u0085": _holding("\x85"),
    "u2028": _holding("\u2028\u2029"),
    "carriage_return": _holding("\r"),
    "byte_order_mark": _holding("\ufeff"),
    "invisible": _holding("\u200b\u00ad"),
    "tab": _holding("\t"),
    "outer_space": lambda text, _language: text != text.strip(),
    "tokens": lambda text, _language: holds_tokens(text),
    "markup": lambda text, _language: has_markup(text),
    "tokenized": looks_tokenized,
}
CHECKS = (
    *(Check(kind, "pair", found) for kind, found in _PAIR_CHECKS.items()),
    *(
        Check(kind, side, found)
        for kind, found in _TEXT_CHECKS.items()
        for side in ("source", "target")
    ),
)
"""All checks of pairs; each costs its share of the time, and none needs the other pairs."""
_MOST_TAKEN_OUT = 0.1
"""What concerns a larger share is how the corpus is, and no dirt in it: no filter is advised."""
_DOUBTFUL = frozenset({"length_ratio", "numbers", "tokenized", "markup"})
_LEAST_DOUBTFUL = 0.002
"""Good corpora have such findings in up to one pair in a thousand, and most of those are good."""
_REPAIRS = {
    "nul": "strip_control",
    "u0085": "strip_control",
    "u2028": "strip_control",
    "carriage_return": "strip_control",
    "outer_space": "normalize_spaces",
}
_FILTERS: dict[str, tuple[str, bool | float | str]] = {
    "empty": ("empty_sides", True),
    "identical": ("identical_sides", True),
    "length_ratio": ("max_length_ratio", MAX_LENGTH_RATIO),
    "wrong_script": ("wrong_script", True),
    "mojibake": ("mojibake", True),
    "tokens": ("tokens", True),
    "tokenized": ("tokenized", True),
    "markup": ("markup", True),
    "numbers": ("numbers", True),
    "other_language": ("language", True),
}
"""The filter for each kind of finding that a pair can be taken out for."""


def advise(train: Iterable[SplitReport], overlaps: Iterable[Finding]) -> CleaningConfig:
    """Return the cleaning that pays for itself in these training corpora.

    A repair is advised wherever it mends a line, and where pairs are repeated, that each stays
    once. A filter is advised against what is surely wrong, however rare, and against what good
    pairs have too (another length or other numbers, a space before a full stop, an `&amp;`) from
    two pairs in a thousand on. What more than a tenth of a corpus has is how it is written, and
    stays; so do the `&quot;` of a tokenised corpus, and sides alike between two kinds of one
    language, as classical and modern Chinese.

    There is one cleaning for all: what is to stay in one of them is not filtered in another either.
    `overlaps` are those of the other splits with them.
    """
    splits = list(train)
    found = [finding for split in splits for finding in split.findings]
    kept = {kind for split in splits for kind in _meant(split)}
    keys: dict[str, bool | float | str] = {}
    for finding in found:
        if finding.kind in _REPAIRS:
            keys[_REPAIRS[finding.kind]] = True
        elif finding.kind in _FILTERS and finding.kind not in kept and _pays(finding):
            key, value = _FILTERS[finding.kind]
            keys[key] = value
        elif finding.kind == "duplicate_pair":
            keys["duplicates"] = "pair"
    if any(overlaps):
        keys["overlap"] = "normalized"  # a line that differs in a comma alone gives a test away too
    return CleaningConfig.model_validate(keys)


def _meant(split: SplitReport) -> set[str]:
    """Return the kinds of finding that are no dirt in a corpus."""
    kinds = {finding.kind for finding in split.findings if finding.share > _MOST_TAKEN_OUT}
    if "tokenized" in kinds:
        kinds.add("markup")  # Moses escapes quotation marks so
    if base_language(split.source.language) == base_language(split.target.language):
        kinds.add("identical")
    return kinds


def _pays(finding: Finding) -> bool:
    return finding.kind not in _DOUBTFUL or finding.share >= _LEAST_DOUBTFUL


def as_yaml(cleaning: CleaningConfig) -> str:
    """Return the keys that differ from the defaults as YAML, "" where none does."""
    keys = cleaning.model_dump(exclude_defaults=True)
    if not keys:
        return ""
    lines = [f"    {key}: {json.dumps(value)}\n" for key, value in keys.items()]
    return "data:\n  cleaning:\n" + "".join(lines)
