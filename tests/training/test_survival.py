"""A training that is killed, under signals, on a full disk, and in a removed folder."""

import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from mt.config.loading import load_config
from mt.training import checkpoint
from mt.training.checkpoint import is_valid, save_tensors
from mt.training.interruption import ONE_REQUEST_SECONDS
from mt.training.run_folder import RunFolder
from mt.training.trainer import Trainer
from tests.factories import Program, train_with
from tests.training.killed_training import (
    TrainingProcess,
    events_by_update,
    log_of,
    outcome,
    plan_kills,
    train_killed,
    train_whole,
)

forks = pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has loaded torch")
# The forks compute in one thread; the other threads of this process are idle.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@contextmanager
def training(
    recipe: Path, run: Path, *settings: str, stderr: int | None = None
) -> Iterator[TrainingProcess]:
    """Start an endless training; kill it in the end."""
    overrides = [f"training.{setting}" for setting in ("max_updates=1000000", *settings)]
    process = TrainingProcess(load_config(recipe, overrides=overrides), run, stderr)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.join()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def only_checkpoint(run: Path) -> int:
    checkpoints = RunFolder(run).checkpoints
    (update,) = checkpoints.updates()
    assert is_valid(checkpoints.path(update))
    return update


def test_mt_train_ends_with_a_checkpoint_on_sigterm(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("training.max_updates=1000000", "training.patience=null")
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "mt", "train", str(tiny_recipe), "--run", str(run), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(run / "checkpoints" / "update-000000010")
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopping after this update" in stderr
    assert "run the same command again to resume" in stderr
    newest = max(RunFolder(run).checkpoints.updates())
    assert is_valid(RunFolder(run).checkpoints.path(newest))
    assert f"stopped after update {newest:,};" in stderr


@forks
def test_closed_terminal_costs_no_update(tiny_recipe: Path, tmp_path: Path) -> None:
    """SIGHUP arrives, and every write to the terminal fails from then on."""
    run = tmp_path / "run"
    ours, theirs = pty.openpty()
    with training(tiny_recipe, run, "validate_every=1000000", stderr=theirs) as process:
        os.close(theirs)
        wait_for(run / "metrics.jsonl")
        os.close(ours)
        os.kill(process.process.pid or 0, signal.SIGHUP)
        process.process.join(60)
        assert process.process.exitcode == 129
    only_checkpoint(run)


@forks
def test_second_signal_while_saving_exits_at_once_and_keeps_the_run_valid(
    tiny_recipe: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, settings = tmp_path / "run", ["checkpoint_every=5", "validate_every=10"]

    def save_slowly(tensors: dict[str, Tensor], path: Path) -> None:
        save_tensors(tensors, path)
        if RunFolder(run).checkpoints.updates():
            (run / "saving").touch()
            for _ in range(600):  # a signal just before a sleep is handled after it
                time.sleep(0.1)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_tensors", save_slowly)
        with training(tiny_recipe, run, *settings) as process:
            wait_for(run / "saving")
            os.kill(process.process.pid or 0, signal.SIGTERM)
            while "stopping after this update" not in log_of(run).read_text():
                process.process.join(0.01)
                assert process.process.is_alive()
            process.process.join(2 * ONE_REQUEST_SECONDS)
            os.kill(process.process.pid or 0, signal.SIGINT)
            process.process.join(10)
            assert process.process.exitcode == 130
    message = "\nstopped at once; the same command continues from the newest checkpoint\n"
    assert message in log_of(run).read_text()
    (run / "saving").unlink()
    assert only_checkpoint(run) == 5
    train_with(tiny_recipe, run, *settings)
    assert weights(run) == weights(finished_run)


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def test_removed_run_folder_ends_the_run_and_does_not_reappear(
    tiny_recipe: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, save = tmp_path / "run", Trainer.save

    def removing(trainer: Trainer) -> Any:
        shutil.rmtree(run, ignore_errors=True)
        return save(trainer)

    monkeypatch.setattr(Trainer, "save", removing)
    status, out, err = program(
        "train", tiny_recipe, "--run", run, "--set", "training.max_updates=2"
    )
    assert (status, out) == (2, "")
    assert err.endswith(
        f"error: {run}: the run folder was removed or renamed during the training, which ends "
        "here; if it was renamed, --run with the new name continues it\n"
    )
    assert not run.exists()


def test_nearly_full_disk_ends_the_run_before_the_checkpoint(
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
    assert weights(run) == weights(finished_run)


COMMON = ["max_updates=60", "max_tokens_per_batch=60", "gradient_clip=0.5", "validate_every=6"]
COMMON += ["checkpoint_every=4", "log_every=1", "keep_last=1"]
PATIENCE = ["best_metric=bleu", "patience=2"]
AVERAGE = ["max_epochs=9", "ema_decay=0.9", "average=last"]


@forks
@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        pytest.param(AVERAGE, 3, id="few kills"),
        pytest.param(AVERAGE, 20, id="moving average", marks=pytest.mark.slow),
        pytest.param(PATIENCE, 20, id="patience", marks=pytest.mark.slow),
    ],
)
def test_killed_run_is_bit_for_bit_the_uninterrupted_one(
    settings: list[str], kills: int, tiny_recipe: Path, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**31)
    sys.stdout.write(f"seed of the kills: {seed}\n")  # pytest prints it with a failure
    dropouts = ["model.attention_dropout=0.1", "model.feed_forward_dropout=0.1"]
    sampling = (
        ["tokenizer.subword_dropout=[0.05, 0.05]", "data.augmentation=on"] if kills > 3 else []
    )
    training = [f"training.{setting}" for setting in (*COMMON, *settings)]
    config = load_config(tiny_recipe, overrides=[*dropouts, *sampling, *training])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    updates = train_whole(config, whole)
    hits = train_killed(config, killed, plan_kills(kills, updates, seed=seed))
    assert hits > kills / 2  # the last ones may come too late
    assert outcome(killed) == outcome(whole)
    assert events_by_update(killed, "train") == events_by_update(whole, "train")
    assert [*events_by_update(whole, "train")] == [*range(1, updates + 1)]
