"""The sentence pair, and what every source of pairs promises."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from mt.errors import DataError

UNVERIFIED = "unverified"
_CHUNK_PAIRS = 4096


@dataclass(frozen=True, slots=True)
class SentencePair:
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Checksums:
    """SHA-256 of each side's text, in hexadecimal; an expected one may be `unverified`."""

    source: str
    target: str


@dataclass(frozen=True)
class PairSource(ABC):
    """A corpus that can be read from its start as often as wanted; nothing of it is kept."""

    expected: Checksums

    @property
    @abstractmethod
    def description(self) -> str:
        """Name the corpus for messages: its files or its name."""

    @property
    def target_description(self) -> str:
        """Name what holds the target side, for records of a score."""
        return self.description

    @abstractmethod
    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs; memory does not grow with the corpus.

        Raises `DataError` where the corpus is unreadable, empty or uneven, and at its end where
        its text is not what `expected` says.
        """

    @abstractmethod
    def checksums(self) -> Checksums:
        """Read the corpus as it is now and return the checksum of each side.

        Raises `DataError` as `pairs` does.
        """


class ColumnSource(PairSource):
    """A corpus that holds both sides in one place; a checksum is over every text + a newline."""

    @abstractmethod
    def read(self) -> Iterator[SentencePair]:
        """Stream the pairs, unchecked."""

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs and check them on the way."""
        digests = _Digests()
        yield from digests.watch(self.read())
        self._check(digests)

    def checksums(self) -> Checksums:
        """Read everything for the checksums alone."""
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


class _Digests:
    """Counts and hashes the pairs that pass by."""

    def __init__(self) -> None:
        self.pairs = 0
        self._source = hashlib.sha256()
        self._target = hashlib.sha256()

    def watch(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        """Hand the pairs on; hashing by the chunk is several times faster than one by one."""
        iterator = iter(pairs)
        while chunk := list(islice(iterator, _CHUNK_PAIRS)):
            self.pairs += len(chunk)
            self._source.update("".join([f"{pair.source}\n" for pair in chunk]).encode())
            self._target.update("".join([f"{pair.target}\n" for pair in chunk]).encode())
            yield from chunk

    def result(self) -> Checksums:
        return Checksums(self._source.hexdigest(), self._target.hexdigest())


def verify(what: str, found: str, expected: str) -> None:
    """Raise `DataError` naming `what` and both checksums where they differ."""
    if expected not in {found, UNVERIFIED}:
        raise DataError(f"{what}: the SHA-256 of the text is {found}, expected {expected}")
