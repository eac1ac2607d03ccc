"""A run that was stopped and taken up again is, bit for bit, the run that nobody stopped."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.config.loading import load_config
from mt.errors import RunError
from mt.selftest.killing import Hit
from mt.selftest.resume import plan_kills, train_killed, train_whole
from mt.training import trainer as spine
from mt.training.checkpoint import MODEL, OPTIMIZER, STATE, Checkpoints
from mt.training.loader import PlannedUpdate
from mt.training.run_folder import RunFolder
from mt.training.setup import Session
from mt.training.state import TrainState
from mt.training.trainer import train

Program = Callable[..., tuple[int, str, str]]
TIMES = {
    "elapsed_seconds",
    "peak_memory_mib",
    "target_tokens_per_second",
    "source_tokens_per_second",
    "data_wait_share",
}


class Death(BaseException):
    """What `kill -9` or a power cut is to a run: it ends at once, and saves nothing."""


def train_with(recipe: Path, run: Path, *settings: str) -> str:
    return train(load_config(recipe, overrides=settings), run)


def stop_after(patch: pytest.MonkeyPatch, update: int, how: str) -> None:
    """Have the run hit by a real SIGTERM, or die, after an update."""
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


def events(run: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def seen_at_each_update(run: Path, event: str) -> dict[int, dict[str, Any]]:
    seen: dict[int, dict[str, Any]] = {}
    for each in map(without_times, events(run, event)):
        assert seen.setdefault(each["update"], each) == each
    return seen


def without_times(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in TIMES}


def outcome(run: Path) -> dict[str, Any]:
    """Everything that a run comes to, apart from how long it took."""
    folder = RunFolder(run)
    checkpoints = [folder.checkpoints.path(update) for update in folder.checkpoints.updates()]
    states = [json.loads((path / STATE).read_text()) for path in checkpoints]
    return {
        "weights": folder.weights.read_bytes(),
        "model": json.loads(folder.model.read_text()),
        # Between its last byte and its name, a checkpoint counts as well.
        "checkpoints": [
            (p.name.removeprefix("."), sorted(f.name for f in p.iterdir())) for p in checkpoints
        ],
        "checkpoint weights": [(path / MODEL).read_bytes() for path in checkpoints],
        "states": [without_times(state["state"]) for state in states],
        # A run that dies comes by the same update twice, and must see the same there.
        "validations": seen_at_each_update(run, "validation"),
        "final": [without_times(event) for event in events(run, "final")],
    }


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def stopped(finished_run: Path, tmp_path: Path, tiny_recipe: Path) -> Path:
    """A run with whole checkpoints after updates 10 and 20."""
    train_until(tiny_recipe, tmp_path / "run", 20, "SIGTERM")
    return tmp_path / "run"


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param([("SIGTERM", 7)], id="in mid-epoch, before any validation"),
        pytest.param([("SIGTERM", 20)], id="right after a validation"),
        pytest.param([("SIGTERM", 9), ("SIGTERM", 12), ("SIGTERM", 13)], id="several times"),
        pytest.param([("SIGTERM", 40)], id="at its end"),
        pytest.param([("dies", 5)], id="killed before any checkpoint"),
        pytest.param([("SIGTERM", 14), ("dies", 17), ("dies", 33)], id="killed"),
    ],
)
def test_a_run_that_was_stopped_comes_to_the_same(
    stops: list[tuple[str, int]], finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for how, update in stops:
        train_until(tiny_recipe, run, update, how)
    train_with(tiny_recipe, run)
    assert outcome(run) == outcome(finished_run)


def test_a_finished_run_goes_on_when_max_updates_is_raised(
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
    found = outcome(run)
    assert found.pop("final")[1:] == outcome(finished_run)["final"]
    assert found == {k: v for k, v in outcome(finished_run).items() if k != "final"}


def test_a_stop_does_not_change_which_checkpoints_are_the_last(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = ["training.average=last", "training.keep_last=3", "training.max_updates=30"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_with(tiny_recipe, whole, *settings)
    train_until(tiny_recipe, stopped, 15, "SIGTERM", *settings)
    train_with(tiny_recipe, stopped, *settings)
    assert outcome(stopped) == outcome(whole)
    assert outcome(whole)["states"][-1]["last"] == [10, 20, 30]


def test_a_run_that_dies_before_it_has_deleted_older_checkpoints_deletes_them(
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


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(["best_metric=bleu", "patience=2"], id="patience"),
        pytest.param(["max_epochs=9", "ema_decay=0.9", "average=last"], id="moving average"),
    ],
)
def test_a_run_that_is_killed_at_any_moment_comes_to_the_same(
    settings: list[str], kills: int, tiny_recipe: Path, tmp_path: Path
) -> None:
    """Real processes and kill -9, at moments that are others each time, some of them in saving."""
    seed = random.SystemRandom().randrange(2**31)
    sys.stdout.write(f"seed of the kills: {seed}\n")  # pytest shows it where the test fails
    settings = [*settings, "max_updates=60", "max_tokens_per_batch=60", "gradient_clip=0.5"]
    settings += ["validate_every=6", "checkpoint_every=4", "log_every=1", "keep_last=1"]
    model = ["model.attention_dropout=0.1", "model.feed_forward_dropout=0.1"]
    overrides = [*model, *(f"training.{setting}" for setting in settings)]
    config = load_config(tiny_recipe, overrides=overrides)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    updates = train_whole(config, whole)
    hits: list[Hit] = []
    train_killed(config, killed, plan=plan_kills(kills, updates, seed=seed), hits=hits)
    assert len(hits) > kills / 2  # the last ones may come too late
    found, expected = outcome(killed), outcome(whole)
    # Killed after the journal's last line, a run writes that line again.
    assert found.pop("final")[-1:] == expected.pop("final")
    assert found == expected
    assert seen_at_each_update(killed, "train") == seen_at_each_update(whole, "train")
    assert [*seen_at_each_update(whole, "train")] == [*range(1, updates + 1)]


def test_sigterm_from_outside(tiny_recipe: Path, tmp_path: Path) -> None:
    """The real program, stopped in the midst of its updates, and taken up by another process."""
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


def test_a_finished_run_says_so_and_stays_as_it_is(
    finished_run: Path, tiny_recipe: Path, program: Program
) -> None:
    before = contents(finished_run)
    status, out, err = program("train", tiny_recipe, "--run", finished_run)
    score = json.loads((finished_run / "model.json").read_text())["score"]
    assert (status, out) == (0, f"{finished_run}: finished already; {score}\n")
    assert err == ""
    assert contents(finished_run) == before


def test_what_changes_in_a_finished_run_is_said_and_journalled(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    caplog.set_level("INFO", "mt")
    assert "finished already" in train_with(tiny_recipe, run, "decoding.beam=3")
    assert caplog.messages == ["changed since this run ended: decoding.beam: 2 -> 3"]
    assert [event["change"] for event in events(run, "config")] == ["decoding.beam: 2 -> 3"]
    assert load_config(run / "config.yaml").decoding.beam == 3


@pytest.mark.parametrize("file", [MODEL, OPTIMIZER, STATE])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken_up(
    file: str,
    stopped: Path,
    finished_run: Path,
    tiny_recipe: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoints = RunFolder(stopped).checkpoints
    flip_a_byte(checkpoints.path(20) / file)
    train_with(tiny_recipe, stopped)
    assert (
        f"{checkpoints.path(20)}: the checkpoint is damaged ({file}: not what was written); going "
        f"on from {checkpoints.path(10)}"
    ) in caplog.messages
    assert [event["update"] for event in events(stopped, "resume")] == [10]
    assert outcome(stopped) == outcome(finished_run)


def test_with_no_whole_checkpoint_left_nothing_is_begun_anew(
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


def test_another_batch_budget_may_go_on_and_is_said(
    stopped: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_with(tiny_recipe, stopped, "training.max_tokens_per_batch=60")
    change = "training.max_tokens_per_batch: 200 -> 60"
    assert f"changed since this run began: {change}\n" in capsys.readouterr().err
    assert [event["change"] for event in events(stopped, "config")] == [change]
    assert events(stopped, "validation")[-1]["update"] == 40
