"""Division of a long input among processes: the shards of an array job, or the ranks of torchrun.

A shard is a range of lines. It writes its part of the output beside the whole; the parts are joined
when all are finished. The processes share nothing but the file system. Killed at any moment, the
same command continues.

Work proceeds in windows of lines. The output of a window is appended and synced, then a small
record is updated. On resume, the files are cut to the sizes in the record. Windows start at the
same lines in every process, so the same sentences are translated together, and the files are
identical to the last byte.
"""

import errno
import json
import logging
import os
import platform
import re
import shutil
import signal
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from glob import escape
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any, NoReturn

from tqdm import tqdm

from mt.errors import DataError, RunError, UserError
from mt.files import read_json, sync, sync_folder, validated, write_json

UNFINISHED = ".part"
BATCH_SIZE = "decoding.batch_size"
"""Setting on which the borders of shards depend, but not the output of one process."""
_FORMAT = 1
_SHOWN_CHARACTERS = 40
_POLL_SECONDS = 0.5
_BEAT_SECONDS = 20.0
SILENCE = 600.0
"""Seconds without a sign of life after which a rank counts as lost."""
_LOCAL_ERROR_SECONDS = 5.0
# Errors of file systems without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
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
    given = None if option is None else Shard.parse(option)
    rank, size, local_rank, local_size = (
        int(os.environ.get(name, default))
        for name, default in (
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
        )
    )
    if size == 1:
        yield given
        return
    try:
        if given is not None:
            raise UserError("`--shard` and torchrun both divide the input; use one of them")
        if os.environ.get("OMP_NUM_THREADS") == "1":  # torchrun's default
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
            os.environ["OMP_NUM_THREADS"] = str(max(1, cores // local_size))
        if rank == 0:
            signal.signal(signal.SIGTERM, _stopped)
        yield Shard(rank + 1, size, is_rank=True)
    except UserError as error:
        # The ranks of a host often fail alike: after the first report torchrun ends the others.
        if local_rank:
            time.sleep(_LOCAL_ERROR_SECONDS)
        raise UserError(f"rank {rank} on host {platform.node()}: {error}") from None


def _stopped(*_: object) -> NoReturn:
    raise UserError(
        "stopped by SIGTERM, which torchrun sends when another rank has failed; the same command "
        "continues"
    )


def own_device(count: int) -> int | None:
    """Return the number of this rank's device among the `count` of its host; None: no torchrun."""
    rank = os.environ.get("LOCAL_RANK")
    return None if rank is None else int(rank) % count


@dataclass(frozen=True, slots=True)
class Extent:
    """Size of an input: its number of lines, and the bytes of each window."""

    lines: int
    window: int
    """Lines of a window."""
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, lines: Iterable[str], window: int) -> "Extent":
        """Measure lines; invalid bytes are lone surrogates."""
        count, sizes = 0, []
        for count, line in enumerate(lines, start=1):
            if count % window == 1 or window == 1:
                sizes.append(0)
            sizes[-1] += len(line.encode(errors="surrogateescape")) + 1
        return cls(count, window, tuple(sizes))

    def part(self, shard: Shard) -> range:
        """Return the positions of a shard's lines, from 0: whole windows, about equal bytes."""
        ends = [*accumulate(self.sizes)]
        middles = [end - size / 2 for end, size in zip(ends, self.sizes, strict=True)]
        borders = [
            bisect_left(middles, ends[-1] * number / shard.of) if ends else 0
            for number in (shard.number - 1, shard.number)
        ]
        first, last = (min(border * self.window, self.lines) for border in borders)
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
    run: Path
    settings: Mapping[str, Any]
    """JSON values that determine the output, by key."""
    extent: Extent
    shard: Shard = Shard()
    note: Callable[[Mapping[str, float]], str] | None = None
    """Text about the counts so far, for the progress bar."""

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

    def missing(self) -> list[Shard]:
        """Return the unfinished shards."""
        return [part.shard for part in self.parts if not part.part_record.is_file()]


@dataclass(frozen=True, slots=True)
class Record:
    """Contents of the JSON file."""

    run: str
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
    with _progress_bar(job) as bar:
        record = _finished(job)
        if record is None:
            make = load()
            job.record.parent.mkdir(parents=True, exist_ok=True)
            with _locked(job):
                record = _finished(job) or _write(job, make, bar)
        if job.shard.is_rank:
            if job.shard.number > 1:
                return None
            _await_others(job, bar)
    missing = [f"{shard.number}/{shard.of}" for shard in job.missing()]
    if not job.record.is_file():
        if missing:
            return Result(job.part_files, record, f"missing shards: {', '.join(missing)}")
        _join(job)
    for part in job.parts if job.shard.of > 1 else ():
        for path in (*part.part_files, part.part_record):
            path.unlink(missing_ok=True)
    return Result(job.files, read_record(job.record))


def _finished(job: Job) -> Record | None:
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
    for path in (
        *wholes,
        *job.record.parent.glob(name),
        *job.record.parent.glob(name + UNFINISHED),
    ):
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
        runs = f" (of {record.run} and of {job.run})" if key == "model" else ""
        raise UserError(
            f"{path}: was begun with `{key}` {_shown(old.get(key))}, now it is "
            f"{_shown(new.get(key))}{runs}; name another output"
        )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise UserError if a file exists, finished or not."""
    _refuse(chain.from_iterable((path, _unfinished(path)) for path in paths))


def _refuse(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"{path}: exists already and would be replaced; name another output")


def read_record(path: Path) -> Record:
    """Read a record; raise DataError if it is damaged or of another kind."""
    try:
        content = read_json(path, dict[str, Any])
        if content.get("format") != _FORMAT:
            raise DataError(f"{path}: is of another format than this version of mt reads")
        return validated(content, Record, path)
    except RunError as error:
        raise DataError(f"{error}; name another output") from None


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically."""
    write_json(path, {"format": _FORMAT, **asdict(record)})


@contextmanager
def _locked(job: Job, *, wait: bool = False) -> Iterator[None]:
    """Lock out other processes, on systems with file locks, and give signs of life meanwhile."""
    path = _lock_file(job)
    with path.open("a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows
            pass
        except BlockingIOError:
            raise UserError(f"{job.part_record}: another process is writing it") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        with _beating(path):
            yield
        path.unlink(missing_ok=True)


def _lock_file(job: Job) -> Path:
    return job.part_record.with_name(f".{job.part_record.name}.lock")


@contextmanager
def _beating(path: Path) -> Iterator[None]:
    """Touch a file every few seconds, for `_await_others` on another host."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_BEAT_SECONDS):
            with suppress(OSError):
                path.touch()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(job: Job, make: Make, bar: "tqdm[Any]") -> Record:
    record = _begin(job)
    if record.done < record.lines or not record.lines:
        record = _write_windows(job, record, make, bar)
    _finish(job)
    return record


def _begin(job: Job) -> Record:
    """Return the progress of the shard; raise UserError if a file would be replaced."""
    path = _unfinished(job.part_record)
    sizes = (0,) * len(job.files)
    record = Record(str(job.run), job.part_settings, len(job.lines), bytes=sizes)
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


def _write_windows(job: Job, record: Record, make: Make, bar: "tqdm[Any]") -> Record:
    lines = job.lines[record.done :]
    with ExitStack() as stack:
        files = [
            stack.enter_context(_open_at(_unfinished(path), size))
            for path, size in zip(job.part_files, record.bytes, strict=True)
        ]
        _show_progress(job, bar)
        windows = make(lines) if lines else iter(())
        if isinstance(windows, Generator):  # an error here ends its requests
            stack.callback(windows.close)
        for window in windows:
            record = _append(files, record, window)
            write_record(_unfinished(job.part_record), record)
            if job.note is not None:
                bar.set_postfix_str(job.note(record.counts), refresh=False)
            _show_progress(job, bar)
    if record.done != record.lines:
        end = job.lines.start + record.done
        raise DataError(f"the input has changed: it ends after {end:,} lines")
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


def _append(files: Sequence[IO[bytes]], record: Record, window: Window) -> Record:
    """Append a window, sync it, and return the new record."""
    for file, text in zip(files, window.texts, strict=True):
        file.write(text)
    for file in files:
        file.flush()
        sync(Path(file.name))
    return replace(
        record,
        done=record.done + window.lines,
        bytes=tuple(file.tell() for file in files),
        counts=_sums(record.counts, window.counts),
    )


def _sums(*counts: Mapping[str, float]) -> dict[str, float]:
    """Add up numbers by key."""
    total: dict[str, float] = {}
    for key, number in chain.from_iterable(each.items() for each in counts):
        total[key] = total.get(key, 0) + number
    return total


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
    whole, record_path = job.whole, _unfinished(job.record)
    with _locked(whole, wait=True):
        if whole.record.is_file():
            return
        records = [read_record(part.part_record) for part in job.parts]
        for place, path in enumerate(job.files):
            with _unfinished(path).open("wb") as joined:
                for part, record in zip(job.parts, records, strict=True):
                    _copy(part, place, record.bytes[place], joined)
            sync(_unfinished(path))
        joined_record = Record(
            run=records[0].run,
            settings=whole.part_settings,
            lines=sum(record.lines for record in records),
            done=sum(record.done for record in records),
            bytes=tuple(map(sum, zip(*(record.bytes for record in records), strict=True))),
            counts=_sums(*(record.counts for record in records)),
        )
        write_record(record_path, joined_record)
        _finish(whole)


def _copy(part: Job, place: int, size: int, joined: IO[bytes]) -> None:
    """Append a file of a part; raise DataError unless it has the recorded size."""
    path = part.part_files[place]
    found = path.stat().st_size if path.exists() else 0
    if found != size:
        raise DataError(
            f"{path}: has {found:,} bytes instead of {size:,}; remove it and {part.part_record}, "
            f"and run shard {part.shard.number}/{part.shard.of} again"
        )
    with path.open("rb") as file:
        shutil.copyfileobj(file, joined, 1 << 20)


def _progress_bar(job: Job) -> "tqdm[Any]":
    """Return a bar for the lines of the shard, or on the first rank for those of all ranks."""
    total = job.extent.lines if job.shard.is_rank else len(job.lines)
    is_hidden = True if job.shard.is_rank and job.shard.number > 1 else None
    return tqdm(total=total, unit=" lines", disable=is_hidden, dynamic_ncols=True, smoothing=0.1)


def _show_progress(job: Job, bar: "tqdm[Any]") -> None:
    if bar.disable:
        return
    done = 0
    for part in job.parts if job.shard.is_rank else [job]:
        for path in (part.part_record, _unfinished(part.part_record)):
            with suppress(FileNotFoundError):
                done += read_record(path).done
                break
    bar.update(done - bar.n)


def _await_others(job: Job, bar: "tqdm[Any]") -> None:
    """Wait until all ranks have written their parts; raise UserError if one is lost.

    torchrun ends the ranks beside a failed one, but not those on other hosts.
    """
    beats: dict[int, tuple[int, float]] = {}
    while (missing := job.missing()) and not job.record.is_file():
        for shard in missing:
            beat, now = 0, time.monotonic()
            with suppress(FileNotFoundError):
                beat = _lock_file(replace(job, shard=shard)).stat().st_mtime_ns
            last, since = beats.setdefault(shard.number, (beat, now))
            if beat != last:
                beats[shard.number] = beat, now
            elif now - since > SILENCE:
                raise UserError(
                    f"no sign of life from rank {shard.number - 1} for {SILENCE:.0f} seconds: it "
                    "has failed or cannot be reached; the same command continues"
                )
        _show_progress(job, bar)
        time.sleep(_POLL_SECONDS)
    _show_progress(job, bar)


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}{UNFINISHED}")
