"""Signals: the first is noted, a second one ends the program at once, whatever it is doing."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from mt.training.interruption import SIGNALS, interruptible

Told = pytest.CaptureFixture[bytes]
STATUS = {"SIGHUP": 129, "SIGINT": 130, "SIGUSR1": 128 + signal.SIGUSR1, "SIGTERM": 143}
"""What shells report for programs that these signals have ended."""


class LeftAtOnceError(Exception):
    """In place of the end of the process."""


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Turn the end of the process into an exception; return what moves the clock on."""
    now = [100.0]

    def leave(status: int) -> None:
        raise LeftAtOnceError(status)

    def later(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return later


def hit(name: str) -> None:
    os.kill(os.getpid(), signal.Signals[name])


def test_all_of_them_are_handled() -> None:
    assert {number.name for number in SIGNALS} == STATUS.keys()


@pytest.mark.parametrize("name", STATUS)
def test_a_signal_is_noted_and_gives_the_usual_status(name: str) -> None:
    before = signal.getsignal(signal.Signals[name])
    with interruptible() as interruption:
        assert interruption.signal is None
        hit(name)
        assert interruption.signal == signal.Signals[name]
        assert interruption.exit_status == STATUS[name]
    assert signal.getsignal(signal.Signals[name]) is before


@pytest.mark.parametrize(
    ("first", "second"),
    [("SIGINT", "SIGINT"), ("SIGTERM", "SIGINT"), ("SIGUSR1", "SIGTERM"), ("SIGHUP", "SIGINT")],
)
def test_a_second_signal_leaves_at_once_with_its_status(
    first: str, second: str, leaving: Callable[[float], None], capfdbinary: Told
) -> None:
    with interruptible() as interruption:
        hit(first)
        leaving(0.2)
        with pytest.raises(LeftAtOnceError) as left:
            hit(second)
    assert left.value.args == (STATUS[second],)
    assert interruption.exit_status == STATUS[first]
    # Each begins on a new line: the cursor stands behind a progress bar.
    assert capfdbinary.readouterr().err == (
        b"\nstopping after this update; a second signal stops at once\n"
        b"\nstopped at once; the same command continues from the newest checkpoint\n"
    )


def test_what_timeout_sends_twice_is_one_request(leaving: Callable[[float], None]) -> None:
    with interruptible() as interruption:
        hit("SIGTERM")
        leaving(0.01)
        hit("SIGTERM")
    assert interruption.exit_status == 143


def test_a_terminal_that_hangs_up_twice_asks_once(leaving: Callable[[float], None]) -> None:
    with interruptible() as interruption:
        hit("SIGHUP")
        leaving(5.0)
        hit("SIGHUP")
    assert interruption.exit_status == 129


def test_under_nohup_the_end_of_the_terminal_is_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interruption:
            hit("SIGHUP")
            assert interruption.signal is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_does_not_make_the_handler_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", gone)
    with interruptible() as interruption:
        hit("SIGHUP")
    assert interruption.exit_status == 129


def test_what_handled_signals_before_does_so_again_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("name", STATUS)
@pytest.mark.parametrize("before_it", [True, False])
def test_inside_another_both_are_told(name: str, before_it: bool) -> None:
    handler = signal.getsignal(signal.Signals[name])
    with interruptible() as outer:
        if before_it:
            hit(name)
        with interruptible() as inner:
            if not before_it:
                hit(name)
            assert inner.exit_status == STATUS[name]
        assert outer.exit_status == STATUS[name]
        assert signal.getsignal(signal.Signals[name]) == outer.note
    assert signal.getsignal(signal.Signals[name]) is handler
