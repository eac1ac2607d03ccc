"""Translating a file line by line into another one."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from mt.data.lines import existing_file, scan
from mt.decoding.line_files import (
    check_output,
    open_output,
    progress_bar,
    read_lines,
    stdin_lines,
)
from mt.decoding.report import FORMS, Form, report_line
from mt.decoding.translation import log_notes
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.model.allocator import keep_freed_memory


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
