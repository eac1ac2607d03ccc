"""Counting what a block of lines holds, so that blocks can be counted side by side and added up."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mt.data.pair_checks import normalized, weighted_length
from mt.doctor.checks import CHECKS, Check
from mt.doctor.findings import MOST_LINES_TOLD, Finding, Histogram, Side
from mt.doctor.reading import Block

Hashes = npt.NDArray[np.uint64]

_LENGTH_EDGES = np.array([0.0, 1.0, *np.round(2 ** np.arange(0.5, 13.5, 0.5), 2)])
_RATIO_EDGES = np.linspace(-4, 4, 33)
_ALLOWANCE = 10  # the same as in `length_ratio`


@dataclass(frozen=True, slots=True)
class SideTally:
    """Counts and hashes of one side; the hashes are of the lines as they are and normalised."""

    lines: int
    characters: int
    longest: int
    lengths: npt.NDArray[np.int64]
    exact: Hashes
    normalized: Hashes

    def as_side(self, language: str) -> Side:
        """Return what is told of it."""
        histogram = Histogram(tuple(_LENGTH_EDGES.tolist()), tuple(self.lengths.tolist()))
        return Side(language, self.lines, self.characters, self.longest, histogram)


@dataclass(frozen=True, slots=True)
class Tally:
    """What a number of consecutive blocks hold; `hits` follow `CHECKS`, row by row."""

    source: SideTally
    target: SideTally
    ratios: npt.NDArray[np.int64]
    hit_counts: tuple[int, ...]
    hit_lines: tuple[tuple[int, ...], ...]

    def findings(self) -> list[Finding]:
        """Return a finding for each row of `CHECKS`, also where its count is 0."""
        pairs = min(self.source.lines, self.target.lines)
        rows = zip(CHECKS, self.hit_counts, self.hit_lines, strict=True)
        return [Finding(check.kind, check.side, n, pairs, lines) for check, n, lines in rows]

    def ratio_histogram(self) -> Histogram:
        """Return the length ratios of all pairs."""
        return Histogram(tuple(_RATIO_EDGES.tolist()), tuple(self.ratios.tolist()))


def tally_block(block: Block, source_language: str, target_language: str) -> Tally:
    """Count one block."""
    languages = {"source": source_language, "target": target_language}
    hits = [_hits(check, block, languages) for check in CHECKS]
    return Tally(
        _tally_side(block.sources),
        _tally_side(block.targets),
        _ratios(block),
        tuple(map(len, hits)),
        tuple(tuple(lines[:MOST_LINES_TOLD]) for lines in hits),
    )


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of the tallies of consecutive blocks; hashes are kept, 32 bytes a pair."""
    parts = list(tallies)
    hit_lines = zip(*(part.hit_lines for part in parts), strict=True)
    return Tally(
        _add_sides([part.source for part in parts]),
        _add_sides([part.target for part in parts]),
        np.sum([part.ratios for part in parts], axis=0),
        tuple(map(sum, zip(*(part.hit_counts for part in parts), strict=True))),
        tuple(tuple(sum(lines, ())[:MOST_LINES_TOLD]) for lines in hit_lines),
    )


def _hits(check: Check, block: Block, languages: dict[str, str]) -> list[int]:
    """Return the lines, from 1 of the whole corpus, at which a check finds something."""
    pairs = zip(block.sources, block.targets, strict=False)
    found = check.found
    if check.side == "pair":
        return [n for n, pair in enumerate(pairs, block.first + 1) if found(*pair)]
    texts = block.sources if check.side == "source" else block.targets
    language = languages[check.side]
    both = min(len(block.sources), len(block.targets))
    numbered = enumerate(texts[:both], block.first + 1)
    return [n for n, text in numbered if found(text, language)]


def _tally_side(lines: Sequence[str]) -> SideTally:
    lengths = np.array([len(line) for line in lines], dtype=np.int64)
    return SideTally(
        len(lines),
        int(lengths.sum()),
        int(lengths.max(initial=0)),
        np.histogram(np.minimum(lengths, _LENGTH_EDGES[-1]), _LENGTH_EDGES)[0],
        _hashes(lines),
        _hashes([normalized(line) for line in lines]),
    )


def _add_sides(parts: Sequence[SideTally]) -> SideTally:
    return SideTally(
        sum(part.lines for part in parts),
        sum(part.characters for part in parts),
        max(part.longest for part in parts),
        np.sum([part.lengths for part in parts], axis=0),
        np.concatenate([part.exact for part in parts]),
        np.concatenate([part.normalized for part in parts]),
    )


def _hashes(lines: Sequence[str]) -> Hashes:
    digests = [hashlib.blake2b(line.encode(), digest_size=8).digest() for line in lines]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _ratios(block: Block) -> npt.NDArray[np.int64]:
    both = min(len(block.sources), len(block.targets))
    source, target = (
        np.array([weighted_length(line) + _ALLOWANCE for line in side[:both]], dtype=np.float64)
        for side in (block.sources, block.targets)
    )
    ratios = np.log2(target / source)
    return np.histogram(np.clip(ratios, _RATIO_EDGES[0], _RATIO_EDGES[-1]), _RATIO_EDGES)[0]
