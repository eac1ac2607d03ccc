"""What a run says while it trains: a progress bar for people, metrics.jsonl for programs."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mt.config import TrainingConfig
from mt.errors import UserError, install_hint
from mt.files import naming
from mt.training.state import TrainState
from mt.training.step import StepMetrics

SHOWN = ("train", "validation")
"""The events of the journal whose numbers are drawn, each as `event/name`."""


def require_tensorboard(training: TrainingConfig) -> None:
    """Raise UserError, with the command that mends it, where the package is wanted and missing."""
    if training.tensorboard == "on" and find_spec("tensorboard") is None:
        raise UserError(
            f"`training.tensorboard: on` needs tensorboard: {install_hint('tensorboard')}"
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


def append(journal: Path, event: str, **values: object) -> None:
    """Append one line to a journal."""
    line = json.dumps({"event": event, **values}, ensure_ascii=False) + "\n"
    with naming(journal), journal.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            # A line that a full disk cut short must not swallow this one.
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(line.encode())


@dataclass
class Interval:
    """Sums since the last line of the journal."""

    smoothed: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    source_tokens: int = 0
    updates: int = 0
    skipped: int = 0
    gradient_norms: list[float] = field(default_factory=list)
    started_at: float = field(default_factory=time.perf_counter)

    def add(self, measured: StepMetrics) -> None:
        """Take in one update; of a skipped one only that it was."""
        self.updates += 1
        if measured.skipped:
            self.skipped += 1
            return
        self.smoothed += measured.smoothed
        self.nll += measured.nll
        self.tokens += measured.tokens.target
        self.source_tokens += measured.tokens.source
        self.gradient_norms.append(measured.gradient_norm)

    def as_text(self) -> str:
        """Return the mean smoothed loss and the speed."""
        loss, speed = self.smoothed / max(self.tokens, 1), self.tokens / self.seconds
        return f"smoothed loss {loss:.3f}, {speed:,.0f} target tokens/s"

    @property
    def seconds(self) -> float:
        """The time since the interval began."""
        return time.perf_counter() - self.started_at


class Progress:
    """The progress bar on stderr and the journal `metrics.jsonl` of a run."""

    shown: bool | None = None
    """Whether there is a bar; None: on a terminal only, a log file gets whole lines from `log`."""

    def __init__(
        self,
        journal: Path,
        *,
        done_updates: int,
        max_updates: int | None,
        board: TensorBoard | None = None,
    ) -> None:
        self.journal = journal
        self.board = board
        self.bar = tqdm(
            initial=done_updates,
            total=max_updates,
            unit="update",
            dynamic_ncols=True,
            mininterval=1.0,
            disable=None if self.shown is None else not self.shown,
        )
        self.interval = Interval()
        self.learning_rate = 0.0
        self.waited_seconds = 0.0
        """Time that the model has waited for data since it began."""
        self._waited_before = 0.0
        self._said: set[str] = set()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """End the bar's line."""
        self.bar.close()

    def say(self, message: str) -> None:
        """Print a line to stderr without tearing the bar."""
        with suppress(OSError):  # a terminal that is gone, or a reader, does not end a training
            self.bar.write(message, file=sys.stderr)

    def say_once(self, message: str) -> None:
        """Print a line, unless it was printed already."""
        if message not in self._said:
            self._said.add(message)
            self.say(message)

    def record(self, event: str, **values: object) -> None:
        """Append one line to the journal, and show its numbers in TensorBoard if that is on."""
        append(self.journal, event, **values)
        if self.board:
            self.board.add(event, values)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time spent inside out of the rate."""
        paused_at = time.perf_counter()
        yield
        self.interval.started_at += time.perf_counter() - paused_at

    def taken(self, learning_rate: float) -> None:
        """Count one update that was taken, at this learning rate."""
        self.learning_rate = learning_rate
        self.bar.update(1)

    def go_back(self, update: int) -> None:
        """Forget what was shown of later updates: they are taken again."""
        self.bar.n = update
        self.interval = Interval()
        self.waited_seconds = self._waited_before = 0.0

    def measured(self, measured: StepMetrics) -> None:
        """Take in what one update did."""
        self.interval.add(measured)
        self.bar.set_postfix_str(self.interval.as_text(), refresh=False)

    def log(self, state: TrainState) -> None:
        """Write the means since the last call to the journal, and to a stderr without a bar."""
        if not self.interval.updates:
            return
        interval, self.interval = self.interval, Interval()
        waited, self._waited_before = self.waited_seconds - self._waited_before, self.waited_seconds
        if self.bar.disable:
            rest = self._rest(state.update, interval)
            self.say(f"update {state.update:,}{rest}: {interval.as_text()}")
        tokens, seconds = max(interval.tokens, 1), interval.seconds
        norms = interval.gradient_norms or [0.0]
        self.record(
            "train",
            update=state.update,
            epoch=state.epoch_number,
            loss=interval.smoothed / tokens if interval.tokens else None,
            nll=interval.nll / tokens if interval.tokens else None,
            learning_rate=self.learning_rate,
            gradient_norm=sum(norms) / len(norms),
            largest_gradient_norm=max(norms),
            target_tokens=interval.tokens,
            target_tokens_per_second=interval.tokens / seconds,
            source_tokens_per_second=interval.source_tokens / seconds,
            data_wait_share=waited / seconds,
            skipped_updates=interval.skipped,
        )

    def _rest(self, update: int, interval: Interval) -> str:
        """Return of how many updates this is, and the time left at the interval's speed."""
        if self.bar.total is None:
            return ""
        seconds = (self.bar.total - update) * interval.seconds / interval.updates
        return f" of {self.bar.total:,}, {tqdm.format_interval(seconds)} left"


class SilentProgress(Progress):
    """The progress of a rank that leaves speaking to rank 0."""

    shown = False

    def say(self, message: str) -> None:
        """Say nothing."""

    def record(self, event: str, **values: object) -> None:
        """Write nothing."""
