"""What a run says while it trains: a progress bar for people, metrics.jsonl for programs."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from mt.files import naming
from mt.training.update import UpdateResult


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
    gradient_norm: float = 0.0
    started_at: float = field(default_factory=time.perf_counter)

    def add(self, result: UpdateResult) -> None:
        """Take in one update; of a skipped one only that it was."""
        self.updates += 1
        if result.skipped:
            self.skipped += 1
            return
        self.smoothed += result.smoothed
        self.nll += result.nll
        self.tokens += result.tokens
        self.source_tokens += result.source_tokens
        self.gradient_norm = result.gradient_norm

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

    def __init__(self, journal: Path, *, done_updates: int, max_updates: int | None) -> None:
        self.journal = journal
        self.bar = tqdm(
            initial=done_updates,
            total=max_updates,
            unit="update",
            dynamic_ncols=True,
            mininterval=1.0,
            disable=None,  # on a terminal only; a log file gets whole lines from `log`
        )
        self.interval = Interval()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """End the bar's line."""
        self.bar.close()

    def say(self, message: str) -> None:
        """Print a line to stderr without tearing the bar."""
        self.bar.write(message, file=sys.stderr)

    def record(self, event: str, **values: object) -> None:
        """Append one line to the journal."""
        append(self.journal, event, **values)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time spent inside out of the rate."""
        paused_at = time.perf_counter()
        yield
        self.interval.started_at += time.perf_counter() - paused_at

    def updated(self, result: UpdateResult) -> None:
        """Take in one update."""
        interval = self.interval
        interval.add(result)
        self.bar.update(1)
        self.bar.set_postfix_str(interval.as_text(), refresh=False)

    def log(self, update: int, epoch: int, learning_rate: float) -> None:
        """Write the means since the last call to the journal, and to a stderr without a bar."""
        interval, self.interval = self.interval, Interval()
        if self.bar.disable:
            self.say(f"update {update:,}{self._rest(update, interval)}: {interval.as_text()}")
        tokens, seconds = max(interval.tokens, 1), interval.seconds
        self.record(
            "train",
            update=update,
            epoch=epoch,
            loss=interval.smoothed / tokens,
            nll=interval.nll / tokens,
            learning_rate=learning_rate,
            gradient_norm=interval.gradient_norm,
            target_tokens=interval.tokens,
            target_tokens_per_second=interval.tokens / seconds,
            source_tokens_per_second=interval.source_tokens / seconds,
            skipped_updates=interval.skipped,
        )

    def _rest(self, update: int, interval: Interval) -> str:
        """Return of how many updates this is, and the time left at the interval's speed."""
        if self.bar.total is None:
            return ""
        seconds = (self.bar.total - update) * interval.seconds / interval.updates
        return f" of {self.bar.total:,}, {tqdm.format_interval(seconds)} left"
