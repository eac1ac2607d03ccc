"""Adam and its learning-rate schedules."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

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
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_INITIAL_SCALE = 2.0**15
_WIDE = {"amx_bf16": 256, "avx512_bf16": 128}
"""From this `d_model` on, a CPU that multiplies bf16 by tiles (AMX) or, without them, in vectors
(AVX-512) trains faster so: docs/results.md."""
_KERNELS = "256"
"""Matrix products whose code oneDNN keeps, some 2 MiB each. By itself it would keep 1,024, most of
them for shapes that never come again; with fewer, many are made anew in every update."""


class Precision:
    """fp32, bf16, or fp16 with a loss scaler; weights and optimiser state stay fp32.

    Micikevicius et al. 2018, "Mixed Precision Training".
    """

    def __init__(self, name: Literal["fp32", "bf16", "fp16"], device: torch.device) -> None:
        self.name = name
        self.device = device
        if name == "bf16" and device.type == "cpu":
            os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KERNELS)
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=_INITIAL_SCALE, enabled=name == "fp16"
        )

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass."""
        return torch.autocast(
            self.device.type, dtype=_DTYPES[self.name], enabled=self.name != "fp32"
        )

    def backward(self, loss: Tensor) -> None:
        """Add the (scaled) gradients of a scalar loss."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> Tensor:
        """Unscale, clip to the norm `clip` (0: not at all), step; return the norm before clipping.

        A norm that is not finite skips the step: the weights stay, and an fp16 scale falls. The
        host does not wait to know it.
        """
        self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        if self.scaler.is_enabled():
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            _step_if_finite(optimizer, norm)
        optimizer.zero_grad(set_to_none=True)
        return norm


def _step_if_finite(optimizer: torch.optim.Optimizer, norm: Tensor) -> None:
    """Step unless the norm is not finite; fused kernels look at it on the device themselves."""
    if not optimizer.defaults["fused"]:
        if norm.isfinite():
            optimizer.step()
        return
    # The attribute by which GradScaler tells a fused optimiser to change nothing.
    optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
    optimizer.step()


def choose_precision(name: str, device: torch.device, d_model: int = 0) -> Precision:
    """Build the precision that a config names; `auto` is bf16 where that is faster, else fp32."""
    if name == "auto":
        name = "bf16" if _faster_in_bf16(device, d_model) else "fp32"
    if name == "bf16":
        return Precision("bf16", device)
    return Precision("fp16" if name == "fp16" else "fp32", device)


def _faster_in_bf16(device: torch.device, d_model: int) -> bool:
    """Tell whether a device computes in bf16 faster than in fp32 for a model of this width."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    # torch 2.11 has no public question.
    ask = getattr(torch.cpu, "get_capabilities", None)
    has = ask() if ask else {}
    return d_model >= next((wide for unit, wide in _WIDE.items() if has.get(unit)), math.inf)


class MovingAverage:
    """An average of some weights; of none, it does nothing."""

    def __init__(self, weights: Mapping[str, Tensor] | None = None, decay: float = 0.0) -> None:
        self.decay = decay
        self._weights = {**(weights or {})}
        self._averages = {name: each.detach().clone() for name, each in self._weights.items()}

    @torch.no_grad()
    def update(self, number: int, gradient_norm: Tensor) -> None:
        """Take in the weights after update t, `number`; after one that was skipped, do nothing.

        An average becomes d x average + (1 - d) x weight with d = min(decay, (1 + t) / (10 + t)),
        which soon forgets the first weights (as TensorFlow's `tf.train.ExponentialMovingAverage`
        has it). The host does not wait for the norm, by which a skipped update is known.
        """
        share = 1.0 - min(self.decay, (1 + number) / (10 + number))
        weight = gradient_norm.isfinite() * share
        for name, average in self._averages.items():
            average.lerp_(self._weights[name], weight)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Let the model have the averages, and them its weights, while the block lasts."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def averages(self) -> dict[str, Tensor]:
        """Return the averages by the names of their parameters."""
        return self._averages

    def weights(self) -> dict[str, Tensor]:
        """Return the weights, as training goes on with them, of which there is an average."""
        return {name: weight.detach() for name, weight in self._weights.items()}

    @torch.no_grad()
    def restore(self, weights: dict[str, Tensor]) -> None:
        """Take the model's weights, as they are now, as the averages; give it these instead."""
        for name, average in self._averages.items():
            average.copy_(self._weights[name])
            self._weights[name].copy_(weights[name])

    @torch.no_grad()
    def _swap(self) -> None:
        # By value: what was compiled or captured for a GPU knows the weights by their addresses.
        for name, average in self._averages.items():
            weight = self._weights[name]
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def choose_average(model: nn.Module, decay: float | None) -> MovingAverage:
    """Return an average of the weights that learn; without a decay, of none."""
    if decay is None:
        return MovingAverage()
    learning = {name: each for name, each in model.named_parameters() if each.requires_grad}
    return MovingAverage(learning, decay)
