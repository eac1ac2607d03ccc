"""Signals: the first is recorded, a second one ends the program at once."""

import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import mt.training.interruption as interruption_module
from mt.training.interruption import interruptible

Stderr = pytest.CaptureFixture[bytes]
STATUS = {"SIGHUP": 129, "SIGINT": 130, "SIGUSR1": 128 + signal.SIGUSR1, "SIGTERM": 143}
"""Exit status of a program that a signal has ended, as shells report it."""


@pytest.fixture(autouse=True)
def _no_nohup() -> Iterator[None]:
    """Handle SIGHUP as without nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class LeftAtOnceError(Exception):
    """In place of the end of the process."""


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Turn the end of the process into an exception; return a function that advances the clock."""
    now = [100.0]

    def leave(status: int) -> None:
        raise LeftAtOnceError(status)

    def later(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(os, "_exit", leave)
    # In this module only: the event loop of a server that is being stopped would sleep for hours.
    monkeypatch.setattr(interruption_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return later


def hit(name: str) -> None:
    os.kill(os.getpid(), signal.Signals[name])


@pytest.mark.parametrize("name", STATUS)
def test_signal_is_recorded_and_gives_the_usual_status(name: str) -> None:
    before = signal.getsignal(signal.Signals[name])
    with interruptible() as interruption:
        assert interruption.signal is None
        hit(name)
        assert interruption.signal == signal.Signals[name]
        assert interruption.exit_status == STATUS[name]
    assert signal.getsignal(signal.Signals[name]) is before


def test_hang_up_is_ignored_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible() as interruption:
        hit("SIGHUP")
        assert interruption.signal is None
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("first", "second"),
    [("SIGINT", "SIGINT"), ("SIGTERM", "SIGINT"), ("SIGUSR1", "SIGTERM"), ("SIGHUP", "SIGINT")],
)
def test_second_signal_exits_at_once_with_its_status(
    first: str, second: str, leaving: Callable[[float], None], capfdbinary: Stderr
) -> None:
    with interruptible() as interruption:
        hit(first)
        leaving(0.2)
        with pytest.raises(LeftAtOnceError) as left:
            hit(second)
    assert left.value.args == (STATUS[second],)
    assert interruption.exit_status == STATUS[first]
    # Each begins on a new line, below a progress bar.
    assert capfdbinary.readouterr().err == (
        b"\nstopping after this update or the final model; a second signal stops at once\n"
        b"\nstopped at once; the same command continues from the newest checkpoint\n"
    )


def test_two_signals_of_timeout_are_one_request(leaving: Callable[[float], None]) -> None:
    with interruptible() as interruption:
        hit("SIGTERM")
        leaving(0.01)
        hit("SIGTERM")
    assert interruption.exit_status == 143


def test_handler_survives_a_closed_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", gone)
    with interruptible() as interruption:
        hit("SIGHUP")
    assert interruption.exit_status == 129


def test_previous_handlers_are_restored_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is before
