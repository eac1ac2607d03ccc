"""Sentence pairs, and the interface of all corpora."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mt.config.data import PairSection
from mt.errors import DataError

UNVERIFIED = "unverified"
_CHUNK_PAIRS = 4096


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


def expected_sums(source: PairSection) -> Checksums:
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

    @property
    def target_description(self) -> str:
        """Return the file or name of the target side, for records of a score."""
        return self.description

    @abstractmethod
    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs.

        Raises `DataError` if the corpus is unreadable, empty or has sides of unequal length, and
        at its end if its text does not match `expected`.
        """

    @abstractmethod
    def checksums(self) -> Checksums:
        """Read the corpus and return the checksum of each side; raise `DataError` like `pairs`."""


class ColumnSource(PairSource):
    """Corpus with both sides in one place; checksums are over each text and a newline."""

    @abstractmethod
    def read(self) -> Iterator[SentencePair]:
        """Stream the pairs without checks."""

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs, then check them."""
        digests = _Digests()
        yield from digests.watch(self.read())
        self._check(digests)

    def checksums(self) -> Checksums:
        """Read the whole corpus for its checksums."""
        digests = _Digests()
        for _ in digests.watch(self.read()):
            pass
        return self._check(digests)

    def _check(self, digests: "_Digests") -> Checksums:
        if not digests.pairs:
            raise DataError(f"{self.description}: the corpus is empty")
        found = digests.result()
        verify(f"{self.description}, source side", found.source, self.expected.source)
        verify(f"{self.description}, target side", found.target, self.expected.target)
        return found


@dataclass(frozen=True)
class FileSource(ColumnSource):
    """Corpus with both sides in one file."""

    path: Path

    @property
    def description(self) -> str:
        """File name."""
        return str(self.path)


class _Digests:
    """Count and checksums of a stream of pairs."""

    def __init__(self) -> None:
        self.pairs = 0
        self._source = hashlib.sha256()
        self._target = hashlib.sha256()

    def watch(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        """Yield the pairs; hashing chunks is several times faster than hashing single pairs."""
        iterator = iter(pairs)
        while chunk := list(islice(iterator, _CHUNK_PAIRS)):
            self.pairs += len(chunk)
            self._source.update("".join([f"{pair.source}\n" for pair in chunk]).encode())
            self._target.update("".join([f"{pair.target}\n" for pair in chunk]).encode())
            yield from chunk

    def result(self) -> Checksums:
        return Checksums(self._source.hexdigest(), self._target.hexdigest())


def verify(what: str, found: str, expected: str) -> None:
    """Raise `DataError` naming `what` and both checksums if they differ."""
    if expected not in {found, UNVERIFIED}:
        raise DataError(f"{what}: the SHA-256 of the text is {found}, expected {expected}")
