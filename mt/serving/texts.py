"""Texts of requests as lines to translate: plain text, HTML, and files."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from mt.config.data import Direction
from mt.decoding.preparation import repair_unicode
from mt.documents import segments
from mt.documents.document import SUFFIXES, Document, read_document
from mt.documents.segments import Options
from mt.errors import DataError, did_you_mean
from mt.tables import printable

TextFormat = Literal["text", "html"]
_LINE_END = re.compile(r"(\r\n|\r|\n)")  # as in the translator


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of a text."""

    lines: tuple[str, ...]
    join: Callable[[Sequence[segments.TranslatedText]], str]
    """Function that returns the text with other lines in place of these."""
    unit: Literal["line", "text"] = "line"
    """Word for a line in notes."""
    has_tags: bool = False
    """True if links between lines and translations decide about the places of tags."""


@dataclass(frozen=True, slots=True)
class File:
    """Texts of a file."""

    lines: tuple[str, ...]
    join: Callable[[Sequence[segments.TranslatedText]], bytes]
    """Function that returns the file with other texts in place of these."""
    has_tags: bool
    """True if links between texts and translations decide about the places of tags."""


def read_text(text: str) -> Text:
    """Split a text at its line ends: newline, carriage return, or both."""
    parts = _LINE_END.split(text)

    def join(lines: Sequence[segments.TranslatedText]) -> str:
        pairs = zip((line.text for line in lines), (*parts[1::2], ""), strict=True)
        return "".join(part for pair in pairs for part in pair)

    return Text(tuple(parts[::2]), join)


def read_html(text: str, direction: Direction) -> Text:
    """Find the texts of a page or of a part of one; lone surrogates are read as U+FFFD."""
    document = Document(repair_unicode(text)[0], "utf-8", "html")
    file = _file(document, Options("html", direction.source, direction.target))
    return Text(file.lines, lambda lines: file.join(lines).decode(), "text", file.has_tags)


def read_file(content: bytes, name: str, direction: Direction, column: str | None = None) -> File:
    """Find the texts of a file in the format of its suffix.

    `column` has the texts of TSV or JSON lines. Raises DataError for an unknown suffix and for a
    damaged file.
    """
    suffix, name = PurePosixPath(name).suffix.lower(), printable(name)
    if suffix not in SUFFIXES:
        hint = did_you_mean(suffix, SUFFIXES)
        known = ", ".join(SUFFIXES)
        raise DataError(f"{name}: unknown suffix{hint}; known are {known}")
    document = read_document(content, SUFFIXES[suffix], name)
    return _file(document, Options(name, direction.source, direction.target, column))


def _file(document: Document, options: Options) -> File:
    texts = [text for item in document.items(options) for text in item.texts]

    def join(lines: Sequence[segments.TranslatedText]) -> bytes:
        return b"".join(document.translated(options, lambda _: iter(lines)))

    return File(tuple(text.text for text in texts), join, any(text.has_tags for text in texts))
