"""Translation of documents: text is replaced, everything else is kept."""

import codecs
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from mt.data.corpus_files import COMPRESSED, LONGEST_LINE, check_content, read_chunks
from mt.decoding.load import StoredModel
from mt.decoding.text_files import (
    format_report,
    load_for_files,
    log_kinds,
    open_output,
    progress_bar,
    report_row,
    stdin_chunks,
)
from mt.decoding.translator import log_notes
from mt.documents.gettext import read_po
from mt.documents.html import read_html
from mt.documents.markdown import read_markdown
from mt.documents.plain import read_jsonl, read_subtitles, read_text, read_tsv
from mt.documents.segments import (
    Format,
    Item,
    Options,
    Reader,
    RefusedTranslationError,
    Replacement,
    TranslatedLine,
    count_untranslated,
    format_untranslated,
)
from mt.documents.xliff_tmx import read_tmx, read_xliff
from mt.errors import DataError, UserError
from mt.files import check_output_files, require_file
from mt.languages import base_language

FORMATS: dict[Format, tuple[Reader, str]] = {
    "markdown": (read_markdown, ".md .markdown .mdown .mkd .mdx"),
    "html": (read_html, ".html .htm .xhtml"),
    "srt": (partial(read_subtitles, is_vtt=False), ".srt"),
    "vtt": (partial(read_subtitles, is_vtt=True), ".vtt"),
    "po": (read_po, ".po .pot"),
    "xliff": (read_xliff, ".xlf .xliff"),
    "tmx": (read_tmx, ".tmx"),
    "jsonl": (read_jsonl, ".jsonl .ndjson"),
    "tsv": (read_tsv, ".tsv"),
    "text": (lambda source, _: read_text(source), ".txt"),
}
"""All formats: reader and suffixes of each; `mt translate` reads text itself, line by line.

A reader yields the changes of a document in order. Everything between them is copied.
"""
_MARKUP = frozenset({"html", "xliff", "tmx"})
"""Formats that may declare an encoding, and have references for characters that it lacks."""
SUFFIXES = {suffix: name for name, (_, suffixes) in FORMATS.items() for suffix in suffixes.split()}
"""Format by suffix."""
MOST_BYTES = 1 << 28
_BYTE_ORDER_MARK = "\ufeff"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_DECLARED = re.compile(rb"(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_DECLARATION_BYTES = 4096
_logger = logging.getLogger(__name__)


def find_format(path: Path | None, language: str) -> Format:
    """Return the format of a file by its suffix; `text` without one and for stdin.

    The `language` of the sources, in its short form, is a suffix of text too, as in `test.en`.
    Raises UserError for any other suffix.
    """
    if path is None:
        return "text"
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    suffix = plain.suffix.lower()
    if suffix in {"", *SUFFIXES}:
        return SUFFIXES.get(suffix, "text")
    if base_language(suffix[1:]) == language:
        return "text"
    raise UserError(
        f"{path}: unknown suffix {suffix}; known are {', '.join(SUFFIXES)} and .{language}; "
        "`--format text` translates any text line by line"
    )


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """Document in memory, decoded."""

    text: str
    encoding: str
    format: Format

    def read_items(self, options: Options) -> list[Item]:
        """Return the changes in order; raise DataError for damage, or a text that is too long."""
        items = [*FORMATS[self.format][0](self.text.removeprefix(_BYTE_ORDER_MARK), options)]
        texts = (text for item in items for text in item.texts)
        for number, text in enumerate(texts, start=1):
            if len(text) > LONGEST_LINE:
                most = f"{LONGEST_LINE:,} characters"
                raise DataError(f"{options.name}: text {number} has more than {most}; divide it")
        return items

    def translate(
        self,
        items: Iterable[Item],
        translations: Iterable[TranslatedLine],
        refuse: Callable[[range, str], None] = lambda _numbers, _reason: None,
    ) -> Iterator[bytes]:
        """Yield the document with the translation of each text of its items, in order.

        An item with a refused translation keeps its source: `refuse` gets the numbers of its texts
        and the reason.
        """
        text = self.text.removeprefix(_BYTE_ORDER_MARK)
        yield self._encode(self.text[: len(self.text) - len(text)])
        lines = iter(translations)
        end, text_number = 0, 1
        for item in items:
            assert item.start >= end, "items are in order"
            numbers = range(text_number, text_number + len(item.texts))
            translated = [*islice(lines, len(numbers))]
            try:
                rendered = item.render(iter(translated))
            except RefusedTranslationError as refused:
                refuse(numbers, str(refused))
                rendered = text[item.start : item.end]
            yield self._encode(text[end : item.start] + rendered)
            end, text_number = item.end, numbers.stop
        yield self._encode(text[end:])

    def _encode(self, text: str) -> bytes:
        errors = "xmlcharrefreplace" if self.format in _MARKUP else "strict"
        return text.encode(self.encoding, errors)


def read_document(content: bytes, format: Format, name: str) -> SourceDocument:
    """Decode a document: UTF-8, UTF-16 with a byte-order mark, or as HTML and XML declare.

    Raises DataError if it is too large, has another encoding, or is of a binary format.
    """
    check_content(content, name)
    if len(content) > MOST_BYTES:
        raise DataError(
            f"{name}: is larger than {MOST_BYTES >> 20} MiB; split it, or read it as text with "
            "`--format text`"
        )
    is_markup = format in _MARKUP
    declared = _DECLARED.search(content, 0, _DECLARATION_BYTES) if is_markup else None
    encodings = ["utf-8", *([declared[1].decode()] if declared else [])]
    if content[:2] in _UTF16:
        encodings.insert(0, _UTF16[content[:2]])
    elif content.isascii():
        encodings.reverse()
    for encoding in encodings:
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
        return SourceDocument(text, encoding, format)
    fault = "is not UTF-8"
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
        fault = f"line {line} is not UTF-8 (byte 0x{byte:02x})"
    raise DataError(f"{name}: {fault}; convert it with iconv")


@dataclass(frozen=True, slots=True)
class DocumentJob:
    """Input and output of `mt translate` for a document."""

    input: Path | None
    """Input file; None: stdin."""
    output: Path | None
    """Output file, replaced when the new one is complete; None: stdout."""
    format: Format
    report: Path | None = None
    """Spreadsheet with a row for each text, see `report_row`; replaced like `output`."""
    column: str | None = None
    """Field of JSON lines; name or number of a column of TSV."""
    fuzzy: bool = False
    """Mark the entries of gettext files that are filled as fuzzy."""
    fuzzy_below: float | None = None
    """Mark entries with a lower confidence, or with the status of a fault: PO and XLIFF."""
    glossary: Path | None = None
    """File with terms, see `mt.data.glossary.read_terms`."""
    memory: Path | None = None
    """File with translations of whole texts, see `mt.data.glossary.read_memory`."""

    def check_options(self) -> None:
        """Raise UserError for an option of other formats."""
        for name, is_given, formats in (
            ("--column", self.column is not None, ("jsonl", "tsv")),
            ("--fuzzy", self.fuzzy, ("po",)),
            ("--fuzzy-below", self.fuzzy_below is not None, ("po", "xliff")),
        ):
            if is_given and self.format not in formats:
                meant = " and ".join(formats)
                raise UserError(f"`{name}` is for {meant}, the format is {self.format}")


def translate_document(model: StoredModel, job: DocumentJob, *, device: str = "auto") -> None:
    """Translate the texts of a document, by default from stdin to stdout.

    Notes on a text are logged with its number. Raises UserError for invalid files, device or
    weights, and DataError for a damaged document, before a text is translated.
    """
    job.check_options()
    inputs = [path and require_file(path) for path in (job.input, job.glossary, job.memory)]
    check_output_files([job.output, job.report], inputs)
    content = bytearray()
    for chunk in stdin_chunks() if job.input is None else read_chunks(job.input):
        content += chunk
        if len(content) > MOST_BYTES:
            break
    name = str(job.input or "stdin")
    document = read_document(bytes(content), job.format, name)
    translator = load_for_files(model, device, job.glossary, job.memory)
    direction, below = translator.direction, job.fuzzy_below
    if below is not None:
        translator.require_calibration("--fuzzy-below")
    options = Options(name, direction.source, direction.target, job.column, job.fuzzy)
    items = document.read_items(options)
    texts = [text for item in items for text in item.texts]
    for item in items:
        if isinstance(item, Replacement) and item.note:
            _logger.info("%s: %s", name, item.note)
    if counts := count_untranslated(items):
        _logger.info("%s: not translated: %s", name, format_untranslated(counts))
    if not texts:
        _logger.warning("%s: has no text to translate", name)
    with ExitStack() as stack:
        out = stack.enter_context(open_output(job.output))
        report = stack.enter_context(open_output(job.report)) if job.report else None
        rows, kinds = list[list[str]](), Counter[tuple[Path | None, str]]()
        bar = stack.enter_context(progress_bar(job.input, texts=len(texts)))

        def translate() -> Iterator[TranslatedLine]:
            for translation in translator.stream(texts):
                if job.report:
                    kinds.update((job.report, note.partition(":")[0]) for note in translation.notes)
                else:
                    log_notes(translation, "text")
                rows.append(report_row(translation))
                kinds[job.glossary, "terms found"] += len(translation.terms)
                kinds[job.memory, "texts found"] += translation.status == "memory"
                bar.update()
                needs_review = translation.needs_review or (
                    below is not None
                    and translation.status != "memory"
                    and (translation.status != "ok" or (translation.confidence or 0.0) < below)
                )
                yield TranslatedLine(translation.text, translation.links, needs_review)

        def refuse(numbers: range, reason: str) -> None:
            _logger.warning("text %d: keeps its source: %s", numbers[0], reason)
            for number in numbers:
                rows[number - 1][1:3] = "kept", ""
                rows[number - 1][-1] = reason

        out.writelines(document.translate(items, translate(), refuse))
        if report is not None:
            report.write(format_report(rows))
        log_kinds(kinds)
