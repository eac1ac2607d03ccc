"""The store of each epoch when subword sampling is on: drawn ahead while the one before trains."""

import logging
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from mt.data.draw import Drawing, draw
from mt.data.store import PairStore, open_store

_SECONDS_TO_END = 10.0
_SILENT_SECONDS = 1.0
"""Who waits for less need not be told."""

_logger = logging.getLogger(__name__)


class DrawnEpochs:
    """Opens the stores of epochs one after the other, in any order if need be.

    A store that is no longer needed is deleted, and drawn again where it is asked for after all.
    """

    def __init__(self, drawing: Drawing, *, epochs: int | None) -> None:
        """Take what to draw, and how many epochs there are at most; None: nobody knows."""
        self._drawing = drawing
        self._epochs = epochs
        self._opened: tuple[int, PairStore] | None = None
        self._drawer: _Drawer | None = None

    def open(self, epoch: int) -> PairStore:
        """Return the store of an epoch, waiting for it if need be, and begin to draw the next."""
        if self._opened is None or self._opened[0] != epoch:
            store = self._drawn(epoch)
            self._forget_opened()
            self._opened = epoch, store
            if self._epochs is None or epoch + 1 < self._epochs:
                self._drawer = self._drawer or _Drawer(self._drawing)
                self._drawer.begin(epoch + 1)
        return self._opened[1]

    def close(self) -> None:
        """Stop drawing and delete what was drawn: no run will ask for it."""
        if self._drawer is not None:
            self._drawer.stop()
            self._drawing.path(self._drawer.epoch).unlink(missing_ok=True)
            self._drawer = None
        self._forget_opened()

    def _drawn(self, epoch: int) -> PairStore:
        drawer = self._drawer
        if drawer is not None and not (drawer.epoch == epoch and drawer.finish()):
            drawer.stop()
            self._drawer = None
        # Another run with the same pieces may delete the file as soon as it is there.
        while (store := open_store(self._drawing.path(epoch))) is None:
            draw(self._drawing, epoch, threads=os.cpu_count() or 1)
        return store

    def _forget_opened(self) -> None:
        if self._opened is not None:
            self._drawing.path(self._opened[0]).unlink(missing_ok=True)
            self._opened = None


class _Drawer:
    """A process that draws one epoch after the other; it ends with this object or this process."""

    epoch: int
    """What it was asked for last."""

    def __init__(self, drawing: Drawing) -> None:
        said = tempfile.TemporaryFile()  # noqa: SIM115 - `_stop` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mt.data.draw", drawing.as_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the training, which may go on for a while
        )
        self._said = said
        self.stop = weakref.finalize(self, _stop, self._process, said)

    def begin(self, epoch: int) -> None:
        """Have an epoch drawn."""
        self.epoch = epoch
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `finish` tells of a process that has ended
            self._process.stdin.write(f"{epoch}\n".encode())
            self._process.stdin.flush()

    def finish(self) -> bool:
        """Wait until the epoch is drawn and return True; if that fails, log why."""
        number = self.epoch + 1
        told = threading.Timer(
            _SILENT_SECONDS, _logger.info, ["waiting for the pieces of epoch %d", number]
        )
        told.start()
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        told.cancel()
        if answer:
            return True
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()
        _logger.warning(
            "the process that draws the pieces of epoch %d ahead has ended with status %d (%s); "
            "drawing them now",
            *(number, status, lines[-1].removeprefix("error: ") if lines else "it said nothing"),
        )
        return False


def _stop(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    said.close()


def _environment() -> dict[str, str]:
    """Return an environment in which this very package is found, wherever it was found first."""
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
