"""Reports of user errors, bugs, interruptions and closed streams."""

import errno
import io
import sys
from collections.abc import Callable

import pytest

from mt.errors import (
    ConfigError,
    DataError,
    RunError,
    UserError,
    did_you_mean,
    install_hint,
    run_reporting_errors,
)


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize("kind", [UserError, ConfigError, DataError, RunError])
def test_user_error_is_one_line_and_status_2(
    kind: type[UserError], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reporting_errors(raising(kind("a.txt: no such file"))) == 2
    assert capsys.readouterr() == ("", "error: a.txt: no such file\n")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space left on the disk"),
        (errno.EACCES, "permission denied"),
        (errno.ENOENT, "no such file or folder"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EMFILE, "too many files are open"),
        (errno.EFBIG, "the file would be larger than `ulimit -f` or the file system allows"),
    ],
)
def test_system_error_names_the_file(
    number: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reporting_errors(raising(OSError(number, "x", "runs/a"))) == 2
    assert capsys.readouterr().err.startswith(f"error: runs/a: {message}")


def test_full_disk_without_a_file_name_is_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_reporting_errors(raising(OSError(errno.ENOSPC, "x"))) == 2
    assert capsys.readouterr().err == "error: output: no space left on the disk\n"


@pytest.mark.parametrize("error", [ValueError("x"), AssertionError(), OSError(errno.EBADF, "x")])
def test_bug_propagates(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run_reporting_errors(raising(error))


def test_status_of_the_command_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_reporting_errors(lambda: 0) == 0
    assert run_reporting_errors(lambda: 1) == 1
    assert capsys.readouterr() == ("", "")


def test_interruption_and_closed_pipe_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_reporting_errors(raising(KeyboardInterrupt())) == 130
    assert run_reporting_errors(raising(BrokenPipeError(errno.EPIPE, "x"))) == 141
    assert capsys.readouterr() == ("", "")


def test_system_exit_propagates() -> None:
    with pytest.raises(SystemExit) as leaving:
        run_reporting_errors(raising(SystemExit(143)))
    assert leaving.value.code == 143


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "x")


def test_full_disk_behind_stdout_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert run_reporting_errors(lambda: 0) == 2
    assert capsys.readouterr().err == "error: output: no space left on the disk\n"


def test_status_is_kept_without_stdout_and_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert run_reporting_errors(lambda: 0) == 0
    assert run_reporting_errors(raising(UserError("x"))) == 2


def test_nearest_choice_is_suggested() -> None:
    assert did_you_mean("rmsnrom", ["layernorm", "rmsnorm"]) == "; did you mean `rmsnorm`?"
    assert did_you_mean("xyz", ["layernorm", "rmsnorm"]) == ""
    assert did_you_mean("x", []) == ""


def test_packages_of_an_extra_are_listed_for_installation() -> None:
    assert install_hint("langid").startswith('pip install "py3langid>=')
    assert install_hint("serve").count('"') == 6
