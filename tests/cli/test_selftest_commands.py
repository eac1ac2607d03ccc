"""`mt selftest`: its sub-commands and options, what they call, and their exit status."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from mt.selftest import resume as selftest

Program = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class FakeProof:
    passed: bool
    text: str = "resume: a verdict"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """The arguments that the proof is called with; it passes with seed 1."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    called: list[tuple[int, int | None]] = []

    def prove(kills: int, seed: int | None) -> FakeProof:
        assert os.environ["OMP_NUM_THREADS"] == "1"
        called.append((kills, seed))
        return FakeProof(seed == 1)

    monkeypatch.setattr(selftest, "selftest_resume", prove)
    return called


def test_the_promises_and_options_are_frozen(program: Program) -> None:
    kinds = re.findall(r"^  (\w+)  ", program("selftest")[1].partition("Commands:")[2], re.M)
    assert kinds == ["resume", "batches"]
    text = program("selftest", "resume", "--help")[1]
    assert re.findall(r"^  (-.*?)(?:  |$)", text, re.M) == ["--kills N", "--seed S", "--help"]
    text = program("selftest", "batches", "--help")[1]
    options = re.findall(r"^  (-.*?)(?:  |$)", text, re.M)
    assert options == ["--most N", "--set KEY=VALUE", "--device <auto|cuda|mps|cpu>", "--help"]


def test_without_a_promise_the_help_is_shown(program: Program) -> None:
    assert program("selftest") == program("selftest", "--help")


def test_the_verdict_is_the_exit_status(
    program: Program, calls: list[tuple[int, int | None]]
) -> None:
    resume = ("selftest", "resume")
    assert program(*resume, "--seed", "1") == (0, "resume: a verdict\n", "")
    assert program(*resume, "--kills", "3") == (1, "resume: a verdict\n", "")
    assert calls == [(12, 1), (3, None)]


@pytest.mark.parametrize("option", ["--kills", "--seed"])
def test_a_number_that_cannot_be_is_refused(option: str, program: Program) -> None:
    status, out, err = program("selftest", "resume", option, "-1")
    assert (status, out) == (2, "")
    assert option in err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
def test_one_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "mt", "selftest", "resume"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not list(tmp_path.glob("mt-selftest-*/whole")):
            assert child.poll() is None
            time.sleep(0.05)
        child.terminate()
        assert child.wait(timeout=60) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):  # nobody is left of its group either
            os.killpg(child.pid, 0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert list(tmp_path.iterdir()) == []
