"""What to do about the findings: a section `data.cleaning` that the configuration accepts."""

import json
from collections.abc import Iterable

from mt.config.cleaning import CleaningConfig
from mt.doctor.checks import MAX_LENGTH_RATIO
from mt.doctor.findings import Finding, SplitReport
from mt.languages import base_language

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
    "pieces": ("pieces", True),
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
