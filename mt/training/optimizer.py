"""Adam, learning-rate schedules, mixed precision and the moving average of the weights."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mt.config import TrainingConfig
from mt.model.device import device_traits
from mt.model.positional import Positional

BETAS = (0.9, 0.98)
EPSILON = 1e-9


def build_optimizer(
    model: nn.Module,
    device: torch.device,
    name: Literal["adam", "adafactor"] = "adam",
    *,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Return Adam with the paper's constants (Vaswani et al. 2017, section 5.3), or Adafactor.

    Adafactor (Shazeer and Stern 2018) keeps a row and a column for each matrix. Matrices, with the
    embeddings, have decoupled weight decay (Loshchilov and Hutter 2019); biases, norms and tables
    of positions have none. Frozen parameters take no optimizer state.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trainable}]
    if weight_decay:
        modules = [module for module in model.modules() if isinstance(module, Positional)]
        tables = {table for module in modules for table in module.parameters()}
        matrices = [p for p in trainable if p.dim() > 1 and p not in tables]
        others = [p for p in trainable if p.dim() <= 1 or p in tables]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others}]
    # `train_step` sets the rate of each update.
    if name == "adafactor":
        return torch.optim.Adafactor(groups, lr=0.0)
    fused = device_traits(device).has_fused_adam
    return torch.optim.AdamW(
        groups, lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=fused
    )


def learning_rate(update: int, config: TrainingConfig, d_model: int) -> float:
    """Return the learning rate of optimizer step `update`, counted from 1.

    It rises linearly in the warm-up. Then it falls with the square root of the update; as in
    equation 3 of Vaswani et al. 2017, times the configured rate (`noam`); not at all; or to 0 at
    `decay_updates`, along a line or half a cosine (Loshchilov and Hutter 2017, equation 5).
    """
    rate, warmup = config.learning_rate, max(config.warmup_updates, 1)
    risen = min(update / warmup, 1.0)
    if config.schedule == "inverse_sqrt":
        return rate * float(min(update / warmup, (warmup / update) ** 0.5))
    if config.schedule == "noam":
        return float(rate * d_model**-0.5 * min(update**-0.5, update * warmup**-1.5))
    if config.schedule == "constant":
        return rate * risen
    assert config.decay_updates is not None, "the config requires it for schedules that end"
    decay = config.decay_updates - config.warmup_updates
    done = min(max((update - config.warmup_updates) / decay, 0.0), 1.0)
    height = 1.0 - done
    if config.schedule == "cosine":
        height = (1.0 + math.cos(math.pi * done)) / 2
    return risen * (rate * height)


AUTOCAST_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16, "pure_bf16": None}
"""Type of the products in mixed precision; None where the weights have it already."""
_INITIAL_SCALE = 2.0**15
_BF16_WIDTHS = {"amx_bf16": 256, "avx512_bf16": 128}
"""Smallest `d_model` for which bf16 is faster, by the CPU: docs/lab/results.md."""
_KERNEL_CACHE = "256"
"""Number of compiled matrix products that oneDNN keeps, about 2 MiB each. Its default of 1,024 is
mostly filled with shapes that never recur; a smaller cache recompiles many in every update."""


class Precision:
    """fp32, bf16, fp16 with a loss scaler (Micikevicius et al. 2018), or bf16 for everything.

    Weights and optimizer state stay fp32 except in pure bf16.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.device = device
        if name.endswith("bf16") and device.type == "cpu":
            os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KERNEL_CACHE)
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=_INITIAL_SCALE, enabled=name == "fp16"
        )

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass."""
        dtype = AUTOCAST_DTYPES[self.name]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    @contextmanager
    def tf32(self) -> Iterator[None]:
        """Compute fp32 products on CUDA in TF32 inside the block: 10-bit mantissas, fp32 sums.

        A no-op for other precisions and devices. Validation and decoding stay outside.
        """
        if self.name != "fp32" or self.device.type != "cuda":
            yield
            return
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a scalar loss, scaled in fp16."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer, gradient_norm: Tensor) -> None:
        """Step, unless the gradient is not finite; the host does not wait to find out.

        A skipped step leaves the weights as they are and lowers the scale of fp16.
        """
        if self.scaler.is_enabled():
            self.scaler.step(optimizer)
            self.scaler.update()
        elif optimizer.defaults.get("fused"):
            # The attribute by which GradScaler makes a fused kernel skip its step on the device.
            optimizer.found_inf = (~gradient_norm.isfinite()).float()  # type: ignore[attr-defined]
            optimizer.step()
        elif gradient_norm.isfinite():
            optimizer.step()


def choose_precision(name: str, device: torch.device, d_model: int = 0) -> Precision:
    """Return the precision that a config names; `auto` is bf16 if that is faster, else fp32."""
    if name != "auto":
        return Precision(name, device)
    if device.type == "cuda":
        is_available = torch.cuda.is_available()
        is_faster = is_available and torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        capabilities = _cpu_capabilities() if device.type == "cpu" else {}
        widths = (width for name, width in _BF16_WIDTHS.items() if capabilities.get(name))
        is_faster = d_model >= next(widths, math.inf)
    return Precision("bf16" if is_faster else "fp32", device)


def why_slow(precision: Precision) -> str:
    """Return why a precision is slower than fp32 on this x86 CPU; an empty string if it is not."""
    name, capabilities = precision.name.removeprefix("pure_"), _cpu_capabilities()
    is_x86 = precision.device.type == "cpu" and capabilities.get("architecture") == "x86_64"
    is_fast = any(map(capabilities.get, (f"amx_{name}", f"avx512_{name}")))
    if not is_x86 or is_fast or name == "fp32":
        return ""
    return f"{name} is slower than fp32 on this CPU, which has no instructions for {name}"


def _cpu_capabilities() -> Any:
    return getattr(torch.cpu, "get_capabilities", dict)()  # not public in torch 2.11


class MovingAverage:
    """Exponential moving average of some weights; without weights, every method is a no-op."""

    def __init__(self, weights: Mapping[str, Tensor] | None = None, decay: float = 0.0) -> None:
        self.decay = decay
        self._weights = {**(weights or {})}
        self._averages = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def include(self, update: int, gradient_norm: Tensor) -> None:
        """Average in the weights after update t, `update`; do nothing if it was skipped.

        An average becomes d x average + (1 - d) x weight with d = min(decay, (1 + t) / (10 + t)),
        which soon forgets the first weights. The norm shows on the device if it was skipped.
        """
        share = 1.0 - min(self.decay, (1 + update) / (10 + update))
        weight = gradient_norm.isfinite() * share
        averages, weights = [*self._averages.values()], [*self._weights.values()]
        if gradient_norm.device.type == "cpu":
            for average, new in zip(averages, weights, strict=True):
                average.lerp_(new, weight)
        elif averages:  # a few kernels in place of one for each weight
            differences = torch._foreach_sub(weights, averages)
            torch._foreach_mul_(differences, weight)
            torch._foreach_add_(averages, differences)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Exchange the model's weights and the averages for the duration of the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def averages(self) -> dict[str, Tensor]:
        """Return the averages by parameter name."""
        return self._averages

    def weights(self) -> dict[str, Tensor]:
        """Return the averaged weights themselves, as training continues with them."""
        return {name: weight.detach() for name, weight in self._weights.items()}

    @torch.no_grad()
    def restore(self, weights: dict[str, Tensor]) -> None:
        """Take the model's current weights as the averages, and copy `weights` into the model."""
        for name, average in self._averages.items():
            average.copy_(self._weights[name])
            self._weights[name].copy_(weights[name])

    @torch.no_grad()
    def _swap(self) -> None:
        # By value: compiled graphs refer to the weights by address.
        for name, average in self._averages.items():
            weight = self._weights[name]
            former = weight.clone()
            weight.copy_(average)
            average.copy_(former)


def choose_average(model: nn.Module, decay: float | None) -> MovingAverage:
    """Return an average of the trainable weights; a no-op without a decay."""
    if decay is None:
        return MovingAverage()
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return MovingAverage(trainable, decay)
