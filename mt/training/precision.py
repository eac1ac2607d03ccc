"""Mixed precision behind one object, so that the loop has no branch."""

import math
import os
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor, nn

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
