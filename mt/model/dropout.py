"""Dropout."""

import torch
from torch import Tensor, nn

_DRAWS = 2**16
"""Values of the 16 bits that decide about one element."""


class Dropout(nn.Dropout):
    """Zero each element with probability p, multiply the others by 1 / (1 - p).

    Srivastava et al. 2014. On a CPU an element is decided by 16 random bits, four from each draw
    of torch's generator, instead of a draw of its own: 0.4 of the time of torch's dropout, forward
    and backward. There, p is rounded to a multiple of 2^-16.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x, some of it dropped in training."""
        if not self.training or self.p == 0.0:
            return x
        return x * _factors(x, self.p) if x.device.type == "cpu" else super().forward(x)


def _factors(x: Tensor, p: float) -> Tensor:
    """Return 0 or 1 / (1 - p) for each element of x."""
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    dropped = min(round(p * _DRAWS), _DRAWS - 1)
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _DRAWS // 2
    return kept.to(x.dtype).mul_(_DRAWS / (_DRAWS - dropped))
