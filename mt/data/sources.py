"""Training, validation and test corpora by `format`, each a stream of sentence pairs."""

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
from mt.data.corpus_files import (
    FileScan,
    LineReader,
    download,
    scan,
    supplied_files,
    supply_hint,
    where_looked,
)
from mt.data.formats import READERS, UnitPairs, open_folder, open_hub, open_jsonl, open_parquet
from mt.data.pairs import (
    UNVERIFIED,
    Checksums,
    ColumnSource,
    FileSource,
    PairSource,
    SentencePair,
    expected_sums,
    verify,
)
from mt.errors import DataError, listed
from mt.files import expanded, regular_file

__all__ = ["Checksums", "PairSource", "SentencePair", "TextPairs", "TsvPairs", "open_source"]


def open_source(source: TrainSource, data: DataConfig) -> PairSource:
    """Find the files of a corpus, and download them if necessary; none is read yet.

    A mixture streams the pairs of all its corpora, each pair once. If
    `$MT_CORPORA/<corpus>.<language>[.gz]` exists, it takes precedence, whatever the format. Raises
    `DataError` naming a missing file.
    """
    if isinstance(source, MixtureSource):
        parts = tuple(open_source(each, data) for each in source.corpora.values())
        return ChainedPairs(Checksums(UNVERIFIED, UNVERIFIED), parts)
    data = data.of(source)
    files = supplied_files(source, data)
    if files is not None:
        return TextPairs(expected_sums(source), files.source, files.target)
    return _OPENERS[source.format](source, data)


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

    @property
    def target_description(self) -> str:
        """File name of the target side."""
        return str(self.target)

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs, then check line counts and checksums."""
        left, right = (LineReader(each, long_line="") for each in (self.source, self.target))
        sources, targets = iter(left), iter(right)
        yield from map(SentencePair, sources, targets)
        for rest in (sources, targets):
            deque(rest, maxlen=0)  # count the lines of the longer side
        self._check(left.seen(), right.seen())

    def checksums(self) -> Checksums:
        """Read both files for line counts and checksums, without decoding them."""
        return self._check(scan(self.source), scan(self.target))

    def _check(self, source: FileScan, target: FileScan) -> Checksums:
        if source.lines != target.lines:
            raise DataError(
                f"{self.source} has {source.lines} lines, {self.target} has {target.lines}: "
                "line N of one must translate line N of the other; `mt data check` shows where "
                "the sides diverge"
            )
        if not source.lines:
            raise DataError(f"{self.description}: the corpus is empty")
        verify(str(self.source), source.sha256, self.expected.source)
        verify(str(self.target), target.sha256, self.expected.target)
        return Checksums(source.sha256, target.sha256)


@dataclass(frozen=True)
class TsvPairs(FileSource):
    """Tab-separated columns; quotation marks and `NA` have no special meaning."""

    source_column: int
    target_column: int

    def read(self) -> Iterator[SentencePair]:
        """Split each line at its tabs."""
        source, target = self.source_column, self.target_column
        needed = max(source, target)
        for number, line in enumerate(LineReader(self.path, long_line="\t" * needed), 1):
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
        """Descriptions of all parts."""
        return listed([part.description for part in self.parts])

    def read(self) -> Iterator[SentencePair]:
        """Stream the pairs of each corpus, which checks itself."""
        return (pair for part in self.parts for pair in part.pairs())


def _open_text(source: TextSource, data: DataConfig) -> PairSource:
    def side(name: str, place: str | None, language: str) -> Path:
        if place is not None:
            return _fetch(place, source)
        assert source.corpus is not None, "the config requires places or a name"
        raise DataError(
            f"corpus `{source.corpus}`: {where_looked(source.corpus, language)}, and the "
            f"configuration gives no `{name}` to read instead"
        )

    left = side("source", source.source, data.source_language)
    return TextPairs(
        expected_sums(source), left, side("target", source.target, data.target_language)
    )


def _open_tsv(source: TsvSource, _data: DataConfig) -> PairSource:
    path = _fetch(source.path, source)
    return TsvPairs(expected_sums(source), path, source.source_column, source.target_column)


def _open_exchange(source: ExchangeSource, data: DataConfig) -> PairSource:
    path = _fetch(source.path, source)
    languages = data.source_language, data.target_language
    return UnitPairs(expected_sums(source), path, *languages, READERS[source.format])


def _fetch(place: str, source: CorpusSource) -> Path:
    """Return the local file of a path or URL."""
    if place.startswith(("http://", "https://")):
        try:
            return download(place)
        except DataError as error:
            raise DataError(f"{error}{supply_hint(source)}") from error
    if "://" in place:
        raise DataError(f"{place}: only http and https URLs can be read")
    return regular_file(expanded(place))


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
