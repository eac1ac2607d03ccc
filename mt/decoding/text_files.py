"""Translation of files, line by line."""

import codecs
import io
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from mt.data.corpus_files import (
    COMPRESSED,
    LONGEST_LINE,
    check_content,
    check_text,
    open_compressed,
    read_chunks,
    scan,
)
from mt.data.glossary import read_terms
from mt.decoding.engine import ExplainingEngine, TokenDetails
from mt.decoding.load import StoredModel
from mt.decoding.preparation import repair_unicode
from mt.decoding.shards import Job, ProduceWindows, Result, Shard, Window, run_shard
from mt.decoding.translator import Translation, Translator, check_n_best, log_notes
from mt.errors import DataError, UserError
from mt.files import check_output_files, is_special, replace_file, require_file, resolved
from mt.tables import CORRECTION, make_printable, write_row

Form = Literal["text", "n-best", "json"]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileJob:
    """Input and output of `mt translate`."""

    input: Path | None = None
    """Input file; None: stdin."""
    output: Path | None = None
    """Output file, replaced when the new one is complete; None: stdout."""
    form: Form = "text"
    n_best: int = 1
    """Alternatives per line; the form `text` writes only the best one."""
    report: Path | None = None
    """Spreadsheet with a row for each line, see `report_row`; replaced like `output`."""
    look_ahead: int | None = None
    """Lines read before the first is answered; None: the default of the translator."""
    prefixes: Path | None = None
    """File with the forced beginning of each translation, one per line, which may be empty."""
    glossary: Path | None = None
    """File with terms, see `mt.data.glossary.read_terms`."""
    memory: Path | None = None
    """File with translations of whole lines, see `mt.data.glossary.read_memory`."""


def translate_file(model: StoredModel, job: FileJob, *, device: str = "auto") -> None:
    """Translate a file, by default stdin, into another, by default stdout.

    Only newline bytes end lines; the output is UTF-8. Notes on a line are logged with its number.
    Raises UserError for invalid files, device or weights before any work starts.
    """
    lines = _open_input(job)
    translator = load_for_files(model, device, job.glossary, job.memory)
    with ExitStack() as stack:
        out = stack.enter_context(open_output(job.output))
        report = stack.enter_context(open_output(job.report)) if job.report else None
        bar = stack.enter_context(progress_bar(job.input))
        prefixes = read_lines(job.prefixes) if job.prefixes else None
        for window in translated_windows(translator, lines, prefixes, job):
            text, statuses = window.texts
            out.write(text)
            out.flush()  # whenever all lines read so far are answered
            if report is not None:
                report.write(statuses)
            bar.update(window.lines)


def translate_shard(
    model: StoredModel, job: FileJob, shard: Shard, *, device: str = "auto"
) -> None:
    """Translate a part of a file as `translate_file` does; see `mt.decoding.shards`."""
    source, output = check_files_for_shards(job.input, job.output)
    if job.look_ahead:
        raise UserError("`--unbuffered` does not go with `--shard` and torchrun")
    _open_input(job)
    check_n_best(job.n_best, model.config.decoding)
    settings = {
        "command": "translate",
        "input": scan(source).sha256,
        "prefixes": job.prefixes and scan(job.prefixes).sha256,
        "glossary": job.glossary and scan(job.glossary).sha256,
        "memory": job.memory and scan(job.memory).sha256,
        "output": f"{job.form}, n-best {job.n_best}",
        "report": job.report and job.report.name,
        **model.settings,
    }

    def load() -> ProduceWindows:
        translator = load_for_files(model, device, job.glossary, job.memory)

        def produce(lines: range) -> Iterator[Window]:
            texts = islice(read_lines(source), lines.start, lines.stop)
            prefixes = None
            if job.prefixes:
                prefixes = islice(read_lines(job.prefixes), lines.start, lines.stop)
            for window in translated_windows(translator, texts, prefixes, job, first=lines.start):
                yield window if job.report else replace(window, texts=window.texts[:1])

        return produce

    files = (output, *filter(None, [job.report]))
    run_file_shard(source, files, settings, model.config.decoding.look_ahead, shard, load)


def check_files_for_shards(source: Path | None, output: Path | None) -> tuple[Path, Path]:
    """Return both; raise UserError unless shards can read parts of one and join in the other."""
    if source is None or not require_file(source).is_file():
        name = source or "stdin"
        raise UserError(f"{name}: `--shard` and torchrun read a part of a regular file; name one")
    if output is None:
        raise UserError("`--shard` and torchrun join the parts in a file; name it with `--output`")
    if output.suffix.lower() in COMPRESSED:
        raise UserError(
            f"{output}: `--shard` and torchrun do not compress; leave {output.suffix} out"
        )
    return source, output


def run_file_shard(
    source: Path,
    outputs: tuple[Path, ...],
    settings: Mapping[str, Any],
    window: int,
    shard: Shard,
    load: Callable[[], ProduceWindows],
) -> Result | None:
    """Process a shard of a file by windows of lines, with a record beside the first output."""
    record = outputs[0].with_name(f"{outputs[0].name}.shards.json")
    job = Job((*outputs, record), settings, scan(source).lines, window, shard)
    if result := run_shard(job, load):
        _logger.info("finished: %s", ", ".join(map(str, result.files)))
        if result.missing:
            _logger.info("%s", result.missing)
    return result


def load_for_files(
    model: StoredModel, device: str, glossary: Path | None = None, memory: Path | None = None
) -> Translator:
    """Load a translator, and keep freed memory for the batches to come."""
    terms = read_terms(glossary)
    if not model.record.is_of_export:  # an exported model needs no torch
        from mt.model.device import keep_freed_memory

        keep_freed_memory()
    return Translator.from_stored(model, device, terms=terms, memory=memory)


def translated_windows(
    translator: Translator,
    lines: Iterator[str],
    prefixes: Iterator[str] | None,
    job: FileJob,
    *,
    first: int = 0,
) -> Iterator[Window]:
    """Yield the output and the report of lines, of which `first` is the position of the first."""
    write = FORMS[job.form]
    size = job.look_ahead or translator.decoding.look_ahead
    translations = translator.stream(
        lines, prefixes=prefixes, n_best=job.n_best, look_ahead=job.look_ahead
    )
    done, kinds = 0, Counter[tuple[Path | None, str]]()
    while window := [*islice(translations, size)]:
        if first:
            window = [
                replace(translation, line_number=first + translation.line_number)
                for translation in window
            ]
        for translation in window:
            if job.report:
                kinds.update((job.report, note.partition(":")[0]) for note in translation.notes)
            else:
                log_notes(translation)
            kinds[job.glossary, "terms found"] += len(translation.terms)
            kinds[job.memory, "texts found"] += translation.status == "memory"
        rows = map(report_row, window)
        text = "".join(write(window, translator)).encode()
        yield Window(len(window), (text, format_report(rows, is_first=not first + done)))
        done += len(window)
    log_kinds(kinds)


def as_text(translations: Sequence[Translation], _: Translator) -> Iterator[str]:
    """Yield the best translation of each line."""
    return (f"{translation.text}\n" for translation in translations)


def as_n_best(translations: Sequence[Translation], _: Translator) -> Iterator[str]:
    """Yield `number ||| text ||| score` for each alternative, with numbers from 0 as in Moses.

    The text may contain the separator; the first and the last of a line are unambiguous.
    """
    for translation in translations:
        line = translation.line_number - 1
        for alternative in translation.alternatives:
            yield f"{line} ||| {alternative.text} ||| {alternative.score:.6f}\n"


def as_json(translations: Sequence[Translation], translator: Translator) -> Iterator[str]:
    """Yield one JSON object per line: the best alternative by token, the status, all alternatives.

    `token_log_probs` and `alignment` are null for engines without access to them.
    """
    tokenizer = translator.tokenizer
    details: Iterator[TokenDetails] = iter(())
    if isinstance(translator.engine, ExplainingEngine):
        parts_of_all = [part for line in translations for part in line.alternatives[0].parts]
        sources = [part.source for part in parts_of_all]
        hypotheses = [part.hypothesis for part in parts_of_all]
        details = iter(translator.engine.explain(sources, hypotheses))
    for translation in translations:
        parts = translation.alternatives[0].parts
        of_line = list(islice(details, len(parts)))
        is_known = len(of_line) == len(parts)
        alignment = list[tuple[int, int]]()  # with the tokens numbered across the parts
        read = written = 0
        for part, detail in zip(parts, of_line, strict=False):
            alignment += [(read + source, written + target) for source, target in detail.alignment]
            read, written = read + len(part.source) - 1, written + len(part.hypothesis.ids)
        log_probs = [log_prob for detail in of_line for log_prob in detail.log_probs]
        source_ids = [token for part in parts for token in part.source[:-1]]
        alternatives = [
            {
                "text": alternative.text,
                "score": alternative.score,
                "log_prob": sum(
                    (part.hypothesis.log_prob for part in alternative.parts), start=0.0
                ),
                "tokens": tokenizer.target.processor.id_to_piece(list(alternative.ids)),
            }
            for alternative in translation.alternatives
        ]
        record = {
            "line": translation.line_number,
            "status": translation.status,
            "confidence": translation.confidence,
            "notes": translation.notes,
            "sentences": translation.sentences,
            "terms": [use.as_record() for use in translation.terms],
            **alternatives[0],
            "source_tokens": tokenizer.source.processor.id_to_piece(source_ids),
            "token_log_probs": log_probs if is_known else None,
            "alignment": alignment if is_known else None,
            "alternatives": alternatives,
        }
        yield json.dumps(record, ensure_ascii=False) + "\n"


FORMS: dict[Form, Callable[[Sequence[Translation], Translator], Iterator[str]]] = {
    "text": as_text,
    "n-best": as_n_best,
    "json": as_json,
}


REPORT_COLUMNS = "line", "status", "confidence", "source", "translation", CORRECTION, "notes"


def report_row(translation: Translation) -> list[str]:
    """Return the row of a report for a translation, whose `correction` is empty.

    The last notes have the terms of a line, and its sentences if there are several.
    """
    notes = [*translation.notes]
    if uses := ", ".join(use.as_text() for use in translation.terms):
        notes.append(f"terms: {make_printable(uses)}")
    if (count := len(translation.sentences)) > 1:
        notes.append(f"{count} sentences: {make_printable(' | '.join(translation.sentences))}")
    confidence = "" if translation.confidence is None else f"{translation.confidence:.0f}"
    source, _ = repair_unicode(translation.source)
    number, text = str(translation.line_number), translation.text
    return [number, translation.status, confidence, source, text, "", "; ".join(notes)]


def format_report(rows: Iterable[Sequence[str]], *, is_first: bool = True) -> bytes:
    """Return rows of a report as TSV; the first ones are below a header.

    Excel reads UTF-8 by its byte-order mark.
    """
    header, encoding = ([REPORT_COLUMNS], "utf-8-sig") if is_first else ([], "utf-8")
    return "".join(map(write_row, chain(header, rows))).encode(encoding)


def log_kinds(kinds: Counter[tuple[Path | None, str]]) -> None:
    """Log the number of notes of each kind in a report, and of uses of a glossary or a memory."""
    for (path, kind), count in kinds.most_common():
        if path is not None:
            _logger.warning("%s: %s (%d)", path, kind, count)


def _open_input(job: FileJob) -> Iterator[str]:
    """Check the files of a job and return the input lines."""
    for path in filter(None, (job.input, job.prefixes)):
        if require_file(path).is_file():
            next(read_lines(path), None)  # raises DataError for a file that is not text
    memory = job.memory and require_file(job.memory)
    check_output_files([job.output, job.report], [job.input, job.prefixes, job.glossary, memory])
    # Pipes can be read only once: `stream` compares the numbers of lines later.
    if job.input and job.prefixes and job.input.is_file() and job.prefixes.is_file():
        lines, prefixes = scan(job.input).lines, scan(job.prefixes).lines
        if lines != prefixes:
            raise UserError(
                f"{job.input} has {lines} lines, {job.prefixes} has {prefixes}: "
                "line N of one must be the prefix of line N of the other, and may be empty"
            )
    return stdin_lines() if job.input is None else read_lines(job.input)


_CHUNK_BYTES = 1 << 16
_BYTE_ORDER_MARK = "\ufeff"


def stdin_chunks() -> Iterator[bytes]:
    """Yield the bytes of stdin as soon as they arrive; raise DataError for a binary format."""
    if sys.stdin is None:
        raise UserError("standard input is closed; name a file or open a pipe")
    stdin = sys.stdin.buffer
    read = stdin.read1 if isinstance(stdin, io.BufferedReader | io.BytesIO) else stdin.read
    chunks = iter(lambda: read(_CHUNK_BYTES), b"")
    if first := next(chunks, b""):
        check_content(first, "stdin")
        yield first
    yield from chunks


def stdin_lines() -> Iterator[str]:
    """Yield the lines of stdin as soon as they are complete.

    Bytes that are not UTF-8 become lone surrogates (`surrogateescape`), which the Translator reads
    as U+FFFD with a note.
    """
    return _decoded(_split(check_text(stdin_chunks(), "stdin"), "stdin"), "stdin")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file like `stdin_lines`; compressed files are decompressed."""
    return _decoded(_split(check_text(read_chunks(path), path), str(path)), str(path))


def _split(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Split at newline bytes, drop a carriage return before; raise DataError for a long line."""
    unfinished: list[bytes] = []
    line_number = 1
    for chunk in chunks:
        first, *complete = chunk.split(b"\n")
        unfinished.append(first)
        is_long = len(unfinished) * _CHUNK_BYTES > LONGEST_LINE
        if is_long and sum(map(len, unfinished)) > LONGEST_LINE:
            limit = f"{LONGEST_LINE:,} bytes; divide it into lines"
            raise DataError(f"{name}: line {line_number} has more than {limit}")
        for line in complete:
            yield b"".join(unfinished).removesuffix(b"\r")
            unfinished = [line]
            line_number += 1
    if rest := b"".join(unfinished):
        yield rest.removesuffix(b"\r")


def _decoded(lines: Iterator[bytes], name: str) -> Iterator[str]:
    """Decode UTF-8 by `surrogateescape`, drop a byte-order mark; raise DataError for UTF-16."""
    for line_number, line in enumerate(lines, start=1):
        if line_number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{name}: is UTF-16, not UTF-8; convert it with iconv")
        text = line.decode("utf-8", errors="surrogateescape")
        yield text.removeprefix(_BYTE_ORDER_MARK) if line_number == 1 else text


@contextmanager
def open_output(path: Path | None) -> Iterator[IO[bytes]]:
    """Open stdout, or a file that replaces `path` when it is complete, compressed by its suffix."""
    with ExitStack() as stack:
        if path is None:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        # Links stay links; devices and pipes cannot be replaced.
        target = path if is_special(path) else stack.enter_context(replace_file(resolved(path)))
        with target.open("wb") as file, open_compressed(file, path) as writer:
            yield writer


@contextmanager
def progress_bar(input: Path | None, *, texts: int | None = None) -> Iterator["tqdm[Any]"]:
    """Show lines per second on a terminal, and the remaining time if the input is a file.

    With `texts`, the number of texts of a document, show texts instead of lines.
    """
    shown = sys.stderr.isatty()
    total, unit = (texts, " texts") if texts is not None else (None, " lines")
    # A pipe can be read only once: counting its lines would consume them.
    if texts is None and shown and input is not None and input.is_file():
        total = scan(input).lines
    bar = tqdm(total=total, unit=unit, disable=not shown, dynamic_ncols=True, smoothing=0.1)
    with logging_redirect_tqdm() if shown else nullcontext(), bar:
        yield bar
