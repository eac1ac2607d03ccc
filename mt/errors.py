"""What goes wrong through no fault of the program, and how it is told: one line, exit status 2."""

import difflib
import errno
import sys
from collections.abc import Callable, Iterable

EXIT_USER_ERROR = 2


class UserError(Exception):
    """Something that the user can mend; its text is the whole message."""


class ConfigError(UserError):
    """The configuration holds an unknown key, a wrong value or contradicts itself."""


class DataError(UserError):
    """A corpus cannot be read, or is not what it should be."""


class RunError(UserError):
    """A run folder is missing, damaged, or belongs to something else."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean `x`?" for the choice nearest to `word`, or "" where none is near."""
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def run_reporting_errors(command: Callable[[], None]) -> int:
    """Run a command and return its exit status; what the user can mend becomes one `error:` line.

    Disk and permission errors count as such; anything else is a defect of ours and keeps its
    traceback.
    """
    try:
        command()
    except UserError as error:
        return _report(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno not in _OS_MESSAGES:
            raise
        return _report(f"{error.filename or 'output'}: {_OS_MESSAGES[error.errno]}")
    return 0


_OS_MESSAGES = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.EROFS: "the file system is read-only",
    errno.ENOENT: "no such file or folder",
    errno.EISDIR: "is a folder, a file was expected",
    errno.ENOTDIR: "is a file, a folder was expected",
    errno.EEXIST: "exists already",
    errno.ENAMETOOLONG: "the name is too long",
}


def _report(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return EXIT_USER_ERROR
