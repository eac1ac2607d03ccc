"""Counting what a block of lines holds, so that blocks can be counted side by side and added up."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mt.data.lines import LineReader, read_chunks
from mt.data.pair_checks import normalized, weighted_length
from mt.data.pairs import PairSource
from mt.data.sources import TextPairs
from mt.doctor.findings import CHECKS, MOST_LINES_TOLD, Check, Finding, Histogram, Side

BLOCK_LINES = 4000


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of both sides; the lists differ in length only past the end of a side."""

    first: int
    """How many lines come before."""
    sources: list[str]
    targets: list[str]


def read_blocks(corpus: PairSource) -> Iterator[Block]:
    """Stream a corpus in blocks of 4,000 lines; unlike `pairs`, an uneven one is no error."""
    if isinstance(corpus, TextPairs):
        yield from _of_files(corpus)
        return
    pairs = corpus.pairs()
    first = 0
    while chunk := list(islice(pairs, BLOCK_LINES)):
        yield Block(first, [pair.source for pair in chunk], [pair.target for pair in chunk])
        first += len(chunk)


def _of_files(corpus: TextPairs) -> Iterator[Block]:
    left, right = iter(LineReader(corpus.source)), iter(LineReader(corpus.target))
    first = 0
    while True:
        block = Block(first, list(islice(left, BLOCK_LINES)), list(islice(right, BLOCK_LINES)))
        if not block.sources and not block.targets:
            return
        yield block
        first += BLOCK_LINES


def crlf_lines(corpus: PairSource) -> tuple[int, int]:
    """Return how many lines of either side end in CRLF; 0 for what is no text file."""
    if not isinstance(corpus, TextPairs):
        return 0, 0
    return _count_crlf(corpus.source), _count_crlf(corpus.target)


def _count_crlf(path: Path) -> int:
    count = 0
    last = b""
    for chunk in read_chunks(path):
        count += chunk.count(b"\r\n") + (last == b"\r" and chunk[:1] == b"\n")
        last = chunk[-1:]
    return count


Result = TypeVar("Result", covariant=True)
_WAITING_FOR_EACH = 2
"""Blocks that lie ready for a process; the rest of the corpus is not read before it is needed."""


class Spread(Protocol):
    """Gives the results of some work on each item, in the order of the items, as `map` does.

    With several processes work, items and results have to be such as can be pickled.
    """

    def __call__(self, work: Callable[[Any], Result], items: Iterable[Any], /) -> Iterator[Result]:
        """Do the work on each item."""


def here(work: Callable[[Any], Result], items: Iterable[Any], /) -> Iterator[Result]:
    """Do the work in this process."""
    return map(work, items)


@contextmanager
def spread_over(processes: int) -> Iterator[Spread]:
    """Give what spreads work over so many processes; 1 is this one."""
    if processes == 1:
        yield here
        return
    # Started anew, not forked: a fork of a process with threads may hang.
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_end_with_parent) as pool:
        yield partial(_side_by_side, pool, _WAITING_FOR_EACH * processes)


def _end_with_parent() -> None:
    """Let no process of the pool wait for work from one that was killed."""
    Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)


def _side_by_side(
    pool: ProcessPoolExecutor,
    most_waiting: int,
    work: Callable[[Any], Result],
    items: Iterable[Any],
    /,
) -> Iterator[Result]:
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > most_waiting:
            yield waiting.popleft().result()
    yield from (future.result() for future in waiting)


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
