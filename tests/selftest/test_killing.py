"""Trainings in processes of their own: killed at the moment that was named, and told if ill."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.errors import RunError, UserError
from mt.files import write_json
from mt.selftest import killing
from mt.selftest.killing import Hit, Kill, TrainingProcess
from mt.training.run_folder import RunFolder

# Forks of this process compute in one thread; those of libraries sleep.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def config(tiny_recipe: Path) -> Config:
    settings = ["max_updates=30", "log_every=1", "checkpoint_every=4", "validate_every=100"]
    return load_config(tiny_recipe, overrides=[f"training.{setting}" for setting in settings])


def train_as(patch: pytest.MonkeyPatch, train: Callable[..., Any]) -> None:
    """Have processes do something else than to train."""
    patch.setattr(killing, "train", train)


def test_a_kill_comes_after_its_update(config: Config, tmp_path: Path) -> None:
    with TrainingProcess(config, tmp_path / "run") as process:
        hit = process.kill(Kill(10, "any time", 0.0))
    assert hit is not None
    assert 10 <= hit.update < 30
    # What an earlier process has told of does not count.
    lines = RunFolder(tmp_path / "run").metrics.read_text().count("\n")
    with TrainingProcess(config, tmp_path / "run") as process:
        assert process.kill(Kill(0, "any time", 0.0)) == Hit(0, None)
    with TrainingProcess(config, tmp_path / "run") as process:
        process.kill(Kill(9, "any time", 0.0))
    assert RunFolder(tmp_path / "run").metrics.read_text().count("\n") > lines


def test_a_kill_while_saving_hits_an_unfinished_checkpoint(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(path: Path, data: object) -> None:
        time.sleep(0.2)
        write_json(path, data)

    monkeypatch.setattr("mt.training.checkpoint.write_json", slowly)
    with TrainingProcess(config, tmp_path / "run") as process:
        hit = process.kill(Kill(5, "saving", 0.01))
    assert hit == Hit(8, "update-000000008")
    assert RunFolder(tmp_path / "run").checkpoints.updates() == [4]
    # What is left of it is not taken for another checkpoint that is being written.
    with TrainingProcess(config, tmp_path / "run") as process:
        assert process.kill(Kill(0, "any time", 0.0)) == Hit(0, None)


def test_a_training_that_ended_well_before_its_kill_is_no_hit(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_as(monkeypatch, lambda *_: None)
    with TrainingProcess(config, tmp_path / "run") as process:
        assert process.kill(Kill(31, "any time", 0.0)) is None


def test_a_training_that_crashes_before_its_kill_is_told(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("the corpus is gone")

    train_as(monkeypatch, fail)
    told = "run: the training left with status 2; error: the corpus is gone"
    with (
        TrainingProcess(config, tmp_path / "run") as process,
        pytest.raises(RunError, match=told),
    ):
        process.kill(Kill(1, "any time", 0.0))
    train_as(monkeypatch, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with (
        TrainingProcess(config, tmp_path / "run") as process,
        pytest.raises(RunError, match="run: the training left with status -9"),
    ):
        process.wait()


@pytest.mark.parametrize("moment", ["wait", "any time", "saving"])
def test_a_training_that_hangs_is_told(
    moment: str, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killing, "HANGS_AFTER_SECONDS", 0.2)
    train_as(monkeypatch, lambda *_: time.sleep(60))
    with (
        TrainingProcess(config, tmp_path / "run") as process,
        pytest.raises(RunError, match="run: the training hangs"),
    ):
        if moment == "wait":
            process.wait()
        else:
            process.kill(Kill(1, moment, 0.0))  # type: ignore[arg-type]


def test_leaving_kills_the_training(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_as(monkeypatch, lambda *_: time.sleep(60))
    with (
        pytest.raises(KeyboardInterrupt),
        TrainingProcess(config, tmp_path / "run") as process,
    ):
        raise KeyboardInterrupt
    assert process._process.exitcode == -signal.SIGKILL


def test_each_run_has_a_cache_of_its_own(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(_: Config, run: Path) -> None:
        run.with_name("cache").write_text(os.environ["MT_CACHE"])

    train_as(monkeypatch, tell)
    before = os.environ["MT_CACHE"]
    with TrainingProcess(config, tmp_path / "run") as process:
        process.wait()
    assert (tmp_path / "cache").read_text() == f"{tmp_path}/run.cache"
    assert os.environ["MT_CACHE"] == before
