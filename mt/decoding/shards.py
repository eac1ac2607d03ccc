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
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mt.errors import DataError, RunError, UserError
from mt.files import lock_file, read_json, sync, write_json

UNFINISHED = ".part"
BATCH_SIZE = "decoding.batch_size"
"""Setting on which the borders of shards depend, but not the output of one process."""
_POLL_SECONDS = 0.5
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
class LineWindows:
    """Number of lines of an input, and of a window."""

    lines: int
    size: int

    @classmethod
    def count(cls, lines: Iterable[object], size: int) -> "LineWindows":
        """Count lines."""
        return cls(sum(1 for _ in lines), size)

    def part(self, shard: Shard) -> range:
        """Return the positions of a shard's lines, from 0: whole windows, about equally many."""
        windows = -(-self.lines // self.size)
        first, last = (
            min(windows * border // shard.of * self.size, self.lines)
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


ProduceWindows = Callable[[range], Iterator[Window]]
"""Yields the windows of a range of lines; may read ahead by a window."""


@dataclass(frozen=True, slots=True)
class Job:
    """Output files of a work, and everything that determines their contents."""

    outputs: tuple[Path, ...]
    """Files of the whole. The last one is the JSON record, which exists once all are finished."""
    settings: Mapping[str, Any]
    """JSON values that determine the output, by key."""
    windows: LineWindows
    shard: Shard = Shard()

    @property
    def lines(self) -> range:
        """Positions of the shard's lines in the input, from 0."""
        return self.windows.part(self.shard)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files that the shard writes; the record is the last one."""
        return tuple(map(self.shard.path, self.outputs))

    @property
    def recorded_settings(self) -> dict[str, Any]:
        """The settings as they are recorded, with those that determine the shard's lines."""
        settings = {"shards": self.shard.of, **self.settings}
        if self.shard.of == 1:
            settings.pop(BATCH_SIZE, None)
        as_read: dict[str, Any] = json.loads(json.dumps(settings))  # tuples become lists
        return as_read

    def missing(self) -> list[str]:
        """Return the names of the unfinished shards."""
        record, shards = self.outputs[-1], self.shard.all()
        names = [
            f"{shard.number}/{shard.of}" for shard in shards if not shard.path(record).exists()
        ]
        # In this order: parts are removed after the record of the whole is there.
        return [] if record.exists() else names


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


def run_shard(job: Job, load: Callable[[], ProduceWindows]) -> Result | None:
    """Write the part of a job's shard, continuing earlier work; join the parts if it is the last.

    Under torchrun the first rank waits for the others, which return None. `load` is called if there
    is work to do, after the checks and before a file is made. Files end in `.part` until everything
    is written; finished ones are not touched. Raises UserError if there is other work, a file that
    would be replaced, or another process at work.
    """
    check(job)
    record = _read_finished(job)
    if record is None:
        produce = load()
        job.outputs[-1].parent.mkdir(parents=True, exist_ok=True)
        with _lock(job, busy=UserError(f"{job.paths[-1]}: another process is writing it")):
            record = _read_finished(job) or _write(job, produce)
    if job.shard.is_rank:
        if job.shard.number > 1:
            return None
        while job.missing():
            time.sleep(_POLL_SECONDS)
    if missing := job.missing():
        return Result(job.paths[:-1], record, f"missing shards: {', '.join(missing)}")
    if job.shard.of > 1:
        _join(job)
    return Result(job.outputs[:-1], read_record(job.outputs[-1]))


def _read_finished(job: Job) -> Record | None:
    """Return the record of the finished part, or of the whole."""
    for path in (job.paths[-1], job.outputs[-1]):
        with suppress(FileNotFoundError):
            record = read_record(path)
            _logger.info("%s: finished already", path)
            return record
    return None


def check(job: Job) -> None:
    """Raise UserError, naming the difference, for work with other settings or files in the way."""
    *files, whole = job.outputs
    wholes = [whole, _unfinished(whole)]
    name = f"{escape(whole.stem)}.*-of-*.json"
    for path in (*wholes, *whole.parent.glob(name), *whole.parent.glob(name + UNFINISHED)):
        with suppress(FileNotFoundError):  # none, or another shard has just been finished
            record = read_record(path)
            is_finished = record.done == record.lines
            is_whole = path in wholes and is_finished
            old = record.settings
            new = (replace(job, shard=Shard()) if is_whole else job).recorded_settings
            key = next((key for key in {**old, **new} if old.get(key) != new.get(key)), None)
            if key is not None and (record.done or is_finished):
                before, now = (
                    json.dumps(settings.get(key), ensure_ascii=False)[:40]
                    for settings in (old, new)
                )
                raise UserError(
                    f"{path}: was begun with `{key}` {before}, now it is {now}; name another output"
                )
            if path == whole:
                return
    if job.shard.of > 1 and not _unfinished(whole).is_file():
        refuse_existing(files)


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise UserError if a file exists."""
    for path in paths:
        if path.exists():
            raise UserError(f"{path}: exists already and would be replaced; name another output")


def read_record(path: Path) -> Record:
    """Read a record; raise DataError if it is damaged."""
    try:
        return read_json(path, Record)
    except RunError as error:
        raise DataError(f"{error}; name another output") from None


@contextmanager
def _lock(job: Job, *, busy: UserError | None = None) -> Iterator[None]:
    path = job.paths[-1].with_name(f".{job.paths[-1].name}.lock")
    with lock_file(path, busy=busy):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _write(job: Job, produce: ProduceWindows) -> Record:
    """Append the windows that are missing and finish the part; other ranks than 0 show no bar."""
    *parts, part_record = map(_unfinished, job.paths)
    record = Record(job.recorded_settings, len(job.lines), bytes=(0,) * len(parts))
    if part_record.is_file():
        refuse_existing(path for path in job.paths[:-1] if _unfinished(path).exists())
        begun = read_record(part_record)
        if begun.done:
            record = begun
            counts = f"{begun.done:,} of {begun.lines:,} lines"
            _logger.info("%s: resuming, %s are done", part_record, counts)
    else:
        refuse_existing([*job.paths[:-1], *parts])
    write_json(part_record, asdict(record))
    lines_left = job.lines[record.done :]
    if lines_left or not record.done:  # else stopped while the files got their names
        with ExitStack() as stack:
            is_hidden = True if job.shard.is_rank and job.shard.number > 1 else None
            lines, done = len(job.lines), record.done
            bar = tqdm(total=lines, initial=done, unit=" lines", disable=is_hidden)
            stack.enter_context(bar)
            files = [stack.enter_context(path.open("ab")) for path in parts]
            for file, path, size in zip(files, parts, record.bytes, strict=True):
                if (written := file.tell()) < size:
                    instead = f"{written:,} bytes instead of {size:,}"
                    raise DataError(f"{path}: has {instead}; name another output")
                file.truncate(size)
                file.seek(size)
            windows = produce(lines_left) if lines_left else iter(())
            if isinstance(windows, Generator):  # an error here ends its requests
                stack.callback(windows.close)
            for window in windows:
                for file, path, text in zip(files, parts, window.texts, strict=True):
                    file.write(text)
                    file.flush()
                    sync(path)
                record = replace(
                    record,
                    done=record.done + window.lines,
                    bytes=tuple(file.tell() for file in files),
                    counts=_add_counts([record.counts, window.counts]),
                )
                write_json(part_record, asdict(record))
                bar.update(window.lines)
    if record.done != record.lines:
        end = job.lines.start + record.done
        raise DataError(f"the input has changed: it ends after {end:,} lines")
    _finish(job)
    return record


def _join(job: Job) -> None:
    """Write the files of the whole, unless another process has done so, and remove the parts."""
    whole = replace(job, shard=Shard())
    parts = [replace(job, shard=shard).paths for shard in job.shard.all()]
    with _lock(whole):
        if not job.outputs[-1].exists():
            records = [read_record(paths[-1]) for paths in parts]
            for index, path in enumerate(job.outputs[:-1]):
                with _unfinished(path).open("wb") as joined:
                    for paths in parts:
                        with paths[index].open("rb") as file:
                            shutil.copyfileobj(file, joined, 1 << 20)
                sync(_unfinished(path))
            joined_record = Record(
                settings=whole.recorded_settings,
                lines=sum(record.lines for record in records),
                done=sum(record.done for record in records),
                bytes=tuple(map(sum, zip(*(record.bytes for record in records), strict=True))),
                counts=_add_counts([record.counts for record in records]),
            )
            write_json(_unfinished(job.outputs[-1]), asdict(joined_record))
            _finish(whole)
    for paths in parts:
        for path in paths:
            path.unlink(missing_ok=True)


def _finish(job: Job) -> None:
    """Give the files their final names, the record last."""
    for path in job.paths:
        if _unfinished(path).exists() or not path.exists():
            _unfinished(path).replace(path)


def _add_counts(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add up numbers by key."""
    total: dict[str, float] = {}
    for mapping in counts:
        for key, number in mapping.items():
            total[key] = total.get(key, 0) + number
    return total


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}{UNFINISHED}")
