"""Sentence pairs from the columns of an Arrow table, checked a column at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mt.data.pairs import SentencePair
from mt.errors import DataError, did_you_mean


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The field of each side, dots for nesting."""

    source: str
    target: str


def read_table(
    table: Any, fields: FieldNames, *, name: str, rows_before: int
) -> Iterator[SentencePair]:
    """Stream the pairs of a table that follows `rows_before` rows of the corpus `name`.

    Raises `DataError` for a missing field, and, with the number of the row, for a null, a newline
    inside a text or bytes that are not UTF-8.
    """
    sources = _texts(table, fields.source, name=name, rows_before=rows_before)
    targets = _texts(table, fields.target, name=name, rows_before=rows_before)
    return map(SentencePair, sources, targets)


def _texts(table: Any, field: str, *, name: str, rows_before: int) -> list[str]:
    column = _column(table, field, name=name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    where = f"{name}: row {{}}: `{field}`"
    null = pc.index(pc.is_null(column), True).as_py()
    if null >= 0:
        raise DataError(f"{where.format(rows_before + null + 1)} is null")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(f"{name}: field `{field}` is {column.type}, not text")
    newline = pc.index(pc.match_substring(column, "\n"), True).as_py()
    if newline >= 0:
        place = where.format(rows_before + newline + 1)
        raise DataError(f"{place} holds a newline, but a text must be one line")
    try:
        texts: list[str] = column.to_pylist()
    except UnicodeDecodeError as error:
        place = where.format(rows_before + _first_undecodable(column) + 1)
        raise DataError(f"{place} is not UTF-8") from error
    return texts


def _column(table: Any, field: str, *, name: str) -> Any:
    if field in table.column_names:
        return table.column(field)
    first, *rest = field.split(".")
    column: Any = table.column(first) if first in table.column_names else None
    for part in rest:
        inside = column is not None and pa.types.is_struct(column.type)
        found = inside and column.type.get_field_index(part) >= 0
        column = pc.struct_field(column, part) if found else None
    if column is None:
        there = [leaf for entry in table.schema for leaf in _leaves(entry)]
        listed = ", ".join(f"`{leaf}`" for leaf in there)
        raise DataError(
            f"{name}: no field `{field}`; there are {listed}{did_you_mean(field, there)}"
        )
    return column


def _leaves(entry: Any, prefix: str = "") -> Iterator[str]:
    if pa.types.is_struct(entry.type):
        for inner in entry.type:
            yield from _leaves(inner, f"{prefix}{entry.name}.")
    else:
        yield f"{prefix}{entry.name}"


def _first_undecodable(column: Any) -> int:
    """Return the index of the first text that is not UTF-8; there is one."""
    for index, value in enumerate(column.cast(pa.large_binary()).to_pylist()):
        try:
            value.decode()
        except UnicodeDecodeError:
            return index
    raise AssertionError("called for a column whose texts all decode")
