import io
import os
import sys
from pathlib import Path

import pytest

from mt.decoding.files import open_output, progress_bar, read_lines, stdin_lines
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


def test_lines_come_out_of_a_pipe_as_soon_as_they_are_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        pipe.write(b"first\r\nsec")
        lines = stdin_lines()
        assert next(lines) == "first"
        pipe.write(b"ond\n")
        assert next(lines) == "second"
        pipe.close()
        assert list(lines) == []


def test_the_progress_bar_is_shown_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    source.write_text("a\nb\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar(source) as bar:
        bar.update()
    assert "1/2" in capsys.readouterr().err


def test_bytes_that_are_not_utf_8_are_kept_and_the_byte_order_mark_goes(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"\xef\xbb\xbfa\xff\r\n\xe2\x82\n\xef\xbb\xbfb")
    lines = list(read_lines(source))
    assert lines == ["a\udcff", "\udce2\udc82", "\ufeffb"]
    kept = [line.encode("utf-8", "surrogateescape") for line in lines]
    assert kept == [b"a\xff", b"\xe2\x82", b"\xef\xbb\xbfb"]
