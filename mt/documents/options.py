"""Formats of documents, and options of their readers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from mt.documents.segments import Item

Format = Literal["text", "markdown", "html", "srt", "vtt", "po", "xliff", "tmx", "jsonl", "tsv"]
FORMATS: tuple[str, ...] = get_args(Format)
SUFFIXES: dict[str, Format] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".srt": "srt",
    ".vtt": "vtt",
    ".po": "po",
    ".pot": "po",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".tmx": "tmx",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "tsv",
    ".txt": "text",
}
_COMPRESSED = frozenset({".gz", ".xz", ".zst"})


def format_of(path: Path | None) -> Format:
    """Return the format of a file by its suffix; `text` for all others and for stdin."""
    if path is None:
        return "text"
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1], "text") if suffixes else "text"


@dataclass(frozen=True, slots=True)
class Options:
    """Name of the document, languages of the model, and options of some formats."""

    name: str
    """Name for messages."""
    source: str
    target: str
    column: str | None = None
    """Field of JSON lines; name or number of a column of TSV."""
    fuzzy: bool = False
    """Mark the entries of gettext files that are filled as fuzzy."""


Reader = Callable[[str, Options], Iterator[Item]]
"""Function that yields the items of a document; raises DataError with the line if damaged."""
