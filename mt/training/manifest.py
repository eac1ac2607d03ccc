"""A manifest: the files that make a folder whole, with the size and SHA-256 of each."""

import errno
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from mt.files import file_sha256, write_json

MANIFEST = "manifest.json"

# Reading meets these where a file is gone, is none, or the disk cannot give it back. Others, such
# as a missing permission, say nothing of the file.
_DAMAGE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EIO}


@dataclass(frozen=True)
class Entry:
    """What was written into a file."""

    bytes: int
    sha256: str


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """List the files `names` of a folder as they are; written last, it makes the folder whole."""
    _write(folder, {name: _entry(folder / name) for name in names})


def listed_files(folder: Path) -> dict[str, Entry]:
    """Return what a folder should hold; raise ValueError where its manifest is damaged."""
    try:
        written = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        entries = {str(name): Entry(**entry) for name, entry in written.items()}
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None
    if not entries:
        raise ValueError("it lists no file")
    return entries


def damage(folder: Path) -> str | None:
    """Say which file of a folder is not as its manifest has it, and why; None if all are."""
    name = MANIFEST
    try:
        for name, entry in listed_files(folder).items():
            found = (folder / name).stat().st_size
            if found != entry.bytes:
                return f"{name}: {found:,} bytes instead of {entry.bytes:,}"
            if file_sha256(folder / name) != entry.sha256:
                return f"{name}: not what was written"
    except OSError as error:
        if error.errno not in _DAMAGE:
            raise
        return f"{name}: {'missing' if error.errno == errno.ENOENT else 'not readable'}"
    except ValueError:
        return f"{MANIFEST}: not what was written"
    return None


def leave_out(folder: Path, name: str) -> None:
    """Delete a file from a folder that stays whole without it; of a damaged one nothing."""
    try:
        entries = listed_files(folder)
    except (OSError, ValueError):
        return
    if entries.pop(name, None) is not None:
        _write(folder, entries)
    (folder / name).unlink(missing_ok=True)


def _entry(path: Path) -> Entry:
    return Entry(bytes=path.stat().st_size, sha256=file_sha256(path))


def _write(folder: Path, entries: dict[str, Entry]) -> None:
    write_json(folder / MANIFEST, {name: asdict(entry) for name, entry in entries.items()})
