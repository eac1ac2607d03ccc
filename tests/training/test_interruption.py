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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("before_it", [True, False])
def test_inside_another_both_are_told(number: int, before_it: bool) -> None:
    handler = signal.getsignal(number)
    with interruptible() as outer:
        if before_it:
            os.kill(os.getpid(), number)
        with interruptible() as inner:
            if not before_it:
                os.kill(os.getpid(), number)
            assert inner.signal == number
        assert outer.signal == number
        assert signal.getsignal(number) is signal.SIG_DFL
    assert signal.getsignal(number) is handler
