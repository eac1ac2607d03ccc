"""Division of a long input among processes: the shards of an array job, or the ranks of torchrun.

A shard is a range of lines. It writes its part of the output beside the whole; the parts are joined
when all are finished. The processes share nothing but the file system. Killed at any moment, the
same command continues.

Work proceeds in windows of lines. The output of a window is appended and synced, then a small
record is updated. On resume, the files are cut to the sizes in the record. Windows start at the
same lines in every process, so the same sentences are translated together, and the files are
identical to the last byte.
"""

import json
import logging
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from glob import escape
from itertools import chain
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from mt.errors import DataError, RunError, UserError
from mt.files import lock_file, read_json, sync, sync_folder, write_json

UNFINISHED = ".part"
BATCH_SIZE = "decoding.batch_size"
"""Setting on which the borders of shards depend, but not the output of one process."""
_POLL_SECONDS = 0.5
SILENCE = 3600.0
"""Seconds without a written window after which a rank counts as lost."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `of`, from 1: consecutive lines."""

    number: int = 1
    of: int = 1
    is_rank: bool = False
    """True under torchrun: the shards run at the same time, and the first one joins the parts."""

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse `2/8`; raise UserError for anything but a valid part."""
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--shard {text}: must be K/N with K from 1 to N, such as 2/8")
        return cls(int(match[1]), int(match[2]))

    def path(self, whole: Path) -> Path:
        """Return the path of the shard's part; alphabetical order is the order of the lines."""
        if self.of == 1:
            return whole
        part = f"{self.number:0{len(str(self.of))}}-of-{self.of}"
        return whole.with_name(f"{whole.stem}.{part}{whole.suffix}")

    def all(self) -> list["Shard"]:
        """Return all shards of the same work."""
        return [replace(self, number=number) for number in range(1, self.of + 1)]


@contextmanager
def chosen_shard(option: str | None) -> Iterator[Shard | None]:
    """Yield the shard of `--shard` or of this rank of torchrun; None: one process does all.

    UserErrors of a rank name it. Raises UserError if both are given.
    """
    shard = None if option is None else Shard.parse(option)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield shard
        return
    rank = int(os.environ.get("RANK", "0"))
    try:
        if shard is not None:
            raise UserError("`--shard` and torchrun both divide the input; use one of them")
        if os.environ.get("OMP_NUM_THREADS") == "1":  # torchrun's default
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
            processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            os.environ["OMP_NUM_THREADS"] = str(max(1, cores // processes))
        yield Shard(rank + 1, size, is_rank=True)
    except UserError as error:
        raise UserError(f"rank {rank} on host {platform.node()}: {error}") from None


@dataclass(frozen=True, slots=True)
class Extent:
    """Number of lines of an input, and of a window."""

    lines: int
    window: int

    @classmethod
    def of(cls, lines: Iterable[str], window: int) -> "Extent":
        """Count lines."""
        return cls(sum(1 for _ in lines), window)

    def part(self, shard: Shard) -> range:
        """Return the positions of a shard's lines, from 0: whole windows, about equally many."""
        windows = -(-self.lines // self.window)
        first, last = (
            min(windows * border // shard.of * self.window, self.lines)
            for border in (shard.number - 1, shard.number)
        )
        return range(first, last)


@dataclass(frozen=True, slots=True)
class Window:
    """Output of consecutive lines."""

    lines: int
    texts: tuple[bytes, ...]
    """Output for each file of the job."""
    counts: Mapping[str, int | float] = field(default_factory=dict)
    """Numbers to add up over the windows."""


Make = Callable[[range], Iterator[Window]]
"""Yields the windows of a range of lines; may read ahead by a window."""


@dataclass(frozen=True, slots=True)
class Job:
    """Output files of a work, and everything that determines their contents."""

    files: tuple[Path, ...]
    """Files of the whole."""
    record: Path
    """JSON file of the whole, which exists once the files are finished."""
    settings: Mapping[str, Any]
    """JSON values that determine the output, by key."""
    extent: Extent
    shard: Shard = Shard()

    @property
    def lines(self) -> range:
        """Positions of the shard's lines in the input, from 0."""
        return self.extent.part(self.shard)

    @property
    def whole(self) -> "Job":
        """The same work by one process."""
        return replace(self, shard=Shard())

    @property
    def parts(self) -> list["Job"]:
        """The jobs of all shards."""
        return [replace(self, shard=shard) for shard in self.shard.all()]

    @property
    def part_files(self) -> tuple[Path, ...]:
        """The files that the shard writes."""
        return tuple(map(self.shard.path, self.files))

    @property
    def part_record(self) -> Path:
        """The JSON file of the shard, which exists once its part is finished."""
        return self.shard.path(self.record)

    @property
    def part_settings(self) -> dict[str, Any]:
        """The settings as they are recorded, with those that determine the shard's lines."""
        settings = {"shards": self.shard.of, **self.settings}
        if self.shard.of == 1:
            settings.pop(BATCH_SIZE, None)
        as_read: dict[str, Any] = json.loads(json.dumps(settings))  # tuples become lists
        return as_read

    def missing(self) -> list["Job"]:
        """Return the jobs of the unfinished shards."""
        return [part for part in self.parts if not part.part_record.is_file()]


@dataclass(frozen=True, slots=True)
class Record:
    """Contents of the JSON file."""

    settings: Mapping[str, Any]
    lines: int
    """Input lines of the shard."""
    done: int = 0
    """Input lines processed so far."""
    bytes: tuple[int, ...] = ()
    """Sizes of the files at that point."""
    counts: Mapping[str, int | float] = field(default_factory=dict)
    """Sums of the counts of the windows."""


@dataclass(frozen=True, slots=True)
class Result:
    """Files that are finished: those of the whole, or of a shard if others are missing."""

    files: tuple[Path, ...]
    record: Record
    missing: str = ""
    """Names of the unfinished shards, for a message."""


def complete(job: Job, load: Callable[[], Make]) -> Result | None:
    """Write the part of a job's shard, continuing earlier work; join the parts if it is the last.

    Under torchrun the first rank waits for the others, which return None. `load` is called if there
    is work to do, after the checks and before a file is made. Files end in `.part` until everything
    is written; finished ones are not touched. Raises UserError if there is other work, a file that
    would be replaced, or another process at work.
    """
    check(job)
    record = _read_finished(job)
    if record is None:
        make = load()
        job.record.parent.mkdir(parents=True, exist_ok=True)
        with _lock(job, busy=UserError(f"{job.part_record}: another process is writing it")):
            record = _read_finished(job) or _write_windows(job, _begin(job), make)
    if job.shard.is_rank:
        if job.shard.number > 1:
            return None
        _await_others(job)
    missing = [f"{part.shard.number}/{part.shard.of}" for part in job.missing()]
    if not job.record.is_file():
        if missing:
            return Result(job.part_files, record, f"missing shards: {', '.join(missing)}")
        _join(job)
    if job.shard.of > 1:
        for part in job.parts:
            for path in (*part.part_files, part.part_record):
                path.unlink(missing_ok=True)
    return Result(job.files, read_record(job.record))


def _read_finished(job: Job) -> Record | None:
    """Return the record of the finished part, or of the whole."""
    # In this order: parts are removed after the record of the whole is there.
    for path in (job.part_record, job.record):
        with suppress(FileNotFoundError):
            record = read_record(path)
            _logger.info("%s: finished already", path)
            return record
    return None


def check(job: Job) -> None:
    """Raise UserError, naming the difference, for work with other settings or files in the way."""
    wholes = [job.record, _unfinished(job.record)]
    name = f"{escape(job.record.stem)}.*-of-*.json"
    folder = job.record.parent
    for path in (*wholes, *folder.glob(name), *folder.glob(name + UNFINISHED)):
        with suppress(FileNotFoundError):  # none, or another shard has just been finished
            record = read_record(path)
            is_finished = record.done == record.lines
            if record.done or is_finished:
                _compare(path, record, job.whole if path in wholes and is_finished else job)
            if path == job.record:
                return
    if job.shard.of > 1 and not _unfinished(job.record).is_file():
        _refuse(job.files)


def _compare(path: Path, record: Record, job: Job) -> None:
    old, new = record.settings, job.part_settings
    key = next((key for key in {**old, **new} if old.get(key) != new.get(key)), None)
    if key is not None:
        before, now = (
            json.dumps(settings.get(key), ensure_ascii=False)[:40] for settings in (old, new)
        )
        raise UserError(
            f"{path}: was begun with `{key}` {before}, now it is {now}; name another output"
        )


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise UserError if a file exists, finished or not."""
    _refuse(chain.from_iterable((path, _unfinished(path)) for path in paths))


def _refuse(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path}: exists already and would be replaced; name another output")


def read_record(path: Path) -> Record:
    """Read a record; raise DataError if it is damaged."""
    try:
        return read_json(path, Record)
    except RunError as error:
        raise DataError(f"{error}; name another output") from None


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically."""
    write_json(path, asdict(record))


@contextmanager
def _lock(job: Job, *, busy: UserError | None = None) -> Iterator[None]:
    path = job.part_record.with_name(f".{job.part_record.name}.lock")
    with lock_file(path, busy=busy):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _begin(job: Job) -> Record:
    """Return the progress of the shard; raise UserError if a file would be replaced."""
    path = _unfinished(job.part_record)
    sizes = (0,) * len(job.files)
    record = Record(job.part_settings, len(job.lines), bytes=sizes)
    if path.is_file():
        _refuse(file for file in job.part_files if _unfinished(file).exists())
        begun = read_record(path)
        if begun.done:
            record = begun
            done, lines = f"{begun.done:,}", f"{begun.lines:,}"
            _logger.info("%s: resuming, %s of %s lines are done", path, done, lines)
    else:
        refuse_existing(job.part_files)
    write_record(path, record)
    return record


def _write_windows(job: Job, record: Record, make: Make) -> Record:
    """Append the windows that are missing and finish the part; other ranks than 0 show no bar."""
    if record.lines and record.done == record.lines:  # stopped while files got their names
        _finish(job)
        return record
    lines = job.lines[record.done :]
    is_hidden = True if job.shard.is_rank and job.shard.number > 1 else None
    with ExitStack() as stack:
        bar: tqdm[Any] = stack.enter_context(
            tqdm(
                total=len(job.lines),
                initial=record.done,
                unit=" lines",
                disable=is_hidden,
                dynamic_ncols=True,
                smoothing=0.1,
            )
        )
        files = [
            stack.enter_context(_open_at(_unfinished(path), size))
            for path, size in zip(job.part_files, record.bytes, strict=True)
        ]
        windows = make(lines) if lines else iter(())
        if isinstance(windows, Generator):  # an error here ends its requests
            stack.callback(windows.close)
        for window in windows:
            for file, text in zip(files, window.texts, strict=True):
                file.write(text)
                file.flush()
                sync(Path(file.name))
            record = replace(
                record,
                done=record.done + window.lines,
                bytes=tuple(file.tell() for file in files),
                counts=_add_counts(record.counts, window.counts),
            )
            write_record(_unfinished(job.part_record), record)
            bar.update(window.lines)
    if record.done != record.lines:
        end = job.lines.start + record.done
        raise DataError(f"the input has changed: it ends after {end:,} lines")
    _finish(job)
    return record


@contextmanager
def _open_at(path: Path, size: int) -> Iterator[IO[bytes]]:
    """Open a file for appending after its first `size` bytes; the rest is cut off."""
    with path.open("ab") as file:
        if file.tell() < size:
            raise DataError(
                f"{path}: has {file.tell():,} bytes instead of {size:,}; name another output"
            )
        file.truncate(size)
        file.seek(size)
        yield file


def _add_counts(*counts: Mapping[str, float]) -> dict[str, float]:
    """Add up numbers by key."""
    keys = dict.fromkeys(chain.from_iterable(counts))
    return {key: sum(mapping.get(key, 0) for mapping in counts) for key in keys}


def _finish(job: Job) -> None:
    """Give the files their final names, the record last."""
    for path in (*job.part_files, job.part_record):
        if _unfinished(path).exists():
            _unfinished(path).replace(path)
            sync_folder(path.parent)
        elif not path.exists():
            raise DataError(f"{path}: is missing; name another output")
    for leftover in job.record.parent.glob(f".{escape(_unfinished(job.part_record).name)}.*"):
        leftover.unlink()


def _join(job: Job) -> None:
    """Write the files of the whole; does nothing if another process has done so meanwhile."""
    whole = job.whole
    with _lock(whole):
        if whole.record.is_file():
            return
        records = [read_record(part.part_record) for part in job.parts]
        for index, path in enumerate(job.files):
            with _unfinished(path).open("wb") as joined:
                for part, record in zip(job.parts, records, strict=True):
                    _copy(part, part.part_files[index], record.bytes[index], joined)
            sync(_unfinished(path))
        joined_record = Record(
            settings=whole.part_settings,
            lines=sum(record.lines for record in records),
            done=sum(record.done for record in records),
            bytes=tuple(map(sum, zip(*(record.bytes for record in records), strict=True))),
            counts=_add_counts(*(record.counts for record in records)),
        )
        write_record(_unfinished(job.record), joined_record)
        _finish(whole)


def _copy(part: Job, path: Path, size: int, joined: IO[bytes]) -> None:
    """Append a file of a part; raise DataError unless it has the recorded size."""
    written = path.stat().st_size if path.exists() else 0
    if written != size:
        raise DataError(
            f"{path}: has {written:,} bytes instead of {size:,}; remove it and {part.part_record}, "
            f"and run shard {part.shard.number}/{part.shard.of} again"
        )
    with path.open("rb") as file:
        shutil.copyfileobj(file, joined, 1 << 20)


def _await_others(job: Job) -> None:
    """Wait until all ranks have written their parts; raise UserError if one is lost.

    torchrun ends the ranks beside a failed one, but not those on other hosts.
    """
    started_at = time.time()
    while (missing := job.missing()) and not job.record.is_file():
        for part in missing:
            written_at = started_at
            with suppress(FileNotFoundError):
                written_at = max(started_at, _unfinished(part.part_record).stat().st_mtime)
            if time.time() - written_at > SILENCE:
                raise UserError(
                    f"no window from rank {part.shard.number - 1} for {SILENCE:.0f} seconds: it "
                    "has failed or cannot be reached; the same command continues"
                )
        time.sleep(_POLL_SECONDS)


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}{UNFINISHED}")
