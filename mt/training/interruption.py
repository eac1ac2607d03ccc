"""Signals that ask a run to stop: finish the update, write a checkpoint, leave as is usual."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STDERR = 2
_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")  # Windows has the first two
SIGNALS = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)
# GNU timeout signals its child, and at once the group that the child is in. So little apart, two
# signals are one request: nobody types so fast.
ONE_REQUEST_SECONDS = 0.1


class Interruption:
    """Remembers the signal that asked the run to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._noted_at = 0.0

    @property
    def exit_status(self) -> int:
        """The status that a program stopped by this signal leaves with."""
        return _status(self.signal or 0)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Handle the first signal; leave at once on a second one, whatever is half done.

        A terminal that closes hangs up twice, by its shell and by the kernel; nobody asks twice so.
        """
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._noted_at = number, now
            _tell("stopping after this update; a second signal stops at once")
        elif now - self._noted_at > ONE_REQUEST_SECONDS and not _is_hang_up(number):
            _tell("stopped at once; the same command goes on from the newest checkpoint")
            os._exit(_status(number))


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Note the first signal instead of dying of it; a second one ends the program at once.

    Inside another such block, what the outer one notes is given to both.
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    owners = [getattr(handler, "__self__", None) for handler in handlers.values()]
    if outer := [owner for owner in owners if isinstance(owner, Interruption)]:
        yield outer[0]
        return
    interruption = Interruption()
    before = {
        number: handler
        for number, handler in handlers.items()
        # So is a program under nohup, which is to outlive its terminal.
        if not (_is_hang_up(number) and handler is signal.SIG_IGN)
    }
    for number in before:
        signal.signal(number, interruption.note)
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(number: int) -> int:
    """Return what a shell reports for a program that a signal has ended."""
    return 128 + number


def _is_hang_up(number: int) -> bool:
    return signal.Signals(number).name == "SIGHUP"


def _tell(message: str) -> None:
    """Write a line below a progress bar; a terminal that is gone is no reason to fail."""
    with suppress(OSError):
        os.write(STDERR, f"\n{message}\n".encode())
