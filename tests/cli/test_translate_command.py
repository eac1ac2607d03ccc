import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mt import Translator

Program = Callable[..., tuple[int, str, str]]

LONG = b"one two three four five six seven eight nine zero " * 480
"""10,000 tokens."""
BYTES = "bytes that are not UTF-8 are read as U+FFFD"
NASTY = (
    b"",
    b" \t ",
    "\u3000\u00a0".encode(),
    LONG,
    b"nul\0and one",
    b"carriage return\r",
    b"two\r\r",
    b"bare\rreturn",
    b"lone surrogate \xed\xa0\x80",
    b"\xff\xfe one",
    b"cut \xe2\x82",
    b"overlong \xc0\xaf",
    b"\xff",
    "👍🏽 👩‍👩‍👧 🇩🇪".encode(),
    "שלום \u202eone\u202c مرحبا".encode(),
    "a\u2028b\u2029c\u0085d\x0be".encode(),
    "</s> <s> <unk> <pad> ▁ ▁▁one <0x0A> \U000f2581".encode(),
    b"one ||| two",
    b"$(touch gone) `touch gone` ; touch gone",
    b'{"text": "\\u0000"} %s %n {0}',
    b"-rf --help",
    b"!" * 1000,
    "e\u0301".encode() * 500,
    b"the last",
)
READ = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in NASTY]


@pytest.fixture(scope="module")
def clean(finished_run: Path) -> list[str]:
    """What the library makes of the lines as they are read."""
    translator = Translator.load(finished_run, device="cpu")
    return translator.translate(READ)


def test_nasty_lines_are_answered_one_by_one_in_order(
    clean: list[str], finished_run: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    command = [sys.executable, "-m", "mt", "translate", str(finished_run), "--report", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, input=b"\n".join(NASTY), capture_output=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0
    assert done.stdout.decode().split("\n") == [*clean, ""]
    assert [bool(line) for line in clean[:4]] == [False, False, False, True]
    rows = [line.split("\t") for line in report.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [int(number) for number, _, _ in rows] == [*range(1, len(NASTY) + 1)]
    assert [status for _, status, _ in rows[:3]] == ["empty"] * 3
    told = [line.removeprefix("line ").split(": ", 1) for line in done.stderr.decode().splitlines()]
    for number, _, notes in rows:
        assert notes == "; ".join(note for line, note in told if line == number)
    broken = [number for number, line in enumerate(READ, start=1) if "\ufffd" in line]
    assert [int(number) for number, _, notes in rows if BYTES in notes] == broken
    assert [path.name for path in tmp_path.iterdir()] == ["report"], "nothing was executed"


def test_nasty_lines_are_the_same_in_json_and_line_by_line(
    clean: list[str], finished_run: Path, program: Program
) -> None:
    arguments = ["translate", finished_run, "--json", "--unbuffered", "--device", "cpu"]
    status, out, _ = program(*arguments, stdin=b"\n".join(NASTY))
    assert status == 0
    records = [json.loads(line) for line in out.split("\n")[:-1]]
    assert [record["line"] for record in records] == [*range(1, len(NASTY) + 1)]
    assert [record["text"] for record in records] == clean
