"""Writing aligned files over hours: killed at any moment, the same call goes on where it was.

The work is done in windows of lines. A window's pairs are appended to both files and synced, and
only then does a small file say so; what stands behind the last place that it names is cut off when
the work goes on. Windows begin at the same lines however often it was killed, so the same sentences
are translated together, and the files are the same to the last byte.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO

from tqdm import tqdm

from mt.augment.record import Job, Record, check_folder, read_record, unfinished, write_record
from mt.data.pairs import SentencePair
from mt.errors import DataError, UserError
from mt.files import sync, sync_folder

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
