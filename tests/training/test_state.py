"""Detection of divergence: a pure function of the losses, which a resumed run continues."""

import json
import math
import random
from pathlib import Path

import pytest

from mt.errors import RunError
from mt.training.divergence import MARGIN, MOST_SKIPPED_IN_A_ROW, WINDOW, Health
from mt.training.state import TrainState
from mt.training.step import StepMetrics, TokenCounts


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


def test_divergence_is_detected_at_the_expected_update() -> None:
    assert diverged_at([1.0] * WINDOW + [1.001 + MARGIN] * WINDOW) == 2 * WINDOW
    assert diverged_at([5.0, *SKIPS, math.nan]) == MOST_SKIPPED_IN_A_ROW + 2
    climbing = [3.0] * 100 + [3.0 + step / 200 for step in range(800)]
    # The mean lags by half a window.
    assert diverged_at(climbing) == pytest.approx(100 + 200 * MARGIN + WINDOW / 2, abs=2)
    # An explosion before the first mean.
    assert diverged_at([8.0] * 9 + [40.0] * 100) == WINDOW


@pytest.mark.parametrize(
    ("losses", "well_at"),
    [
        ([3.0] * 100 + [8.0] * 60, 100),
        ([3.0] * 70 + [math.nan] * 40, 70),
        ([8.0] * 9 + [40.0] * 20, 9),
    ],
)
def test_well_at_is_the_last_update_before_the_divergence(
    losses: list[float], well_at: int
) -> None:
    health = Health()
    diverged_at(losses, health)
    assert health.well_at == well_at


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
    with pytest.raises(RunError, match=r"state\.json: written by another version of mt"):
        TrainState.from_json({**data, "format": 1}, Path("state.json"))
    with pytest.raises(RunError, match=r"state\.json: damaged \(lacks `health`\)"):
        TrainState.from_json({k: v for k, v in data.items() if k != "health"}, Path("state.json"))
