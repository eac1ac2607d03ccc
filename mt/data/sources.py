"""Where sentence pairs come from: one class for each kind of corpus, one table of them all."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.config.data import (
    CorpusSource,
    DataConfig,
    ExchangeSource,
    MixtureSource,
    TextSource,
    TrainSource,
    TsvSource,
)
from mt.data.corpora import download, supplied_files, supply_hint, where_looked
from mt.data.exchange import READERS, UnitPairs
from mt.data.lines import FileScan, LineReader, existing_file, scan
from mt.data.pairs import UNVERIFIED, Checksums, ColumnSource, PairSource, SentencePair, verify
from mt.data.records import open_folder, open_hub, open_jsonl, open_parquet
from mt.errors import DataError, listed

__all__ = ["Checksums", "PairSource", "SentencePair", "TextPairs", "TsvPairs", "open_source"]


@dataclass(frozen=True)
class TextPairs(PairSource):
    """Two files whose line N translate each other.

    A checksum is of a file's decompressed bytes, so that `zcat FILE | sha256sum` gives it.
    """

    source: Path
    target: Path

    @property
    def description(self) -> str:
        """Both file names."""
        return f"{self.source} and {self.target}"

    @property
    def target_description(self) -> str:
        """The file name of the target side."""
        return str(self.target)

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs; checksums and line counts are compared at the end."""
        left, right = LineReader(self.source), LineReader(self.target)
        sources, targets = iter(left), iter(right)
        yield from map(SentencePair, sources, targets)
        for rest in (sources, targets):  # both to their ends, so that the error can count
            deque(rest, maxlen=0)
        self._check(left.seen(), right.seen())

    def checksums(self) -> Checksums:
        """Read both files for counts and checksums, without decoding them."""
        return self._check(scan(self.source), scan(self.target))

    def _check(self, source: FileScan, target: FileScan) -> Checksums:
        if source.lines != target.lines:
            raise DataError(
                f"{self.source} has {source.lines} lines, {self.target} has {target.lines}: "
                "line N of one must translate line N of the other; `mt data check` tells near "
                "which line they slip apart"
            )
        if not source.lines:
            raise DataError(f"{self.description}: the corpus is empty")
        verify(str(self.source), source.sha256, self.expected.source)
        verify(str(self.target), target.sha256, self.expected.target)
        return Checksums(source.sha256, target.sha256)


@dataclass(frozen=True)
class TsvPairs(ColumnSource):
    """Tab-separated columns; a quotation mark or `NA` is text like any other."""

    path: Path
    source_column: int
    target_column: int

    @property
    def description(self) -> str:
        """The file name."""
        return str(self.path)

    def read(self) -> Iterator[SentencePair]:
        """Split every line at its tabs."""
        source, target = self.source_column, self.target_column
        needed = max(source, target)
        for number, line in enumerate(LineReader(self.path), 1):
            columns = line.split("\t")
            if len(columns) <= needed:
                raise DataError(
                    f"{self.path}: line {number} has {len(columns)} columns, "
                    f"column {needed} was asked for (the first is 0)"
                )
            yield SentencePair(columns[source], columns[target])


@dataclass(frozen=True)
class ChainedPairs(ColumnSource):
    """Several corpora, one after the other."""

    parts: tuple[PairSource, ...]

    @property
    def description(self) -> str:
        """The descriptions of all."""
        return listed([part.description for part in self.parts])

    def read(self) -> Iterator[SentencePair]:
        """Stream the pairs of each corpus, which checks them by itself."""
        return (pair for part in self.parts for pair in part.pairs())


def open_source(source: TrainSource, data: DataConfig) -> PairSource:
    """Find the files of a corpus, downloading what is not at hand; none is read yet.

    A mixture gives the pairs of all its corpora, each once.

    `$MT_CORPORA/<name>/<split>.<language>[.gz]` comes first, for every kind of corpus that has a
    `corpus` key. Raises `DataError` naming what is missing.
    """
    if isinstance(source, MixtureSource):
        parts = tuple(open_source(each, data) for each in source.corpora.values())
        return ChainedPairs(Checksums(UNVERIFIED, UNVERIFIED), parts)
    data = data.of(source)
    files = supplied_files(source, data)
    if files is not None:
        return TextPairs(_expected(source), files.source, files.target)
    return _OPENERS[source.format](source, data)


def _open_text(source: TextSource, data: DataConfig) -> PairSource:
    left = _file(source.source, source, side="source", language=data.source_language)
    right = _file(source.target, source, side="target", language=data.target_language)
    return TextPairs(_expected(source), left, right)


def _file(place: str | None, source: TextSource, *, side: str, language: str) -> Path:
    if place is not None:
        return _fetch(place, source)
    assert source.corpus is not None, "the configuration asks for places or a name"
    raise DataError(
        f"corpus `{source.corpus}`: {where_looked(source.corpus, language)}, and the "
        f"configuration gives no `{side}` to read instead"
    )


def _open_tsv(source: TsvSource, _data: DataConfig) -> PairSource:
    path = _fetch(source.path, source)
    return TsvPairs(_expected(source), path, source.source_column, source.target_column)


def _open_exchange(source: ExchangeSource, data: DataConfig) -> PairSource:
    path = _fetch(source.path, source)
    languages = data.source_language, data.target_language
    return UnitPairs(_expected(source), path, *languages, READERS[source.format])


def _fetch(place: str, source: CorpusSource) -> Path:
    """Return the local file behind a path or URL."""
    if place.startswith(("http://", "https://")):
        try:
            return download(place)
        except DataError as error:
            raise DataError(f"{error}{supply_hint(source)}") from error
    if "://" in place:
        raise DataError(f"{place}: only http and https URLs can be read")
    return existing_file(Path(place).expanduser())


def _expected(source: CorpusSource) -> Checksums:
    return Checksums(source.sha256_source, source.sha256_target)


_OPENERS: dict[str, Callable[[Any, DataConfig], PairSource]] = {
    "text": _open_text,
    "tsv": _open_tsv,
    "jsonl": open_jsonl,
    "parquet": open_parquet,
    "folder": open_folder,
    "hub": open_hub,
    "tmx": _open_exchange,
    "xliff": _open_exchange,
    "po": _open_exchange,
}
