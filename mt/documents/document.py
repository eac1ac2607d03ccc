"""Documents in the formats that `mt translate` reads and writes."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import tee

from mt.documents.exchange import read_tmx, read_xliff
from mt.documents.gettext import read_po
from mt.documents.html import read_html
from mt.documents.markdown import read_markdown
from mt.documents.options import Format, Options, Reader
from mt.documents.records import read_jsonl, read_text, read_tsv
from mt.documents.segments import Item, Text, TranslatedText
from mt.documents.subtitles import read_srt, read_vtt
from mt.errors import DataError

READERS: dict[Format, Reader] = {
    "text": lambda source, _: read_text(source),
    "markdown": lambda source, _: read_markdown(source),
    "html": lambda source, _: read_html(source),
    "srt": read_srt,
    "vtt": read_vtt,
    "po": read_po,
    "xliff": read_xliff,
    "tmx": read_tmx,
    "jsonl": read_jsonl,
    "tsv": read_tsv,
}
"""Reader of each format. `mt translate` reads text itself, line by line as it arrives."""
_MARKUP = frozenset({"html", "xliff", "tmx"})
"""Formats with a declared encoding, and with references for characters that it lacks."""
MOST_BYTES = 1 << 28
_BYTE_ORDER_MARK = "\ufeff"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_DECLARED = re.compile(rb"(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_DECLARATION_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Document:
    """Document in memory, decoded."""

    text: str
    encoding: str
    format: Format

    def items(self, options: Options) -> Iterator[Item]:
        """Yield the changes of the document lazily; raises DataError if it is damaged."""
        text = self.text.removeprefix(_BYTE_ORDER_MARK)
        return READERS[self.format](text, options)

    def translated(
        self, options: Options, translate: Callable[[Iterator[Text]], Iterator[TranslatedText]]
    ) -> Iterator[bytes]:
        """Yield the document with the translation of each text, in order.

        `translate` may read ahead; it returns one line for each text.
        """
        text = self.text.removeprefix(_BYTE_ORDER_MARK)
        yield self._encoded(self.text[: len(self.text) - len(text)])
        reading, writing = tee(self.items(options))
        translations = translate(each for item in reading for each in item.texts)
        place = 0
        for item in writing:
            assert item.start >= place, "items are in order"
            yield self._encoded(text[place : item.start] + item.render(translations))
            place = item.end
        yield self._encoded(text[place:])

    def _encoded(self, text: str) -> bytes:
        errors = "xmlcharrefreplace" if self.format in _MARKUP else "strict"
        return text.encode(self.encoding, errors)


def read_document(content: bytes, format: Format, name: str) -> Document:
    """Decode a document: UTF-8, UTF-16 with a byte-order mark, or as HTML and XML declare.

    Raises DataError if it is too large or has another encoding.
    """
    if len(content) > MOST_BYTES:
        raise DataError(
            f"{name}: is larger than {MOST_BYTES >> 20} MiB; split it, or read it as text with "
            "`--format text`"
        )
    for encoding in _encodings(content, format):
        try:
            text = content.decode(encoding)
            if text.encode(encoding) != content:
                continue
        except (LookupError, ValueError):  # no such encoding, or another one
            continue
        if 4 * text.count("\0") > len(text):
            raise DataError(
                f"{name}: is full of null characters, as UTF-16 without a byte-order mark; "
                "convert it with iconv"
            )
        return Document(text, encoding, format)
    raise DataError(f"{name}: {_not_utf8(content)}; convert it with iconv")


def _not_utf8(content: bytes) -> str:
    """Name the first line that is not UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return f"line {line} is not UTF-8 (byte 0x{content[error.start]:02x})"
    return "is not UTF-8"


def _encodings(content: bytes, format: Format) -> Iterator[str]:
    """Yield the possible encodings of a document, the most certain first."""
    declared = _DECLARED.search(content, 0, _DECLARATION_BYTES) if format in _MARKUP else None
    if content[:2] in _UTF16:
        yield _UTF16[content[:2]]
    elif declared and content.isascii():
        yield declared[1].decode()
    yield "utf-8"
    if declared:
        yield declared[1].decode()
