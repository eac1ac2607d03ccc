"""Kinds of warning about a corpus, the checks behind them, advice, and the report."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from mt.config.data import BrokenText, CleaningConfig
from mt.data.filters import (
    has_empty_side,
    has_identical_sides,
    has_markup,
    has_mojibake,
    holds_tokens,
    in_wrong_script,
    length_ratio,
    looks_tokenized,
)
from mt.data.words import numbers_differ
from mt.errors import listed
from mt.languages import base_language, code_parts

MAX_LINES_SHOWN = 3
_SIDES = ("source", "target")
_FATAL_SHARES = {"wrong_script": 0.25, "identical": 0.99}
"""Share of the lines from which a kind of finding leaves no translations to learn from."""
KINDS = {
    "unrelated": (
        "the lines of one side have nothing in common with those opposite, as if a side had been "
        "shuffled"
    ),
    "shift": "the sides go out of step near this line",
    "uneven": "one side has more lines than the other",
    "overlap": "pairs with a text of another split",
    "overlap_pair": "pairs that are also in another split",
    "overlap_source": "source sides that are also in another split",
    "overlap_target": "target sides that are also in another split",
    "overlap_pair_normalized": "pairs that are nearly the same in another split",
    "overlap_source_normalized": "source sides that are nearly the same in another split",
    "overlap_target_normalized": "target sides that are nearly the same in another split",
    "empty": "pairs with an empty side",
    "mojibake": "text decoded with the wrong encoding",
    "wrong_script": "text in a script of another language",
    "two_scripts": "text in the rarer of two scripts; a code as `zh-Hans` or `sr-Latn` names one",
    "other_language": "text in another language",
    "nul": "NUL characters",
    "u0085": "U+0085, a line end to some programs",
    "u2028": "U+2028 or U+2029, line ends to some programs",
    "carriage_return": "carriage returns inside a line",
    "byte_order_mark": "U+FEFF inside the text",
    "invisible": "zero-width spaces or soft hyphens",
    "tokens": "text split into subwords (▁, @@, ##)",
    "markup": "tags or character references of HTML or XML",
    "length_ratio": "pairs with one side far longer",
    "numbers": "pairs whose numbers differ",
    "identical": "pairs with the same text on both sides",
    "tokenized": "text split into words (spaces before punctuation, escapes)",
    "duplicate_pair": "repeated pairs",
    "duplicate_source": "repeated source sides",
    "duplicate_target": "repeated target sides",
    "tab": "tabs inside the text",
    "outer_space": "spaces at an end of a line",
}
"""Kinds of warning in words, the most harmful first.

Nearly the same: equal up to case, spacing, punctuation and character width.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One warning about a split."""

    kind: str
    """A key of `KINDS`."""
    side: str
    """`source`, `target` or `pair`."""
    count: int
    of: int
    """Number of lines or pairs examined."""
    lines: tuple[int, ...]
    """The first `MAX_LINES_SHOWN` line numbers, from 1."""
    other: str = ""
    """The other split of an overlap, or the signed distance of a shift."""
    total: int = 0
    """Number of all lines, if those examined are a sample."""

    @property
    def share(self) -> float:
        """Fraction of the examined lines, 0 to 1."""
        return self.count / max(1, self.of)


def describe(finding: Finding) -> str:
    """Return the kind in words with its side and the other split, without the count."""
    words = KINDS[finding.kind]
    if finding.kind == "shift":
        return f"{words}: from there on line i translates to line i{finding.other}"
    if finding.other:
        words = f"{words} (`{finding.other}`)"
    if finding.total:
        words = f"{words} (in a sample of {finding.of:,})"
    named = finding.side == "pair" or finding.side in words
    return words if named else f"{words}, {finding.side} side"


@dataclass(frozen=True, slots=True)
class Fertility:
    """Tokens that a sample of one side needs, without end marks."""

    tokens: int
    characters: int
    words: int | None
    """Words between spaces; None for a language written without spaces."""
    lost: tuple[tuple[str, int], ...]
    """Characters that encoding and decoding removes or replaces, with counts, frequent first."""


@dataclass(frozen=True, slots=True)
class SideSize:
    """Size of one side of a split; lengths are in characters."""

    language: str
    lines: int
    characters: int
    longest: int
    fertility: Fertility | None = None


@dataclass(frozen=True, slots=True)
class PairExample:
    """A pair at a line named by a warning."""

    line: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class SplitReport:
    """Sizes, warnings and examples of one split."""

    name: str
    description: str
    source: SideSize
    target: SideSize
    findings: tuple[Finding, ...]
    """In the order of `KINDS`."""
    examples: tuple[PairExample, ...]
    mismatch: tuple[str, ...] = ()
    """Clauses on sides that are swapped or in other languages."""

    @property
    def pairs(self) -> int:
        """Number of lines that have an opposite line."""
        return min(self.source.lines, self.target.lines)

    def errors(self, name_line: Callable[[int], str] = "{:,}".format) -> list[str]:
        """Return the faults with which the sides are no translations, each with its repair."""
        errors = [f"{clause}; exchange contents, names or languages" for clause in self.mismatch]
        shifts = [finding for finding in self.findings if finding.kind == "shift"]
        if shifts:
            places = ", ".join(f"line {name_line(shift.lines[0])}" for shift in shifts)
            distance = shifts[0].other
            shorter, longer = _SIDES if distance.startswith("+") else _SIDES[::-1]
            errors.append(
                f"the sides go out of step near {places}: from there on line i translates to line "
                f"i{distance}; add what the {shorter} side lacks, or delete it on the {longer} side"
            )
        for finding in self.findings:
            if finding.kind == "unrelated" or (finding.kind == "uneven" and not shifts):
                errors.append(f"{describe(finding)}; restore the order of the lines")
            elif not errors and finding.share > _FATAL_SHARES.get(finding.kind, 1.0):
                where = f"{finding.share:.0%} of the lines: {describe(finding)}"
                errors.append(f"{where}; give the right file or language")
        return errors


@dataclass(frozen=True, slots=True)
class CorpusReport:
    """Result of `mt data check`."""

    splits: tuple[SplitReport, ...]
    notes: tuple[str, ...]
    """Remarks on the corpora as a whole, and on checks that were skipped."""
    cleaning: CleaningConfig
    """Cleaning that is advised for the training corpora."""
    removed: dict[str, int]
    """Pairs that it removes, each counted for one kind of warning, and lines that it repairs."""


MAX_LENGTH_RATIO = 2.5
"""Limit for `length_ratio`; a greeting may be twice as long as its translation."""
Test = Callable[[str, str], bool]
"""Takes both texts of a pair, or the text of one side and its language."""


def _contains(characters: str) -> Test:
    pattern = re.compile(f"[{characters}]")
    return lambda text, _language: pattern.search(text) is not None


_PAIR_CHECKS: dict[str, Test] = {
    "empty": has_empty_side,
    "identical": has_identical_sides,
    "length_ratio": lambda source, target: (
        not has_empty_side(source, target) and length_ratio(source, target) > MAX_LENGTH_RATIO
    ),
    "numbers": numbers_differ,
}
_TEXT_CHECKS: dict[str, Test] = {
    "mojibake": lambda text, _language: has_mojibake(text),
    "wrong_script": in_wrong_script,
    "nul": _contains("\0"),
    "u0085": _contains("\x85"),
    "u2028": _contains("\u2028\u2029"),
    "carriage_return": _contains("\r"),
    "byte_order_mark": _contains("\ufeff"),
    "invisible": _contains("\u200b\u00ad"),
    "tab": _contains("\t"),
    "outer_space": lambda text, _language: text != text.strip(),
    "tokens": lambda text, _language: holds_tokens(text),
    "markup": lambda text, _language: has_markup(text),
    "tokenized": looks_tokenized,
}
CHECKS = {(kind, "pair"): test for kind, test in _PAIR_CHECKS.items()}
CHECKS |= {(kind, side): test for kind, test in _TEXT_CHECKS.items() for side in _SIDES}
"""Checks by kind, and side or `pair`."""
_MAX_DIRT_SHARE = 0.1
"""A property of a larger share is the style of the corpus, not dirt."""
_DOUBTFUL = frozenset({"length_ratio", "numbers", "tokenized", "markup"})
_MIN_DOUBTFUL_SHARE = 0.002
"""Good corpora have up to one such pair in a thousand, and most of these pairs are good."""
CLEANING: dict[str, tuple[str, object]] = {
    **dict.fromkeys(("nul", "u0085", "u2028", "carriage_return"), ("control_characters", "strip")),
    "outer_space": ("normalize_spaces", True),
    "duplicate_pair": ("duplicates", "pair"),
    "empty": ("min_characters", 1),
    "identical": ("identical_sides", True),
    "length_ratio": ("max_length_ratio", MAX_LENGTH_RATIO),
    "other_language": ("language", True),
    "wrong_script": ("wrong_script", True),
    "numbers": ("numbers", True),
    **dict.fromkeys(get_args(BrokenText), ("broken_text", None)),
}
"""Key of the cleaning against a kind, and its value; `broken_text` lists the kinds."""
REPAIRS = frozenset({"control_characters", "normalize_spaces"})
"""Keys that change pairs, and remove none."""
FILTERS = {
    (kind if key == "broken_text" else key): kind
    for kind, (key, _) in CLEANING.items()
    if key not in REPAIRS
}
"""Kind of warning that a filter is against, by its name."""
RARE = 1e-4
"""Largest share of the pairs that is not worth a key."""
IDENTIFYING_SECONDS = 340e-6
"""CPU time to identify the languages of a pair: ten times that of all other preparation."""
_SECONDS, _SECONDS_A_PAIR = 10.0, 0.1
"""CPU time that identifying may take at least, and for each pair that it removes."""


def advise(
    train: Sequence[SplitReport],
    splits: Sequence[SplitReport],
    pairs: int,
    without: Iterable[str] = (),
) -> tuple[CleaningConfig, tuple[str, ...]]:
    """Return the cleaning worth its cost for these training corpora, and questions to the user.

    A key is advised against certain errors in more than one pair in 10,000, against doubtful pairs
    (lengths, numbers, tokenized text, markup) from two in a thousand on, and against any overlap;
    `language`, which is slow, where it removes enough of the `pairs` of all corpora. It is not
    advised against the style of a corpus, doubtful text that the other `splits` have as often,
    which is a question, and kinds in `without`.
    """
    repaired = {kind for kind, (key, _) in CLEANING.items() if key in {*REPAIRS, "duplicates"}}
    kept = {kind for split in train for kind in _find_style(split)} - repaired | {*without}
    findings = [finding for split in train for finding in split.findings]
    others = sum(  # of a sample of the lines, so that the share counts
        finding.share * split.pairs * pairs / sum(one.pairs for one in train)
        for split in train
        for finding in split.findings
        if finding.kind == "other_language"
    )
    if IDENTIFYING_SECONDS * pairs > _SECONDS + _SECONDS_A_PAIR * others:
        kept.add("other_language")
    kinds = set[str]()
    for finding in findings:
        least = _MIN_DOUBTFUL_SHARE if finding.kind in _DOUBTFUL else 0.0
        if finding.share > RARE and finding.share >= least and finding.kind not in kept:
            kinds |= {finding.kind} & CLEANING.keys()
    alike = [
        kind
        for kind in ("tokenized", "markup")
        if kind in kinds and _share(kind, splits) >= _share(kind, train) / 2
    ]
    names = listed(split.name for split in (*train, *splits))
    questions = (
        f"{KINDS[kind]}, in {names} alike: kept; `data.cleaning.broken_text: [{kind}]` removes it"
        for kind in alike
    )
    kinds -= {*alike}
    trained = {split.name for split in train}
    overlaps = any(finding.other in trained for split in splits for finding in split.findings)
    # A copy that differs in a comma is an overlap as well.
    values: dict[str, object] = {"overlap": "normalized"} if overlaps else {}
    values |= dict(CLEANING[kind] for kind in kinds)
    if "broken_text" in values:
        values["broken_text"] = [kind for kind in get_args(BrokenText) if kind in kinds]
    return CleaningConfig.model_validate(values), tuple(questions)


def _share(kind: str, splits: Sequence[SplitReport]) -> float:
    counts = [one.count for split in splits for one in split.findings if one.kind == kind]
    return sum(counts) / max(1, sum(split.pairs for split in splits))


def _find_style(split: SplitReport) -> set[str]:
    """Return the kinds of warning that describe a style, not text in a script the code excludes."""
    named = [side for side in _SIDES if len(code_parts(getattr(split, side).language)) > 1]
    large = [finding for finding in split.findings if finding.share > _MAX_DIRT_SHARE]
    kinds = {one.kind for one in large if one.kind != "wrong_script" or one.side not in named}
    if "tokenized" in kinds:
        kinds.add("markup")  # Moses escapes quotation marks
    if base_language(split.source.language) == base_language(split.target.language):
        kinds.add("identical")
    return kinds
