"""Lines of a text file, plain or compressed.

A line ends at a newline byte and nowhere else: U+2028, U+0085, form feed or a bare carriage
return inside a line stay inside it. One carriage return before the newline is dropped and counted,
a byte-order mark at the start of the file is dropped, a last line needs no newline, and bytes that
are not UTF-8 are an error that names file and line.
"""

import codecs
import functools
import gzip
import hashlib
import logging
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol

from mt.errors import DataError, did_you_mean, install_hint

_CONVERT = "convert the file first, as by `iconv -f ENCODING -t UTF-8`, such as UTF-16 or GB18030"
_CHUNK_BYTES = 1 << 20
_logger = logging.getLogger(__name__)


def existing_file(path: Path) -> Path:
    """Return `path`; raise `DataError`, with the nearest name beside it, where no file is there."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder, a file was expected")
    if path.exists():
        return path
    where = "" if path.is_absolute() else f" (looked for in {Path.cwd()})"
    if not path.parent.is_dir():
        raise DataError(f"{path}: no such file, nor is there a folder {path.parent}{where}")
    beside = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    raise DataError(f"{path}: no such file{did_you_mean(path.name, beside)}{where}")


def regular_file(path: Path) -> Path:
    """Return `path` as `existing_file` does; raise `DataError` for a pipe, which is read once."""
    if not existing_file(path).is_file():
        raise DataError(f"{path}: is no regular file, but it has to be read twice")
    return path


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _plain(file: _Readable) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _gz(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as stream:
        yield from _plain(stream)


def _xz(file: BinaryIO) -> Iterator[bytes]:
    with lzma.open(file) as stream:
        yield from _plain(stream)


def _zst(file: BinaryIO) -> Iterator[bytes]:
    try:
        import zstandard  # an extra that not everyone needs
    except ModuleNotFoundError as error:
        raise DataError(f"reading .zst needs zstandard: {install_hint('zstd')}") from error
    # The stream reader takes a file that breaks off for a complete one, so frames are told apart
    # here; a file may hold several.
    frame = None
    for chunk in _plain(file):
        data = chunk
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from error
            data = frame.unused_data
            if frame.eof:
                frame = None
    if frame is not None:
        raise EOFError("the file ends inside a frame")


_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    ".gz": _gz,
    ".xz": _xz,
    ".zst": _zst,
}


def read_chunks(path: Path) -> Iterator[bytes]:
    """Stream the bytes of a file, decompressed as its suffix says; `DataError` where damaged."""
    decompress = _DECOMPRESSORS.get(path.suffix, _plain)
    with path.open("rb") as file:
        try:
            yield from decompress(file)
        except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
            raise DataError(f"{path}: the compressed file is damaged ({error})") from error


@dataclass(frozen=True, slots=True)
class FileScan:
    """How many lines a file has, and the SHA-256 of its decompressed bytes."""

    lines: int
    sha256: str


def scan(path: Path) -> FileScan:
    """Count and hash without decoding: as fast as the decompression."""
    digest = hashlib.sha256()
    newlines = 0
    last = b"\n"
    for chunk in read_chunks(path):
        digest.update(chunk)
        newlines += chunk.count(b"\n")
        last = chunk[-1:] or last
    return FileScan(newlines + (last != b"\n"), digest.hexdigest())


class LineReader:
    """One pass over the lines of a file; afterwards it knows what `scan` would have said.

    Decodes and splits by the megabyte: `str.split("\\n")` splits at newlines alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = 0
        self._crlf = 0
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._blocks())

    def seen(self) -> FileScan:
        """Return lines and checksum of what was read so far."""
        return FileScan(self._lines, self._digest.hexdigest())

    def _blocks(self) -> Iterator[list[str]]:
        unfinished: list[bytes] = []
        for chunk in read_chunks(self.path):
            self._digest.update(chunk)
            whole, newline, rest = chunk.rpartition(b"\n")
            if newline:
                yield self._split(b"".join([*unfinished, whole, newline]))
                unfinished = []
            unfinished.append(rest)
        if last := b"".join(unfinished):
            yield self._split(last + b"\n")
        if self._crlf:
            _tell_crlf(self.path, self._crlf)

    def _split(self, block: bytes) -> list[str]:
        """Decode a block that ends with a newline."""
        if not self._lines:
            block = block.removeprefix(codecs.BOM_UTF8)
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            line = self._lines + block.count(b"\n", 0, error.start) + 1
            found = f"line {line} is not UTF-8 (byte 0x{block[error.start]:02x})"
            if not self._lines and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                found = "is UTF-16, not UTF-8"
            raise DataError(f"{self.path}: {found}; {_CONVERT}") from error
        if crlf := text.count("\r\n"):
            self._crlf += crlf
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        lines.pop()  # the empty string after the last newline
        self._lines += len(lines)
        return lines


@functools.cache
def _tell_crlf(path: Path, lines: int) -> None:
    """Say it once for a file, however often it is read."""
    _logger.warning("%s: %d lines end in CRLF; the carriage returns are dropped", path, lines)
