"""A training that diverges: it stops with a clear line, or goes back and is good in the end."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mt.config.loading import load_config
from mt.data.batches import Batch
from mt.errors import DivergedError
from mt.training import state as health
from mt.training import trainer as spine
from mt.training.checkpoint import Checkpoints
from mt.training.divergence import MOST_ROLLBACKS, keep_last, known_well
from mt.training.loss import LossSums
from mt.training.optimizer import learning_rate
from mt.training.run_folder import RunFolder
from mt.training.setup import Session
from mt.training.state import Health, TrainState
from mt.training.step import TrainingPass
from mt.training.trainer import train

Harm = Callable[[Session], None]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {{source: {0}/train.en, target: {0}/train.de}}
  valid: {{source: {0}/valid.en, target: {0}/valid.de}}
  max_tokens: 40
tokenizer: {{vocabulary_size: 300}}
model: {{d_model: 32, d_ff: 64, heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0.1}}
training:
  max_updates: 90
  target_tokens_per_update: 150
  max_tokens_per_batch: 200
  learning_rate: 1.0e-2
  warmup_updates: 10
  label_smoothing: 0.0
  validate_every: 1000
  checkpoint_every: 10
  log_every: 10
  best_metric: loss
  keep_best: 2
  keep_last: 2
  average: "off"
  device: cpu
decoding: {{max_length_extra: 10}}
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a few updates be enough to judge by; what the numbers should be, test_health says."""
    judging_soon(monkeypatch)


def judging_soon(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(health, "WINDOW", 15)
    patch.setattr(health, "MOST_SKIPPED_IN_A_ROW", 8)


class Death(BaseException):
    """What `kill -9` or a power cut is to a run: it ends at once, and saves nothing."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe for going on with the alphabet: who does not know how, is 2.5 nats worse."""
    folder = tmp_path_factory.mktemp("alphabet")
    for split, pairs in (("train", 52), ("valid", 8)):
        lines = [[LETTERS[(5 * first + step) % 26] for step in range(9)] for first in range(pairs)]
        (folder / f"{split}.en").write_text("".join(f"{line[0]}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{' '.join(line)}\n" for line in lines))
    path = folder / "alphabet.yaml"
    path.write_text(RECIPE.format(folder))
    return path


def train_with(recipe: Path, run: Path, *settings: str) -> str:
    return train(load_config(recipe, overrides=[f"training.{each}" for each in settings]), run)


def events(run: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def state_of(run: Path, update: int) -> dict[str, Any]:
    path = RunFolder(run).checkpoints.path(update) / "state.json"
    state: dict[str, Any] = json.loads(path.read_text())["state"]
    return state


def before_updates(patch: pytest.MonkeyPatch, harm: Harm) -> None:
    """Have something happen to the session before each update."""
    take_update = spine.take_update

    def harmed(session: Session, *rest: Any) -> None:
        harm(session)
        take_update(session, *rest)

    patch.setattr(spine, "take_update", harmed)


def with_spike(patch: pytest.MonkeyPatch) -> None:
    """Have the learning rate 50 times what it should be after update 49, until a rollback."""
    factor = [1.0]

    def look(session: Session) -> None:
        spiked = session.state.update >= 49 and session.state.rollbacks == 0
        factor[0] = 50.0 if spiked else 1.0

    before_updates(patch, look)
    patch.setattr(spine, "learning_rate", lambda *arguments: factor[0] * learning_rate(*arguments))


def with_bad_weight(patch: pytest.MonkeyPatch) -> None:
    """Have a weight be no number from update 21 on, until a rollback."""

    def spoil(session: Session) -> None:
        if session.state.update == 20 and session.state.rollbacks == 0:
            weight = session.learner.model.encoder[0].feed_forward.inner.weight  # type: ignore[union-attr]
            weight.data[0, 0] = math.nan  # type: ignore[operator]

    before_updates(patch, spoil)


def with_losses_not_finite(patch: pytest.MonkeyPatch, *, updates: range) -> None:
    """Have the losses of some updates be no numbers, until a rollback."""
    forward, bad = TrainingPass.forward, [False]

    def look(session: Session) -> None:
        bad[0] = session.state.update in updates and session.state.rollbacks == 0

    def found(training_pass: TrainingPass, batch: Batch) -> LossSums:
        sums = forward(training_pass, batch)
        spoilt = bad[0] and training_pass.training  # a validation is not in training
        return replace(sums, smoothed=sums.smoothed * math.nan) if spoilt else sums

    before_updates(patch, look)
    patch.setattr(TrainingPass, "forward", found)


def test_updates_that_are_not_finite_are_skipped_and_counted(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_losses_not_finite(monkeypatch, updates=range(2, 4))
    run = tmp_path / "run"
    told = train_with(recipe, run, "max_updates=10")
    state = state_of(run, 10)
    assert (state["update"], state["skipped_updates"], state["rollbacks"]) == (10, 2, 0)
    assert events(run, "train")[0]["skipped_updates"] == 2
    assert "rollback" not in told
    weights = load_file(run / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


HARMS = {
    "rate": (with_spike, "the loss has exploded: its mean over 15 updates is ", 50),
    "weight": (
        with_bad_weight,
        "9 updates in a row had a loss or gradient that is not finite",
        20,
    ),
}


@pytest.mark.parametrize(("harm", "reason", "well"), HARMS.values(), ids=HARMS)
def test_what_has_diverged_stops_with_a_clear_line_and_keeps_what_was_well(
    harm: Callable[[pytest.MonkeyPatch], None],
    reason: str,
    well: int,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    # So often that the last checkpoints alone would all be from after the trouble began.
    settings = ["checkpoint_every=5"]
    harm(monkeypatch)
    with pytest.raises(DivergedError) as told:
        train_with(recipe, run, *settings)
    text, kept = str(told.value), well - 5
    assert text.startswith(f"{run}: {reason}")
    assert text.endswith(
        f"; it was well until update {well}, and its checkpoint after update {kept} is kept: go on "
        "from there at half the rate with --set training.on_divergence=rollback, or train a new "
        "run (--run) with a lower `training.learning_rate` or more `warmup_updates`"
    )
    (event,) = events(run, "diverged")
    assert event["reason"] in text
    assert kept in RunFolder(run).checkpoints.updates()
    # What the line promises.
    told_then = train_with(recipe, run, *settings, "on_divergence=rollback")
    assert_rolled_back(run, told_then, to=kept)


def assert_rolled_back(run: Path, told: str, *, to: int) -> None:
    """The run says that it was rolled back once, went on at half the rate, and is good."""
    assert told.endswith(", after 1 rollback")
    assert json.loads((run / "model.json").read_text())["score"] in told
    (event,) = events(run, "rollback")
    assert (event["to"], event["factor"]) == (to, 0.5)
    (final,) = events(run, "final")
    assert final["rollbacks"] == 1
    assert final["loss"] < 2.0  # 4.7 at the beginning, and 3.3 by the letters alone
    state = state_of(run, 90)
    assert (state["rate_factor"], state["rollbacks"]) == (0.5, 1)
    # The schedule at update 90, half of it.
    assert events(run, "train")[-1]["learning_rate"] == pytest.approx(1e-2 * (10 / 90) ** 0.5 / 2)


@pytest.mark.parametrize(("harm", "reason", "well"), HARMS.values(), ids=HARMS)
def test_a_run_that_is_rolled_back_ends_well(
    harm: Callable[[pytest.MonkeyPatch], None],
    reason: str,
    well: int,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    harm(monkeypatch)
    told = train_with(recipe, run, "on_divergence=rollback")
    assert_rolled_back(run, told, to=well - 10)
    err = capsys.readouterr().err
    assert reason in err
    assert (
        f": back to the checkpoint after update {well - 10}, and on at 0.5 of the learning" in err
    )
    # The same sentences are taken again, and nothing of the trouble is counted with them.
    lines = events(run, "train")
    before, again = [line["target_tokens"] for line in lines if line["update"] == well]
    assert again == before
    assert RunFolder(run).checkpoints.updates() == [80, 90]  # those of the trouble are gone


def dying(patch: pytest.MonkeyPatch, update: int, rollbacks: int) -> None:
    """Have the run die before the update after `update`, once it has had so many rollbacks."""

    def die(session: Session) -> None:
        if (session.state.update, session.state.rollbacks) == (update, rollbacks):
            raise Death

    before_updates(patch, die)


def dying_before_pruning(patch: pytest.MonkeyPatch) -> None:
    """Have the run die when the new state is saved; the checkpoints of the trouble are there."""
    prune = Checkpoints.prune

    def die(checkpoints: Checkpoints, state: TrainState) -> None:
        if state.rollbacks:
            raise Death
        prune(checkpoints, state)

    patch.setattr(Checkpoints, "prune", die)


def dying_while_pruning(patch: pytest.MonkeyPatch) -> None:
    """Have the run die when one checkpoint of the trouble is gone, and a newer one is not."""
    from mt.training import checkpoint

    discard = checkpoint._discard

    def die(path: Path) -> None:
        discard(path)
        if path.name == "update-000000050":
            raise Death

    patch.setattr(checkpoint, "_discard", die)


DEATHS = {
    "before pruning": dying_before_pruning,
    "while pruning": dying_while_pruning,
    "later": lambda patch: dying(patch, 75, 1),
}


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was rolled back, and that nobody killed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        torch.set_num_threads(1)
        judging_soon(patch)
        with_spike(patch)
        train_with(recipe, run, "on_divergence=rollback", "ema_decay=0.9")
    return run


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS)
def test_killed_around_a_rollback_it_is_the_same_run(
    death: Callable[[pytest.MonkeyPatch], None],
    whole: Path,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    settings = ["on_divergence=rollback", "ema_decay=0.9"]
    with_spike(monkeypatch)
    with monkeypatch.context() as patch:
        death(patch)
        with pytest.raises(Death):
            train_with(recipe, run, *settings)
    told = train_with(recipe, run, *settings)
    assert told.endswith(", after 1 rollback")
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    ours, theirs = state_of(run, 90), state_of(whole, 90)
    assert {**ours, "elapsed_seconds": 0.0} == {**theirs, "elapsed_seconds": 0.0}


def test_rollbacks_come_to_an_end(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with the model for ever is no matter of the rate."""
    run = tmp_path / "run"

    def spoil(session: Session) -> None:
        if session.state.update == 20:
            weight = session.learner.model.encoder[0].feed_forward.inner.weight  # type: ignore[union-attr]
            weight.data[0, 0] = math.nan  # type: ignore[operator]

    before_updates(monkeypatch, spoil)
    with pytest.raises(DivergedError) as told:
        train_with(recipe, run, "on_divergence=rollback")
    assert f"and {MOST_ROLLBACKS} rollbacks have not mended it; train a new run" in str(told.value)
    factors = [event["factor"] for event in events(run, "rollback")]
    assert factors == [0.5**count for count in range(1, MOST_ROLLBACKS + 1)]
    assert {event["to"] for event in events(run, "rollback")} == {10}


def test_without_a_checkpoint_from_before_the_trouble_it_stops(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with_bad_weight(monkeypatch)
    with pytest.raises(DivergedError, match="and no checkpoint from before that is kept; train a"):
        train_with(recipe, run, "on_divergence=rollback", "checkpoint_every=20")


def test_checkpoints_are_known_well_by_a_later_update() -> None:
    state = TrainState(update=30, last=[20, 30], refuge=10, health=Health(well_at=30))
    assert known_well(state) == [20, 10]
    assert known_well(replace(state, health=Health(well_at=31))) == [30, 20, 10]
    assert known_well(replace(state, health=Health(well_at=10))) == []


def test_what_is_kept_besides_the_last_checkpoints() -> None:
    """Nothing while the run is well; in trouble, the newest one from before it."""
    state = TrainState()
    kept = []
    for update in range(10, 80, 10):
        state.update = update
        state.health.well_at = min(update, 30) if update < 70 else update
        keep_last(state, 2)
        kept.append(([*state.last], state.refuge))
    assert kept == [
        ([10], None),
        ([10, 20], None),
        ([20, 30], None),
        ([30, 40], 20),
        ([40, 50], 20),
        ([50, 60], 20),
        ([60, 70], None),
    ]


def test_a_validation_that_cannot_translate_is_trouble_and_better_scores_of_it_are_forgotten(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with_bad_weight(monkeypatch)
    told = train_with(recipe, run, "on_divergence=rollback", "validate_every=14", "max_updates=40")
    assert told.endswith(", after 1 rollback")
    (event,) = events(run, "rollback")
    assert (event["from"], event["to"]) == (28, 14)
    assert "the model's output is not finite" in event["reason"]
    assert [each["update"] for each in state_of(run, 40)["best"]] == [40, 28]


def test_the_last_validation_is_judged_like_any_other(recipe: Path, tmp_path: Path) -> None:
    exploding = ["learning_rate=1.0e30", "warmup_updates=0", "gradient_clip=0", "max_updates=6"]
    rarely = ["validate_every=100", "checkpoint_every=1"]
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match="not finite.*; it was well until update "):
        train_with(recipe, run, *exploding, *rarely)
    (event,) = events(run, "diverged")
    assert event["update"] == 6
