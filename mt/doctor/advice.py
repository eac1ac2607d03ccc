"""What to do about the findings: a section `data.cleaning` that the configuration accepts."""

import json
from collections.abc import Iterable

from mt.config.cleaning import CleaningConfig
from mt.doctor.checks import MAX_LENGTH_RATIO
from mt.doctor.findings import Finding

_MOST_TAKEN_OUT = 0.1
"""What concerns a larger share is how the corpus is, and no dirt in it: no filter is advised."""

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


def advise(train: Iterable[Finding], overlaps: Iterable[Finding]) -> CleaningConfig:
    """Return the cleaning for training corpora with these findings.

    There is one cleaning for all: what one of them is full of is not filtered in another either.
    `overlaps` are those of the other splits with them.
    """
    found = list(train)
    common = {finding.kind for finding in found if finding.share > _MOST_TAKEN_OUT}
    keys: dict[str, bool | float | str] = {}
    for finding in found:
        if finding.kind in _REPAIRS:
            keys[_REPAIRS[finding.kind]] = True
        elif finding.kind in _FILTERS and finding.kind not in common:
            key, value = _FILTERS[finding.kind]
            keys[key] = value
        elif finding.kind == "duplicate_pair":
            keys["duplicates"] = "pair"
    if any(overlaps):
        keys["overlap"] = "normalized"  # a line that differs in a comma alone gives a test away too
    return CleaningConfig.model_validate(keys)


def as_yaml(cleaning: CleaningConfig) -> str:
    """Return the keys that differ from the defaults as YAML, "" where none does."""
    keys = cleaning.model_dump(exclude_defaults=True)
    if not keys:
        return ""
    lines = [f"    {key}: {json.dumps(value)}\n" for key, value in keys.items()]
    return "data:\n  cleaning:\n" + "".join(lines)
