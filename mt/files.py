"""Atomic writing of files and folders, and reading within limits."""

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from mt.errors import DataError, RunError, UserError, did_you_mean, name_runs

# Errors of file systems that cannot sync a folder, and of systems that cannot open one.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF}

LARGEST_JSON = 64 << 20
"""Bytes of the largest JSON file that is read; vocabularies are the largest of real models."""
T = TypeVar("T")


@contextmanager
def name_errors(path: Path, *, instead_of: Path | None = None) -> Iterator[None]:
    """Set the file name of an OSError that has none, such as from a full disk, to `path`.

    The name also replaces that of `instead_of`, a temporary path, and of files below it.
    """
    try:
        yield
    except OSError as error:
        # A failed copy has the names of the original and of the copy.
        names = [Path(str(name)) for name in (error.filename, error.filename2) if name is not None]
        if not names or (instead_of and any(name.is_relative_to(instead_of) for name in names)):
            error.filename = str(path)
        raise


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on exit, sync it and rename it to `path`."""
    with _reserve_aside(path) as temporary:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync_folder(path.parent)


@contextmanager
def open_aside(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder next to `path`; on exit, delete it unless it was renamed.

    It is next to the end of a link. An OSError in the block names `path` instead of the folder.
    """
    real = resolved(path)
    real.parent.mkdir(parents=True, exist_ok=True)
    with _reserve_aside(real, shown=path) as folder:
        folder.mkdir()
        yield folder


_ASIDE, _LOCK = ".mt-aside", ".lock"
"""Suffix of the temporary folders, and the file in each that its process keeps locked."""


@contextmanager
def _reserve_aside(path: Path, *, shown: Path | None = None) -> Iterator[Path]:
    """Yield a path in a locked folder next to `path`, deleted on exit; an OSError names `shown`."""
    delete_abandoned(path.parent)
    with name_errors(shown or path, instead_of=path.parent):
        aside = Path(tempfile.mkdtemp(_ASIDE, f".{path.name}.", path.parent))
    try:
        with name_errors(shown or path, instead_of=aside), lock_file(aside / "lock") as is_locked:
            if is_locked:  # only now, a folder with an unlocked file is abandoned
                (aside / "lock").rename(aside / _LOCK)
            yield aside / path.name
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def delete_abandoned(folder: Path) -> None:
    """Delete what killed processes have left of `replace_file` and `open_aside` in a folder.

    The kernel releases the locks of a killed process; without file locks, nothing is deleted.
    """
    for path in folder.glob(f".*{_ASIDE}/{_LOCK}"):
        with (
            suppress(OSError, UserError),
            lock_file(path, busy=UserError(f"{path}: is in use")) as is_locked,
        ):
            if is_locked:
                shutil.rmtree(path.parent, ignore_errors=True)


def make_cache_folder(folder: Path) -> Path:
    """Create a folder of the cache and return it; name MT_CACHE if nothing can be written there."""
    reason = "no permission to write there"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    raise UserError(f"{folder}: is in the cache, {reason}; set MT_CACHE to another folder")


@contextmanager
def lock_file(path: Path, *, busy: UserError | None = None) -> Iterator[bool]:
    """Exclude other processes by a lock file; wait for the holder, or raise `busy`.

    Yields False without file locks, as on Windows and some network file systems: other processes
    are then not excluded.
    """
    is_locked = True
    with name_errors(path.parent, instead_of=path):
        file = path.open("a")
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX if busy is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy or error from None
        except (ImportError, OSError):
            is_locked = False
        yield is_locked


def put_in_place(folder: Path, output: Path, *, is_new: bool = False) -> None:
    """Sync `folder` and rename it to `output`, in place of an existing folder.

    Raises OSError with `is_new` if others have filled `output`. A link stays, its end is replaced.
    """
    output = resolved(output)
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            sync(path)
    sync_folder(folder)
    if output.exists() and not is_new:
        former = folder.with_name(f"{folder.name}.former")
        output.rename(former)
        folder.rename(output)
        shutil.rmtree(former)
    else:
        folder.rename(output)
    sync_folder(output.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replace_file(path) as temporary:
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


def expand_home(path: str | Path) -> Path:
    """Return a path with `~` replaced by the home folder; `~name` of an unknown user stays."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def resolved(path: Path) -> Path:
    """Return the real path; unlike Path.resolve, accept a symbolic link to itself."""
    return Path(os.path.realpath(path))


def check_output(path: Path) -> None:
    """Raise UserError if no file can be written at `path`."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder, a file was expected")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent} to write it into")
    if is_special(path):
        return
    target = resolved(path)
    for must_be_writable in (target.parent, target) if target.exists() else (target.parent,):
        if not os.access(must_be_writable, os.W_OK):
            raise UserError(f"{must_be_writable}: no permission to write there")


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Raise UserError for an output that is an input, a file of an input folder, or named twice.

    Symbolic and hard links count as the file that they lead to. A device may be both; a pipe that
    is read and written would never end.
    """
    taken = [path for path in inputs if path]
    for path in filter(None, outputs):
        if any(is_same(path, other) for other in taken) and not path.is_char_device():
            raise UserError(f"{path}: is named twice, and would be written over")
        for folder in taken if path.is_file() else ():
            is_inside = resolved(path).is_relative_to(resolved(folder))
            if is_inside or any(is_same(path, entry) for entry in folder.rglob("*")):
                raise UserError(f"{path}: is a file of the input, and not written over")
        taken.append(path)


def check_output_files(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Check outputs as `check_outputs` does; raise UserError for a path that cannot be a file."""
    paths = [path for path in outputs if path]
    check_outputs(paths, inputs)
    for path in paths:
        check_output(path)


def is_same(path: Path, other: Path) -> bool:
    """Return True for two names of one file or folder, which need not exist."""
    with suppress(OSError, ValueError):
        return path.samefile(other)
    return resolved(path) == resolved(other)


def is_special(path: Path) -> bool:
    """Return True for a device, a pipe and a socket."""
    return path.exists() and not (path.is_file() or path.is_dir())


def require_file(path: Path) -> Path:
    """Return `path`; raise DataError, with the nearest name, for a folder or a missing file."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder, a file was expected")
    if path.exists():
        return path
    where = "" if path.is_absolute() else f" (looked for in {Path.cwd()})"
    if not path.parent.is_dir():
        raise DataError(f"{path}: no such file, nor is there a folder {path.parent}{where}")
    names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    raise DataError(f"{path}: no such file{did_you_mean(path.name, names)}{where}")


def require_regular_file(path: Path) -> Path:
    """Return `path` like `require_file`; raise `DataError` for a pipe or device."""
    if not require_file(path).is_file():
        raise DataError(
            f"{path}: is a pipe or device, but it has to be read twice; write it to a file first"
        )
    return path


def default_run(config: Path) -> Path:
    """Return the default run folder of a config."""
    return Path("runs") / config.stem


def require_run_file(run: Path, name: str) -> None:
    """Raise RunError, with runs nearby, unless the folder `run` has an entry of this name."""
    if os.path.lexists(run / name):
        return
    if run.is_dir():
        raise RunError(f"{run}: not a run folder, {name} is missing{name_runs(run, name)}")
    if run.exists():
        hint = f"; `mt train {run}` trains one" if run.suffix in {".yaml", ".yml"} else ""
        for folder in (run.parent, default_run(run)):
            if os.path.lexists(folder / name):
                hint = f"; did you mean `{folder}`?"
        raise RunError(f"{run}: is a file, a run folder was expected{hint}")
    siblings = run.parent.iterdir() if run.parent.is_dir() else ()
    near = did_you_mean(run.name, [entry.name for entry in siblings if entry.is_dir()])
    raise RunError(f"{run}: no such run folder{near or name_runs(run.parent, name)}")


def check_regular(path: Path, error: type[UserError] = RunError) -> None:
    """Raise an error of the given type for a folder, pipe or device, OSError for a missing file.

    A pipe would wait for its other end, and a device such as /dev/zero has no end. A link to a
    missing file is an error too.
    """
    if path.is_symlink() and not path.exists():
        raise error(f"{path}: is a link to {path.readlink()}, which is not there")
    if not stat.S_ISREG(path.stat().st_mode):
        raise error(f"{path}: is not a regular file")


def read_bytes(path: Path, *, limit: int, error: type[UserError] = RunError) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes.

    Raises an error of the given type for another file, OSError for a missing one.
    """
    check_regular(path, error)
    with name_errors(path), path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise error(f"{path}: is larger than {limit >> 20} MiB, too large for a file of its kind")
    return content


def read_json(path: Path, kind: type[T]) -> T:
    """Return a JSON file as a type; raise RunError if it is damaged, OSError if it is missing."""
    return validate_values(read_bytes(path, limit=LARGEST_JSON), kind, path)


def read_versioned(path: Path, kind: type[T], version: int) -> T:
    """Return the contents of a JSON file with a format number; raise RunError for another one."""
    content = read_json(path, dict[str, Any])
    file_version = content.get("format")
    if file_version is None:
        raise RunError(f"{path}: damaged, or not written by mt")
    if file_version != version:
        raise RunError(
            f"{path}: format {file_version} is not supported, this version of mt reads {version}"
        )
    return validate_values(content, kind, path)


def validate_values(values: object, kind: type[T], path: Path) -> T:
    """Return the bytes or values of a JSON file as a type; raise RunError, with the key, if not."""
    from pydantic import TypeAdapter, ValidationError  # deferred: `mt --help` needs none of it

    adapter = TypeAdapter(kind)
    try:
        if isinstance(values, bytes):
            return adapter.validate_json(values)
        return adapter.validate_python(values)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        problem = f"`{key}`: {first['msg']}" if key else first["msg"]
        raise RunError(f"{path}: damaged ({problem})") from None


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a regular file in hexadecimal; raise RunError for another one."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, sha256: str, listed_in: str) -> None:
    """Raise RunError unless a file has the SHA-256 that the file `listed_in` records."""
    if hash_file(path) != sha256:
        raise RunError(f"{path}: damaged (its SHA-256 is not the one in {listed_in})")
