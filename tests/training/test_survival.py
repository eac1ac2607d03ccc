"""What may happen to a training from outside: real signals, a full disk, a folder that is gone."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mt.config.loading import load_config
from mt.errors import RunError
from mt.training import trainer as spine
from mt.training.checkpoint import Checkpoints, is_valid
from mt.training.run_folder import RunFolder
from mt.training.trainer import train

Program = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
# Tests that run under nohup hand its ignored hang-ups on to their children.
HANGS_UP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
MAIN = "import sys; from mt.__main__ import main; sys.exit(main())"
SLOW_SAVING = """
import pathlib, time
import mt.training.checkpoint as module

def slow(tensors, path, *, write=module.save_tensors):
    write(tensors, path)
    if module.Checkpoints(path.parent.parent).updates():
        (path.parent.parent.parent / "saving").touch()
        time.sleep(60)

module.save_tensors = slow
"""
"""The second checkpoint of a run takes a minute, and `saving` says that it is being written."""


class Training:
    """`mt train` in a process of its own, without an end."""

    def __init__(self, recipe: Path, run: Path, *settings: str, before: str = "") -> None:
        self.run = run
        options = [f"training.{setting}" for setting in ("max_updates=1000000", *settings)]
        overrides = [part for option in options for part in ("--set", option)]
        self.command = [sys.executable, "-c", before + MAIN, "train", str(recipe)]
        self.command += ["--run", str(run), *overrides]
        environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **environment}

    def start(self, stderr: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self.command, stderr=stderr, env=self.environment, start_new_session=True
        )

    def wait_for(self, name: str, child: "subprocess.Popen[bytes]") -> None:
        """Wait until the run holds something under this name."""
        while child.poll() is None and not ((self.run / name).exists()):
            time.sleep(0.01)


@pytest.fixture
def children() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes that do not outlive the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def only_checkpoint(run: Path) -> int:
    checkpoints = RunFolder(run).checkpoints
    (update,) = checkpoints.updates()
    assert is_valid(checkpoints.path(update))
    return update


def test_sigusr1_is_how_a_scheduler_asks_to_leave(
    tiny_recipe: Path, tmp_path: Path, children: list["subprocess.Popen[bytes]"]
) -> None:
    training = Training(tiny_recipe, tmp_path / "run", "validate_every=1000000")
    child = training.start(subprocess.PIPE)
    children.append(child)
    training.wait_for("metrics.jsonl", child)
    child.send_signal(signal.SIGUSR1)
    err = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 128 + signal.SIGUSR1
    update = only_checkpoint(training.run)
    assert f"stopped after update {update:,}; the same command goes on from here" in err


def test_a_terminal_that_closes_costs_no_update(
    tiny_recipe: Path, tmp_path: Path, children: list["subprocess.Popen[bytes]"]
) -> None:
    """The hang-up comes, and whatever is written to the terminal from then on fails."""
    training = Training(tiny_recipe, tmp_path / "run", "validate_every=1000000", before=HANGS_UP)
    ours, theirs = pty.openpty()
    child = training.start(theirs)
    children.append(child)
    os.close(theirs)
    training.wait_for("metrics.jsonl", child)
    os.close(ours)
    child.send_signal(signal.SIGHUP)
    assert child.wait(timeout=60) == 129
    only_checkpoint(training.run)


def test_a_second_signal_while_saving_leaves_at_once_and_the_run_whole(
    tiny_recipe: Path,
    finished_run: Path,
    tmp_path: Path,
    children: list["subprocess.Popen[bytes]"],
) -> None:
    settings = ["checkpoint_every=5", "validate_every=10"]
    training = Training(tiny_recipe, tmp_path / "run", *settings, before=SLOW_SAVING)
    child = training.start(subprocess.PIPE)
    children.append(child)
    training.wait_for("saving", child)
    child.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    asked_at = time.monotonic()
    err = child.communicate(timeout=30)[1].decode()
    assert time.monotonic() - asked_at < 10
    assert child.returncode == 130
    assert "\nstopped at once; the same command continues from the newest checkpoint\n" in err
    (training.run / "saving").unlink()
    assert only_checkpoint(training.run) == 5
    settings = [f"training.{setting}" for setting in (*settings, "max_updates=40")]
    train(load_config(tiny_recipe, overrides=settings), training.run)
    weights = [run / "model.safetensors" for run in (training.run, finished_run)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


# The disk.


def remove_during(patch: pytest.MonkeyPatch, name: str, run: Path) -> None:
    """Have the run folder be removed while the run does something."""
    original = getattr(spine, name)

    def removing(*arguments: Any) -> Any:
        shutil.rmtree(run, ignore_errors=True)
        return original(*arguments)

    patch.setattr(spine, name, removing)


@pytest.mark.parametrize("during", ["validate", "save"])
def test_a_run_folder_that_is_removed_ends_the_run_and_does_not_come_back(
    during: str,
    tiny_recipe: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    remove_during(monkeypatch, during, run)
    status, out, err = program(
        "train", tiny_recipe, "--run", run, "--set", "training.max_updates=10"
    )
    assert (status, out) == (2, "")
    assert err.endswith(
        f"error: {run}: the run folder was removed or renamed during the training, which ends "
        "here; if it was renamed, --run with the new name continues it\n"
    )
    assert not run.exists()


def test_a_disk_that_is_nearly_full_ends_the_run_before_the_checkpoint_is_begun(
    tiny_recipe: Path,
    finished_run: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    checkpoints = RunFolder(run).checkpoints
    usage = shutil.disk_usage(tmp_path)

    def filling(folder: Path) -> Any:
        free = 2**20 if checkpoints.updates() == [] else 2**16
        return usage._replace(free=free)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", filling)
        status, out, err = program("train", tiny_recipe, "--run", run)
    assert (status, out) == (2, "")
    assert f"error: {checkpoints.folder}: too little space on the disk: a checkpoint needs " in err
    assert checkpoints.updates() == [10]
    assert program("train", tiny_recipe, "--run", run)[0] == 0
    weights = [folder / "model.safetensors" for folder in (run, finished_run)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_limit_on_file_sizes_is_a_line_too(
    tiny_recipe: Path, tmp_path: Path, program: Program
) -> None:
    resource = pytest.importorskip("resource")
    run = tmp_path / "run"
    assert program("train", tiny_recipe, "--run", run, "--set", "training.max_updates=10")[0] == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        status, out, err = program("train", tiny_recipe, "--run", run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, out) == (2, "")
    named = Checkpoints(run / "checkpoints").folder / "update-000000020"
    assert f"error: {named}: the file would be larger than `ulimit -f` or the file system" in err
    assert RunFolder(run).checkpoints.updates() == [10]


# The clock.


def test_a_clock_that_is_set_back_changes_no_time_of_the_run(
    tiny_recipe: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    run = tmp_path / "run"
    train(load_config(tiny_recipe), run)
    journal = [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]
    elapsed = [event["elapsed_seconds"] for event in journal if "elapsed_seconds" in event]
    assert elapsed[0] > 0
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] < 100
    speeds = [event["target_tokens_per_second"] for event in journal if event["event"] == "train"]
    assert all(speed > 0 for speed in speeds)
    assert next(now) < 2_000_000_000 - 3600  # somebody, the progress bar, asked for the time
    weights = [folder / "model.safetensors" for folder in (run, finished_run)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_what_a_missing_file_means_is_told_by_the_folder(tmp_path: Path) -> None:
    """A file that is missing while the run folder is there is another matter."""
    folder = RunFolder(tmp_path)
    from mt.training.run_folder import only_training

    with pytest.raises(FileNotFoundError), only_training(folder):
        raise FileNotFoundError(2, "No such file", "elsewhere")
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    with pytest.raises(RunError, match="was removed or renamed"), only_training(run):
        shutil.rmtree(run.path)
        raise FileNotFoundError(2, "No such file", "here")
