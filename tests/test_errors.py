"""Reports of user errors, bugs, interruptions and closed streams."""

import errno
import subprocess
import sys
from collections.abc import Callable

import pytest

from mt import __version__
from mt.errors import DataError, UserError, did_you_mean, install_hint, run_reporting_errors


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (UserError("a.txt: no such file"), 2, "error: a.txt: no such file\n"),
        (DataError("a.txt: is empty"), 2, "error: a.txt: is empty\n"),
        (OSError(errno.ENOSPC, "x"), 2, "error: output: No space left on device\n"),
        (OSError(errno.EACCES, "x", "runs/a"), 2, "error: runs/a: Permission denied\n"),
        (OSError(errno.ENOENT, "x", "a.en"), 2, "error: a.en: No such file or directory\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(errno.EPIPE, "x"), 141, ""),
    ],
)
def test_error_has_a_status_and_at_most_one_line(
    error: BaseException, status: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reporting_errors(raising(error)) == status
    assert capsys.readouterr() == ("", printed)


@pytest.mark.parametrize(
    "error", [ValueError("x"), AssertionError(), OSError(errno.EINVAL, "x"), SystemExit(143)]
)
def test_bug_and_system_exit_propagate(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        run_reporting_errors(raising(error))
    assert raised.value is error


@pytest.mark.parametrize(
    ("closed", "expected"),
    [
        ("<&- >&-", (2, "", "error: output: Bad file descriptor\n")),
        ("2>&-", (0, f"mt {__version__}\n", "")),
        (">&- 2>&-", (2, "", "")),
    ],
)
def test_results_that_a_closed_stream_loses_are_an_error(
    closed: str, expected: tuple[int, str, str]
) -> None:
    command = ["sh", "-c", f'"$0" -m mt --version {closed}', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_nearest_choice_is_suggested() -> None:
    assert did_you_mean("rmsnrom", ["layernorm", "rmsnorm"]) == "; did you mean `rmsnorm`?"
    assert did_you_mean("xyz", ["layernorm", "rmsnorm"]) == ""
    assert did_you_mean("x", []) == ""


def test_packages_of_an_extra_are_listed_for_installation() -> None:
    assert install_hint("langid").startswith('pip install "py3langid>=')
    assert install_hint("serve").count('"') == 8
    assert install_hint("serve").endswith(" (the extra `serve`)")
    assert install_hint("newer") == "install the packages of the extra `newer`"
