"""Divergence: found by the losses, also in a resumed run; it ends a run with a way to go on."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from mt.data.batches import Batch
from mt.errors import DivergedError, RunError
from mt.training import state as state_module
from mt.training import trainer as trainer_module
from mt.training.loader import PlannedUpdate
from mt.training.loss import LossSums
from mt.training.optimizer import learning_rate
from mt.training.run_folder import RunFolder
from mt.training.state import (
    MARGIN,
    MOST_SKIPPED_IN_A_ROW,
    WINDOW,
    Health,
    Ranked,
    TrainState,
    describe_divergence,
)
from mt.training.step import StepMetrics, TokenCounts, TrainingPass
from mt.training.trainer import Trainer
from tests import factories
from tests.factories import Program, journal

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHANGES = ["max_updates=70", "label_smoothing=0.0", "validate_every=1000", "checkpoint_every=10"]
CHANGES += ["log_every=10", 'average="off"']


@pytest.fixture(scope="module")
def alphabet(
    tiny_recipe: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a recipe for continuing the alphabet; without learning it, the loss is 2.5 higher."""
    folder = tmp_path_factory.mktemp("alphabet")
    for split, pairs in (("train", 52), ("valid", 8), ("test", 1)):
        lines = [[LETTERS[(5 * first + step) % 26] for step in range(9)] for first in range(pairs)]
        (folder / f"{split}.en").write_text("".join(f"{line[0]}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{' '.join(line)}\n" for line in lines))
    path = folder / "alphabet.yaml"
    path.write_text(tiny_recipe.read_text().replace(str(tiny_corpus), str(folder)))
    return path


@pytest.fixture
def recipe(alphabet: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the recipe of the alphabet, with a shorter window of losses."""
    monkeypatch.setattr(state_module, "WINDOW", 15)
    monkeypatch.setattr(state_module, "MOST_SKIPPED_IN_A_ROW", 8)
    return alphabet


def train_with(recipe: Path, run: Path, *settings: str) -> str:
    return factories.train_with(recipe, run, *CHANGES, *settings)


def state_of(run: Path, update: int) -> dict[str, Any]:
    path = RunFolder(run).checkpoints.path(update) / "state.json"
    found: dict[str, Any] = json.loads(path.read_text())["state"]
    return found


def before_updates(patch: pytest.MonkeyPatch, action: Callable[[Trainer], None]) -> None:
    """Call `action` before each update."""
    run_update = Trainer.run_update

    def wrapped(trainer: Trainer, planned: PlannedUpdate) -> None:
        action(trainer)
        run_update(trainer, planned)

    patch.setattr(Trainer, "run_update", wrapped)


def raise_rate(patch: pytest.MonkeyPatch) -> None:
    """Multiply the learning rate by 50 after update 39."""
    factor = [1.0]

    def look(trainer: Trainer) -> None:
        factor[0] = 50.0 if trainer.state.update >= 39 else 1.0

    before_updates(patch, look)
    patch.setattr(trainer_module, "learning_rate", lambda *keys: factor[0] * learning_rate(*keys))


def spoil_weight(patch: pytest.MonkeyPatch) -> None:
    """Set a weight to NaN at update 20."""

    def spoil(trainer: Trainer) -> None:
        if trainer.state.update == 20:
            weight = trainer.learner.model.encoder[0].feed_forward.inner.weight  # type: ignore[union-attr]
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

    before_updates(monkeypatch, lambda trainer: bad.__setitem__(0, trainer.state.update in {2, 3}))
    monkeypatch.setattr(TrainingPass, "forward", spoilt)
    run = tmp_path / "run"
    train_with(recipe, run, "max_updates=10")
    state = state_of(run, 10)
    assert (state["update"], state["skipped_updates"]) == (10, 2)
    assert journal(run, "train")[0]["skipped_updates"] == 2
    weights = load_file(run / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.parametrize(
    ("harm", "reason", "well"),
    [
        (raise_rate, "the loss has exploded: its mean over 15 updates is ", 40),
        (spoil_weight, "the model's output is not finite (NaN or infinite)", 20),
    ],
)
def test_diverged_run_stops_with_a_checkpoint_from_which_to_go_on(
    harm: Callable[[pytest.MonkeyPatch], None],
    reason: str,
    well: int,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Program,
) -> None:
    run, kept = tmp_path / "run", well - 5
    harm(monkeypatch)
    with pytest.raises(DivergedError) as error:
        # The last two checkpoints alone would all be from after the divergence.
        train_with(recipe, run, "checkpoint_every=5", "validate_every=5")
    assert str(error.value).startswith(f"{run}: {reason}")
    command = f"mt average {run} --checkpoints {kept} --output FOLDER"
    assert (
        f"; training was stable until update {well}; `{command}` makes a model of its checkpoint "
        f"after update {kept}; go on from there with `training.init_from: FOLDER`"
    ) in str(error.value)
    (event,) = journal(run, "diverged")
    assert event["reason"] in str(error.value)
    model = tmp_path / "model"
    status, _, _ = program("average", run, "--checkpoints", kept, "--output", model)
    assert status == 0
    monkeypatch.undo()
    again = train_with(recipe, tmp_path / "again", f"init_from={model}")
    assert (tmp_path / "again" / "model.json").exists(), again


def test_last_validation_can_find_a_divergence(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "learning_rate", lambda *_: 1e30)
    exploding = ["gradient_clip=0", "max_updates=6"]
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match="not finite.*; training was stable until update "):
        train_with(recipe, run, *exploding, "checkpoint_every=1")
    (event,) = journal(run, "diverged")
    assert event["update"] == 6


def test_checkpoint_to_go_on_from_is_the_newest_that_a_later_update_found_healthy() -> None:
    best = [Ranked(10, 3.0, 1.0), Ranked(30, 2.0, 1.0)]
    for well_at, expected in ((31, 30), (30, 20), (20, 10), (10, None)):
        state = TrainState(update=30, last=[20, 30], best=best, health=Health(well_at=well_at))
        assert state.last_healthy_checkpoint == expected
        message = describe_divergence(state, Path("runs/a"), "why")
        assert message.startswith(f"runs/a: why; training was stable until update {well_at}; ")
        assert ("`mt average runs/a" in message) is (expected is not None)


def metrics(loss: float) -> StepMetrics:
    """Return an update with this loss per token; with nan it was skipped."""
    return StepMetrics(loss * 400, loss * 400, loss, TokenCounts(source=400, target=400))


def diverged_at(losses: list[float], health: Health | None = None) -> int | None:
    """Return the first update at which these losses count as diverged."""
    health = health or Health()
    for update, loss in enumerate(losses, start=1):
        health.add(metrics(loss), update)
        if health.divergence():
            return update
    return None


def learning(updates: int, *, noise: float = 0.4) -> list[float]:
    """Return losses that fall from 9 to 2 with noise."""
    draw = random.Random(1)
    return [2.0 + 7.0 * math.exp(-update / 300) + draw.gauss(0, noise) for update in range(updates)]


SKIPS = [math.nan] * MOST_SKIPPED_IN_A_ROW


@pytest.mark.parametrize(
    "losses",
    [
        learning(5000),
        # Fine-tuning whose first updates undo some of the learning.
        [2.0, 2.5, 3.5, *(3.5 - update / 100 for update in range(200))],
        # A new language, whose first updates are of the known ones.
        [*[2.9] * 3, 6.4, 2.9, *[6.4, 6.1] * 100],
        # A few bad updates, from which the run recovers.
        [*learning(500), *[9.0] * 8, *learning(900)[500:]],
        # No learning at all.
        [9.0] * 1000,
        # Exactly at the margin.
        [*[1.0] * WINDOW, *[1.0 + MARGIN] * WINDOW],
        # One good update ends a row of skipped ones.
        [*SKIPS, 5.0, *SKIPS, 5.0],
    ],
)
def test_healthy_losses_do_not_count_as_diverged(losses: list[float]) -> None:
    assert diverged_at(losses) is None


@pytest.mark.parametrize("height", [2.0, 4.0, 30.0])
def test_exploded_loss_is_detected_soon(height: float) -> None:
    before = learning(2000)
    exploded = diverged_at(before + [before[-1] + height] * 200)
    assert exploded is not None
    assert 2000 < exploded <= 2000 + min(WINDOW, 1.5 * WINDOW * MARGIN / height + 2)


def test_loss_above_that_of_a_guess_is_detected_after_the_warm_up() -> None:
    losses, guess = [9.0, *[18.0] * 200], math.log(1500)
    assert diverged_at(losses) is None
    health = Health()
    for update, loss in enumerate(losses, start=1):
        health.add(metrics(loss), update, guess if update > 60 else math.inf)
        assert bool(health.divergence()) == (update > 60)
    assert health.well_at <= 60
    slow = Health()
    for update in range(1, 300):  # a small learning rate, from an unlucky start
        slow.add(metrics(guess + 1), update, guess)
        assert slow.divergence() is None


@pytest.mark.parametrize("cut", [1, WINDOW - 1, WINDOW, 103, 110])
def test_state_read_from_its_file_detects_the_same_divergence(cut: int) -> None:
    losses = [*learning(100, noise=0.1), *[math.nan] * 3, *[11.0 / 3] * 3, *[9.7] * 50]
    whole, state = Health(), TrainState()
    expected = diverged_at(losses, whole)
    assert expected is not None
    for update, loss in enumerate(losses[:expected], start=1):
        state.health.add(metrics(loss), update)
        if update == cut:
            state = TrainState.from_json(
                json.loads(json.dumps(state.as_json())), Path("state.json")
            )
    assert state.health == whole
    assert state.health.divergence() == whole.divergence() is not None


def test_state_of_another_format_or_without_a_field_is_an_error() -> None:
    data = TrainState().as_json()
    with pytest.raises(RunError):
        TrainState.from_json({**data, "format": 1}, Path("state.json"))
    with pytest.raises(RunError, match=r"state\.json: damaged \(lacks `health`\)"):
        TrainState.from_json({k: v for k, v in data.items() if k != "health"}, Path("state.json"))
