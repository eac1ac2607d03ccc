"""Training, validation and test corpora by `format`, each a stream of sentence pairs.

In JSON lines, Parquet, dataset folders and datasets of the hub, a side is a field, named or given
as a dotted path into nested fields, by default `translation.<language>`. A null, a newline or a
value that is not text is an error with its row. `datasets` reads all but JSON lines, since its JSON
builder infers types per block: ISO dates become times, one number puts quotation marks around other
texts, a late new key is an error.
"""

import glob
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from mt.config.data import (
    CorpusSource,
    DataConfig,
    ExchangeSource,
    FolderSource,
    HubSource,
    JsonlSource,
    MixtureSource,
    ParquetSource,
    RecordSource,
    TextSource,
    TrainSource,
    TsvSource,
)
from mt.data.corpus_files import (
    LONGEST_LINE,
    LineReader,
    describe_supply,
    download,
    find_supplied_files,
    warn_of_long,
)
from mt.data.formats import READERS, UnitPairs
from mt.data.pairs import (
    ColumnSource,
    FileSource,
    PairSource,
    SentencePair,
    TextPairs,
    read_expected_sums,
)
from mt.errors import DataError, did_you_mean, listed
from mt.files import expand_home, require_regular_file


def open_source(source: TrainSource, data: DataConfig) -> PairSource:
    """Find the files of a corpus, and download them if necessary; none is read yet.

    If `$MT_CORPORA/<corpus>.<language>[.gz]` exists, it takes precedence, whatever the format.
    Raises `DataError` naming a missing file.
    """
    assert not isinstance(source, MixtureSource), "the corpora of a mixture are opened one by one"
    data = data.for_source(source)
    if files := find_supplied_files(source, data):
        return TextPairs(read_expected_sums(source), *files)
    return OPENERS[source.format](source, data)


@dataclass(frozen=True)
class TsvPairs(FileSource):
    """Tab-separated columns; quotation marks and `NA` have no special meaning."""

    columns: tuple[int, int]
    """Source and target column, from 0."""

    def read(self) -> Iterator[SentencePair]:
        """Split each line at its tabs."""
        source, target = self.columns
        needed = max(source, target)
        for line_number, line in enumerate(LineReader(self.path, long_line="\t" * needed), 1):
            columns = line.split("\t")
            if len(columns) <= needed:
                raise DataError(
                    f"{self.path}: line {line_number} has {len(columns)} columns, "
                    f"column {needed} was asked for (the first is 0)"
                )
            yield SentencePair(columns[source], columns[target])


_BATCH_ROWS = 4096
_LONGEST_REASON = 300


class _UnfitRecordError(Exception):
    """Reason to reject a record; the reader adds the place."""


def _check_text(value: object, field: str) -> str:
    """Return a text; raise `_UnfitRecordError` unless it is one line of Unicode."""
    if not isinstance(value, str):
        kind = "null" if value is None else f"{type(value).__name__}, not text"
        raise _UnfitRecordError(f"`{field}` is {kind}")
    if "\n" in value:
        raise _UnfitRecordError(f"`{field}` holds a newline, but a text must be one line")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _UnfitRecordError(f"`{field}` holds half a surrogate pair") from error
    return value


def _describe_missing(field: str, there: list[str]) -> str:
    known = listed(there) or "none"
    return f"no field `{field}`; there are {known}{did_you_mean(field, there)}"


@dataclass(frozen=True)
class JsonlPairs(FileSource):
    """One JSON object per line; blank lines are skipped."""

    fields: tuple[str, str]
    """Source and target field, with dots for nesting."""

    def read(self) -> Iterator[SentencePair]:
        """Parse each line."""
        source, target = self.fields
        for line_number, line in enumerate(LineReader(self.path, long_line=""), 1):
            if not line or line.isspace():
                continue
            try:
                record = _parse_record(line)
                yield SentencePair(_read_field(record, source), _read_field(record, target))
            except _UnfitRecordError as error:
                raise DataError(f"{self.path}: line {line_number}: {error}") from error

    def list_fields(self) -> list[str]:
        """Return the fields of the first record, nested ones with dots."""
        read = LineReader(self.path, long_line="")
        lines = (line for line in read if line and not line.isspace())
        try:
            return [*_list_fields(_parse_record(next(lines, "{}")))]
        except _UnfitRecordError as error:
            raise DataError(f"{self.path}: the first record: {error}") from error


def _parse_record(line: str) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _UnfitRecordError(f"not JSON ({error})") from error
    if not isinstance(record, dict):
        raise _UnfitRecordError("not a JSON object")
    return record


def _read_field(record: dict[str, object], field: str) -> str:
    value: object = record
    for name in [field] if field in record else field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise _UnfitRecordError(_describe_missing(field, list(_list_fields(record))))
        value = value[name]
    return _check_text(value, field)


def _list_fields(record: dict[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the fields of a record, nested ones with dots."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _list_fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@dataclass(frozen=True)
class DatasetPairs(ColumnSource):
    """Corpus opened by `datasets` and read in batches, as Arrow tables."""

    name: str
    fields: tuple[str, str]
    load: Callable[[], Any]
    hint: str = ""

    @property
    def description(self) -> str:
        """File, folder and split, or name, revision and split of a hub dataset."""
        return self.name

    def read(self) -> Iterator[SentencePair]:
        """Open the dataset again, so that a changed file gives its new rows."""
        rows = 0
        for table in self._read_tables():
            columns = [self._read_column(table, field, rows) for field in self.fields]
            yield from map(SentencePair, *columns)
            rows += table.num_rows

    def list_fields(self) -> list[str]:
        """Return the columns, nested ones with dots; [] without rows."""
        table = next(self._read_tables(), None)
        return [] if table is None else list(_flatten(table).column_names)

    def _read_tables(self) -> Iterator[Any]:
        import datasets

        # A failure is reported once, by the error below.
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        try:
            yield from self.load().with_format("arrow").iter(batch_size=_BATCH_ROWS)
        except Exception as error:  # its own, Arrow's, the hub's, the system's
            reason = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
            raise DataError(f"{self.name}: cannot be read ({reason}){self.hint}") from error

    def _read_column(self, table: Any, field: str, rows_before: int) -> Iterator[str]:
        """Stream a column of a table that follows `rows_before` rows of the corpus."""
        table = _flatten(table)
        if field not in table.column_names:
            raise DataError(f"{self.name}: {_describe_missing(field, table.column_names)}")
        try:
            values = table.column(table.column_names.index(field)).to_pylist()
        except UnicodeDecodeError as error:
            rows = f"rows {rows_before + 1} to {rows_before + table.num_rows}"
            raise DataError(f"{self.name}: {rows}: `{field}` is not UTF-8") from error
        long_rows = []
        for row, value in enumerate(values, start=rows_before + 1):
            try:
                text = _check_text(value, field)
            except _UnfitRecordError as error:
                raise DataError(f"{self.name}: row {row}: {error}") from error
            if len(text) > LONGEST_LINE:
                long_rows.append(row)
                text = ""
            yield text
        warn_of_long(self.name, "rows", long_rows)


def _flatten(table: Any) -> Any:
    while any(pa.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()  # the columns of a struct get dotted names
    return table


def list_fields(corpus: PairSource) -> list[str]:
    """Return the fields of a corpus with named fields, nested ones with dots."""
    assert isinstance(corpus, JsonlPairs | DatasetPairs)
    return corpus.list_fields()


def open_jsonl(source: JsonlSource, data: DataConfig) -> ColumnSource:
    """Open a file of JSON lines, compressed or not."""
    path = require_regular_file(expand_home(source.path))
    return JsonlPairs(read_expected_sums(source), path, _choose_fields(source, data))


def open_parquet(source: ParquetSource, data: DataConfig) -> ColumnSource:
    """Open a Parquet file."""
    path = require_regular_file(expand_home(source.path))

    def load() -> Any:
        from datasets import Dataset
        from pyarrow import parquet

        # `datasets` fails on a file without rows.
        if not parquet.read_metadata(path).num_rows:
            return Dataset.from_dict({})
        pattern = glob.escape(str(path.resolve()))  # brackets in a file name are no pattern
        # Streaming reads the file itself instead of a copy in the cache.
        return _load("parquet", data_files=pattern, split="train", streaming=True)

    return DatasetPairs(read_expected_sums(source), str(path), _choose_fields(source, data), load)


def open_folder(source: FolderSource, data: DataConfig) -> ColumnSource:
    """Open a split of a local dataset folder."""
    path = expand_home(source.path)
    if not path.is_dir():
        raise DataError(f"{path}: no such folder")

    load = partial(_load, str(path.resolve()), split=source.split, streaming=True)
    name = f"{path}, split {source.split}"
    return DatasetPairs(read_expected_sums(source), name, _choose_fields(source, data), load)


def open_hub(source: HubSource, data: DataConfig) -> ColumnSource:
    """Open a split of a hub dataset; `datasets` downloads it on first use and caches it."""

    # Not streamed: a pinned commit cannot change, and the cache saves further downloads.
    load = partial(
        _load,
        source.name,
        source.subset,
        data_dir=source.folder,
        split=source.split,
        revision=source.revision,
    )
    name = f"{source.name}@{source.revision}, split {source.split}"
    fields, hint = _choose_fields(source, data), describe_supply(source)
    return DatasetPairs(read_expected_sums(source), name, fields, load, hint)


def _load(*names: str | None, **options: Any) -> Any:
    from datasets import load_dataset  # deferred, since the import takes a second

    return load_dataset(*names, **options)


def _choose_fields(source: RecordSource, data: DataConfig) -> tuple[str, str]:
    languages = data.source_language, data.target_language
    return source.columns or (f"translation.{languages[0]}", f"translation.{languages[1]}")


def _open_text(source: TextSource, data: DataConfig) -> PairSource:
    sides = []
    for name, path, language in (
        ("source", source.source, data.source_language),
        ("target", source.target, data.target_language),
    ):
        if path is None:
            folder = os.environ.get("MT_CORPORA") or "not set"
            raise DataError(
                f"corpus `{source.corpus}`: {source.corpus}.{language}[.gz] is not in $MT_CORPORA "
                f"({folder}), and the configuration gives no `{name}` to read instead"
            )
        sides.append(_fetch(path, source))
    return TextPairs(read_expected_sums(source), *sides)


def _open_tsv(source: TsvSource, _data: DataConfig) -> PairSource:
    path = _fetch(source.path, source)
    return TsvPairs(read_expected_sums(source), path, source.columns)


def _open_units(source: ExchangeSource, data: DataConfig) -> PairSource:
    path = _fetch(source.path, source)
    languages = data.source_language, data.target_language
    return UnitPairs(read_expected_sums(source), path, *languages, READERS[source.format])


def _fetch(path: str, source: CorpusSource) -> Path:
    """Return the local file of a path or URL."""
    if path.startswith(("http://", "https://")):
        try:
            return download(path)
        except DataError as error:
            raise DataError(f"{error}{describe_supply(source)}") from error
    if "://" in path:
        raise DataError(f"{path}: only http and https URLs can be read")
    return require_regular_file(expand_home(path))


OPENERS: dict[str, Callable[[Any, DataConfig], PairSource]] = {
    "text": _open_text,
    "tsv": _open_tsv,
    "jsonl": open_jsonl,
    "parquet": open_parquet,
    "folder": open_folder,
    "hub": open_hub,
    "tmx": _open_units,
    "xliff": _open_units,
    "po": _open_units,
}
