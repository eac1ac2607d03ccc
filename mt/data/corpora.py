"""Corpus files: `<name>/<split>.<language>[.gz]` in $MT_CORPORA, and downloads."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import urlsplit

from tqdm import tqdm

from mt.config.data import CorpusSource, DataConfig
from mt.errors import DataError, UserError

_CHUNK_BYTES = 1 << 20
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
    folder.mkdir(parents=True, exist_ok=True)
    # The process id separates runs that download the same file at once.
    part = folder / f".{copy.name}.{os.getpid()}"
    try:
        with part.open("wb") as file:
            _fetch(url, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)
    return copy


def _fetch(url: str, file: BinaryIO) -> None:
    """Download `url` into `file`, with progress on stderr."""
    try:
        response = urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(url, error) from error
    with response:
        total = int(response.headers.get("Content-Length") or 0)
        with tqdm(
            total=total or None, unit="B", unit_scale=True, desc=url, leave=False, disable=None
        ) as bar:
            while chunk := _receive(url, response):
                file.write(chunk)
                bar.update(len(chunk))
    # A broken connection ends like a complete one; only the length differs.
    if total and file.tell() != total:
        raise DataError(f"{url}: broke off after {file.tell()} of {total} bytes; run it again")


def _receive(url: str, response: BinaryIO) -> bytes:
    """Read a chunk; separate from writing, so that a full disk is not reported as a broken line."""
    try:
        return response.read(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: Exception) -> DataError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    status = ""
    if isinstance(error, urllib.error.HTTPError):
        status = f"status {error.code}, "
        error.close()  # closes the connection
    return DataError(f"{url}: cannot be downloaded ({status}{reason})")


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    """Files of the two sides of a corpus."""

    source: Path
    target: Path


def supplied_files(source: CorpusSource, data: DataConfig) -> CorpusFiles | None:
    """Return the files of `source.corpus` in $MT_CORPORA, or None if there are none.

    Raises `DataError` if only one side exists, or the folder does not.
    """
    named = os.environ.get("MT_CORPORA")
    if not named or source.corpus is None:
        return None
    root = Path(named).expanduser()
    if not root.is_dir():
        raise DataError(f"{root}: $MT_CORPORA names this folder, but it does not exist")
    stem = root / source.corpus
    left = _plain_or_gz(stem, data.source_language)
    right = _plain_or_gz(stem, data.target_language)
    if left and right:
        return CorpusFiles(left, right)
    if left or right:
        missing = data.target_language if left else data.source_language
        raise DataError(f"{stem}.{missing}[.gz]: no such file, though {left or right} is there")
    return None


def _plain_or_gz(stem: Path, language: str) -> Path | None:
    names = (f"{stem.name}.{language}", f"{stem.name}.{language}.gz")
    paths = (stem.with_name(name) for name in names)
    return next((path for path in paths if path.is_file()), None)


def where_looked(corpus: str, language: str) -> str:
    """Return where one side of a corpus was looked for, for an error message."""
    named = os.environ.get("MT_CORPORA")
    if not named:
        return f"`{corpus}.{language}[.gz]` is looked for in $MT_CORPORA, which is not set"
    return f"{Path(named).expanduser() / corpus}.{language}[.gz] ($MT_CORPORA) is not there"


def supply_hint(source: CorpusSource) -> str:
    """Return a hint to supply a corpus through $MT_CORPORA; "" if the corpus has no name."""
    return f"; $MT_CORPORA can supply it as {source.corpus}.<language>[.gz]" * bool(source.corpus)
