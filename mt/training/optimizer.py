"""Adam and its learning-rate schedules."""

from collections.abc import Callable

import torch
from torch import nn

from mt.config import TrainingConfig

BETAS = (0.9, 0.98)
EPSILON = 1e-9


def build_optimizer(model: nn.Module, device: torch.device) -> torch.optim.Adam:
    """Return Adam with the paper's constants (Vaswani et al. 2017, section 5.3)."""
    # The rate is set before every step; the value here only has to be a number.
    fused = device.type in {"cpu", "cuda"}
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=BETAS, eps=EPSILON, fused=fused)


def learning_rate(update: int, config: TrainingConfig, d_model: int) -> float:
    """Return the learning rate of optimiser step `update`, counted from 1."""
    return SCHEDULES[config.schedule](update, config, d_model)


def _inverse_sqrt(update: int, config: TrainingConfig, d_model: int) -> float:
    """Rise linearly to the configured rate, then fall with the square root of the update."""
    del d_model
    warmup = max(config.warmup_updates, 1)
    return config.learning_rate * float(min(update / warmup, (warmup / update) ** 0.5))


def _noam(update: int, config: TrainingConfig, d_model: int) -> float:
    """Follow equation 3 of the paper, times the configured rate."""
    warmup = max(config.warmup_updates, 1)
    return float(config.learning_rate * d_model**-0.5 * min(update**-0.5, update * warmup**-1.5))


def _constant(update: int, config: TrainingConfig, d_model: int) -> float:
    """Rise linearly to the configured rate, then stay there."""
    del d_model
    return config.learning_rate * min(update / max(config.warmup_updates, 1), 1.0)


SCHEDULES: dict[str, Callable[[int, TrainingConfig, int], float]] = {
    "inverse_sqrt": _inverse_sqrt,
    "noam": _noam,
    "constant": _constant,
}
