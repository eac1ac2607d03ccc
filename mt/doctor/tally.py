"""Counts over blocks of lines, which can be taken in parallel and summed."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt

from mt.data.corpus_files import LineReader
from mt.data.filters import hash_text, normalized
from mt.data.pairs import PairSource, TextPairs
from mt.data.tokenizer import Vocabulary
from mt.doctor.findings import CHECKS, MAX_LINES_SHOWN, Fertility, Finding, SideSize
from mt.languages import written_without_spaces

BLOCK_LINES = 4000


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of both sides; the lists differ in length only past the end of a side."""

    first: int
    sources: list[str]
    targets: list[str]

    def numbered(self) -> Iterator[tuple[int, str, str]]:
        """Yield line number (from 1), source and target of each pair."""
        return zip(count(self.first + 1), self.sources, self.targets, strict=False)


def read_blocks(corpus: PairSource) -> Iterator[LineBlock]:
    """Stream a corpus in blocks of 4,000 lines; unlike `pairs`, accept sides of unequal length."""
    first = 0
    if isinstance(corpus, TextPairs):
        sides = corpus.source, corpus.target
        left, right = (iter(LineReader(side, long_line="")) for side in sides)
        while True:
            sources, targets = list(islice(left, BLOCK_LINES)), list(islice(right, BLOCK_LINES))
            if not sources and not targets:
                return
            yield LineBlock(first, sources, targets)
            first += BLOCK_LINES
    pairs = corpus.pairs()
    while chunk := list(islice(pairs, BLOCK_LINES)):
        yield LineBlock(first, [pair.source for pair in chunk], [pair.target for pair in chunk])
        first += len(chunk)


ParallelMap = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Map of a function over items in order; across processes all of them must be picklable."""


@contextmanager
def open_map(processes: int) -> Iterator[ParallelMap]:
    """Yield a map over a pool of processes, or over this process if `processes` is 1."""
    if processes == 1:
        yield map
        return

    def map_in_pool(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        # `Executor.map` would read all items at once.
        queued: deque[Future[Any]] = deque()
        for item in items:
            queued.append(pool.submit(work, item))
            if len(queued) > 2 * processes:
                yield queued.popleft().result()
        yield from (future.result() for future in queued)

    # Spawned, because a fork of a process with threads may hang.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield map_in_pool


Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SideCounts:
    """Counts and line hashes of one side."""

    lines: int
    characters: int
    longest: int
    exact: Hashes
    normalized: Hashes

    def size(self, language: str, fertility: Fertility | None) -> SideSize:
        """Return the counts for a report."""
        return SideSize(language, self.lines, self.characters, self.longest, fertility)


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Counts of consecutive blocks."""

    source: SideCounts
    target: SideCounts
    findings: tuple[Finding, ...]
    """One for each of `CHECKS`, including those with a count of 0."""


def count_block(block: LineBlock, source_language: str, target_language: str) -> PairCounts:
    """Count one block."""
    languages = source_language, target_language
    pairs, findings = min(len(block.sources), len(block.targets)), []
    for check in CHECKS:
        if check.side == "pair":
            lines = [n for n, source, target in block.numbered() if check.matches(source, target)]
        else:
            side = ("source", "target").index(check.side)
            language = languages[side]
            lines = [n for n, *pair in block.numbered() if check.matches(pair[side], language)]
        shown = tuple(lines[:MAX_LINES_SHOWN])
        findings.append(Finding(check.kind, check.side, len(lines), pairs, shown))
    return PairCounts(_count_side(block.sources), _count_side(block.targets), tuple(findings))


def sum_counts(blocks: Iterable[PairCounts]) -> PairCounts:
    """Sum the counts of consecutive blocks; the hashes take 32 bytes a pair."""
    parts, findings = list(blocks), []
    for same in zip(*(part.findings for part in parts), strict=True):
        lines = tuple(line for finding in same for line in finding.lines)[:MAX_LINES_SHOWN]
        total, of = sum(finding.count for finding in same), sum(finding.of for finding in same)
        findings.append(replace(same[0], count=total, of=of, lines=lines))
    sources, targets = [part.source for part in parts], [part.target for part in parts]
    return PairCounts(_sum_sides(sources), _sum_sides(targets), tuple(findings))


def measure_fertility(lines: Sequence[str], vocabulary: Vocabulary, language: str) -> Fertility:
    """Count the tokens of some lines, and the characters that encoding and decoding loses."""
    tokens = 0
    lost: Counter[str] = Counter()
    for line, ids in zip(lines, vocabulary.encode(lines), strict=True):
        tokens += len(ids) - 1  # the end mark
        decoded = vocabulary.decode(ids)
        if decoded != line:
            lost.update(Counter(line) - Counter(decoded))
    words = None if written_without_spaces(language) else sum(len(line.split()) for line in lines)
    ranked = sorted(lost.items(), key=lambda item: (-item[1], item[0]))
    return Fertility(tokens, sum(map(len, lines)), words, tuple(ranked))


def _count_side(lines: Sequence[str]) -> SideCounts:
    lengths = [len(line) for line in lines]
    return SideCounts(
        len(lines),
        sum(lengths),
        max(lengths, default=0),
        np.array([hash_text(line) for line in lines], dtype=np.uint64),
        np.array([hash_text(normalized(line)) for line in lines], dtype=np.uint64),
    )


def _sum_sides(parts: Sequence[SideCounts]) -> SideCounts:
    return SideCounts(
        sum(part.lines for part in parts),
        sum(part.characters for part in parts),
        max(part.longest for part in parts),
        np.concatenate([part.exact for part in parts]),
        np.concatenate([part.normalized for part in parts]),
    )


_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
"""Odd multipliers for hashes of pairs; odd, so that no bits of either side are lost."""


def find_duplicates(counts: PairCounts) -> list[Finding]:
    """Count the exact repetitions of pairs, source sides and target sides."""
    findings = []
    for part, hashes in _combine_sides(counts, "exact").items():
        repeated = np.ones(len(hashes), dtype=bool)
        repeated[np.unique(hashes, return_index=True)[1]] = False
        findings.append(_make_finding(f"duplicate_{part}", part, repeated))
    return findings


def find_overlaps(counts: PairCounts, other: PairCounts, name: str) -> list[Finding]:
    """Count the pairs and sides of a split that are in the split `name`, exactly and normalized.

    Both sides are looked for on both sides. A normalized count equal to the exact one is left out.
    """
    exact, loose = _find_common(counts, other, "exact"), _find_common(counts, other, "normalized")
    findings = []
    for part, same in exact.items():
        near = loose[part]
        findings.append(_make_finding(f"overlap_{part}", part, same, other=name))
        if near.sum() > same.sum():
            findings.append(_make_finding(f"overlap_{part}_normalized", part, near, other=name))
    return findings


def _find_common(
    counts: PairCounts, other: PairCounts, form: str
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return for each pair and side of a split its presence in the other, in either direction."""
    own, there = _combine_sides(counts, form), _combine_sides(other, form)
    back = _combine_sides(replace(other, source=other.target, target=other.source), form)
    return {
        part: np.isin(hashes, there[part]) | np.isin(hashes, back[part])
        for part, hashes in own.items()
    }


def _combine_sides(counts: PairCounts, form: str) -> dict[str, Hashes]:
    source, target = getattr(counts.source, form), getattr(counts.target, form)
    pairs = min(len(source), len(target))
    pair = source[:pairs] * _MIX[0] + target[:pairs] * _MIX[1]
    return {"pair": pair, "source": source, "target": target}


def _make_finding(kind: str, side: str, mask: npt.NDArray[np.bool_], *, other: str = "") -> Finding:
    lines = tuple((np.flatnonzero(mask)[:MAX_LINES_SHOWN] + 1).tolist())
    return Finding(kind, side, int(mask.sum()), len(mask), lines, other)
