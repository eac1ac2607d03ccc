"""Translation of documents: text is replaced, everything else is kept."""

import codecs
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, compress, islice, tee
from pathlib import Path

from mt.data.corpus_files import LONGEST_LINE, read_chunks
from mt.decoding.files import (
    check_outputs,
    load_for_files,
    open_output,
    progress_bar,
    report_line,
    stdin_chunks,
)
from mt.decoding.translator import Translation, Translator, log_notes
from mt.documents.gettext import read_po
from mt.documents.html import read_html
from mt.documents.markdown import read_markdown
from mt.documents.plain import read_jsonl, read_srt, read_text, read_tsv, read_vtt
from mt.documents.segments import Format, Item, Options, Reader, Text, TranslatedText
from mt.documents.tags import Links
from mt.documents.xliff_tmx import read_tmx, read_xliff
from mt.errors import DataError, UserError
from mt.files import existing_file

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
_MARKUP = frozenset({"html", "xliff", "tmx"})
"""Formats with a declared encoding, and with references for characters that it lacks."""
MOST_BYTES = 1 << 28
_BYTE_ORDER_MARK = "\ufeff"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_DECLARED = re.compile(rb"(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_DECLARATION_BYTES = 4096
_logger = logging.getLogger(__name__)


def format_of(path: Path | None) -> Format:
    """Return the format of a file by its suffix; `text` for all others and for stdin."""
    if path is None:
        return "text"
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1], "text") if suffixes else "text"


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


@dataclass(frozen=True, slots=True)
class DocumentJob:
    """Input and output of `mt translate` for a document."""

    input: Path | None
    """Input file; None: stdin."""
    output: Path | None
    """Output file, replaced when the new one is complete; None: stdout."""
    format: Format
    report: Path | None = None
    """File for the number, status and notes of each text; replaced like `output`."""
    column: str | None = None
    """Field of JSON lines; name or number of a column of TSV."""
    fuzzy: bool = False
    """Mark the entries of gettext files that are filled as fuzzy."""


def translate_document(
    run: Path, job: DocumentJob, *, overrides: Sequence[str] = (), device: str = "auto"
) -> None:
    """Translate the texts of a document, by default from stdin to stdout.

    Notes on a text are logged with its number. Raises UserError for invalid files, device, run
    folder or overrides, and DataError for a damaged document, before a text is translated.
    """
    if job.column is not None and job.format not in {"jsonl", "tsv"}:
        raise UserError(f"`--column` is for jsonl and tsv, the format is {job.format}")
    if job.fuzzy and job.format != "po":
        raise UserError(f"`--fuzzy` is for po, the format is {job.format}")
    check_outputs([job.output, job.report], [job.input and existing_file(job.input)])
    name = str(job.input or "stdin")
    document = read_document(_content(job.input), job.format, name)
    translator = load_for_files(run, overrides=overrides, device=device)
    direction = translator.direction
    options = Options(name, direction.source, direction.target, job.column, job.fuzzy)
    total, texts = 0, chain.from_iterable(item.texts for item in document.items(options))
    for total, text in enumerate(texts, 1):
        if len(text.text) > LONGEST_LINE:
            raise DataError(
                f"{name}: text {total} has more than {LONGEST_LINE:,} characters; divide it"
            )
    if not total:
        _logger.warning("%s: has no text to translate", name)
    with ExitStack() as stack:
        out = stack.enter_context(open_output(job.output))
        report = stack.enter_context(open_output(job.report)) if job.report else None
        bar = stack.enter_context(progress_bar(job.input, texts=total))

        def translate(texts: Iterator[Text]) -> Iterator[TranslatedText]:
            for translation, links in translate_texts(translator, texts):
                log_notes(translation, "text")
                if report is not None:
                    report.write(report_line(translation).encode())
                bar.update()
                yield TranslatedText(translation.text, links)

        out.writelines(document.translated(options, translate))


def translate_texts(
    translator: Translator, texts: Iterator[Text]
) -> Iterator[tuple[Translation, Links]]:
    """Yield the translation of each text, with its links if the text has tags."""
    texts, others = tee(texts)
    translations = translator.stream(each.text for each in others)
    while window := list(islice(translations, translator.look_ahead)):
        has_tags = [text.has_tags for text in islice(texts, len(window))]
        found = iter(translator.find_links([*compress(window, has_tags)]))
        for translation, wants_links in zip(window, has_tags, strict=True):
            links = (next(found) if wants_links else None) or ()
            yield translation, [(link.source, link.target) for link in links]


def _content(path: Path | None) -> bytes:
    """Return the content of a file, decompressed, or of stdin, as far as a document may reach."""
    content = bytearray()
    for chunk in stdin_chunks() if path is None else read_chunks(path):
        content += chunk
        if len(content) > MOST_BYTES:
            break
    return bytes(content)
