"""What the user can mend is one line and status 2; what is ours keeps its traceback."""

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
    run_reporting_errors,
)


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize("kind", [UserError, ConfigError, DataError, RunError])
def test_a_user_error_is_one_line_and_status_2(
    kind: type[UserError], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reporting_errors(raising(kind("a.txt: no such file"))) == 2
    assert capsys.readouterr() == ("", "error: a.txt: no such file\n")


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "no space left on the disk"),
        (errno.EACCES, "permission denied"),
        (errno.ENOENT, "no such file or folder"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EMFILE, "too many files are open"),
        (errno.EFBIG, "the file would be larger than `ulimit -f` or the file system allows"),
    ],
)
def test_what_the_system_refuses_names_the_file(
    number: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_reporting_errors(raising(OSError(number, "x", "runs/a"))) == 2
    assert capsys.readouterr().err.startswith(f"error: runs/a: {told}")


def test_a_full_disk_without_a_file_name_is_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_reporting_errors(raising(OSError(errno.ENOSPC, "x"))) == 2
    assert capsys.readouterr().err == "error: output: no space left on the disk\n"


@pytest.mark.parametrize("error", [ValueError("x"), AssertionError(), OSError(errno.EBADF, "x")])
def test_a_defect_of_ours_is_not_hidden(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run_reporting_errors(raising(error))


def test_a_command_gives_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_reporting_errors(lambda: 0) == 0
    assert run_reporting_errors(lambda: 1) == 1
    assert capsys.readouterr() == ("", "")


def test_an_interruption_and_a_closed_pipe_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_reporting_errors(raising(KeyboardInterrupt())) == 130
    assert run_reporting_errors(raising(BrokenPipeError(errno.EPIPE, "x"))) == 141
    assert capsys.readouterr() == ("", "")


def test_leaving_with_a_status_is_let_through() -> None:
    with pytest.raises(SystemExit) as leaving:
        run_reporting_errors(raising(SystemExit(143)))
    assert leaving.value.code == 143


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "x")


def test_what_stdout_cannot_take_is_told_and_not_again_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert run_reporting_errors(lambda: 0) == 2
    assert capsys.readouterr().err == "error: output: no space left on the disk\n"


def test_without_any_stdout_and_stderr_the_status_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert run_reporting_errors(lambda: 0) == 0
    assert run_reporting_errors(raising(UserError("x"))) == 2


def test_the_nearest_choice_is_named() -> None:
    assert did_you_mean("rmsnrom", ["layernorm", "rmsnorm"]) == "; did you mean `rmsnorm`?"
    assert did_you_mean("xyz", ["layernorm", "rmsnorm"]) == ""
    assert did_you_mean("x", []) == ""
