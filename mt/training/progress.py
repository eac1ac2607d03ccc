"""Progress of a training run: the bar on stderr, the journal metrics.jsonl and TensorBoard."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mt.data.batches import Lengths, PaddingEfficiency, Update, micro_batches, padding_efficiency
from mt.files import name_errors
from mt.training.data import TrainingData
from mt.training.state import TrainState
from mt.training.step import StepMetrics

_SECONDS_BETWEEN_LINES = 30.0
SHOWN = ("train", "validation")
"""Events of the journal whose numbers TensorBoard shows, each as `event/name`."""


class TensorBoard:
    """Curves of TensorBoard; each line of the journal is written at once."""

    def __init__(self, folder: Path, *, done_updates: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        # TensorBoard hides earlier records of later updates, which will be written again.
        self.writer = SummaryWriter(folder, purge_step=done_updates + 1)

    def add(self, event: str, values: Mapping[str, Any]) -> None:
        """Write the numbers of one line of the journal, at its `update`, if its event is shown."""
        if event not in SHOWN:
            return
        with name_errors(self.folder):
            for name, value in values.items():
                if isinstance(value, int | float) and name != "update":
                    self.writer.add_scalar(f"{event}/{name}", value, values["update"])
            self.writer.flush()


def append_event(journal: Path, event: str, **values: object) -> None:
    """Append one line to a journal."""
    line = json.dumps({"event": event, **values}, ensure_ascii=False) + "\n"
    with name_errors(journal), journal.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            # Do not append to a line that a full disk cut short.
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(line.encode())


@dataclass
class Interval:
    """Sums of metrics since the last line of the journal."""

    smoothed: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    source_tokens: int = 0
    updates: int = 0
    skipped: int = 0
    gradient_norms: list[float] = field(default_factory=list)
    started_at: float = field(default_factory=time.perf_counter)

    def add(self, metrics: StepMetrics) -> None:
        """Add one update; a skipped one is only counted."""
        self.updates += 1
        if metrics.skipped:
            self.skipped += 1
            return
        self.smoothed += metrics.smoothed
        self.nll += metrics.nll
        self.tokens += metrics.tokens.target
        self.source_tokens += metrics.tokens.source
        self.gradient_norms.append(metrics.gradient_norm)

    def as_text(self) -> str:
        """Return the mean loss of training pairs, with label smoothing, and the speed."""
        loss, speed = self.smoothed / max(self.tokens, 1), self.tokens / self.seconds
        return f"training loss {loss:.3f}, {speed:,.0f} target tokens/s"

    @property
    def seconds(self) -> float:
        """Time since the interval began."""
        return time.perf_counter() - self.started_at


class Progress:
    """Progress bar on stderr, journal `metrics.jsonl` and TensorBoard of a run."""

    shown: bool | None = None
    """Switch of the bar; None shows it on a terminal only, and `show` prints lines elsewhere."""

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
            smoothing=0.0,  # the time left includes validations
            disable=None if self.shown is None else not self.shown,
        )
        self.interval = Interval()
        self.taken = 0
        """Updates of this process."""
        self.started_at = self._line_at = time.perf_counter()
        self.learning_rate = 0.0
        self.waited_seconds = 0.0
        """Time that the model has waited for data."""
        self._waited_before = 0.0
        self._warned: set[str] = set()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Close the bar and the file of TensorBoard."""
        self.bar.close()
        if self.board:
            self.board.writer.close()

    def print_line(self, message: str) -> None:
        """Print a line to stderr above the bar."""
        with suppress(OSError):  # training survives a closed terminal or pipe
            self.bar.write(message, file=sys.stderr)

    def warn_once(self, kind: str, message: str, *, update: int) -> None:
        """Print and journal a warning, unless there was one of its kind before."""
        if kind not in self._warned:
            self._warned.add(kind)
            self.print_line(f"warning: {message}")
            self.record("warning", update=update, kind=kind, message=message)

    def record(self, event: str, **values: object) -> None:
        """Append one line to the journal, and its numbers to TensorBoard if that is on."""
        append_event(self.journal, event, **values)
        if self.board:
            self.board.add(event, values)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block from the speed."""
        paused_at = time.perf_counter()
        yield
        self.interval.started_at += time.perf_counter() - paused_at

    def advance(self, learning_rate: float) -> None:
        """Count one update with this learning rate."""
        self.learning_rate = learning_rate
        self.taken += 1
        self.bar.update(1)

    def add(self, metrics: StepMetrics) -> None:
        """Add the metrics of one update to those of the interval, and show them."""
        self.interval.add(metrics)
        self.bar.set_postfix_str(self.interval.as_text(), refresh=False)

    def show(self, state: TrainState) -> None:
        """Print a line with the means since the last `log`, if there is no bar, twice a minute."""
        now = time.perf_counter()
        if self.bar.disable and now >= self._line_at + _SECONDS_BETWEEN_LINES:
            self._line_at = now
            clauses = f"{self.position(state)}: {self.interval.as_text()}", self.time_left(state)
            self.print_line("; ".join(filter(None, clauses)))

    def position(self, state: TrainState) -> str:
        """Return the update, and the number of all updates or, if unknown, the epoch."""
        total, epoch = self.bar.total, state.epoch_number
        return f"update {state.update:,}{f' of {total:,}' if total else f', epoch {epoch}'}"

    def time_left(self, state: TrainState) -> str:
        """Return a clause with the time to the last update; empty if that is unknown or done."""
        updates = (self.bar.total or 0) - state.update
        if updates <= 0 or not self.taken:
            return ""
        seconds = updates * (time.perf_counter() - self.started_at) / self.taken
        return f"{tqdm.format_interval(seconds)} left"

    def log(self, state: TrainState) -> None:
        """Journal the means since the last call."""
        if not self.interval.updates:
            return
        interval, self.interval = self.interval, Interval()
        waited, self._waited_before = self.waited_seconds - self._waited_before, self.waited_seconds
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


class SilentProgress(Progress):
    """Progress of the ranks other than 0: without output."""

    shown = False

    def print_line(self, message: str) -> None:
        """Print nothing."""

    def record(self, event: str, **values: object) -> None:
        """Write nothing."""


def describe_data(
    corpus: TrainingData, plan: list[Update], *, max_tokens_per_batch: int, epoch: int = 0
) -> str:
    """Return lines with the number of pairs, updates and tokens, and the padding efficiency."""
    store, left_out, mixture = corpus.epoch_store(epoch), corpus.store.left_out, corpus.mixture
    names = [key.rpartition(".")[2] for key in corpus.parts]
    lines = []
    for name, part in zip(names, corpus.parts.values(), strict=True):
        if removed := part.left_out.removed:
            of_part = f" of `{name}`" if len(names) > 1 else ""
            count = f"{sum(removed.values()):,} of {part.left_out.total:,} pairs{of_part}"
            filters = ", ".join(f"{pairs:,} by `{name}`" for name, pairs in removed.items())
            lines.append(f"cleaning removed {count}: {filters}")
    lines.append(
        f"{len(store):,} pairs to train on ({left_out.too_long:,} too long and "
        f"{left_out.empty:,} with an empty side left out of {left_out.total:,}), "
        f"{len(corpus.valid):,} to validate on; vocabulary "
        f"{corpus.tokenizer.source_size:,} / {corpus.tokenizer.target_size:,} tokens"
    )
    if not mixture.is_plain or len(names) > 1:
        counts = mixture.counts(epoch)
        shares = zip(names, counts, mixture.sizes, mixture.weights, strict=True)
        parts = ", ".join(
            f"{count:,} from the {size:,} of `{name}` (weight {weight:.4g})"
            for name, count, size, weight in shares
        )
        lines.append(f"epoch {epoch + 1} takes {sum(counts):,} pairs: {parts}")
    efficiency = measure_padding(plan, store.lengths, max_tokens_per_batch)
    about = "about " if corpus.drawn or not mixture.is_plain else ""
    lines.append(
        f"{about}{len(plan):,} updates an epoch; padding efficiency "
        f"{efficiency.source:.1%} source, {efficiency.target:.1%} target"
    )
    return "\n".join(lines)


def measure_padding(
    plan: list[Update], lengths: Lengths, max_tokens_per_batch: int
) -> PaddingEfficiency:
    """Return the padding efficiency of a plan's batches, from a sample of about 1,000 updates."""
    sample = plan[:: max(1, len(plan) // 1000)]
    batches = micro_batches(sample, lengths, max_tokens_per_batch=max_tokens_per_batch)
    return padding_efficiency(batches, lengths)
