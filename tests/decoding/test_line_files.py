import os
import sys
from pathlib import Path

import pytest

from mt.decoding.line_files import open_output, progress_bar, read_lines, stdin_lines
from mt.errors import UserError


@pytest.mark.skipif(sys.platform == "win32", reason="needs /dev/fd")
def test_the_progress_bar_leaves_a_pipe_to_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    reading, writing = os.pipe()
    try:
        os.write(writing, b"a\nb\n")
        os.close(writing)
        pipe = Path(f"/dev/fd/{reading}")
        with progress_bar(pipe) as bar:
            assert not bar.disable
            assert bar.total is None
            assert list(read_lines(pipe)) == ["a", "b"]
    finally:
        os.close(reading)


def test_without_stderr_there_is_no_progress_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    source.write_text("a\n")
    monkeypatch.setattr(sys, "stderr", None)
    with progress_bar(source) as bar:
        bar.update()
    assert bar.disable


def test_a_closed_stdin_or_stdout_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="stdin is closed and no FILE is given"):
        stdin_lines()
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(UserError, match="stdout is closed and no output file"), open_output(None):
        pass
