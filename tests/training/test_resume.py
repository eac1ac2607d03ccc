"""A run that is stopped and resumed is, bit for bit, the uninterrupted run."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from mt.config.loading import load_config
from mt.errors import RunError
from mt.training.checkpoint import MODEL, Checkpoints
from mt.training.loader import PlannedUpdate
from mt.training.run_folder import RunFolder
from mt.training.state import TrainState
from mt.training.trainer import Trainer
from tests.factories import Program, contents, flip_bit, journal, train_with
from tests.training.killed_training import outcome


class Death(BaseException):
    """Ends a training at once, without a checkpoint, as `kill -9` does."""


def stop_after(patch: pytest.MonkeyPatch, update: int, how: str) -> None:
    run_update = Trainer.run_update

    def hit(trainer: Trainer, planned: PlannedUpdate) -> None:
        run_update(trainer, planned)
        if trainer.state.update == update:
            if how == "dies":
                raise Death
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(Trainer, "run_update", hit)


def train_until(recipe: Path, run: Path, update: int, how: str, *settings: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, update, how)
        with pytest.raises(Death if how == "dies" else SystemExit) as leaving:
            train_with(recipe, run, *settings)
    if how == "SIGTERM":
        assert leaving.value.code == 143  # type: ignore[attr-defined]
        assert RunFolder(run).checkpoints.path(update).exists()
    else:
        assert not RunFolder(run).checkpoints.path(update).exists()


def test_stopped_run_is_bit_for_bit_the_uninterrupted_one(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    stops = [("dies", 5), ("SIGTERM", 7), ("dies", 9), ("SIGTERM", 20), ("dies", 33)]
    for how, update in [*stops, ("SIGTERM", 40)]:
        train_until(tiny_recipe, run, update, how)
        if how == "SIGTERM":
            message = f"stopped after update {update}; run the same command again to resume, or "
            assert message in capsys.readouterr().err
    train_with(tiny_recipe, run)
    assert outcome(run) == outcome(finished_run)


def test_finished_run_continues_when_max_updates_is_raised(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train_with(tiny_recipe, run, "training.max_updates=20")
    assert len(journal(run, "final")) == 1
    capsys.readouterr()
    train_with(tiny_recipe, run)
    change = "training.max_updates: 20 -> 40"
    assert f"changed since this run began: {change}\n" in capsys.readouterr().err
    assert [event["change"] for event in journal(run, "config")] == [change]
    assert outcome(run) == outcome(finished_run)


def test_stop_does_not_change_the_last_checkpoints(tiny_recipe: Path, tmp_path: Path) -> None:
    settings = ["average=last", "keep_last=3", "max_updates=12", "validate_every=4"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_with(tiny_recipe, whole, *settings)
    train_until(tiny_recipe, stopped, 6, "SIGTERM", *settings)
    train_with(tiny_recipe, stopped, *settings)
    assert outcome(stopped) == outcome(whole)
    assert outcome(whole)["states"][-1][0]["last"] == [4, 8, 12]


def test_resumed_run_prunes_what_a_killed_one_did_not(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    prune = Checkpoints.prune

    def die_at_the_end(checkpoints: Checkpoints, state: TrainState) -> None:
        if state.update == 40:
            raise Death
        prune(checkpoints, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "prune", die_at_the_end)
        with pytest.raises(Death):
            train_with(tiny_recipe, tmp_path / "run")
    checkpoints = RunFolder(tmp_path / "run").checkpoints
    assert len(checkpoints.updates()) > len(RunFolder(finished_run).checkpoints.updates())
    train_with(tiny_recipe, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(finished_run)


def test_finished_run_is_reported_and_not_changed(
    finished_run: Path, tiny_recipe: Path, program: Program
) -> None:
    before = contents(finished_run)
    status, out, err = program("train", tiny_recipe, "--run", finished_run)
    score = json.loads((finished_run / "model.json").read_text())["score"]
    assert (status, out.splitlines()[0], err) == (
        0,
        f"{finished_run}: finished already; {score}",
        "",
    )
    assert contents(finished_run) == before


def test_config_change_of_finished_run_is_logged_and_journalled(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    caplog.set_level("INFO", "mt")
    assert "finished already" in train_with(tiny_recipe, run, "decoding.beam=3")
    assert caplog.messages == ["changed since this run ended: decoding.beam: 2 -> 3"]
    assert [event["change"] for event in journal(run, "config")] == ["decoding.beam: 2 -> 3"]
    assert load_config(run / "config.yaml").decoding.beam == 3


@pytest.fixture
def stopped(finished_run: Path, tmp_path: Path) -> Path:
    """Return a run without its final model."""
    run = shutil.copytree(finished_run, tmp_path / "run")
    (run / "model.json").unlink()
    return run


def test_run_with_damaged_checkpoints_only_is_refused_and_not_changed(
    stopped: Path, tiny_recipe: Path
) -> None:
    checkpoints = RunFolder(stopped).checkpoints
    for update in checkpoints.updates():
        flip_bit(checkpoints.path(update) / MODEL)
    before = contents(stopped)
    with pytest.raises(RunError, match=r"update-000000040: the checkpoint is damaged \(.*\), and "):
        train_with(tiny_recipe, stopped)
    assert contents(stopped) == before


def test_batch_budget_may_change_and_is_printed(
    stopped: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_with(tiny_recipe, stopped, "max_tokens_per_batch=60", "max_updates=43")
    budget = "training.max_tokens_per_batch: 200 -> 60"
    assert f"changed since this run began: {budget}\n" in capsys.readouterr().err
    assert budget in [event["change"] for event in journal(stopped, "config")]
    assert journal(stopped, "validation")[-1]["update"] == 43
