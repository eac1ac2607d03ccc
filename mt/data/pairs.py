"""Sentence pairs, the interface of all corpora, and corpora of two text files."""

import hashlib
import shlex
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

from mt.config.data import PairSection
from mt.data.corpus_files import FileScan, LineReader, scan
from mt.errors import DataError

UNVERIFIED = "unverified"
_CHUNK_PAIRS = 4096
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Checksums:
    """SHA-256 of the text of each side in hexadecimal, or `unverified`."""

    source: str
    target: str


def read_expected_sums(source: PairSection) -> Checksums:
    """Return the checksums of a config section."""
    return Checksums(source.sha256_source, source.sha256_target)


@dataclass(frozen=True)
class PairSource(ABC):
    """Corpus that can be read repeatedly from its start; nothing stays in memory."""

    expected: Checksums

    @property
    @abstractmethod
    def description(self) -> str:
        """Return the files or the name of the corpus, for messages."""

    @abstractmethod
    def pairs(self) -> Generator[SentencePair, None, Checksums]:
        """Stream the pairs; the generator returns the checksums of the sides.

        Raises `DataError` if the corpus is unreadable, empty or has sides of unequal length, and
        at its end if its text does not match `expected`.
        """

    def checksums(self) -> Checksums:
        """Read the corpus and return the checksum of each side; raise `DataError` like `pairs`."""
        checksums: dict[str, Checksums] = {}
        deque(self.recorded("corpus", checksums), maxlen=0)
        return checksums["corpus"]

    def recorded(self, key: str, checksums: dict[str, Checksums]) -> Iterator[SentencePair]:
        """Stream the pairs like `pairs`, and put their checksums under a key at the end."""
        checksums[key] = yield from self.pairs()


class ColumnSource(PairSource):
    """Corpus with both sides in one place; checksums are over each text and a newline."""

    @abstractmethod
    def read(self) -> Iterator[SentencePair]:
        """Stream the pairs without checks."""

    def pairs(self) -> Generator[SentencePair, None, Checksums]:
        """Stream the pairs, then check them."""
        source, target = hashlib.sha256(), hashlib.sha256()
        reading = iter(self.read())
        is_empty = True
        while chunk := list(islice(reading, _CHUNK_PAIRS)):
            is_empty = False
            # Hashing chunks is several times faster than hashing single pairs.
            source.update("".join([f"{pair.source}\n" for pair in chunk]).encode())
            target.update("".join([f"{pair.target}\n" for pair in chunk]).encode())
            yield from chunk
        if is_empty:
            raise DataError(f"{self.description}: the corpus is empty")
        checksums = Checksums(source.hexdigest(), target.hexdigest())
        verify(f"{self.description}, source side", checksums.source, self.expected.source)
        verify(f"{self.description}, target side", checksums.target, self.expected.target)
        return checksums


@dataclass(frozen=True)
class FileSource(ColumnSource):
    """Corpus with both sides in one file."""

    path: Path

    @property
    def description(self) -> str:
        """File name."""
        return str(self.path)


class EvenSample(Generic[_Item]):
    """Sample of a stream: all items, or every n-th, n a power of 2: more than half of `limit`."""

    def __init__(self, limit: int) -> None:
        self.items: list[_Item] = []
        self.seen = 0
        self._limit = limit
        self._step = 1

    def add(
        self, block: Sequence[_Item], change: Callable[[_Item], _Item] = lambda item: item
    ) -> None:
        """Add the next items of the stream; those of the sample are changed."""
        position = -self.seen % self._step
        while position < len(block):
            self.items.append(change(block[position]))
            if len(self.items) > self._limit:
                self.items = self.items[::2]
                self._step *= 2
            position += self._step
        self.seen += len(block)


def spread(pairs: Sequence[_Item], count: int | None) -> Sequence[_Item]:
    """Return `count` of the pairs, evenly spread; all of them for None or a larger number."""
    if count is None or count >= len(pairs):
        return pairs
    return [pairs[index * len(pairs) // count] for index in range(count)]


def verify(what: str, actual: str, expected: str) -> None:
    """Raise `DataError` naming `what` and both checksums if they differ."""
    if expected not in {actual, UNVERIFIED}:
        raise DataError(f"{what}: the SHA-256 of the text is {actual}, expected {expected}")


@dataclass(frozen=True)
class TextPairs(PairSource):
    """Two files with one sentence per line; line N of one translates line N of the other.

    The checksum of a side is that of the decompressed file, as `zcat FILE | sha256sum` prints it.
    """

    source: Path
    target: Path

    @property
    def description(self) -> str:
        """Both file names."""
        return f"{self.source} and {self.target}"

    def pairs(self) -> Generator[SentencePair, None, Checksums]:
        """Stream the pairs, then check line counts and checksums."""
        left, right = (LineReader(path, long_line="") for path in (self.source, self.target))
        sources, targets = iter(left), iter(right)
        yield from map(SentencePair, sources, targets)
        for rest in (sources, targets):
            deque(rest, maxlen=0)  # count the lines of the longer side
        return self._check(left.seen(), right.seen())

    def checksums(self) -> Checksums:
        """Read both files for line counts and checksums, without decoding them."""
        return self._check(scan(self.source), scan(self.target))

    def _check(self, source: FileScan, target: FileScan) -> Checksums:
        if source.lines != target.lines:
            raise DataError(
                f"{self.source} has {source.lines} lines, {self.target} has {target.lines}: "
                "line N of one must translate line N of the other; `mt data check "
                f"{shlex.quote(str(self.source))} {shlex.quote(str(self.target))}` shows where the "
                "sides diverge"
            )
        if not source.lines:
            raise DataError(f"{self.description}: the corpus is empty")
        verify(str(self.source), source.sha256, self.expected.source)
        verify(str(self.target), target.sha256, self.expected.target)
        return Checksums(source.sha256, target.sha256)
