"""Learning-rate schedules at known points, and Adam's constants."""

from typing import get_args

import pytest
import torch
from torch import nn

from mt.config import TrainingConfig
from mt.training.optimizer import SCHEDULES, build_optimizer, learning_rate


def config(schedule: str, **changes: object) -> TrainingConfig:
    values = {"max_updates": 1, "learning_rate": 0.002, "warmup_updates": 400, **changes}
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
    ],
)
def test_schedules(schedule: str, update: int, expected: float) -> None:
    assert learning_rate(update, config(schedule), 256) == pytest.approx(expected)


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
