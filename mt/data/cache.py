"""The folder for what can be made or fetched again, and the downloads in it."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import urlsplit

from tqdm import tqdm

from mt.errors import DataError

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60.0


def cache_folder() -> Path:
    """Return $MT_CACHE, or ~/.cache/mt where it is unset; the folder may not exist yet."""
    named = os.environ.get("MT_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "mt"


def download(url: str) -> Path:
    """Return the local copy of `url`, fetched on first use.

    The copy is keyed by the URL and appears under its name only when complete. Raises `DataError`
    naming the URL where it cannot be fetched.
    """
    folder = cache_folder() / "downloads"
    name = PurePosixPath(urlsplit(url).path).name[-100:] or "file"
    copy = folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    if copy.exists():
        return copy
    folder.mkdir(parents=True, exist_ok=True)
    # The process number keeps two runs that start together from writing into one file.
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
    """Copy what `url` holds into `file`, with progress on stderr."""
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
    # A connection that breaks off early ends like a complete one; only the length tells.
    if total and file.tell() != total:
        raise DataError(f"{url}: broke off after {file.tell()} of {total} bytes; run it again")


def _receive(url: str, response: BinaryIO) -> bytes:
    """Read on; apart from writing, so that a full disk is not taken for a broken line."""
    try:
        return response.read(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: Exception) -> DataError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    status = ""
    if isinstance(error, urllib.error.HTTPError):
        status = f"status {error.code}, "
        error.close()  # it holds the connection
    return DataError(f"{url}: cannot be downloaded ({status}{reason})")
