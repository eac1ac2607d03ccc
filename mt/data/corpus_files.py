"""Corpus files: found in $MT_CORPORA or downloaded, and read line by line, plain or compressed.

Only a newline byte ends a line: U+2028, U+0085, form feed or a bare carriage return inside a line
stay. One carriage return before the newline and a byte-order mark at the start of the file are
dropped. The last line needs no newline.
"""

import bz2
import codecs
import functools
import gzip
import hashlib
import http.client
import logging
import lzma
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast
from urllib.parse import urlsplit

from tqdm import tqdm

from mt.config.data import CorpusSource, Direction
from mt.errors import DataError, UserError, install_hint
from mt.files import make_cache_folder, replace_file, require_regular_file

_CONVERT = "convert the file first, for example with `iconv -f %s -t UTF-8`"
CHUNK_BYTES = LONGEST_LINE = 1 << 20
"""Bytes of the longest line of a text, and characters of the longest segment of other formats."""
_logger = logging.getLogger(__name__)


def require_unpacked(path: Path) -> Path:
    """Return a path; raise DataError if it is no regular file, or an archive."""
    require_regular_file(path)
    if zipfile.is_zipfile(path) or tarfile.is_tarfile(path):
        raise DataError(f"{path}: is an archive; unpack it and name the files in it")
    return path


class LineReader:
    """One pass over the lines of a file, decoded a megabyte at a time.

    Lines of more than LONGEST_LINE bytes are read as `long_line`, with a warning. Raises
    `DataError` with file and line for such a line if `long_line` is None, and for invalid UTF-8.
    """

    def __init__(self, path: Path, *, long_line: str | None = None) -> None:
        self.path = path
        self._long_line, self._long_lines = long_line, list[int]()
        self._lines = 0
        self._crlf = 0
        self._digest = hashlib.sha256()

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._blocks())

    def seen(self) -> "FileScan":
        """Return the line count and checksum of the part read so far."""
        return FileScan(self._lines, self._digest.hexdigest())

    def _blocks(self) -> Iterator[list[str]]:
        unfinished: list[bytes] = []
        for chunk in check_text(read_chunks(self.path), self.path):
            self._digest.update(chunk)
            whole, newline, rest = chunk.rpartition(b"\n")
            if newline:
                yield self._split(b"".join([*unfinished, whole, newline]))
                unfinished = []
            # The rest of a line that is too long is not kept.
            if sum(map(len, unfinished)) <= LONGEST_LINE:
                unfinished.append(rest)
        if last := b"".join(unfinished):
            yield self._split(last + b"\n")
        if crlf := self._crlf:
            warn_once("%s: %d lines end in CRLF; the carriage returns are dropped", self.path, crlf)
        warn_of_long(self.path, "lines", self._long_lines)

    def _split(self, block: bytes) -> list[str]:
        """Decode a block that ends with a newline."""
        if not self._lines:
            block = block.removeprefix(codecs.BOM_UTF8)
        # Only the first line of a block can be longer than a chunk of the file.
        if block.find(b"\n", 0, LONGEST_LINE + 1) < 0 or len(block) > 2 * LONGEST_LINE:
            raw = block.split(b"\n")
            for index in range(len(raw)):
                if len(raw[index]) > LONGEST_LINE:
                    number = self._lines + index + 1
                    if self._long_line is None:
                        raise DataError(
                            f"{self.path}: line {number} has more than {LONGEST_LINE:,} bytes"
                        )
                    self._long_lines.append(number)
                    raw[index] = self._long_line.encode()
            block = b"\n".join(raw)
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            line = self._lines + block.count(b"\n", 0, error.start) + 1
            fault = f"line {line} is not UTF-8 (byte 0x{block[error.start]:02x})"
            encoding = "GB18030"
            if not self._lines and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                fault, encoding = "is UTF-16, not UTF-8", "UTF-16"
            raise DataError(f"{self.path}: {fault}; {_CONVERT % encoding}") from error
        if crlf := text.count("\r\n"):
            self._crlf += crlf
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")  # unlike `splitlines`, at newlines alone
        lines.pop()  # the empty string after the last newline
        self._lines += len(lines)
        return lines


@functools.cache
def warn_once(message: str, *values: object) -> None:
    """Log a warning once per process."""
    _logger.warning(message, *values)


def warn_of_long(name: object, kind: str, positions: list[int]) -> None:
    """Warn once of the lines, units or rows, by position from 1, that exceed LONGEST_LINE."""
    if positions:
        message = f"%s: %d {kind} of more than {LONGEST_LINE:,} bytes are left out, such as %d"
        warn_once(message, name, len(positions), positions[0])


@dataclass(frozen=True, slots=True)
class FileScan:
    """Line count and checksum of a file."""

    lines: int
    sha256: str
    """SHA-256 of the decompressed bytes."""


def scan(path: Path) -> FileScan:
    """Count lines and hash a file without decoding it."""
    digest = hashlib.sha256()
    newlines = 0
    last = b"\n"
    for chunk in read_chunks(path):
        digest.update(chunk)
        newlines += chunk.count(b"\n")
        last = chunk[-1:] or last
    return FileScan(newlines + (last != b"\n"), digest.hexdigest())


def read_chunks(path: Path) -> Iterator[bytes]:
    """Stream the bytes of a file, decompressed by its suffix.

    Raises `DataError` if the compressed file is damaged, and for content that is never text.
    """
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        try:
            if suffix == ".zst":
                chunks = _read_zstd(file)
            else:
                opened = _DECOMPRESSORS[suffix](file) if suffix in _DECOMPRESSORS else file
                chunks = iter(functools.partial(opened.read, CHUNK_BYTES), b"")
            if first := next(chunks, b""):
                check_content(first, path)
                yield first
            del first  # a megabyte
            yield from chunks
        except (zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk
                raise
            raise DataError(f"{path}: the compressed file is damaged ({error})") from error


def check_content(start: bytes, name: object) -> None:
    """Raise DataError if the first bytes of a file are those of a known binary format."""
    for kind, beginnings in _MAGIC.items():
        if start.startswith(beginnings):
            raise DataError(f"{name}: is not text but {kind}")


def check_text(chunks: Iterator[bytes], name: object) -> Iterator[bytes]:
    """Yield chunks; raise DataError if the first one has too many NUL bytes for a text.

    A single one is a fault of a line. Compressed and random data have one in 256.
    """
    first = next(chunks, b"")
    nul = first.count(0)
    is_utf_16 = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if _FEWEST_BYTES_A_NUL * nul > len(first) and not is_utf_16:
        raise DataError(
            f"{name}: is not text: {nul:,} of its first {len(first):,} bytes are NUL; "
            "if it is UTF-16 or UTF-32, convert it with iconv"
        )
    if first:
        yield first
    del first
    yield from chunks


_FEWEST_BYTES_A_NUL = 1000
_MAGIC = {
    "a ZIP archive, such as .docx, .xlsx, .odt and .epub": (b"PK\3\4", b"PK\5\6"),
    "a PDF document": (b"%PDF-",),
    "a PostScript document": (b"%!PS-",),
    "a Rich Text document": (b"{\\rtf",),
    "an Office document of before 2007": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",),
    "compressed by gzip; decompress it, or let its name end in .gz": (b"\x1f\x8b",),
    "compressed by xz; decompress it, or let its name end in .xz": (b"\xfd7zXZ\0",),
    "compressed by zstd; decompress it, or let its name end in .zst": (b"\x28\xb5\x2f\xfd",),
    "compressed by bzip2; decompress it, or let its name end in .bz2": tuple(
        b"BZh%d1AY&SY" % level for level in range(1, 10)
    ),
}
"""First bytes of formats with a text inside; others show by their NUL bytes, or are no UTF-8."""


def _import_zstandard() -> Any:
    try:
        import zstandard  # an optional package
    except ModuleNotFoundError as error:
        raise DataError(f".zst files need zstandard: {install_hint('zstd')}") from error
    return zstandard


def _read_zstd(file: BinaryIO) -> Iterator[bytes]:
    zstandard = _import_zstandard()
    # The stream reader of zstandard accepts a truncated file, so frames are read one by one.
    frame = None
    for chunk in iter(lambda: file.read(4096), b""):  # may hold 128 MiB
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


_DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
}
_COMPRESSORS: dict[str, Callable[[Any], Any]] = {
    # Without the name and time that gzip records.
    ".gz": lambda file: gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0),
    ".xz": functools.partial(lzma.LZMAFile, mode="wb"),
    ".zst": lambda file: _import_zstandard().ZstdCompressor().stream_writer(file),
    ".bz2": functools.partial(bz2.BZ2File, mode="wb"),
}
COMPRESSED = frozenset(_COMPRESSORS)
"""Suffixes of compressed files that are read and written."""


def open_compressed(file: IO[bytes], path: Path) -> IO[bytes]:
    """Return a file that compresses into `file`, as the suffix of `path` asks, or `file` itself."""
    compress = _COMPRESSORS.get(path.suffix.lower())
    return cast("IO[bytes]", compress(file)) if compress else file


_TIMEOUT_SECONDS = 60.0


def cache_folder() -> Path:
    """Return $MT_CACHE, by default ~/.cache/mt; the folder may not exist.

    Raises UserError for a user without a home folder.
    """
    named = os.environ.get("MT_CACHE")
    try:
        return Path(named).expanduser() if named else Path.home() / ".cache" / "mt"
    except RuntimeError as error:
        raise UserError("no home folder for the cache was found: set MT_CACHE") from error


def download(url: str) -> Path:
    """Return the local copy of `url`, downloaded on first use.

    The file appears when it is complete. Raises `DataError` naming the URL if the download fails.
    """
    folder = cache_folder() / "downloads"
    name = PurePosixPath(urlsplit(url).path).name[-100:] or "file"
    copy = folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    if copy.exists():
        return copy
    make_cache_folder(folder)
    with replace_file(copy) as part, part.open("wb") as file:
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
                total = int(response.headers.get("Content-Length") or 0)
                bar = tqdm.wrapattr(
                    file, "write", total or None, desc=url, leave=False, disable=None
                )
                with bar as writer:
                    shutil.copyfileobj(response, writer, CHUNK_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # closes the connection
            raise DataError(f"{url}: cannot be downloaded ({error})") from error
        # A broken connection ends like a complete one; only the length differs.
        if total and file.tell() != total:
            raise DataError(f"{url}: broke off after {file.tell()} of {total} bytes; run it again")
    return copy


def find_supplied_files(source: CorpusSource, direction: Direction) -> tuple[Path, Path] | None:
    """Return the files of both sides of `source.corpus` in $MT_CORPORA; None if there are none.

    Raises `DataError` if only one side exists, or the folder does not.
    """
    named = os.environ.get("MT_CORPORA")
    if not named or source.corpus is None:
        return None
    root = Path(named).expanduser()
    if not root.is_dir():
        raise DataError(f"{root}: $MT_CORPORA names this folder, but it does not exist")
    stem = root / source.corpus
    paths = [[Path(f"{stem}.{code}{suffix}") for suffix in ("", ".gz")] for code in direction]
    left, right = (next(filter(Path.is_file, side), None) for side in paths)
    if left and right:
        return left, right
    if left or right:
        missing = direction.target if left else direction.source
        raise DataError(f"{stem}.{missing}[.gz]: no such file, though {left or right} is there")
    return None


def describe_supply(source: CorpusSource) -> str:
    """Return a hint to supply a corpus through $MT_CORPORA; "" if the corpus has no name."""
    hint = f"; $MT_CORPORA can supply it as {source.corpus}.<language>[.gz]"
    return hint if source.corpus else ""
