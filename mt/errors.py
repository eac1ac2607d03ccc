"""User errors, and their report as one `error:` line with exit status 2."""

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
# Exit statuses of a program ended by SIGINT or SIGPIPE, as in a shell; Windows has no SIGPIPE.
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_PIPE_CLOSED = 128 + 13
_LONGEST_LINE, _LONGEST_WORD = 1000, 400
"""Characters of a message, and of a word in it, such as a path."""
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


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
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Return names for a message, in backquotes and separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def one_line(text: str) -> str:
    """Return a message on one line: other than printable characters as escapes, long names cut."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    text = _LONG_WORD.sub(_cut, text)
    if len(text) > _LONGEST_LINE:
        text = f"{text[: _LONGEST_LINE // 2]}...{text[-_LONGEST_LINE // 4 :]}"
    return text


def _cut(word: re.Match[str]) -> str:
    return f"{word[0][: _LONGEST_WORD // 2]}...{word[0][-_LONGEST_WORD // 4 :]}"


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
    """Run a command and return its exit status; report user errors as one `error:` line.

    Disk and permission errors are user errors. Any other exception is a bug and keeps its
    traceback. Ctrl-C and a closed pipe, as in `mt translate ... | head`, exit quietly.
    """
    try:
        status = command()
        if sys.stdout is not None:  # None after `>&-`
            sys.stdout.flush()  # a full disk is reported here, not at interpreter exit
    except UserError as error:
        lines = str(error).splitlines() if isinstance(error, ConfigProblemsError) else [str(error)]
        status = _report("\n".join(map(one_line, lines)))
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        status = EXIT_PIPE_CLOSED
    except OSError as error:
        if error.errno not in _OS_MESSAGES:
            raise
        status = _report(one_line(f"{error.filename or 'output'}: {_OS_MESSAGES[error.errno]}"))
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
    errno.ELOOP: "is a symbolic link to itself",
    errno.ENXIO: "is a pipe or device without another end",
    errno.EMFILE: "too many files are open; raise the limit with `ulimit -n`",
    errno.EIO: "the disk or device has failed",
    errno.ESTALE: "the file is no longer on the network file system",
}


def _report(message: str) -> int:
    # A full or closed stderr (None after `2>&-`) must not cause a traceback.
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"error: {message}\n")
    return EXIT_USER_ERROR


def _settle(stream: TextIO | None) -> None:
    """Discard unwritable output: otherwise the interpreter would exit with status 120."""
    if stream is None:  # after `>&-`
        return
    try:
        stream.flush()
    except OSError:
        with suppress(io.UnsupportedOperation):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
