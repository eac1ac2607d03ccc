"""Learning-rate schedules at known points, and Adam's constants."""

from typing import get_args

import pytest
import torch
from torch import nn

from mt.config import TrainingConfig
from mt.training.optimizer import SCHEDULES, build_optimizer, learning_rate


def config(schedule: str, **changes: object) -> TrainingConfig:
    values = {
        "max_updates": 1,
        "learning_rate": 0.002,
        "warmup_updates": 400,
        "decay_updates": 2000,
        **changes,
    }
    return TrainingConfig.model_validate({"schedule": schedule, **values})


@pytest.mark.parametrize(
    ("schedule", "update", "expected"),
    [
        ("inverse_sqrt", 1, 0.002 / 400),
        ("inverse_sqrt", 100, 0.0005),
        ("inverse_sqrt", 400, 0.002),
        ("inverse_sqrt", 1600, 0.001),
        ("constant", 200, 0.001),
        ("constant", 4000, 0.002),
        # 0.002 * 256 ** -0.5 * min(u ** -0.5, u * 400 ** -1.5)
        ("noam", 400, 0.002 / 16 / 20),
        ("noam", 100, 0.002 / 16 / 80),
        ("noam", 1600, 0.002 / 16 / 40),
        ("cosine", 100, 0.0005),
        ("cosine", 400, 0.002),
        # A quarter of the way, half of it, three quarters; the cosine of 45 degrees is 0.707107.
        ("cosine", 800, 0.001 * 1.707107),
        ("cosine", 1200, 0.001),
        ("cosine", 1600, 0.001 * 0.292893),
        ("cosine", 2000, 0.0),
        ("cosine", 3000, 0.0),
        ("linear", 100, 0.0005),
        ("linear", 400, 0.002),
        ("linear", 800, 0.0015),
        ("linear", 1600, 0.0005),
        ("linear", 2000, 0.0),
        ("linear", 3000, 0.0),
    ],
)
def test_schedules(schedule: str, update: int, expected: float) -> None:
    assert learning_rate(update, config(schedule), 256) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_schedules_that_end_come_down_to_the_final_rate_and_stay(schedule: str) -> None:
    ending = config(schedule, final_learning_rate=0.0005)
    rates = [learning_rate(update, ending, 256) for update in range(1, 2500)]
    assert rates[199] == pytest.approx(0.001)  # the rise is to the peak, whatever the end
    assert rates[399] == max(rates) == 0.002
    assert rates[1199] == pytest.approx((0.002 + 0.0005) / 2)
    assert rates[399:2000] == sorted(rates[399:2000], reverse=True)
    assert set(rates[1999:]) == {0.0005}


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_when_training_stops_does_not_move_a_schedule_that_ends(schedule: str) -> None:
    """`training.max_updates` may change under a run, and must not change what it has learned."""
    shorter, longer = config(schedule, max_updates=700), config(schedule, max_updates=2000)
    for update in range(1, 701, 50):
        assert learning_rate(update, shorter, 256) == learning_rate(update, longer, 256)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_warmup_begins_at_the_peak(schedule: str) -> None:
    without = config(schedule, warmup_updates=0)
    rates = [learning_rate(update, without, 256) for update in range(1, 50)]
    assert rates[0] == max(rates)


def test_the_config_offers_exactly_the_schedules_there_are() -> None:
    annotation = TrainingConfig.model_fields["schedule"].annotation
    assert set(get_args(annotation)) == set(SCHEDULES)


def test_adam_has_the_papers_constants() -> None:
    optimizer = build_optimizer(nn.Linear(2, 2), torch.device("cpu"))
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.9, 0.98), 1e-9)
