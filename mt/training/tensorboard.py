"""What TensorBoard shows of a run: the numbers of its journal, update by update."""

import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mt.config import TrainingConfig
from mt.errors import UserError
from mt.files import naming

SHOWN = ("train", "validation")
"""The events of the journal whose numbers are drawn, each as `event/name`."""


def require_tensorboard(training: TrainingConfig) -> None:
    """Raise UserError, with the command that mends it, where the package is wanted and missing."""
    if training.tensorboard == "on" and find_spec("tensorboard") is None:
        raise UserError(
            '`training.tensorboard: on` needs tensorboard: pip install "mt[tensorboard]"'
        )


class TensorBoard:
    """An event file, of which every line of the journal makes a record at once.

    Records are written without the thread and the queue of the usual writer: so a full disk is
    told like that of the journal, and a run that is killed has all that its journal has.
    """

    def __init__(self, folder: Path, *, done_updates: int) -> None:
        folder.mkdir(exist_ok=True)
        # They are read in the order of their names, whatever the clock says.
        self.file = folder / f"events.out.tfevents.{len([*folder.iterdir()]):09d}"
        self._write(file_version="brain.Event:2")
        self._forget_from(done_updates + 1)

    def add(self, event: str, values: Mapping[str, Any]) -> None:
        """Write the numbers of one line of the journal, at its `update`, if they are shown."""
        if event not in SHOWN:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        update = values["update"]
        if update <= self._newest.get(event, 0):  # as after a rollback
            self._forget_from(update)
        self._newest[event] = update
        numbers = {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float) and name != "update"
        }
        scalars = [
            Summary.Value(tag=f"{event}/{name}", simple_value=value)
            for name, value in numbers.items()
        ]
        self._write(step=update, summary=Summary(value=scalars))

    def _forget_from(self, update: int) -> None:
        """Have TensorBoard show nothing of this update and later ones: they are taken again."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._newest: dict[str, int] = {}
        self._write(step=update, session_log=SessionLog(status=SessionLog.START))

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = Event(wall_time=time.time(), **event).SerializeToString()
        with naming(self.file), self.file.open("ab") as file:
            RecordWriter(file).write(record)


def open_board(folder: Path, training: TrainingConfig, done_updates: int) -> TensorBoard | None:
    """Return the board of a run that goes on after so many updates; None where it is off."""
    return TensorBoard(folder, done_updates=done_updates) if training.tensorboard == "on" else None
