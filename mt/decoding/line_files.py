"""The files on both sides of a translation: lines of bytes in, a whole file out."""

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from mt.data.lines import read_chunks, scan
from mt.errors import UserError
from mt.files import replacing

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
