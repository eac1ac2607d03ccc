"""Counts over blocks of lines, which can be taken in parallel and summed."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mt.data.corpus_files import LineReader, read_chunks
from mt.data.filters import normalized, weighted_length
from mt.data.pairs import PairSource
from mt.data.sources import TextPairs
from mt.doctor.findings import CHECKS, MAX_LINES_SHOWN, Check, Finding, Histogram, Side

BLOCK_LINES = 4000


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of both sides; the lists differ in length only past the end of a side."""

    first: int
    """Number of lines before the block."""
    sources: list[str]
    targets: list[str]

    def numbered(self) -> Iterator[tuple[int, str, str]]:
        """Yield line number (from 1), source and target of each pair."""
        return zip(count(self.first + 1), self.sources, self.targets, strict=False)


def read_blocks(corpus: PairSource) -> Iterator[Block]:
    """Stream a corpus in blocks of 4,000 lines; unlike `pairs`, accept sides of unequal length."""
    first = 0
    if isinstance(corpus, TextPairs):
        sides = corpus.source, corpus.target
        left, right = (iter(LineReader(side, long_line="")) for side in sides)
        while True:
            block = Block(first, list(islice(left, BLOCK_LINES)), list(islice(right, BLOCK_LINES)))
            if not block.sources and not block.targets:
                return
            yield block
            first += BLOCK_LINES
    pairs = corpus.pairs()
    while chunk := list(islice(pairs, BLOCK_LINES)):
        yield Block(first, [pair.source for pair in chunk], [pair.target for pair in chunk])
        first += len(chunk)


def crlf_lines(corpus: PairSource) -> tuple[int, int]:
    """Count the lines of each side that end in CRLF; 0 for formats other than text files."""
    if not isinstance(corpus, TextPairs):
        return 0, 0
    return _count_crlf(corpus.source), _count_crlf(corpus.target)


def _count_crlf(path: Path) -> int:
    found, last = 0, b""
    for chunk in read_chunks(path):
        found += chunk.count(b"\r\n") + (last == b"\r" and chunk[:1] == b"\n")
        last = chunk[-1:]
    return found


Result = TypeVar("Result", covariant=True)
_QUEUED_PER_PROCESS = 2
"""Bounds how far the corpus is read ahead of the results."""


class Map(Protocol):
    """Maps a function over items in order; across processes all of them must be picklable."""

    def __call__(self, work: Callable[[Any], Result], items: Iterable[Any], /) -> Iterator[Result]:
        """Yield the result for each item."""


@contextmanager
def process_map(processes: int) -> Iterator[Map]:
    """Yield a `Map` over a pool of processes, or over this process if `processes` is 1."""
    if processes == 1:
        yield map
        return
    # Spawned, because a fork of a process with threads may hang.
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_exit_with_parent) as pool:
        yield partial(_pool_map, pool, _QUEUED_PER_PROCESS * processes)


def _exit_with_parent() -> None:
    """End this worker when its parent ends, even by SIGKILL."""

    def wait() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    Thread(target=wait, daemon=True).start()


def _pool_map(
    pool: ProcessPoolExecutor,
    max_queued: int,
    work: Callable[[Any], Result],
    items: Iterable[Any],
    /,
) -> Iterator[Result]:
    queued: deque[Future[Result]] = deque()
    for item in items:
        queued.append(pool.submit(work, item))
        if len(queued) > max_queued:
            yield queued.popleft().result()
    yield from (future.result() for future in queued)


Hashes = npt.NDArray[np.uint64]
_LENGTH_EDGES = np.array([0.0, 1.0, *np.round(2 ** np.arange(0.5, 13.5, 0.5), 2)])
_RATIO_EDGES = np.linspace(-4, 4, 33)
_ALLOWANCE = 10  # the same as in `length_ratio`


@dataclass(frozen=True, slots=True)
class SideTally:
    """Counts and line hashes of one side."""

    lines: int
    characters: int
    longest: int
    lengths: npt.NDArray[np.int64]
    exact: Hashes
    """Hashes of the lines as they are."""
    normalized: Hashes
    """Hashes of the normalized lines."""

    def as_side(self, language: str) -> Side:
        """Return the counts for a report."""
        histogram = Histogram(tuple(_LENGTH_EDGES.tolist()), tuple(self.lengths.tolist()))
        return Side(language, self.lines, self.characters, self.longest, histogram)


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of consecutive blocks."""

    source: SideTally
    target: SideTally
    ratios: npt.NDArray[np.int64]
    findings: tuple[Finding, ...]
    """One for each of `CHECKS`, including those with a count of 0."""

    def ratio_histogram(self) -> Histogram:
        """Return the length ratios of all pairs."""
        return Histogram(tuple(_RATIO_EDGES.tolist()), tuple(self.ratios.tolist()))


def tally_block(block: Block, source_language: str, target_language: str) -> Tally:
    """Count one block."""
    languages = {"source": source_language, "target": target_language}
    findings = [_run_check(check, block, languages.get(check.side)) for check in CHECKS]
    return Tally(
        _tally_side(block.sources), _tally_side(block.targets), _ratios(block), tuple(findings)
    )


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Sum the tallies of consecutive blocks; the hashes take 32 bytes a pair."""
    parts = list(tallies)
    return Tally(
        _add_sides([part.source for part in parts]),
        _add_sides([part.target for part in parts]),
        np.sum([part.ratios for part in parts], axis=0),
        tuple(map(_add_findings, *(part.findings for part in parts))),
    )


def _run_check(check: Check, block: Block, language: str | None) -> Finding:
    """Run a check of pairs if `language` is None, else of the texts of its side."""
    if language is None:
        lines = [n for n, source, target in block.numbered() if check.found(source, target)]
    else:
        side = ("source", "target").index(check.side)
        lines = [n for n, *pair in block.numbered() if check.found(pair[side], language)]
    pairs = min(len(block.sources), len(block.targets))
    return Finding(check.kind, check.side, len(lines), pairs, tuple(lines[:MAX_LINES_SHOWN]))


def _add_findings(*parts: Finding) -> Finding:
    lines = tuple(line for part in parts for line in part.lines)[:MAX_LINES_SHOWN]
    total, of = sum(part.count for part in parts), sum(part.of for part in parts)
    return replace(parts[0], count=total, of=of, lines=lines)


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
    digests = [
        hashlib.blake2b(line.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for line in lines
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _ratios(block: Block) -> npt.NDArray[np.int64]:
    both = min(len(block.sources), len(block.targets))
    source, target = (
        np.array([weighted_length(line) + _ALLOWANCE for line in side[:both]], dtype=np.float64)
        for side in (block.sources, block.targets)
    )
    ratios = np.log2(target / source)
    return np.histogram(np.clip(ratios, _RATIO_EDGES[0], _RATIO_EDGES[-1]), _RATIO_EDGES)[0]


_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
"""Odd multipliers for hashes of pairs; odd, so that no bits of either side are lost."""


def duplicates(tally: Tally) -> list[Finding]:
    """Count the exact repetitions of pairs, source sides and target sides."""
    findings = []
    for part, hashes in _parts(tally, "exact").items():
        repeated = np.ones(len(hashes), dtype=bool)
        repeated[np.unique(hashes, return_index=True)[1]] = False
        findings.append(_finding(f"duplicate_{part}", part, repeated))
    return findings


def overlaps(tally: Tally, other: Tally, name: str) -> list[Finding]:
    """Count the pairs and sides of a split that are in the split `name`, exactly and normalized.

    A normalized count equal to the exact one is left out.
    """
    exact, others = _parts(tally, "exact"), _parts(other, "exact")
    loose, loose_others = _parts(tally, "normalized"), _parts(other, "normalized")
    findings = []
    for part in exact:
        same, near = np.isin(exact[part], others[part]), np.isin(loose[part], loose_others[part])
        findings.append(_finding(f"overlap_{part}", part, same, other=name))
        if near.sum() > same.sum():
            findings.append(_finding(f"overlap_{part}_normalized", part, near, other=name))
    return findings


def _parts(tally: Tally, form: str) -> dict[str, Hashes]:
    source, target = getattr(tally.source, form), getattr(tally.target, form)
    both = min(len(source), len(target))
    pair = source[:both] * _MIX[0] + target[:both] * _MIX[1]
    return {"pair": pair, "source": source, "target": target}


def _finding(kind: str, side: str, found: npt.NDArray[np.bool_], *, other: str = "") -> Finding:
    lines = tuple((np.flatnonzero(found)[:MAX_LINES_SHOWN] + 1).tolist())
    return Finding(kind, side, int(found.sum()), len(found), lines, other)
