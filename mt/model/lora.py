"""Low-rank adaptation: small trained matrices beside the frozen ones of the stacks.

Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models".
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_DOWN, _UP = ".down", ".up"
_MERGED_SHARE = 1 / 6
"""Share of the width from which on a rank costs more operations than the whole matrix W.

With the gradients, n vectors take 4 n d^2 + 12 n d r operations, or 6 n d^2 with the sum W + B A.
"""


class LowRankLinear(nn.Linear):
    """x W^T + b + scale (x A^T) B^T with W and b of another layer (section 4.1).

    A (`down` [r I]) is drawn and B (`up` [O r]) begins at zero, so that nothing changes at first.
    """

    def __init__(self, linear: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = scale
        self.down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Map x [... I] to [... O]."""
        is_fp32 = self.weight.dtype == torch.float32  # a sum in bf16 would round B A away
        if is_fp32 and len(self.down) >= _MERGED_SHARE * min(self.weight.shape):
            weight = self.weight + self.scale * self.up @ self.down
            return F.linear(x, weight, self.bias)
        return super().forward(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


def adapt(model: nn.Module, stacks: Iterable[str], *, rank: int, scale: float) -> None:
    """Freeze a model, and add low-rank matrices to all linear layers of the named stacks."""
    model.requires_grad_(requires_grad=False)
    for stack in stacks:
        for module in [*model.get_submodule(stack).modules()]:
            for name, child in [*module.named_children()]:
                if type(child) is nn.Linear:
                    setattr(module, name, LowRankLinear(child, rank, scale))


def merged(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return weights in which W + scale B A takes the place of W, B and A."""
    kept = {name: each for name, each in weights.items() if not name.endswith((_DOWN, _UP))}
    for name, up in weights.items():
        if name.endswith(_UP):
            layer = name.removesuffix(_UP)
            kept[f"{layer}.weight"] = kept[f"{layer}.weight"] + scale * up @ weights[layer + _DOWN]
    return kept
