"""Translation of documents: text is replaced, everything else is kept."""

import logging
from collections.abc import Iterator, Sequence
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
from mt.documents.document import MOST_BYTES, read_document
from mt.documents.options import Format, Options
from mt.documents.segments import Text, TranslatedText
from mt.documents.tags import Links
from mt.errors import DataError, UserError
from mt.files import existing_file

_logger = logging.getLogger(__name__)


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
