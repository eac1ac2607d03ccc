"""Trainings in processes of their own, killed at chosen moments."""

import json
import multiprocessing
import os
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow
import torch

from mt.config import Config
from mt.errors import RunError, run_reporting_errors
from mt.training.run_folder import RunFolder
from mt.training.trainer import train

HANGS_AFTER_SECONDS = 600.0

_POLL_SECONDS = 0.0005
_STDERR = 2

Moment = Literal["any time", "saving"]


@dataclass(frozen=True)
class Kill:
    """When to kill a training.

    `any time` is `delay_seconds` after its journal tells of `update` (of 0: after its start);
    `saving` is `delay_seconds` after, from then on, a checkpoint begins to be written.
    """

    update: int
    moment: Moment
    delay_seconds: float


@dataclass(frozen=True)
class Hit:
    """What a kill has hit."""

    update: int
    """The newest update that the process had told of; 0 where it had told of none."""
    saving: str | None
    """The checkpoint that was being written; None where none was."""

    def as_text(self) -> str:
        """Return a few words."""
        if self.saving:
            return f"while saving {self.saving}"
        return f"after update {self.update}" if self.update else "while starting"


class TrainingProcess:
    """A training in a process of its own, seen through its run folder; leaving kills it.

    Beside the run folder stand a file with what it prints, and its cache: no training finds there
    what another one has prepared.
    """

    def __init__(self, config: Config, run: Path) -> None:
        self.run = run
        self._log = run.with_name(f"{run.name}.log")
        self._journal = RunFolder(run).metrics
        self._told_before = self._journal.stat().st_size if self._journal.exists() else 0
        self._left_before = self._unfinished()
        self._process = context().Process(target=_be_trained, args=(config, run, self._log))

    def __enter__(self) -> "TrainingProcess":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def wait(self) -> None:
        """Wait until it has ended; to end otherwise than well, or never, is a RunError."""
        self._process.join(HANGS_AFTER_SECONDS)
        if self._process.exitcode != 0:
            raise self._error()

    def kill(self, kill: Kill) -> Hit | None:
        """Kill it when the moment has come, as `kill -9` does; None where it ended before that."""
        self._wait_for(kill)
        time.sleep(kill.delay_seconds)
        if not self._process.is_alive():
            self.wait()
            return None
        self._process.kill()
        self._process.join()
        if self._process.exitcode == 0:
            return None
        saving = sorted(name for name, _ in self._unfinished() - self._left_before)
        return Hit(self._newest_update(), saving[-1].removeprefix(".") if saving else None)

    def _wait_for(self, kill: Kill) -> None:
        """Wait until the moment has come, or the training has ended."""
        deadline = time.monotonic() + HANGS_AFTER_SECONDS
        while self._process.is_alive() and not self._has_come_to(kill):
            if time.monotonic() > deadline:
                raise self._error()
            time.sleep(_POLL_SECONDS)

    def _has_come_to(self, kill: Kill) -> bool:
        if self._newest_update() < kill.update:
            return False
        return kill.moment == "any time" or bool(self._unfinished() - self._left_before)

    def _newest_update(self) -> int:
        """Return the update of the newest line that this process has added to the journal."""
        if not self._journal.exists():
            return 0
        with self._journal.open("rb") as file:
            file.seek(self._told_before)
            lines = file.read().split(b"\n")
        # What follows the last line break is a line that is still being written.
        return int(json.loads(lines[-2]).get("update", 0)) if len(lines) > 1 else 0

    def _unfinished(self) -> set[tuple[str, int]]:
        """Return the checkpoints without their final names, and when each was last touched."""
        folder = RunFolder(self.run).checkpoints.folder
        found = set()
        for path in folder.glob(".*"):
            try:
                found.add((path.name, path.stat().st_mtime_ns))
            except FileNotFoundError:  # it has just got its name
                continue
        return found

    def _error(self) -> RunError:
        status = self._process.exitcode
        what = "hangs" if status is None else f"left with status {status}"
        said = self._log.read_text(encoding="utf-8").split("\n") if self._log.exists() else []
        last = [line for line in said if line.strip()][-1:]
        return RunError(f"{self.run}: the training {what}{''.join(f'; {line}' for line in last)}")


def context() -> ForkContext | SpawnContext:
    """Return how to start a process.

    A fork has its imports already, which saves seconds at every start; only Linux is sure to bear
    one of a process that has loaded as much as ours.
    """
    if sys.platform == "linux":
        # With these torch and pyarrow load what they load at first use: a second for each fork.
        torch.optim.Adam([torch.zeros(1)])
        pyarrow.array(np.zeros(1))
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


def _be_trained(config: Config, run: Path, log: Path) -> None:
    """Train, and leave as `mt train` does."""

    def trained() -> int:
        train(config, run)
        return 0

    os.environ["MT_CACHE"] = str(run.with_name(f"{run.name}.cache"))
    torch.set_num_threads(1)
    with log.open("a", encoding="utf-8") as file:
        # The second for what libraries print, and loggers that have got hold of the old stderr.
        sys.stdout = sys.stderr = file
        os.dup2(file.fileno(), _STDERR)
        try:
            status = run_reporting_errors(trained)
        except Exception:
            traceback.print_exc()  # here, while there is a file to take it
            status = 1
        sys.exit(status)
