"""Both sides of a corpus as they lie there, also where one has more lines than the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mt.data.lines import LineReader, read_chunks
from mt.data.pairs import PairSource
from mt.data.sources import TextPairs

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
