"""Resumable writing of parallel files: killed at any moment, the same call continues.

Work proceeds in windows of lines. The pairs of a window are appended to both files and synced, then
a small record file is updated. On resume, both files are cut to the sizes in the record. Windows
start at the same lines in every run, so the same sentences are translated together, and the files
are identical to the last byte.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from mt.data.pairs import SentencePair
from mt.errors import DataError, UserError
from mt.files import sync, sync_folder, write_json

WRITTEN = "written"
Made = SentencePair | str
"""A pair, or the reason for leaving a line out."""
Make = Callable[[range], Iterator[Made]]
"""Yields the outcome of each line of a range; may read ahead by a window."""
UNFINISHED = ".part"
_FORMAT = 1
_SHOWN_CHARACTERS = 40
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `of`, from 1: consecutive lines."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse `2/8`; raise UserError for anything but a valid part."""
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--shard {text}: must be K/N with K from 1 to N, such as 2/8")
        return cls(int(match[1]), int(match[2]))

    def lines(self, total: int) -> range:
        """Return the positions of the shard's lines among `total`, from 0."""
        return range(total * (self.number - 1) // self.of, total * self.number // self.of)

    def named(self, name: str) -> str:
        """Return the name of the shard's files; alphabetical order is the order of the lines."""
        if self.of == 1:
            return name
        return f"{name}.{self.number:0{len(str(self.of))}}-of-{self.of}"

    def all(self) -> list["Shard"]:
        """Return all shards of the same work."""
        return [Shard(number, self.of) for number in range(1, self.of + 1)]


@dataclass(frozen=True, slots=True)
class Job:
    """Output files of a work, and everything that determines their contents."""

    folder: Path
    name: str
    languages: tuple[str, str]
    """Source and target language of the corpus to write."""
    run: Path
    settings: Mapping[str, Any]
    """JSON values that determine the output, by key."""
    total: int
    """Lines of the whole input."""
    window: int
    """Lines between two saves."""
    shard: Shard

    def __post_init__(self) -> None:
        if self.shard.of > self.total:
            raise UserError(f"--shard: {self.total} lines cannot make {self.shard.of} parts")
        if self.languages[0] == self.languages[1]:
            raise UserError(
                f"{self.run}: translates from {self.languages[0]} into the same language, so both "
                "files would have the same name"
            )

    @property
    def texts(self) -> tuple[Path, Path]:
        """The two text files of the shard."""
        name, (left, right) = self.shard.named(self.name), self.languages
        return self.folder / f"{name}.{left}", self.folder / f"{name}.{right}"

    @property
    def record(self) -> Path:
        """The JSON file of the shard, which exists once the shard is finished."""
        return self.folder / f"{self.shard.named(self.name)}.json"

    @property
    def lines(self) -> range:
        """Positions of the shard's lines in the input, from 0."""
        return self.shard.lines(self.total)

    def missing_shards(self) -> list[Shard]:
        """Return the unfinished shards."""
        every = self.shard.all()
        return [each for each in every if not replace(self, shard=each).record.is_file()]


@dataclass(frozen=True, slots=True)
class Record:
    """Contents of the JSON file."""

    run: str
    settings: Mapping[str, Any]
    lines: int
    """Input lines of the shard."""
    done: int = 0
    """Input lines processed so far."""
    bytes: tuple[int, int] = (0, 0)
    """Sizes of the two texts at that point."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of written pairs, and of lines left out by reason."""


def write_pairs(job: Job, make: Make) -> Record:
    """Write the pairs of a job, continuing earlier work, and return its record.

    Files end in `.part` until everything is written. A finished job is not touched. Raises
    UserError if the folder holds other work, a file that would be replaced, or another process at
    work.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    _check_folder(job)
    with _locked(job):
        if job.record.is_file():
            _logger.info("%s: finished already", job.record)
            return read_record(job.record)
        record = _begin(job)
        if record.done < record.lines:
            record = _write_windows(job, record, make)
        _finish(job)
    return record


def read_record(path: Path) -> Record:
    """Read a record; raise DataError if it is damaged or of another kind."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != _FORMAT:
            raise DataError(f"{path}: is of another format than this version of mt reads")
        left, right = content.pop("bytes")
        return Record(**content, bytes=(int(left), int(right)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: damaged, or not written by this command; name another --out"
        ) from error


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically."""
    write_json(path, {"format": _FORMAT, **asdict(record)})


def _check_folder(job: Job) -> None:
    """Raise UserError, naming the difference, if the folder holds work with other settings."""
    new = json.loads(json.dumps(dict(job.settings)))  # tuples become lists, as in the records
    for path in sorted([*job.folder.glob("*.json"), *job.folder.glob(f"*.json{UNFINISHED}")]):
        with suppress(FileNotFoundError):  # another shard has just been finished
            record = read_record(path)
            old = record.settings
            key = next((key for key in {**old, **new} if old.get(key) != new.get(key)), None)
            if record.done and key is not None:
                runs = f" (of {record.run} and of {job.run})" if key == "model" else ""
                raise UserError(
                    f"{path}: was begun with `{key}` {_shown(old.get(key))}, now it is "
                    f"{_shown(new.get(key))}{runs}; name another --out"
                )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


@contextmanager
def _locked(job: Job) -> Iterator[None]:
    """Lock out other processes, on systems with file locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = job.record.with_name(f".{job.record.name}.lock")
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{job.record}: another process is writing it") from None
        yield
        path.unlink(missing_ok=True)


def _begin(job: Job) -> Record:
    """Return the progress of the job; raise UserError if a file would be replaced."""
    path = _unfinished(job.record)
    record = Record(str(job.run), dict(job.settings), len(job.lines))
    foreign = [*job.texts, *map(_unfinished, job.texts)]
    if path.is_file():
        foreign = [text for text in job.texts if _unfinished(text).exists()]
        begun = read_record(path)
        if begun.done:
            record = begun
            done, lines = f"{begun.done:,}", f"{begun.lines:,}"
            _logger.info("%s: resuming, %s of %s lines are done", path, done, lines)
    for text in foreign:
        if text.exists():
            raise UserError(f"{text}: exists already and would be replaced; name another --out")
    write_record(path, record)
    return record


def _write_windows(job: Job, record: Record, make: Make) -> Record:
    lines = job.lines[record.done :]
    source, target = map(_unfinished, job.texts)
    with (
        _open_at(source, record.bytes[0]) as sources,
        _open_at(target, record.bytes[1]) as targets,
        tqdm(total=record.lines, initial=record.done, unit=" lines", disable=None) as bar,
    ):
        made = make(lines)
        while window := list(islice(made, job.window)):
            record = _append((sources, targets), record, window)
            write_record(_unfinished(job.record), record)
            bar.update(len(window))
    if record.done != record.lines:
        raise DataError(f"the input has changed: it ends after {lines.start + record.done:,} lines")
    return record


@contextmanager
def _open_at(path: Path, size: int) -> Iterator[IO[bytes]]:
    """Open a file for appending after its first `size` bytes; the rest is cut off."""
    with path.open("ab") as file:
        if file.tell() < size:
            raise DataError(
                f"{path}: has {file.tell():,} bytes instead of {size:,}; start again in another "
                "folder"
            )
        file.truncate(size)
        file.seek(size)
        yield file


def _append(files: tuple[IO[bytes], IO[bytes]], record: Record, window: Sequence[Made]) -> Record:
    """Append a window, sync it, and return the new record."""
    counts = Counter(record.counts)
    for each in window:
        if isinstance(each, SentencePair):
            for file, text in zip(files, (each.source, each.target), strict=True):
                file.write(f"{text}\n".encode())
        counts[WRITTEN if isinstance(each, SentencePair) else each] += 1
    for file in files:
        file.flush()
        sync(Path(file.name))
    sizes = files[0].tell(), files[1].tell()
    return replace(record, done=record.done + len(window), bytes=sizes, counts=dict(counts))


def _finish(job: Job) -> None:
    """Give the files their final names, the record last."""
    for path in (*job.texts, job.record):
        if _unfinished(path).exists():
            _unfinished(path).replace(path)
            sync_folder(path.parent)
        elif not path.exists():
            raise DataError(f"{path}: is missing; start again in another folder")
    for leftover in job.folder.glob(f".{_unfinished(job.record).name}.*"):
        leftover.unlink()


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}{UNFINISHED}")
