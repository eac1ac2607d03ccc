"""SIGINT and SIGTERM: finish the update, write a checkpoint, leave with the usual status."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STDERR = 2
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Remembers the signal that asked the run to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_status(self) -> int:
        """The status that a program stopped by this signal leaves with."""
        return 128 + (self.signal or 0)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Handle the first signal; the second one does what it does by default."""
        self.signal = number
        os.write(STDERR, b"\nstopping after this update; the same signal again stops at once\n")
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Note the first signal instead of dying of it; a second one ends the program at once.

    Inside another such block, what the outer one notes is given to both.
    """
    handlers = [signal.getsignal(number) for number in SIGNALS]
    owners = [getattr(handler, "__self__", None) for handler in handlers]
    # Of the signal that has come the handler is the default one, that of the other is still ours.
    if outer := [owner for owner in owners if isinstance(owner, Interruption)]:
        yield outer[0]
        return
    interruption = Interruption()
    before = {number: signal.signal(number, interruption.note) for number in SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
