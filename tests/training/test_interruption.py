"""SIGINT and SIGTERM: the first is noted, the second is obeyed at once."""

import os
import signal

import pytest

from mt.training.interruption import interruptible


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_noted_and_gives_the_usual_status(number: int, status: int) -> None:
    before = signal.getsignal(number)
    with interruptible() as interruption:
        os.kill(os.getpid(), number)
        assert interruption.signal == number
        assert interruption.exit_status == status
        assert signal.getsignal(number) is signal.SIG_DFL
    assert signal.getsignal(number) is before


def test_what_handled_signals_before_does_so_again_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is before


def test_inside_another_the_outer_one_is_told_too() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interruptible() as outer:
        with interruptible() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner.signal == signal.SIGTERM
        assert outer.signal == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before
