"""A run that is stopped and resumed is, bit for bit, the uninterrupted run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mt.config.loading import load_config
from mt.errors import RunError
from mt.training import trainer as spine
from mt.training.checkpoint import MODEL, Checkpoints
from mt.training.loader import PlannedUpdate
from mt.training.run_folder import RunFolder
from mt.training.setup import Session
from mt.training.state import TrainState
from mt.training.trainer import train
from tests.training.killed_training import events, outcome

Program = Callable[..., tuple[int, str, str]]


class Death(BaseException):
    """Ends a training at once, without a checkpoint, as `kill -9` does."""


def train_with(recipe: Path, run: Path, *settings: str) -> str:
    return train(load_config(recipe, overrides=settings), run)


def stop_after(patch: pytest.MonkeyPatch, update: int, how: str) -> None:
    take_update = spine.take_update

    def hit(session: Session, planned: PlannedUpdate) -> None:
        take_update(session, planned)
        if session.state.update == update:
            if how == "dies":
                raise Death
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(spine, "take_update", hit)


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


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def stopped(finished_run: Path, tmp_path: Path, tiny_recipe: Path) -> Path:
    """Return a run with checkpoints after updates 10 and 20."""
    train_until(tiny_recipe, tmp_path / "run", 20, "SIGTERM")
    return tmp_path / "run"


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param(
            [("SIGTERM", 7), ("SIGTERM", 9), ("SIGTERM", 20), ("dies", 33), ("SIGTERM", 40)],
            id="in an epoch, after a validation, at the end",
        ),
        pytest.param([("dies", 5), ("SIGTERM", 14), ("dies", 17)], id="before any checkpoint"),
    ],
)
def test_stopped_run_is_bit_for_bit_the_uninterrupted_one(
    stops: list[tuple[str, int]], finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for how, update in stops:
        train_until(tiny_recipe, run, update, how)
    train_with(tiny_recipe, run)
    assert outcome(run) == outcome(finished_run)


def test_finished_run_continues_when_max_updates_is_raised(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train_with(tiny_recipe, run, "training.max_updates=20")
    assert len(events(run, "final")) == 1
    capsys.readouterr()
    train_with(tiny_recipe, run)
    change = "training.max_updates: 20 -> 40"
    assert f"changed since this run began: {change}\n" in capsys.readouterr().err
    assert [event["change"] for event in events(run, "config")] == [change]
    assert outcome(run) == outcome(finished_run)


def test_stop_does_not_change_the_last_checkpoints(tiny_recipe: Path, tmp_path: Path) -> None:
    settings = ["training.average=last", "training.keep_last=3", "training.max_updates=30"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_with(tiny_recipe, whole, *settings)
    train_until(tiny_recipe, stopped, 15, "SIGTERM", *settings)
    train_with(tiny_recipe, stopped, *settings)
    assert outcome(stopped) == outcome(whole)
    assert outcome(whole)["states"][-1][0]["last"] == [10, 20, 30]


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


def test_process_stopped_by_sigterm_is_resumed(tiny_recipe: Path, tmp_path: Path) -> None:
    run, journal = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    endless = ["training.max_updates=1000000", "training.validate_every=1000000"]
    options = [part for setting in endless for part in ("--set", setting)]
    child = subprocess.Popen(
        [sys.executable, "-m", "mt", "train", str(tiny_recipe), "--run", str(run), *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        text=True,
    )
    try:
        while child.poll() is None and not (journal.exists() and journal.read_text()):
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    (update,) = RunFolder(run).checkpoints.updates()
    assert (child.returncode, out) == (143, "")
    assert (
        f"stopped after update {update:,}; the same command goes on from here, and with --set "
        in err
    )
    settings = [f"training.max_updates={update + 3}", endless[1]]
    train_with(tiny_recipe, run, *settings)
    train_with(tiny_recipe, tmp_path / "whole", *settings)
    assert outcome(run) == outcome(tmp_path / "whole")


def test_finished_run_is_reported_and_not_changed(
    finished_run: Path, tiny_recipe: Path, program: Program
) -> None:
    before = contents(finished_run)
    status, out, err = program("train", tiny_recipe, "--run", finished_run)
    score = json.loads((finished_run / "model.json").read_text())["score"]
    assert (status, out) == (0, f"{finished_run}: finished already; {score}\n")
    assert err == ""
    assert contents(finished_run) == before


def test_config_change_of_finished_run_is_logged_and_journalled(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    caplog.set_level("INFO", "mt")
    assert "finished already" in train_with(tiny_recipe, run, "decoding.beam=3")
    assert caplog.messages == ["changed since this run ended: decoding.beam: 2 -> 3"]
    assert [event["change"] for event in events(run, "config")] == ["decoding.beam: 2 -> 3"]
    assert load_config(run / "config.yaml").decoding.beam == 3


def test_damaged_checkpoint_is_reported_and_the_one_before_resumed(
    stopped: Path, finished_run: Path, tiny_recipe: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = RunFolder(stopped).checkpoints
    flip_a_byte(checkpoints.path(20) / MODEL)
    train_with(tiny_recipe, stopped)
    assert f"; resuming from {checkpoints.path(10)}" in caplog.text
    assert [event["update"] for event in events(stopped, "resume")] == [10]
    assert outcome(stopped) == outcome(finished_run)


def test_run_with_damaged_checkpoints_only_is_refused_and_not_changed(
    stopped: Path, tiny_recipe: Path
) -> None:
    checkpoints = RunFolder(stopped).checkpoints
    for update in checkpoints.updates():
        flip_a_byte(checkpoints.path(update) / MODEL)
    before = contents(stopped)
    with pytest.raises(RunError, match=r"update-000000020: the checkpoint is damaged \(.*\), and "):
        train_with(tiny_recipe, stopped)
    assert contents(stopped).keys() == before.keys()
    for name, (data, _) in contents(checkpoints.folder).items():
        assert data == before[name][0]


def test_batch_budget_may_change_and_is_printed(
    stopped: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_with(tiny_recipe, stopped, "training.max_tokens_per_batch=60")
    change = "training.max_tokens_per_batch: 200 -> 60"
    assert f"changed since this run began: {change}\n" in capsys.readouterr().err
    assert [event["change"] for event in events(stopped, "config")] == [change]
    assert events(stopped, "validation")[-1]["update"] == 40
