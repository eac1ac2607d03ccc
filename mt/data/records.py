"""Corpora with named fields: JSON lines, Parquet, dataset folders, datasets of the hub.

A field is a name or a dotted path into nested fields, by default `translation.<language>`. A null,
a newline or a value that is not text is an error with its row.

`datasets` reads all but JSON lines, since its JSON builder infers types per block: ISO dates become
times, one number puts quotation marks around other texts, a late new key is an error.
"""

import glob
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mt.config.data import (
    DataConfig,
    FolderSource,
    HubSource,
    JsonlSource,
    ParquetSource,
    RecordSource,
)
from mt.data.corpus_files import LONGEST_LINE, LineReader, supply_hint, warn_of_long
from mt.data.pairs import ColumnSource, FileSource, PairSource, SentencePair, expected_sums
from mt.errors import DataError, did_you_mean, listed
from mt.files import expanded, regular_file

_BATCH_ROWS = 4096
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class FieldNames:
    """Field of each side, with dots for nesting."""

    source: str
    target: str


class _UnfitRecordError(Exception):
    """Reason to reject a record; the reader adds the place."""


def _checked(value: object, field: str) -> str:
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


def _missing(field: str, there: list[str]) -> str:
    known = listed(there) or "none"
    return f"no field `{field}`; there are {known}{did_you_mean(field, there)}"


@dataclass(frozen=True)
class JsonlPairs(FileSource):
    """One JSON object per line; blank lines are skipped."""

    fields: FieldNames

    def read(self) -> Iterator[SentencePair]:
        """Parse each line."""
        source, target = self.fields.source, self.fields.target
        for number, line in enumerate(LineReader(self.path, long_line=""), 1):
            if not line or line.isspace():
                continue
            try:
                record = _parse(line)
                yield SentencePair(_text(record, source), _text(record, target))
            except _UnfitRecordError as error:
                raise DataError(f"{self.path}: line {number}: {error}") from error

    def field_names(self) -> list[str]:
        """Return the fields of the first record, nested ones with dots."""
        read = LineReader(self.path, long_line="")
        lines = (line for line in read if line and not line.isspace())
        try:
            return [*_names(_parse(next(lines, "{}")))]
        except _UnfitRecordError as error:
            raise DataError(f"{self.path}: the first record: {error}") from error


def _parse(line: str) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _UnfitRecordError(f"not JSON ({error})") from error
    if not isinstance(record, dict):
        raise _UnfitRecordError("not a JSON object")
    return record


def _text(record: dict[str, object], field: str) -> str:
    value: object = record
    for name in [field] if field in record else field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise _UnfitRecordError(_missing(field, list(_names(record))))
        value = value[name]
    return _checked(value, field)


def _names(record: dict[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the fields of a record, nested ones with dots."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@dataclass(frozen=True)
class DatasetPairs(ColumnSource):
    """Corpus opened by `datasets` and read in batches, as Arrow tables."""

    name: str
    fields: FieldNames
    load: Callable[[], Any]
    hint: str = ""

    @property
    def description(self) -> str:
        """File, folder and split, or name, revision and split of a hub dataset."""
        return self.name

    def read(self) -> Iterator[SentencePair]:
        """Open the dataset again, so that a changed file gives its new rows."""
        rows = 0
        for table in self._tables():
            sources = self._texts(table, self.fields.source, rows)
            targets = self._texts(table, self.fields.target, rows)
            yield from map(SentencePair, sources, targets)
            rows += table.num_rows

    def field_names(self) -> list[str]:
        """Return the columns, nested ones with dots; [] without rows."""
        table = next(self._tables(), None)
        return [] if table is None else list(_flattened(table).column_names)

    def _tables(self) -> Iterator[Any]:
        import datasets  # deferred, since the import takes a second

        # A failure is reported once, by the error below.
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        try:
            yield from self.load().with_format("arrow").iter(batch_size=_BATCH_ROWS)
        except Exception as error:  # its own, Arrow's, the hub's, the system's
            raise DataError(f"{self.name}: {_reason(error)}{self.hint}") from error

    def _texts(self, table: Any, field: str, rows_before: int) -> Iterator[str]:
        """Stream a column of a table that follows `rows_before` rows of the corpus."""
        table = _flattened(table)
        if field not in table.column_names:
            raise DataError(f"{self.name}: {_missing(field, table.column_names)}")
        column = table.column(table.column_names.index(field))
        try:
            values = column.to_pylist()
        except UnicodeDecodeError:  # raised again at its row; reading single rows is slower
            values = (scalar.as_py() for scalar in column)
        row = rows_before + 1
        long_rows = []
        try:
            for value in values:
                text = _checked(value, field)
                if len(text) > LONGEST_LINE:
                    long_rows.append(row)
                yield "" if len(text) > LONGEST_LINE else text
                row += 1
            warn_of_long(self.name, "rows", long_rows)
        except _UnfitRecordError as error:
            raise DataError(f"{self.name}: row {row}: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.name}: row {row}: `{field}` is not UTF-8") from error


def _flattened(table: Any) -> Any:
    while any(pa.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()  # the columns of a struct get dotted names
    return table


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "Dataset scripts are no longer supported" in text:
        return "loads by a script, and scripts are refused; choose a revision with Parquet files"
    return f"cannot be read ({text[:_LONGEST_REASON] or type(error).__name__})"


def field_names(corpus: PairSource) -> list[str]:
    """Return the fields of a corpus with named fields, nested ones with dots."""
    assert isinstance(corpus, JsonlPairs | DatasetPairs)
    return corpus.field_names()


def open_jsonl(source: JsonlSource, data: DataConfig) -> ColumnSource:
    """Open a file of JSON lines, compressed or not."""
    path = regular_file(expanded(source.path))
    return JsonlPairs(expected_sums(source), path, _fields(source, data))


def open_parquet(source: ParquetSource, data: DataConfig) -> ColumnSource:
    """Open a Parquet file."""
    path = regular_file(expanded(source.path))

    def load() -> Any:
        from datasets import Dataset, load_dataset
        from pyarrow import parquet

        # `datasets` fails on a file without rows.
        if not parquet.read_metadata(path).num_rows:
            return Dataset.from_dict({})
        pattern = glob.escape(str(path.resolve()))  # brackets in a file name are no pattern
        # Streaming reads the file itself instead of a copy in the cache.
        return load_dataset("parquet", data_files=pattern, split="train", streaming=True)

    return DatasetPairs(expected_sums(source), str(path), _fields(source, data), load)


def open_folder(source: FolderSource, data: DataConfig) -> ColumnSource:
    """Open a split of a local dataset folder."""
    path = expanded(source.path)
    if not path.is_dir():
        raise DataError(f"{path}: no such folder")

    def load() -> Any:
        from datasets import load_dataset

        return load_dataset(str(path.resolve()), split=source.split, streaming=True)

    name = f"{path}, split {source.split}"
    return DatasetPairs(expected_sums(source), name, _fields(source, data), load)


def open_hub(source: HubSource, data: DataConfig) -> ColumnSource:
    """Open a split of a hub dataset; `datasets` downloads it on first use and caches it."""

    def load() -> Any:
        from datasets import load_dataset

        # Not streamed: a pinned commit cannot change, and the cache saves further downloads.
        return load_dataset(
            source.name,
            source.subset,
            data_dir=source.folder,
            split=source.split,
            revision=source.revision,
        )

    name = f"{source.name}@{source.revision}, split {source.split}"
    return DatasetPairs(
        expected_sums(source), name, _fields(source, data), load, supply_hint(source)
    )


def _fields(source: RecordSource, data: DataConfig) -> FieldNames:
    return FieldNames(
        source.source_field or f"translation.{data.source_language}",
        source.target_field or f"translation.{data.target_language}",
    )
