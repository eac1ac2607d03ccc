"""Trainings in processes that are killed at chosen moments, and the comparison of finished runs."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow
import torch

from mt.config import Config
from mt.errors import run_reporting_errors
from mt.training.checkpoint import MODEL, STATE
from mt.training.run_folder import RunFolder
from mt.training.trainer import train
from tests.factories import journal

TIMES = {
    "elapsed_seconds",
    "peak_memory_mib",
    "target_tokens_per_second",
    "source_tokens_per_second",
    "data_wait_share",
}
DEADLINE_SECONDS = 300.0
# About what a start, some updates and a save take.
LONGEST_DELAY_SECONDS = {"start": 0.2, "update": 0.05, "save": 0.01}


@dataclass(frozen=True)
class Kill:
    """Kill a training `delay_seconds` after its start, an update, or the next beginning save."""

    moment: Literal["start", "update", "save"]
    update: int
    """Update that has to be in the journal before."""
    delay_seconds: float


def plan_kills(kills: int, updates: int, *, seed: int) -> list[Kill]:
    """Draw a moment in each of `kills` equal parts of a run: first at the start, a third saving."""
    draw = random.Random(seed)
    saving = {*draw.sample(range(1, kills), k=kills // 3)}
    plan = []
    for part in range(kills):
        moment: Literal["start", "update", "save"] = (
            "start" if part == 0 else "save" if part in saving else "update"
        )
        update = int((part + draw.random()) * updates / kills) if part else 0
        plan.append(Kill(moment, update, draw.uniform(0.0, LONGEST_DELAY_SECONDS[moment])))
    return plan


def train_whole(config: Config, run: Path) -> int:
    """Train without interruption; return the number of updates."""
    TrainingProcess(config, run).wait()
    updates: int = json.loads(RunFolder(run).model.read_text(encoding="utf-8"))["updates"]
    return updates


def train_killed(config: Config, run: Path, kills: list[Kill]) -> int:
    """Train, killed and started again for each of `kills`; return how many have hit it."""
    hits = 0
    for kill in kills:
        if not TrainingProcess(config, run).kill(kill):
            break
        hits += 1
    TrainingProcess(config, run).wait()
    return hits


class TrainingProcess:
    """A training in a process with its own cache, observed through its run folder."""

    def __init__(self, config: Config, run: Path, stderr: int | None = None) -> None:
        folder = RunFolder(run)
        self.run, self.journal, self.saves = run, folder.metrics, folder.checkpoints.folder
        self.bytes_before = self.journal.stat().st_size if self.journal.exists() else 0
        self.unfinished_before = self.unfinished_saves()
        # What torch and pyarrow load at first use is loaded here, not in each fork.
        torch.optim.Adam([torch.zeros(1)])
        pyarrow.array(np.zeros(1))
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=run_training, args=(config, run, stderr))
        self.process.start()

    def wait(self) -> None:
        """Wait until the training has ended well."""
        self.process.join(DEADLINE_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
        assert self.process.exitcode == 0, log_of(self.run).read_text(encoding="utf-8")

    def kill(self, kill: Kill) -> bool:
        """Kill the process at its moment; return False where it has ended before."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.process.is_alive() and not self.is_due(kill) and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(kill.delay_seconds)
        self.process.kill()
        self.process.join()
        assert self.process.exitcode in {0, -9}, log_of(self.run).read_text(encoding="utf-8")
        return self.process.exitcode != 0

    def is_due(self, kill: Kill) -> bool:
        if self.newest_update() < kill.update:
            return False
        return kill.moment != "save" or bool(self.unfinished_saves() - self.unfinished_before)

    def newest_update(self) -> int:
        """Return the update of the newest whole line that this process has journalled, or 0."""
        if not self.journal.exists():
            return 0
        with self.journal.open("rb") as file:
            file.seek(self.bytes_before)
            lines = file.read().split(b"\n")
        return int(json.loads(lines[-2]).get("update", 0)) if len(lines) > 1 else 0

    def unfinished_saves(self) -> set[tuple[str, int]]:
        """Return the checkpoints that have no final name yet, and when each was last touched."""
        found = set()
        for path in self.saves.glob(".*"):
            try:
                found.add((path.name, path.stat().st_mtime_ns))
            except FileNotFoundError:  # it has just been renamed
                continue
        return found


def run_training(config: Config, run: Path, stderr: int | None) -> None:
    """Train as `mt train` does; stdout and stderr go into a file beside the run folder."""

    def trained() -> int:
        train(config, run)
        return 0

    os.environ["MT_CACHE"] = str(run.with_name(f"{run.name}.cache"))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored in tests that run under nohup
    torch.set_num_threads(1)
    with log_of(run).open("a", encoding="utf-8") as file:
        os.dup2(file.fileno() if stderr is None else stderr, 2)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.exit(run_reporting_errors(trained))


def log_of(run: Path) -> Path:
    return run.with_name(f"{run.name}.log")


def outcome(run: Path) -> dict[str, Any]:
    """Return everything that a finished run holds, apart from times."""
    folder = RunFolder(run)
    checkpoints = [folder.checkpoints.path(update) for update in folder.checkpoints.updates()]
    states = [json.loads((path / STATE).read_text()) for path in checkpoints]
    return {
        "weights": folder.weights.read_bytes(),
        "model": json.loads(folder.model.read_text()),
        # Between its last byte and its final name, a checkpoint counts as well.
        "checkpoints": [
            (p.name.removeprefix("."), sorted(f.name for f in p.iterdir())) for p in checkpoints
        ],
        "checkpoint weights": [(path / MODEL).read_bytes() for path in checkpoints],
        "states": [(without_times(state["state"]), state["scaler"]) for state in states],
        "validations": events_by_update(run, "validation"),
        # A run killed after its last line writes that line again.
        "final": [without_times(event) for event in journal(run, "final")][-1:],
    }


def events_by_update(run: Path, name: str) -> dict[int, dict[str, Any]]:
    """Return events by update; an update that a resumed run repeats must be the same."""
    found: dict[int, dict[str, Any]] = {}
    for event in map(without_times, journal(run, name)):
        assert found.setdefault(event["update"], event) == event
    return found


def without_times(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in TIMES}
