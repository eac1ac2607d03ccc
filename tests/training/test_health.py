"""When a training counts as diverged: a pure function of its losses, which a resume continues."""

import json
import math
import random

import pytest

from mt.training.state import MARGIN, MOST_SKIPPED_IN_A_ROW, WINDOW, Health, TrainState
from mt.training.step import StepMetrics, TokenCounts

TOKENS = 400


def of(loss: float) -> StepMetrics:
    """An update with this loss a token; one that was skipped for a loss that is no number."""
    return StepMetrics(
        loss * TOKENS, loss * TOKENS, loss, TokenCounts(source=TOKENS, target=TOKENS)
    )


def alarm(losses: list[float], health: Health | None = None) -> int | None:
    """Return the update at which these losses raise an alarm."""
    health = health or Health()
    for update, loss in enumerate(losses, start=1):
        health.take_in(of(loss), update)
        if health.trouble():
            return update
    return None


def learning(updates: int, *, noise: float = 0.4) -> list[float]:
    """A loss that falls from 9 to 2 as losses do, each update with noise of its own."""
    draw = random.Random(1)
    return [2.0 + 7.0 * math.exp(-update / 300) + draw.gauss(0, noise) for update in range(updates)]


def test_no_run_that_learns_raises_an_alarm() -> None:
    assert alarm(learning(5000)) is None
    # Fine-tuning whose first updates undo some of what the model knew.
    assert alarm([2.0, 2.5, 3.5, *(3.5 - update / 100 for update in range(200))]) is None
    # A few updates that go wrong, after which it recovers by itself.
    assert alarm([*learning(500), *[9.0] * 8, *learning(900)[500:]]) is None
    # A model that learns nothing at all.
    assert alarm([9.0] * 1000) is None


@pytest.mark.parametrize("height", [2.0, 4.0, 30.0])
def test_a_loss_that_explodes_raises_one_soon(height: float) -> None:
    before = learning(2000)
    exploded = alarm(before + [before[-1] + height] * 200)
    assert exploded is not None
    needed = WINDOW * MARGIN / height
    assert 2000 < exploded <= 2000 + min(WINDOW, 1.5 * needed + 2)


def test_a_loss_that_climbs_slowly_raises_one() -> None:
    climbing = [3.0] * 100 + [3.0 + step / 200 for step in range(800)]
    found = alarm(climbing)
    # The mean lags by half a window.
    assert found == pytest.approx(100 + 200 * MARGIN + WINDOW / 2, abs=2)


def test_the_mean_is_exact() -> None:
    """Just at the margin there is none; a hair above, there is."""
    level = [1.0] * WINDOW
    assert alarm(level + [1.0 + MARGIN] * WINDOW) is None
    assert alarm(level + [1.001 + MARGIN] * WINDOW) == 2 * WINDOW


def test_too_many_skipped_in_a_row_are_an_alarm_and_a_single_good_one_resets() -> None:
    almost = [math.nan] * MOST_SKIPPED_IN_A_ROW
    assert alarm([*almost, 5.0, *almost, 5.0]) is None
    assert alarm([5.0, *almost, math.nan]) == MOST_SKIPPED_IN_A_ROW + 2


def test_where_it_was_last_well() -> None:
    health = Health()
    assert alarm([3.0] * 100 + [8.0] * 60, health) is not None
    assert health.well_at == 100
    health = Health()
    assert alarm([3.0] * 70 + [math.nan] * 40, health) is not None
    assert health.well_at == 70


@pytest.mark.parametrize("cut", [1, WINDOW - 1, WINDOW, 103, 110])
def test_a_state_that_was_written_and_read_goes_on_to_the_same_alarm(cut: int) -> None:
    losses = [*learning(100, noise=0.1), *[math.nan] * 3, *[11.0 / 3] * 3, *[9.7] * 50]
    whole, state = Health(), TrainState()
    expected = alarm(losses, whole)
    assert expected is not None
    for update, loss in enumerate(losses[:expected], start=1):
        state.health.take_in(of(loss), update)
        if update == cut:
            state = TrainState.from_json(json.loads(json.dumps(state.as_json())), "state.json")
    assert state.health == whole
    assert state.health.trouble() == whole.trouble() is not None


def test_an_explosion_before_there_is_a_mean_is_seen_once_there_is_one() -> None:
    assert alarm([8.0] * 9 + [40.0] * 100) == WINDOW
    health = Health()
    alarm([8.0] * 9 + [40.0] * 20, health)
    assert health.well_at == 9
