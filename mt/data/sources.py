"""Training, validation and test corpora by `format`, each a stream of sentence pairs.

In JSON lines, Parquet, dataset folders and datasets of the hub, a side is a field, named or given
as a dotted path into nested fields, by default `translation.<language>`. Records without one of the
sides are left out and counted; a newline or a value that is not text is an error with its row.
`datasets` reads all but JSON lines, since its JSON builder infers types per block: ISO dates become
times, one number puts quotation marks around other texts, a late new key is an error.
"""

import csv
import functools
import glob
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from mt.config.data import (
    CorpusSource,
    Direction,
    FolderSource,
    HubSource,
    JsonlSource,
    PathSource,
    SplitSource,
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
    require_unpacked,
    warn_of_long,
    warn_once,
)
from mt.data.exchange_formats import READERS, UnitPairs, join_lines
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
from mt.languages import base_language, language_name
from mt.tables import CORRECTION, FORMULA


def open_source(source: SplitSource | TrainSource, direction: Direction) -> PairSource:
    """Find the files of a corpus, and download them if necessary; none is read yet.

    If `$MT_CORPORA/<corpus>.<language>[.gz]` exists, it takes precedence, whatever the format.
    Raises `DataError` naming a missing file.
    """
    assert isinstance(source, CorpusSource), "mixtures and held-out splits have no files"
    sums = read_expected_sums(source)
    if files := find_supplied_files(source, direction):
        return TextPairs(sums, *files)
    if isinstance(source, TextSource):
        if source.sacrebleu:
            return TextPairs(sums, *find_test_set(source.sacrebleu, direction)[:2])
        if source.source is None or source.target is None:
            folder = os.environ.get("MT_CORPORA") or "not set"
            raise DataError(
                f"corpus `{source.corpus}`: {source.corpus}.{direction.source}[.gz] is not in "
                f"$MT_CORPORA ({folder}), and the configuration gives no `source` and `target` to "
                "read instead"
            )
        return TextPairs(sums, _fetch(source.source, source), _fetch(source.target, source))
    if isinstance(source, PathSource):
        path = _fetch(source.path, source)
        if isinstance(source, TsvSource):
            return TsvPairs(sums, path, source.columns, direction)
        return UnitPairs(sums, path, *direction, READERS[source.format])
    fields = source.columns or (f"translation.{direction[0]}", f"translation.{direction[1]}")
    if isinstance(source, HubSource):
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
        return DatasetPairs(sums, name, fields, load, describe_supply(source))
    path = expand_home(source.path)
    if isinstance(source, FolderSource):
        if not path.is_dir():
            raise DataError(f"{path}: no such folder")
        load = partial(_load, str(path.resolve()), split=source.split, streaming=True)
        return DatasetPairs(sums, f"{path}, split {source.split}", fields, load)
    require_regular_file(path)
    if isinstance(source, JsonlSource):
        return JsonlPairs(sums, path, fields)
    return DatasetPairs(sums, str(path), fields, partial(_load_parquet, path))


@functools.cache
def find_test_set(name: str, direction: Direction) -> tuple[Path, ...]:
    """Return the files of a test set of sacreBLEU, first that of the sources, then the references.

    sacreBLEU downloads them once into its own folder, `$SACREBLEU`. Raises `DataError` for a test
    set or a pair of languages that it does not have, and for a failed download.
    """
    from sacrebleu.dataset import DATASETS  # deferred, since the import takes 0.1 s
    from sacrebleu.utils import get_reference_files, get_source_file

    if name not in DATASETS:
        near = did_you_mean(name, DATASETS) or "; `sacrebleu --list` prints the names"
        raise DataError(f"sacreBLEU has no test set `{name}`{near}")
    pair, pairs = "-".join(map(base_language, direction)), DATASETS[name].langpairs
    if pair not in pairs:
        known = listed(pairs)
        raise DataError(f"the test set `{name}` of sacreBLEU has no `{pair}`; it has {known}")
    try:
        files = [get_source_file(name, pair), *get_reference_files(name, pair)]
    except (Exception, SystemExit) as error:  # of the network, of archives, a wrong checksum
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise DataError(f"the test set `{name}` of sacreBLEU cannot be read ({reason})") from error
    return tuple(map(Path, files))


def _fetch(path: str, source: CorpusSource) -> Path:
    """Return the local file of a path or URL."""
    if path.startswith(("http://", "https://")):
        try:
            return download(path)
        except DataError as error:
            raise DataError(f"{error}{describe_supply(source)}") from error
    if "://" in path:
        raise DataError(f"{path}: only http and https URLs can be read")
    return require_unpacked(expand_home(path))


def _load(*names: str | None, **options: Any) -> Any:
    from datasets import load_dataset  # deferred, since the import takes a second

    return load_dataset(*names, **options)


def _load_parquet(path: Path) -> Any:
    from datasets import Dataset
    from pyarrow import parquet

    # `datasets` fails on a file without rows.
    if not parquet.read_metadata(path).num_rows:
        return Dataset.from_dict({})
    pattern = glob.escape(str(path.resolve()))  # brackets in a file name are no pattern
    # Streaming reads the file itself instead of a copy in the cache.
    return _load("parquet", data_files=pattern, split="train", streaming=True)


@dataclass(frozen=True)
class TsvPairs(FileSource):
    """Tab-separated columns, with or without quotation marks around cells; `NA` is a text.

    A first line that names both columns is left out, and so are blank lines, rows with more cells
    than most, whose texts may be shifted, and rows without a text in a column `correction`.
    """

    columns: tuple[int, int]
    """Source and target column, from 0."""
    languages: tuple[str, str]

    def read(self) -> Iterator[SentencePair]:
        """Split each line at its tabs."""
        source, target = self.columns
        needed = max(source, target)
        rows, blank, wide, uncorrected = self.rows(), 0, list[int](), 0
        reviewed: int | None = None  # column of corrections
        first = [*islice(rows, _JUDGED_ROWS)]
        width = usual_width(map(len, first))
        for number, cells in enumerate(chain(first, rows), 1):
            if len(cells) > width:
                wide.append(number)
                continue
            if len(cells) <= needed:
                if not "".join(cells).strip():
                    blank += 1
                    continue
                raise DataError(
                    f"{self.path}: line {number} has {len(cells)} columns, "
                    f"column {needed} was asked for (the first is 0)"
                )
            if number == 1 and self._is_header(cells[source], cells[target]):
                warn_once("%s: the first line names the columns and is left out", self.path)
                names = {cells[n].strip().lower(): n for n in self.columns}
                reviewed = names.get(CORRECTION)
                continue
            if reviewed is not None:
                if not cells[reviewed].strip():
                    uncorrected += 1
                    continue
                cells = [re.sub(f"^'{FORMULA}", "", cell) for cell in cells]
            yield SentencePair(cells[source], cells[target])
        if uncorrected:
            if uncorrected + blank + len(wide) == number - 1:
                raise DataError(f"{self.path}: no row has a text in the column `{CORRECTION}`")
            message = "%s: %d of %d rows have no correction and are left out"
            warn_once(message, self.path, uncorrected, number - 1)
        if blank:
            warn_once("%s: %d blank lines are left out", self.path, blank)
        if wide:
            warn_once(
                "%s: %d of %d rows have more than %d cells and are left out, such as line %s",
                *(self.path, len(wide), number, width, ", ".join(map(str, wide[:3]))),
            )

    def rows(self) -> Iterator[list[str]]:
        """Return the cells of each row; a quoted cell may have several lines."""
        lines = iter(LineReader(self.path, long_line="\t" * max(self.columns)))
        first, characters = [], 0
        for line in lines:
            first.append(line)
            characters += len(line)
            if characters > _JUDGED_CHARACTERS:
                break
        if not are_quoted(f"{line}\n" for line in first):
            yield from map(methodcaller("split", "\t"), chain(first, lines))
            return
        warn_once("%s: the quotation marks around cells are left out", self.path)
        reader = csv.reader((f"{line}\n" for line in chain(first, lines)), delimiter="\t")
        try:
            for cells in reader:
                yield [join_lines(cell) if "\n" in cell else cell for cell in cells]
        except csv.Error as error:
            raise DataError(f"{self.path}: line {reader.line_num}: {error}") from error

    def _is_header(self, *cells: str) -> bool:
        names = [cell.strip().lower() for cell in cells]
        codes = {*self.languages, *map(base_language, self.languages)}
        known = codes | {language_name(code).lower() for code in codes}
        return names[0] != names[1] and all(column_role(n) or n in known for n in names)


def usual_width(widths: Iterable[int]) -> int:
    """Return the number of cells of most of the first 10,000 rows, from the widths of all."""
    counts = Counter(islice(widths, _JUDGED_ROWS))
    return max(counts, key=lambda width: (counts[width], width), default=0)


_ROLE = re.compile(
    r"(?:(source|src|original|input)|"
    r"(target|trg|tgt|translation|correction|output|mt|ref(?:erence)?))"
    r"(?:[ _.-]?(?:text|sentence|segment|lang|language))?s?"
    r"|(?:text|sentence|segment)[ _.-]?(?:(1|a)|(2|b))"
)
"""Names of the source and the target column, in lower case."""


def column_role(name: str) -> Literal["source", "target"] | None:
    """Return the side that the name of a column stands for, or None."""
    match = _ROLE.fullmatch(name.strip().lower())
    if match is None:
        return None
    return "source" if match[1] or match[3] else "target"


CELLS = re.compile(r'(?:^|\t)("(?>(?:[^"]++|"")*)"|[^"\t]*)(?=\t|\Z)')
"""Cells of a row, with the quotation marks around them."""
_JUDGED_CHARACTERS = 1 << 20
_JUDGED_ROWS = 10_000
_LONGEST_ROW = 1 << 16


def join_quoted(lines: Iterable[str]) -> Iterator[str]:
    """Yield the rows of lines with quoted cells, of which each may have several lines."""
    row = ""
    for line in lines:
        row += line
        if row.count('"') % 2 == 0 or len(row) > _LONGEST_ROW:
            yield row
            row = ""
    if row:
        yield row


def are_quoted(lines: Iterable[str]) -> bool:
    """Return True if quotation marks surround cells as in CSV, judged by the first lines of a file.

    All of them must be closed, and doubled inside a cell. All rows have as many columns. No cell
    has both a tab and a line end, as a quotation over two lines of plain text would. A column has
    them around all its texts, or only where CSV needs them: for a quotation mark, a tab or a line
    end inside a cell, or for a comma, if no cell without them has one.
    """
    plain: set[int] = set()  # columns with a text without quotation marks
    needless: dict[int, bool] = {}  # columns with needless ones; True: unless commas need them
    is_quoted, plain_comma, width, characters = False, False, 0, 0
    for number, row in enumerate(join_quoted(lines)):
        characters += len(row)
        if characters > _JUDGED_CHARACTERS and len(row) <= _LONGEST_ROW:
            break
        text = row.rstrip("\r\n")
        cells = CELLS.findall(text)
        width = width or len(cells)
        if "\t".join(cells) != text or len(cells) != width:
            return False
        if any("\t" in cell and "\n" in cell for cell in cells):
            return False
        for column, cell in enumerate(cells):
            if not cell.startswith('"'):
                plain_comma |= "," in cell
                if number and any(map(str.isalpha, cell)):
                    plain.add(column)
                continue
            is_quoted = True
            if not any(mark in cell[1:-1] for mark in '"\t\n\r'):
                needless[column] = needless.get(column, True) and "," in cell
    faulty = [n for n, by_comma in needless.items() if n in plain and (plain_comma or not by_comma)]
    return is_quoted and not faulty


_BATCH_ROWS = 4096
_LONGEST_REASON = 300


class UnfitRecordError(Exception):
    """Reason to reject a record; the reader adds the place."""


def _check_text(value: object, field: str) -> str:
    """Return a text; raise `UnfitRecordError` unless it is one line of Unicode."""
    if not isinstance(value, str):
        raise UnfitRecordError(f"`{field}` is {type(value).__name__}, not text")
    if "\n" in value:
        raise UnfitRecordError(f"`{field}` holds a newline, but a text must be one line")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UnfitRecordError(f"`{field}` holds half a surrogate pair") from error
    return value


@dataclass
class _IncompleteRecords:
    """Counter of the records that lack one of the sides."""

    name: str
    records: int = 0
    left_out: int = 0
    reason: str = ""
    """Reason of the first of them."""

    def add(self, reason: str | None) -> None:
        """Count a record; None is the reason for one with both sides."""
        self.records += 1
        if reason:
            self.left_out += 1
            self.reason = self.reason or reason

    def report(self) -> None:
        """Log the number of records left out; raise DataError if all of them are."""
        if self.left_out and self.left_out == self.records:
            raise DataError(f"{self.name}: {self.reason}")
        if self.left_out:
            message = "%s: %d of %d records lack one of the sides and are left out (%s)"
            warn_once(message, self.name, self.left_out, self.records, self.reason)


def _describe_missing(field: str, there: list[str]) -> str:
    if field in there:
        return f"`{field}` is null"
    known = listed(there) or "none"
    return f"no field `{field}`; there are {known}{did_you_mean(field, there)}"


@dataclass(frozen=True)
class JsonlPairs(FileSource):
    """One JSON object per line; blank lines are skipped."""

    fields: tuple[str, str]
    """Source and target field, with dots for nesting."""

    def read(self) -> Iterator[SentencePair]:
        """Parse each line."""
        incomplete = _IncompleteRecords(str(self.path))
        for line_number, line in enumerate(LineReader(self.path, long_line=""), 1):
            if not line or line.isspace():
                continue
            try:
                record = dict(parse_record(line))
                values = [None if "[]" in field else record.get(field) for field in self.fields]
                if None in values:
                    paths = [path for path in record if "[]" not in path]
                    reason = _describe_missing(self.fields[values.index(None)], paths)
                    incomplete.add(f"line {line_number}: {reason}")
                    continue
                pair = SentencePair(*map(_check_text, values, self.fields))
            except UnfitRecordError as error:
                raise DataError(f"{self.path}: line {line_number}: {error}") from error
            incomplete.add(None)
            yield pair
        incomplete.report()

    def list_fields(self) -> list[str]:
        """Return the fields of the first record, nested ones with dots."""
        read = LineReader(self.path, long_line="")
        first = next((line for line in read if line and not line.isspace()), "{}")
        try:
            return [path for path, _ in parse_record(first) if "[]" not in path]
        except UnfitRecordError as error:
            raise DataError(f"{self.path}: the first record: {error}") from error


_JSON = json.JSONDecoder(object_pairs_hook=tuple)


def parse_record(line: str) -> list[tuple[str, object]]:
    """Return the path and value of each field of a JSON object, in order.

    In the path of a nested field, names are joined by dots, and `[]` stands for the elements of a
    list. Raises UnfitRecordError for another text.
    """
    fields: list[tuple[str, object]] = []
    try:
        record = _JSON.decode(line)
        if not isinstance(record, tuple):
            raise UnfitRecordError("not a JSON object")
        _add_fields(fields, "", record)
    except (ValueError, RecursionError) as error:
        raise UnfitRecordError(f"not JSON ({error})") from error
    return fields


def _add_fields(
    fields: list[tuple[str, object]], prefix: str, pairs: Iterable[tuple[str, object]]
) -> None:
    for name, value in pairs:
        if isinstance(value, tuple):  # pairs of an object
            _add_fields(fields, f"{prefix}{name}.", value)
        elif isinstance(value, list):
            _add_fields(fields, f"{prefix}{name}", [("[]", element) for element in value])
        else:
            fields.append((prefix + name, value))


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
        incomplete = _IncompleteRecords(self.name)
        for table in self._read_tables():
            rows = incomplete.records
            columns = [self._read_column(table, field, rows) for field in self.fields]
            for source, target in zip(*columns, strict=True):
                if source is None or target is None:
                    field = self.fields[source is not None]
                    incomplete.add(f"row {incomplete.records + 1}: `{field}` is null")
                    continue
                incomplete.add(None)
                yield SentencePair(source, target)
        incomplete.report()

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

    def _read_column(self, table: Any, field: str, rows_before: int) -> Iterator[str | None]:
        """Stream a column of a table that follows `rows_before` rows; None is null."""
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
                text = None if value is None else _check_text(value, field)
            except UnfitRecordError as error:
                raise DataError(f"{self.name}: row {row}: {error}") from error
            if text and len(text) > LONGEST_LINE:
                long_rows.append(row)
                text = ""
            yield text
        warn_of_long(self.name, "rows", long_rows)


def _flatten(table: Any) -> Any:
    while any(pa.types.is_struct(column.type) for column in table.schema):
        table = table.flatten()  # the columns of a struct get dotted names
    return table
