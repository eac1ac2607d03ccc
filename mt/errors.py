"""User errors, and their report as one `error:` line with exit status 2."""

import difflib
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TextIO

DISTRIBUTION = "mt-train"
EXIT_USER_ERROR = 2
# Exit statuses of a program ended by SIGINT or SIGPIPE, as in a shell; Windows has no SIGPIPE.
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_PIPE_CLOSED = 128 + 13
_LONGEST_LINE = 1000


class UserError(Exception):
    """Error that the user can fix; its text is the complete message."""


class ConfigError(UserError):
    """Unknown key, wrong value or contradiction in the configuration."""


class DataError(UserError):
    """Unreadable or unsuitable corpus."""


class ConfigProblemsError(ConfigError):
    """Several problems of a configuration, one a line."""


class RunError(UserError):
    """Run folder that is missing, damaged, or not of the expected kind."""


class DivergedError(UserError):
    """Diverged training, which needs another config."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean `x`?" for the choice most similar to `word`, or "" without one."""
    folded = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean `{folded[near[0]]}`?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Return names for a message, in backquotes and separated by commas."""
    return ", ".join([f"`{name}`" for name in names])


def escape_line(text: str) -> str:
    """Return a message on one line of at most 1,000 characters, unprintable ones as escapes."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    half = _LONGEST_LINE // 2
    return text if len(text) <= _LONGEST_LINE else f"{text[: half - 3]}...{text[-half:]}"


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an optional dependency group."""
    requirements = list[str]()
    with suppress(metadata.PackageNotFoundError):
        requirements = metadata.requires(DISTRIBUTION) or []
    marker = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    named = (line.partition(";") for line in requirements)
    packages = [f'"{name.strip()}"' for name, _, condition in named if marker.search(condition)]
    if not packages:  # not installed, or an older version than that of the code
        return f"install the packages of the extra `{extra}`"
    return f"pip install {' '.join(packages)} (the extra `{extra}`)"


def run_reporting_errors(command: Callable[[], int]) -> int:
    """Run a command and return its exit status; report user errors as one `error:` line.

    Disk and permission errors are user errors. Any other exception is a bug and keeps its
    traceback. Ctrl-C and a closed pipe, as in `mt translate ... | head`, exit quietly. SIGTERM and
    SIGHUP raise SystemExit, so that temporary files are removed.
    """
    try:
        with _exiting_on_signals():
            status = command()
        sys.stdout.flush()  # a full disk is reported here, not at interpreter exit
    except UserError as error:
        lines = str(error).splitlines() if isinstance(error, ConfigProblemsError) else [str(error)]
        status = _report("\n".join(map(escape_line, lines)))
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        status = EXIT_PIPE_CLOSED
    except OSError as error:
        if error.errno not in _USER_ERRNOS:
            raise
        status = _report(escape_line(f"{error.filename or 'output'}: {os.strerror(error.errno)}"))
    finally:
        _discard_unwritable(sys.stdout)
        _discard_unwritable(sys.stderr)
    return status


@contextmanager
def _exiting_on_signals() -> Iterator[None]:
    """Raise SystemExit on the signals that otherwise end a program without cleaning up.

    No-op in a thread and under torchrun, which ends ranks that wait for others. Signals that are
    ignored or handled already stay so, such as SIGHUP under nohup.
    """
    owner = os.getpid()

    def leave(signal_number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked process, which owns no files
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        raise SystemExit(128 + signal_number)

    is_rank = int(os.environ.get("WORLD_SIZE", "1")) > 1
    is_main = threading.current_thread() is threading.main_thread() and not is_rank
    signals = [signal.Signals[name] for name in _ENDING if name in signal.Signals.__members__]
    taken = [number for number in signals if is_main and signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


_ENDING = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_USER_ERRNOS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENXIO, errno.EMFILE, errno.EIO, errno.ESTALE, errno.EBADF),
}
"""Disk, permission and path errors that the user can fix."""


def _report(message: str) -> int:
    with suppress(OSError):  # a full disk behind stderr
        sys.stderr.write(f"error: {message}\n")
    return EXIT_USER_ERROR


def _discard_unwritable(stream: TextIO) -> None:
    """Discard output that cannot be written: else the interpreter exits with status 120."""
    try:
        stream.flush()
    except OSError:
        with suppress(io.UnsupportedOperation):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def name_runs(folder: Path, name: str) -> str:
    """Return "; there are ..." with runs in a folder or in `runs`, which have a file `name`."""
    runs = {path.parent for place in (folder, Path("runs")) for path in place.glob(f"*/{name}")}
    return f"; there are {listed(map(str, sorted(runs)[:5]))}" if runs else ""
