"""Files that are either whole or not there."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What a file system answers that cannot sync a folder, or a system that may not open one.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF}


@contextmanager
def naming(path: Path, *, instead_of: Path | None = None) -> Iterator[None]:
    """Give what goes wrong inside the name of `path`: a write to a full disk names no file.

    `instead_of`, and what lies in it, is a temporary name that would tell a user nothing.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or _lies_in(str(error.filename), instead_of):
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; once written, it is synced and takes its name."""
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
    """Give a new folder under a temporary name beside `path`; what is not renamed is then gone."""
    folder = path.with_name(f".{path.name}.{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_in_place(folder: Path, output: Path) -> None:
    """Let `folder` take the name `output`, all of it on the disk; a folder of that name goes."""
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
    """Write a text file as a whole."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, data: object) -> None:
    """Write a JSON file as a whole."""
    write_text(path, json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def sync(path: Path) -> None:
    """Wait until a file, or a folder's entries, lie on the disk; Windows cannot be asked so."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until a folder's entries lie on the disk, if its file system can be asked so."""
    try:
        sync(path)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lies_in(name: str, folder: Path | None) -> bool:
    return folder is not None and Path(name).is_relative_to(folder)
