"""Atomic writing of files and folders."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Errors of file systems that cannot sync a folder, and of systems that cannot open one.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF}


@contextmanager
def naming(path: Path, *, instead_of: Path | None = None) -> Iterator[None]:
    """Set the file name of an OSError that has none, such as from a full disk, to `path`.

    The name also replaces that of `instead_of`, a temporary path, and of files below it.
    """
    try:
        yield
    except OSError as error:
        name = error.filename
        if name is None or (instead_of and Path(str(name)).is_relative_to(instead_of)):
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on exit, sync it and rename it to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path, instead_of=temporary):
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder next to `path`; on exit, delete it unless it was renamed."""
    folder = path.with_name(f".{path.name}.{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Exclude other processes by a lock file; no-op without file locks, as on Windows."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def put_in_place(folder: Path, output: Path) -> None:
    """Sync `folder` and rename it to `output`, in place of an existing folder."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            sync(path)
    sync_folder(folder)
    if output.exists():
        former = output.with_name(f".{output.name}.{os.getpid()}.former")
        output.rename(former)
        folder.rename(output)
        shutil.rmtree(former)
    else:
        folder.rename(output)
    sync_folder(output.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk; does nothing on Windows."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to the disk, if its file system supports that."""
    try:
        sync(path)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
