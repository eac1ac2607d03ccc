"""Signals that stop a run: finish the update, write a checkpoint, exit with the usual status."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STDERR = 2
_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")  # Windows has the first two
_HANG_UP = getattr(signal, "SIGHUP", None)
SIGNALS = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)
# GNU timeout signals its child and then at once the process group of the child.
ONE_REQUEST_SECONDS = 0.1


class Interruption:
    """The signal that asked the run to stop, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._noted_at = 0.0

    @property
    def exit_status(self) -> int:
        """Exit status of a program that this signal has ended, as shells report it."""
        return 128 + (self.signal or 0)

    def note(self, signal_number: int, _frame: FrameType | None) -> None:
        """Record the first signal; exit at once on a second one, unless that is a SIGHUP."""
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._noted_at = signal_number, now
            _print("stopping after this update or the final model; a second signal stops at once")
        # A terminal that closes sends SIGHUP twice, from its shell and from the kernel.
        elif now - self._noted_at > ONE_REQUEST_SECONDS and signal_number != _HANG_UP:
            _print("stopped at once; the same command continues from the newest checkpoint")
            os._exit(128 + signal_number)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Record the first signal instead of exiting."""
    interruption = Interruption()
    before = {signal_number: signal.getsignal(signal_number) for signal_number in SIGNALS}
    # nohup ignores SIGHUP, so that a program survives its terminal.
    if _HANG_UP and before[_HANG_UP] is signal.SIG_IGN:
        del before[_HANG_UP]
    for signal_number in before:
        signal.signal(signal_number, interruption.note)
    try:
        yield interruption
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def _print(message: str) -> None:
    """Write a line below a progress bar; the terminal may be gone."""
    with suppress(OSError):
        os.write(STDERR, f"\n{message}\n".encode())
