"""Adam and its learning-rate schedules."""

import math
from collections.abc import Callable

import torch
from torch import nn

from mt.config import TrainingConfig

BETAS = (0.9, 0.98)
EPSILON = 1e-9


def build_optimizer(model: nn.Module, device: torch.device) -> torch.optim.Adam:
    """Return Adam with the paper's constants (Vaswani et al. 2017, section 5.3).

    It knows the parameters that learn and no others, so what is frozen has no state.
    """
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # The rate is set before every step; the value here only has to be a number.
    fused = device.type in {"cpu", "cuda"}
    return torch.optim.Adam(learning, lr=0.0, betas=BETAS, eps=EPSILON, fused=fused)


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


def _cosine(update: int, config: TrainingConfig, d_model: int) -> float:
    """Rise linearly, then come down along half a cosine (Loshchilov and Hutter 2017, equation 5).

    There is one descent: no restart follows it.
    """
    del d_model
    return _come_down(update, config, (1.0 + math.cos(math.pi * _way_down(update, config))) / 2.0)


def _linear(update: int, config: TrainingConfig, d_model: int) -> float:
    """Rise linearly, then come down in a straight line."""
    del d_model
    return _come_down(update, config, 1.0 - _way_down(update, config))


def _way_down(update: int, config: TrainingConfig) -> float:
    """Return the share done of the way from the warm-up's end to `decay_updates`, 0 to 1."""
    assert config.decay_updates is not None, "the config demands it with the schedules that end"
    done = update - config.warmup_updates
    return min(max(done / (config.decay_updates - config.warmup_updates), 0.0), 1.0)


def _come_down(update: int, config: TrainingConfig, height: float) -> float:
    """Return the rate at a height between the final rate, 0, and the peak, 1."""
    rise = min(update / max(config.warmup_updates, 1), 1.0)
    peak, final = config.learning_rate, config.final_learning_rate
    return rise * (final + (peak - final) * height)


SCHEDULES: dict[str, Callable[[int, TrainingConfig, int], float]] = {
    "inverse_sqrt": _inverse_sqrt,
    "noam": _noam,
    "constant": _constant,
    "cosine": _cosine,
    "linear": _linear,
}
