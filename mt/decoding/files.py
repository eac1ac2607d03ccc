"""Translating a file line by line into another one."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from mt.data.lines import existing_file, read_chunks, scan
from mt.decoding.engine import ExplainingEngine, TokenDetails
from mt.decoding.translator import Alternative, Translation, Translator, log_notes
from mt.errors import UserError
from mt.files import replacing
from mt.model.device import keep_freed_memory

_CHUNK_BYTES = 1 << 16
_BYTE_ORDER_MARK = "\ufeff"


def stdin_lines() -> Iterator[str]:
    """Yield the lines of stdin, each as soon as it is there; UserError where stdin is closed.

    Bytes that are not UTF-8 come as lone surrogates, by Python's `surrogateescape`; the Translator
    reads them as U+FFFD, and says so.
    """
    if sys.stdin is None:  # as it is after `<&-`
        raise UserError("stdin is closed and no FILE is given: there is nothing to read")
    stdin = sys.stdin.buffer
    read = stdin.read1 if isinstance(stdin, io.BufferedReader | io.BytesIO) else stdin.read
    return _decoded(_split(iter(lambda: read(_CHUNK_BYTES), b"")))


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, as `stdin_lines` does; .gz, .xz and .zst are decompressed."""
    return _decoded(_split(read_chunks(path)))


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Split at newline bytes alone; one carriage return before them is dropped."""
    unfinished: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        unfinished.append(first)
        for line in others:
            yield b"".join(unfinished).removesuffix(b"\r")
            unfinished = [line]
    if rest := b"".join(unfinished):
        yield rest.removesuffix(b"\r")


def _decoded(lines: Iterator[bytes]) -> Iterator[str]:
    """Read UTF-8; what is none is kept as `surrogateescape` does. A byte-order mark goes."""
    for number, line in enumerate(lines, start=1):
        text = line.decode("utf-8", errors="surrogateescape")
        yield text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


def check_output(path: Path) -> None:
    """Raise UserError where a file could not be written at `path`."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder, a file was expected")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent} to write it into")
    if _is_special(path):
        return
    place = path.resolve()
    for must_be_writable in (place.parent, place) if place.exists() else (place.parent,):
        if not os.access(must_be_writable, os.W_OK):
            raise UserError(f"{must_be_writable}: no permission to write there")


def check_outputs(paths: Iterable[Path | None], given: Iterable[Path | None]) -> None:
    """Do `check_output` for each path there is; UserError for one that is `given`, or named twice.

    Nor may a file be replaced that lies in a folder that is given, such as a run.
    """
    taken = {each.resolve() for each in given if each}
    for path in filter(None, paths):
        check_output(path)
        place = path.resolve()
        if place in taken:
            raise UserError(f"{path}: is named twice, and would be written over")
        if place.is_file() and not taken.isdisjoint(place.parents):
            raise UserError(f"{path}: is a file of what is read, and not written over")
        taken.add(place)


@contextmanager
def open_output(path: Path | None) -> Iterator[IO[bytes]]:
    """Open stdout, or a file that takes its place at `path` when all is written."""
    with ExitStack() as stack:
        if path is None:
            if sys.stdout is None:  # as it is after `>&-`
                raise UserError("stdout is closed and no output file is given")
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        # A link stays a link, and a device or pipe has nothing that could be replaced.
        place = path if _is_special(path) else stack.enter_context(replacing(path.resolve()))
        with place.open("wb") as file:
            yield file


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


@contextmanager
def progress_bar(input: Path | None) -> Iterator["tqdm[Any]"]:
    """Show lines per second, and what remains where the input is a file, on a terminal only."""
    shown = sys.stderr is not None and sys.stderr.isatty()  # None as it is after `2>&-`
    # A pipe can be read only once: counting its lines would take them away.
    total = scan(input).lines if shown and input is not None and input.is_file() else None
    with ExitStack() as stack:
        if shown:
            stack.enter_context(logging_redirect_tqdm())
        yield stack.enter_context(
            tqdm(total=total, unit=" lines", disable=not shown, dynamic_ncols=True, smoothing=0.1)
        )


Form = Literal["text", "n-best", "json"]


def as_text(translations: Sequence[Translation], _: Translator) -> Iterator[str]:
    """Yield the translations alone."""
    return (f"{translation.text}\n" for translation in translations)


def as_n_best(translations: Sequence[Translation], _: Translator) -> Iterator[str]:
    """Yield a line `number ||| text ||| score` for each alternative; numbers from 0, as in Moses.

    Number and score hold no bars, so the first and the last separator are never the text's own.
    """
    for translation in translations:
        number = translation.line_number - 1
        for each in translation.alternatives:
            yield f"{number} ||| {each.text} ||| {each.score:.6f}\n"


def as_json(translations: Sequence[Translation], translator: Translator) -> Iterator[str]:
    """Yield a JSON object a line: the best alternative token by token, the status, and all others.

    `token_log_probs` and `alignment` are null where the engine cannot tell.
    """
    parts = [part for translation in translations for part in translation.alternatives[0].parts]
    details: Iterator[TokenDetails | None] = iter([None] * len(parts))
    if isinstance(translator.engine, ExplainingEngine):
        sources, hypotheses = ([part.source for part in parts], [part.hypothesis for part in parts])
        details = iter(translator.engine.explain(sources, hypotheses))
    for translation in translations:
        best = translation.alternatives[0]
        alternatives = [_alternative(each, translator) for each in translation.alternatives]
        record = {
            "line": translation.line_number,
            "status": translation.status,
            "notes": translation.notes,
            **alternatives[0],
            **_details(best, [next(details) for _ in best.parts], translator),
            "alternatives": alternatives,
        }
        yield json.dumps(record, ensure_ascii=False) + "\n"


FORMS: dict[Form, Callable[[Sequence[Translation], Translator], Iterator[str]]] = {
    "text": as_text,
    "n-best": as_n_best,
    "json": as_json,
}


def report_line(translation: Translation) -> str:
    """Return the line's number, its status and the notes on it, with tabs between."""
    notes = "; ".join(translation.notes)
    return f"{translation.line_number}\t{translation.status}\t{notes}\n"


def _alternative(alternative: Alternative, translator: Translator) -> dict[str, object]:
    name = translator.tokenizer.target.processor.id_to_piece
    return {
        "text": alternative.text,
        "score": alternative.score,
        "log_prob": sum((part.hypothesis.log_prob for part in alternative.parts), start=0.0),
        "tokens": name(list(alternative.ids)),
    }


def _details(
    best: Alternative, details: Sequence[TokenDetails | None], translator: Translator
) -> dict[str, object]:
    """Return the details of all parts as those of one; tokens are counted over all of them."""
    known = [of_part for of_part in details if of_part is not None]
    alignment: list[tuple[int, int]] = []
    read = written = 0
    for part, of_part in zip(best.parts, known, strict=False):
        alignment += [(read + source, written + target) for source, target in of_part.alignment]
        read, written = read + len(part.source) - 1, written + len(part.hypothesis.ids)
    told = len(known) == len(best.parts)
    name = translator.tokenizer.source.processor.id_to_piece
    return {
        "source_tokens": name([number for part in best.parts for number in part.source[:-1]]),
        "token_log_probs": [each for part in known for each in part.log_probs] if told else None,
        "alignment": alignment if told else None,
    }


@dataclass(frozen=True, slots=True)
class FileJob:
    """What is read, and what is written in which form."""

    input: Path | None = None
    """None is stdin."""
    output: Path | None = None
    """None is stdout; an existing file is replaced when the new one is complete."""
    form: Form = "text"
    n_best: int = 1
    """Alternatives of each line; the form `text` shows the best alone."""
    report: Path | None = None
    """Where the number, status and notes of each line go; replaced likewise."""
    look_ahead: int | None = None
    """Lines read before the first is answered; None: as many as are good for the speed."""
    prefixes: Path | None = None
    """What the translation of each line begins with, a line each, which may be empty."""


def translate_file(
    run: Path, job: FileJob, *, overrides: Sequence[str] = (), device: str = "auto"
) -> None:
    """Translate a file (by default stdin) line by line into another (by default stdout).

    Lines end at a newline byte alone, the output is UTF-8; `overrides` are `decoding.KEY=VALUE`.
    What a user should know of a line is logged with its number. Raises UserError before any work
    where files, device, run folder or overrides are not what they should be.
    """
    lines = _open_input(job)
    keep_freed_memory()
    translator = Translator.load(run, overrides=overrides, device=device)
    with ExitStack() as stack:
        out = stack.enter_context(open_output(job.output))
        report = stack.enter_context(open_output(job.report)) if job.report else None
        write_translations(translator, lines, job=job, out=out, report=report)


def write_translations(
    translator: Translator,
    lines: Iterator[str],
    *,
    job: FileJob,
    out: IO[bytes],
    report: IO[bytes] | None = None,
) -> None:
    """Write what becomes of each line to `out`, in the job's form, and to `report`.

    `out` is flushed whenever all lines that have been read are answered.
    """
    write = FORMS[job.form]
    look_ahead = job.look_ahead or translator.look_ahead
    prefixes = read_lines(job.prefixes) if job.prefixes else None
    translations = translator.stream(
        lines, prefixes=prefixes, n_best=job.n_best, look_ahead=look_ahead
    )
    with progress_bar(job.input) as bar:
        while window := list(islice(translations, look_ahead)):
            for translation in window:
                log_notes(translation)
            out.writelines(text.encode() for text in write(window, translator))
            out.flush()
            if report is not None:
                report.writelines(report_line(translation).encode() for translation in window)
            bar.update(len(window))


def _open_input(job: FileJob) -> Iterator[str]:
    """Return the lines to translate, once the job's files are known to be what they should be."""
    for path in filter(None, (job.input, job.prefixes)):
        existing_file(path)
    for path in filter(None, (job.output, job.report)):
        check_output(path)
    if job.report is not None:
        for other, name in (
            (job.input, "the input"),
            (job.prefixes, "the prefixes"),
            (job.output, "the output"),
        ):
            if other is not None and other.resolve() == job.report.resolve():
                raise UserError(f"{job.report}: is {name}; the report needs a file of its own")
    if job.input is not None and job.prefixes is not None:
        _check_same_length(job.input, job.prefixes)
    return stdin_lines() if job.input is None else read_lines(job.input)


def _check_same_length(input: Path, prefixes: Path) -> None:
    """Raise UserError where the files can be read twice and have not the same number of lines."""
    if not (input.is_file() and prefixes.is_file()):
        return
    lines, others = scan(input).lines, scan(prefixes).lines
    if lines != others:
        raise UserError(
            f"{input} has {lines} lines, {prefixes} has {others}: "
            "line N of one must be the prefix of line N of the other, and may be empty"
        )
