"""Writing aligned files over hours: killed at any moment, the same call goes on where it was.

The work is done in windows of lines. A window's pairs are appended to both files and synced, and
only then does a small file say so; what stands behind the last place that it names is cut off when
the work goes on. Windows begin at the same lines however often it was killed, so the same sentences
are translated together, and the files are the same to the last byte.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from mt.data.pairs import SentencePair
from mt.errors import DataError, UserError
from mt.files import sync, sync_folder, write_json


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `of`, from 1: lines that follow each other."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read `2/8`; raise UserError for anything but a part that there is."""
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(
                f"--shard {text}: say which part of how many, such as 2/8; the first is 1/8"
            )
        return cls(int(match[1]), int(match[2]))

    def lines(self, total: int) -> range:
        """Return the places of its lines, from 0, among `total`."""
        return range(total * (self.number - 1) // self.of, total * self.number // self.of)

    def named(self, name: str) -> str:
        """Return the name of its files; names in the order of the alphabet are in that of lines."""
        if self.of == 1:
            return name
        return f"{name}.{self.number:0{len(str(self.of))}}-of-{self.of}"

    def all(self) -> list["Shard"]:
        """Return all parts of the same work."""
        return [Shard(number, self.of) for number in range(1, self.of + 1)]


UNFINISHED = ".part"
_FORMAT = 1
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be written where, and all that decides about it."""

    folder: Path
    name: str
    languages: tuple[str, str]
    """Of the two sides of the corpus to write."""
    run: Path
    settings: Mapping[str, Any]
    """All that decides what is written, by key, as JSON has it."""
    total: int
    """Lines of the whole input."""
    window: int
    """Lines between two places to go on from; what is read together."""
    shard: Shard

    def __post_init__(self) -> None:
        if self.shard.of > self.total:
            raise UserError(f"--shard: {self.shard.of} parts of {self.total} lines are too many")
        if self.languages[0] == self.languages[1]:
            raise UserError(
                f"{self.run}: translates from {self.languages[0]} into the same language; the two "
                "files would have one name"
            )

    @property
    def texts(self) -> tuple[Path, Path]:
        """The two text files of the shard."""
        name, (left, right) = self.shard.named(self.name), self.languages
        return self.folder / f"{name}.{left}", self.folder / f"{name}.{right}"

    @property
    def record(self) -> Path:
        """The JSON file of the shard, which is there once the shard is finished."""
        return self.folder / f"{self.shard.named(self.name)}.json"

    @property
    def lines(self) -> range:
        """The places of the shard's lines in the input, from 0."""
        return self.shard.lines(self.total)

    def missing_shards(self) -> list[Shard]:
        """Return the shards that are not finished."""
        every = [replace(self, shard=shard) for shard in self.shard.all()]
        return [job.shard for job in every if not job.record.is_file()]


@dataclass(frozen=True, slots=True)
class Record:
    """The contents of the JSON file."""

    run: str
    settings: Mapping[str, Any]
    lines: int
    """Lines of the input that the shard is made of."""
    done: int = 0
    """How many of them are dealt with."""
    bytes: tuple[int, int] = (0, 0)
    """What the two texts had when so many were."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Pairs that were written, and lines that were left out, by reason."""


def unfinished(path: Path) -> Path:
    """Return the name that a file has as long as the work goes on."""
    return path.with_name(f"{path.name}{UNFINISHED}")


def write_record(path: Path, record: Record) -> None:
    """Write a record as a whole."""
    write_json(path, {"format": _FORMAT, **asdict(record)})


def read_record(path: Path) -> Record:
    """Read a record; raise DataError where it is damaged or none of ours."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != _FORMAT:
            raise DataError(f"{path}: of another format than this version of mt knows")
        left, right = content.pop("bytes")
        return Record(**content, bytes=(int(left), int(right)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged, or not of such a work; name another --out") from error


def check_folder(job: Job) -> None:
    """Raise UserError, naming what differs, where another work has been begun in the folder."""
    for path in sorted(job.folder.glob("*.json*")):
        if path.name.endswith((".json", f".json{UNFINISHED}")):
            with suppress(FileNotFoundError):  # another shard has just been finished
                _check_same(path, read_record(path), job)


def _check_same(path: Path, record: Record, job: Job) -> None:
    if not record.done:  # nothing would be lost
        return
    # Through JSON, which knows no tuples.
    old, new = record.settings, json.loads(json.dumps(dict(job.settings)))
    for key in [*old, *(key for key in new if key not in old)]:
        if old.get(key) == new.get(key):
            continue
        of = f" (of {record.run} and of {job.run})" if key == "model" else ""
        raise UserError(
            f"{path}: was begun with `{key}` {_shown(old.get(key))}, now it is "
            f"{_shown(new.get(key))}{of}; a folder holds one work: name another --out"
        )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


WRITTEN = "written"
Made = SentencePair | str
"""What becomes of a line of the input: a pair, or the reason why it is left out."""
Make = Callable[[range], Iterator[Made]]
"""Yields what becomes of each of some lines of the input, reading by the window."""
_logger = logging.getLogger(__name__)


def write_pairs(job: Job, make: Make) -> Record:
    """Write the pairs of a job, going on with what is there; return what was done in all.

    The files have the ending `.part` until all is written. A finished job is left as it is. Raises
    UserError where the folder holds another work, a file of the user's, or another process at work.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    check_folder(job)
    with _alone(job):
        if job.record.is_file():
            _logger.info("%s: finished already", job.record)
            return read_record(job.record)
        record = _begin(job)
        if record.done < record.lines:
            record = _go_on(job, record, make)
        _finish(job)
    return record


def _begin(job: Job) -> Record:
    """Return how far the job has come, and make sure that nothing is in its way."""
    path = unfinished(job.record)
    record = Record(str(job.run), dict(job.settings), len(job.lines))
    if path.is_file():
        in_the_way = [text for text in job.texts if unfinished(text).exists()]
        begun = read_record(path)
        if begun.done:
            record, done, lines = begun, f"{begun.done:,}", f"{begun.lines:,}"
            _logger.info("%s: going on, %s of %s lines are done", path, done, lines)
    else:
        in_the_way = [*job.texts, *map(unfinished, job.texts)]
    for text in in_the_way:
        if text.exists():
            raise UserError(f"{text}: exists already, and would be replaced; name another --out")
    write_record(path, record)
    return record


def _go_on(job: Job, record: Record, make: Make) -> Record:
    lines = job.lines[record.done :]
    with ExitStack() as stack:
        files = [stack.enter_context(_open_at(*each)) for each in _places(job, record)]
        bar = stack.enter_context(
            tqdm(total=record.lines, initial=record.done, unit=" lines", disable=None)
        )
        made = make(lines)
        while window := list(islice(made, job.window)):
            record = _append(files, record, window)
            write_record(unfinished(job.record), record)
            bar.update(len(window))
    if record.done != record.lines:
        raise DataError(f"the input has changed: it ends after {lines.start + record.done:,} lines")
    return record


def _places(job: Job, record: Record) -> Iterator[tuple[Path, int]]:
    return zip(map(unfinished, job.texts), record.bytes, strict=True)


@contextmanager
def _open_at(path: Path, size: int) -> Iterator[IO[bytes]]:
    """Open a file to append to it behind its first `size` bytes; what follows them is cut off."""
    with path.open("ab") as file:
        if file.tell() < size:
            raise DataError(
                f"{path}: is shorter than it was, {file.tell():,} bytes instead of {size:,}; "
                "begin anew in another folder"
            )
        file.truncate(size)
        yield file


def _append(files: list[IO[bytes]], record: Record, window: list[Made]) -> Record:
    """Return the record of what is on the disk after another window."""
    pairs = [each for each in window if isinstance(each, SentencePair)]
    counts = Counter(record.counts)
    counts.update(WRITTEN if isinstance(each, SentencePair) else each for each in window)
    sides = ([pair.source for pair in pairs], [pair.target for pair in pairs])
    sizes = []
    for file, texts, size in zip(files, sides, record.bytes, strict=True):
        content = "".join(f"{text}\n" for text in texts).encode()
        file.write(content)
        file.flush()
        sync(Path(file.name))
        sizes.append(size + len(content))
    done = record.done + len(window)
    return replace(record, done=done, bytes=(sizes[0], sizes[1]), counts=dict(counts))


def _finish(job: Job) -> None:
    """Let the files take their names; the record comes last, and says that all are there."""
    for path in (*job.texts, job.record):
        if unfinished(path).exists():
            unfinished(path).replace(path)
            sync_folder(path.parent)
        elif not path.exists():
            raise DataError(f"{path}: has gone; begin anew in another folder")
    for left_behind in job.folder.glob(f".{unfinished(job.record).name}.*"):
        left_behind.unlink()


@contextmanager
def _alone(job: Job) -> Iterator[None]:
    """Keep other processes from the same files; on systems without file locks nothing does."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    path = job.record.with_name(f".{job.record.name}.lock")
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{job.record}: another process is at work on it") from None
        yield
        path.unlink(missing_ok=True)
