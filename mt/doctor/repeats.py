"""What stands in a corpus twice, and what stands in two splits, by 64-bit hashes of the lines.

Two different lines have the same hash once in 2^64 comparisons: among a million lines that happens
with a probability of 3e-8.
"""

import numpy as np
import numpy.typing as npt

from mt.doctor.findings import MOST_LINES_TOLD, Finding
from mt.doctor.tally import Hashes, SideTally, Tally

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
"""Odd numbers without a pattern, so that the sum below has as many values as its parts."""


def duplicates(tally: Tally) -> list[Finding]:
    """Return how many pairs, source sides and target sides were there before, exactly alike."""
    return [
        _finding(f"duplicate_{part}", part, _seen_before(hashes))
        for part, hashes in _parts(tally, "exact").items()
    ]


def overlaps(tally: Tally, other: Tally, name: str) -> list[Finding]:
    """Return how many pairs and sides of a split are in another too, exactly and normalised.

    What is no more when normalised is not told a second time.
    """
    exact = _shared(tally, other, form="exact")
    loose = _shared(tally, other, form="normalized")
    findings = []
    for part, found in exact.items():
        findings.append(_finding(f"overlap_{part}", part, found, other=name))
        if loose[part].sum() > found.sum():
            kind = f"overlap_{part}_normalized"
            findings.append(_finding(kind, part, loose[part], other=name))
    return findings


def _shared(tally: Tally, other: Tally, *, form: str) -> dict[str, npt.NDArray[np.bool_]]:
    theirs = _parts(other, form)
    return {part: np.isin(ours, theirs[part]) for part, ours in _parts(tally, form).items()}


def _parts(tally: Tally, form: str) -> dict[str, Hashes]:
    source, target = (_of_form(side, form) for side in (tally.source, tally.target))
    both = min(len(source), len(target))
    pair = source[:both] * _MIX[0] + target[:both] * _MIX[1]
    return {"pair": pair, "source": source, "target": target}


def _of_form(side: SideTally, form: str) -> Hashes:
    return side.exact if form == "exact" else side.normalized


def _seen_before(hashes: Hashes) -> npt.NDArray[np.bool_]:
    first = np.unique(hashes, return_index=True)[1]
    again = np.ones(len(hashes), dtype=bool)
    again[first] = False
    return again


def _finding(kind: str, side: str, found: npt.NDArray[np.bool_], *, other: str = "") -> Finding:
    lines = tuple((np.flatnonzero(found)[:MOST_LINES_TOLD] + 1).tolist())
    return Finding(kind, side, int(found.sum()), len(found), lines, other)
