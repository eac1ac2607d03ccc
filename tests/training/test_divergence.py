"""Divergence: the run stops with remedies, or rolls back and ends well."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mt.data.batches import Batch
from mt.errors import DivergedError
from mt.training import checkpoint, state
from mt.training import trainer as spine
from mt.training.checkpoint import Checkpoints
from mt.training.divergence import (
    MOST_ROLLBACKS,
    ON_DIVERGENCE,
    checkpoints_before,
    keep_last,
    shown_rollbacks,
)
from mt.training.loss import LossSums
from mt.training.optimizer import learning_rate
from mt.training.run_folder import RunFolder
from mt.training.setup import Session
from mt.training.state import Health, TrainState
from mt.training.step import TrainingPass
from tests import factories
from tests.factories import journal

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHANGES = ["max_updates=70", "label_smoothing=0.0", "validate_every=1000", "checkpoint_every=10"]
CHANGES += ["log_every=10", 'average="off"']


def detect_soon(patch: pytest.MonkeyPatch) -> None:
    """Shorten the window of losses; test_state.py tests the real one."""
    patch.setattr(state, "WINDOW", 15)
    patch.setattr(state, "MOST_SKIPPED_IN_A_ROW", 8)


@pytest.fixture(autouse=True)
def _detect_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    detect_soon(monkeypatch)


@pytest.fixture(scope="module")
def recipe(tiny_recipe: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recipe for continuing the alphabet; without learning it, the loss is 2.5 higher."""
    folder = tmp_path_factory.mktemp("alphabet")
    for split, pairs in (("train", 52), ("valid", 8), ("test", 1)):
        lines = [[LETTERS[(5 * first + step) % 26] for step in range(9)] for first in range(pairs)]
        (folder / f"{split}.en").write_text("".join(f"{line[0]}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{' '.join(line)}\n" for line in lines))
    path = folder / "alphabet.yaml"
    path.write_text(tiny_recipe.read_text().replace(str(tiny_corpus), str(folder)))
    return path


def train_with(recipe: Path, run: Path, *settings: str) -> str:
    return factories.train_with(recipe, run, *CHANGES, *settings)


def state_of(run: Path, update: int) -> dict[str, Any]:
    path = RunFolder(run).checkpoints.path(update) / "state.json"
    found: dict[str, Any] = json.loads(path.read_text())["state"]
    return found


def before_updates(patch: pytest.MonkeyPatch, action: Callable[[Session], None]) -> None:
    """Call `action` before each update."""
    take_update = spine.take_update

    def wrapped(session: Session, *rest: Any) -> None:
        action(session)
        take_update(session, *rest)

    patch.setattr(spine, "take_update", wrapped)


def raise_rate(patch: pytest.MonkeyPatch) -> None:
    """Multiply the learning rate by 50 after update 39, until a rollback."""
    factor = [1.0]

    def look(session: Session) -> None:
        factor[0] = 50.0 if session.state.update >= 39 and not session.state.rollbacks else 1.0

    before_updates(patch, look)
    patch.setattr(spine, "learning_rate", lambda *arguments: factor[0] * learning_rate(*arguments))


def spoil_weight(patch: pytest.MonkeyPatch) -> None:
    """Set a weight to NaN at update 20, until a rollback."""

    def spoil(session: Session) -> None:
        if session.state.update == 20 and not session.state.rollbacks:
            weight = session.learner.model.encoder[0].feed_forward.inner.weight  # type: ignore[union-attr]
            weight.data[0, 0] = math.nan  # type: ignore[operator]

    before_updates(patch, spoil)


def test_updates_that_are_not_finite_are_skipped_and_counted(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, bad = TrainingPass.forward, [False]

    def spoilt(training_pass: TrainingPass, batch: Batch) -> LossSums:
        sums = forward(training_pass, batch)
        if bad[0] and training_pass.training:
            return replace(
                sums, objective=sums.objective * math.nan, smoothed=sums.smoothed * math.nan
            )
        return sums

    before_updates(monkeypatch, lambda session: bad.__setitem__(0, session.state.update in {2, 3}))
    monkeypatch.setattr(TrainingPass, "forward", spoilt)
    run = tmp_path / "run"
    assert "rollback" not in train_with(recipe, run, "max_updates=10")
    found = state_of(run, 10)
    assert (found["update"], found["skipped_updates"], found["rollbacks"]) == (10, 2, 0)
    assert journal(run, "train")[0]["skipped_updates"] == 2
    weights = load_file(run / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.parametrize(
    ("harm", "reason", "well"),
    [
        (raise_rate, "the loss has exploded: its mean over 15 updates rose from ", 40),
        (spoil_weight, "9 updates in a row had a loss or gradient that is not finite", 20),
    ],
)
def test_diverged_run_stops_and_can_be_rolled_back(
    harm: Callable[[pytest.MonkeyPatch], None],
    reason: str,
    well: int,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, kept = tmp_path / "run", well - 5
    # The last checkpoints alone would all be from after the divergence.
    settings = ["checkpoint_every=5"]
    harm(monkeypatch)
    with pytest.raises(DivergedError) as error:
        train_with(recipe, run, *settings)
    assert str(error.value).startswith(f"{run}: {reason}")
    assert (
        f"; training was stable until update {well}; continue from its checkpoint after update "
        f"{kept} at half the rate with --set training.on_divergence=rollback, or train a new run"
    ) in str(error.value)
    (event,) = journal(run, "diverged")
    assert event["reason"] in str(error.value)
    assert kept in RunFolder(run).checkpoints.updates()
    result = train_with(recipe, run, *settings, "on_divergence=rollback")
    assert_rolled_back(run, result, to=kept)


def assert_rolled_back(run: Path, result: str, *, to: int) -> None:
    """Assert that the run was rolled back once, continued at half the rate, and is good."""
    assert result.endswith(", after 1 rollback")
    assert json.loads((run / "model.json").read_text())["score"] in result
    (event,) = journal(run, "rollback")
    assert (event["to"], event["factor"]) == (to, 0.5)
    (final,) = journal(run, "final")
    assert final["rollbacks"] == 1
    assert final["loss"] < 2.3  # 4.7 at the beginning, and 3.3 by the letters alone
    found = state_of(run, 70)
    assert (found["rate_factor"], found["rollbacks"]) == (0.5, 1)
    rate = journal(run, "train")[-1]["learning_rate"]
    assert rate == pytest.approx(1e-2 * (10 / 70) ** 0.5 / 2)


@pytest.fixture(scope="module")
def rolled_back(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a run that was rolled back without being killed, and its result."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        torch.set_num_threads(1)
        detect_soon(patch)
        raise_rate(patch)
        result = train_with(recipe, run, "on_divergence=rollback", "ema_decay=0.9")
    return run, result


def test_rolled_back_run_repeats_the_same_sentences_and_ends_well(
    rolled_back: tuple[Path, str],
) -> None:
    run, result = rolled_back
    assert_rolled_back(run, result, to=30)
    tokens = [line["target_tokens"] for line in journal(run, "train") if line["update"] == 40]
    assert len(tokens) == 2
    assert tokens[0] == tokens[1]
    assert RunFolder(run).checkpoints.updates() == [60, 70]  # not those of the divergence


def kill_before_pruning(patch: pytest.MonkeyPatch) -> None:
    """Kill the run when the new state is saved, but no later checkpoint is deleted."""
    prune = Checkpoints.prune

    def killed(checkpoints: Checkpoints, now: TrainState) -> None:
        if now.rollbacks:
            raise KeyboardInterrupt
        prune(checkpoints, now)

    patch.setattr(Checkpoints, "prune", killed)


def kill_while_pruning(patch: pytest.MonkeyPatch) -> None:
    """Kill the run when one checkpoint of the divergence is deleted and a later one is not."""
    discard = checkpoint._discard

    def killed(path: Path) -> None:
        discard(path)
        if path.name == "update-000000040":
            raise KeyboardInterrupt

    patch.setattr(checkpoint, "_discard", killed)


@pytest.mark.parametrize("kill", [kill_before_pruning, kill_while_pruning])
def test_run_killed_in_a_rollback_gives_the_same_result(
    kill: Callable[[pytest.MonkeyPatch], None],
    rolled_back: tuple[Path, str],
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, (whole, result) = tmp_path / "run", rolled_back
    settings = ["on_divergence=rollback", "ema_decay=0.9"]
    raise_rate(monkeypatch)
    with monkeypatch.context() as patch:
        kill(patch)
        with pytest.raises(KeyboardInterrupt):
            train_with(recipe, run, *settings)
    assert train_with(recipe, run, *settings).partition(": ")[2] == result.partition(": ")[2]
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    ours, theirs = state_of(run, 70), state_of(whole, 70)
    assert {**ours, "elapsed_seconds": 0.0} == {**theirs, "elapsed_seconds": 0.0}


def test_model_that_cannot_translate_is_rolled_back_and_its_scores_are_dropped(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    spoil_weight(monkeypatch)
    settings = ["on_divergence=rollback", "validate_every=14", "max_updates=40"]
    assert train_with(recipe, run, *settings).endswith(", after 1 rollback")
    (event,) = journal(run, "rollback")
    assert (event["from"], event["to"]) == (28, 14)
    assert "the model's output is not finite" in event["reason"]
    assert [each["update"] for each in state_of(run, 40)["best"]] == [40, 28]


def test_last_validation_can_find_a_divergence(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spine, "learning_rate", lambda *_: 1e30)
    exploding = ["gradient_clip=0", "max_updates=6"]
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match="not finite.*; training was stable until update "):
        train_with(recipe, run, *exploding, "checkpoint_every=1")
    (event,) = journal(run, "diverged")
    assert event["update"] == 6


@pytest.mark.parametrize("response", ON_DIVERGENCE)
@pytest.mark.parametrize(
    ("last", "remedy"),
    [
        ([30], "no checkpoint from before is kept; train a new run"),
        ([20, 30], f"{MOST_ROLLBACKS} rollbacks did not help; train a new run"),
    ],
)
def test_without_a_useful_rollback_the_run_stops(
    response: str, last: list[int], remedy: str
) -> None:
    now = TrainState(update=30, last=last, health=Health(well_at=25), rollbacks=MOST_ROLLBACKS)
    progress = SimpleNamespace(record=lambda *_, **__: None)
    folder = SimpleNamespace(path="runs/a", checkpoints=None)
    session: Any = SimpleNamespace(state=now, progress=progress, folder=folder, world=None)
    with pytest.raises(DivergedError, match=f"^runs/a: why; training was stable .* 25; {remedy}"):
        ON_DIVERGENCE[response](session, "why")


def test_checkpoints_before_a_divergence_are_those_that_a_later_update_found_healthy() -> None:
    now = TrainState(update=30, last=[20, 30], refuge=10, health=Health(well_at=30))
    assert checkpoints_before(now) == [20, 10]
    assert checkpoints_before(replace(now, health=Health(well_at=31))) == [30, 20, 10]
    assert checkpoints_before(replace(now, health=Health(well_at=10))) == []
    assert shown_rollbacks(replace(now, rollbacks=2)) == ", after 2 rollbacks"


def test_newest_healthy_checkpoint_is_kept_while_the_run_is_not_healthy() -> None:
    now = TrainState()
    kept = []
    for update in range(10, 80, 10):
        now.update = update
        now.health.well_at = min(update, 30) if update < 70 else update
        keep_last(now, 2)
        kept.append(([*now.last], now.refuge))
    assert kept == [
        ([10], None),
        ([10, 20], None),
        ([20, 30], None),
        ([30, 40], 20),
        ([40, 50], 20),
        ([50, 60], 20),
        ([60, 70], None),
    ]
