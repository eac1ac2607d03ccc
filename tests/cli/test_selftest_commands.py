"""`mt selftest`: its sub-commands and options, what they call, and their exit status."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mt.training import selftest

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
    assert kinds == ["resume"]
    text = program("selftest", "resume", "--help")[1]
    assert re.findall(r"^  (-.*?)(?:  |$)", text, re.M) == ["--kills N", "--seed S", "--help"]


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
