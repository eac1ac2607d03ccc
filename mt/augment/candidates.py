"""Candidates: translations that another program made, one or several for each source.

A file of candidates has the columns source, translation, further translations, separated by tabs.
A file with the suffix `.jsonl` has an object on each line:
`{"source": "...", "translations": ["...", "..."]}`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.data.corpus_files import LineReader
from mt.errors import DataError

JSON_LINES = ".jsonl"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of another program to one source."""

    translations: tuple[str, ...] = ()
    problem: str = ""
    """Reason for having no translation."""
    sent: int = 0
    """Tokens of the request, if the program counts them."""
    received: int = 0
    """Tokens of the answer."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A source and its candidate translations, best first if the order has a meaning."""

    source: str
    translations: tuple[str, ...] = ()
    problem: str = ""
    """Reason for having no translation."""

    def as_json(self) -> str:
        """Return one line of JSON."""
        record = {"source": self.source, "translations": self.translations}
        problem = {"problem": self.problem} if self.problem else {}
        return json.dumps({**record, **problem}, ensure_ascii=False)


def read_candidates(path: Path) -> Iterator[Candidates]:
    """Stream a file of candidates; raise DataError naming a line of another form."""
    parse = _from_json if JSON_LINES in path.suffixes else _from_columns
    for number, line in enumerate(LineReader(path), 1):
        try:
            yield parse(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: line {number}: must be {_FORMS[parse]}, it begins with `{line[:40]}`"
            ) from error


def parse_translations(line: str) -> tuple[str, ...]:
    """Return the translations in a JSON array; raise ValueError for anything else."""
    return _texts(parse_json(line))


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value; raise ValueError for invalid JSON and for deeply nested values."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def as_text(value: object) -> str:
    """Return a text of JSON without white space around it; lone surrogates become U+FFFD.

    Raises TypeError unless the value is a text.
    """
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise ValueError("not a list of texts")
    return tuple(map(as_text, values))


def _from_json(line: str) -> Candidates:
    record = parse_json(line)
    problem = as_text(record.get("problem", ""))
    return Candidates(as_text(record["source"]), _texts(record["translations"]), problem)


def _from_columns(line: str) -> Candidates:
    source, tab, rest = line.partition("\t")
    if line and not tab:
        raise ValueError("no tab")
    return Candidates(source.strip(), tuple(map(str.strip, rest.split("\t"))))


_FORMS = {
    _from_json: '{"source": "...", "translations": ["..."]}',
    _from_columns: "a source, a tab and a translation",
}
