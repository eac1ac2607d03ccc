"""What goes wrong through no fault of the program, and how it is told: one line, exit status 2."""

import difflib
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import metadata
from typing import TextIO

DISTRIBUTION = "mt-train"
EXIT_USER_ERROR = 2
# What a shell reports for a program that SIGINT or SIGPIPE has ended; Windows has no SIGPIPE.
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_PIPE_CLOSED = 128 + 13


class UserError(Exception):
    """Something that the user can mend; its text is the whole message."""


class ConfigError(UserError):
    """The configuration holds an unknown key, a wrong value or contradicts itself."""


class DataError(UserError):
    """A corpus cannot be read, or is not what it should be."""


class RunError(UserError):
    """A run folder is missing, damaged, or belongs to something else."""


class DivergedError(UserError):
    """A training has come to numbers that make no sense; all there is to mend is its config."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean `x`?" for the choice nearest to `word`, or "" where none is near."""
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Return names for a message: each in backquotes, commas between."""
    return ", ".join(f"`{name}`" for name in names)


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of an optional dependency group.

    The packages are read from the metadata of the installed distribution.
    """
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return f"install the packages of the extra `{extra}`"
    marker = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    named = (line.partition(";") for line in requirements)
    packages = [name.strip() for name, _, condition in named if marker.search(condition)]
    return "pip install " + " ".join(f'"{package}"' for package in packages)


def run_reporting_errors(command: Callable[[], int]) -> int:
    """Run a command and return its exit status; what the user can mend becomes one `error:` line.

    Disk and permission errors count as such; anything else is a defect of ours and keeps its
    traceback. Ctrl-C and a reader who has gone, as in `mt translate ... | head`, end it quietly.
    """
    try:
        status = command()
        # Here, and not when the interpreter ends: a full disk shall still be told.
        _flush_stdout()
    except UserError as error:
        status = _report(str(error))
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        status = EXIT_PIPE_CLOSED
    except OSError as error:
        if error.errno not in _OS_MESSAGES:
            raise
        status = _report(f"{error.filename or 'output'}: {_OS_MESSAGES[error.errno]}")
    finally:
        _settle(sys.stdout)
        _settle(sys.stderr)
    return status


_OS_MESSAGES = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than `ulimit -f` or the file system allows",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "no such file or folder",
    errno.EISDIR: "is a folder, a file was expected",
    errno.ENOTDIR: "is a file, a folder was expected",
    errno.EEXIST: "exists already",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EMFILE: "too many files are open; `ulimit -n` says how many may be",
    errno.EIO: "the disk or device has failed",
    errno.ESTALE: "the network file system no longer has it",
}


def _report(message: str) -> int:
    # A full or closed stderr (`2>&-`: Python has none then) is no reason for a traceback.
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"error: {message}\n")
    return EXIT_USER_ERROR


def _flush_stdout() -> None:
    if sys.stdout is not None:  # as it is after `>&-`
        sys.stdout.flush()


def _settle(stream: TextIO | None) -> None:
    """Drop what a stream cannot take: the interpreter would end with a status of its own, 120."""
    if stream is None:  # as it is after `>&-`
        return
    try:
        stream.flush()
    except OSError:
        with suppress(io.UnsupportedOperation):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
