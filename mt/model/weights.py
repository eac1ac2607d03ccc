"""Weights: initialisation, plain tensors, layout, and low-rank adaptation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.errors import RunError

_DOWN, _UP = ".down", ".up"
_MERGED_SHARE = 1 / 6
"""Share of the width from which on a rank costs more operations than the whole matrix W.

With the gradients, n vectors take 4 n d^2 + 12 n d r operations, or 6 n d^2 with the sum of both.
"""


@dataclass(frozen=True)
class Gains:
    """Factors on Glorot's bound for the matrices of a layer.

    By default queries, keys and values are drawn as if one matrix [D 3D] held them. With a gain of
    1 for each, the first updates of a Post-Norm stack are less stable.
    """

    query_key: float = 2**-0.5
    value: float = 2**-0.5
    output: float = 1.0
    feed_forward: float = 1.0


def glorot(linear: nn.Linear, gain: float) -> None:
    """Draw the matrix by Glorot's uniform rule times `gain`; set the bias to zero."""
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def parameter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, on the CPU; a shared matrix appears once."""
    return {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}


def load_parameters(model: nn.Module, tensors: dict[str, Tensor], name: str) -> None:
    """Copy tensors into the parameters of the same names.

    Raises RunError, which calls the tensors' origin `name`, unless names and shapes are exactly
    those of the model.
    """
    parameters = dict(model.named_parameters())
    for key in sorted(parameters.keys() | tensors.keys()):
        expected, actual = _shape(parameters.get(key)), _shape(tensors.get(key))
        if expected != actual:
            raise RunError(
                f"{name}: does not fit the config: `{key}` is {actual}, the config needs {expected}"
            )
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(tensors[key])


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else "x".join(map(str, tensor.shape))


def lay_out_for_few_rows(model: nn.Module) -> None:
    """Transpose the matrices of a model in memory, so that products of few rows read in order.

    On a CPU, products of 8 rows take 0.7 of the time, of 64 rows 0.8, of 320 rows as long as
    before. A matrix that is also an embedding table keeps its layout.
    """
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding))
    tables = {id(embedding.weight) for embedding in embeddings}
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) not in tables:
            module.weight.data = module.weight.data.T.contiguous().T


class LowRankLinear(nn.Linear):
    """x W^T + b + scale x (up down)^T with W and b of another layer.

    Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    `down` [rank in] is drawn and `up` [out rank] begins at zero, so that nothing changes at first.
    They are A and B of the paper.
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
        """Map x [... in] to [... out]."""
        is_fp32 = self.weight.dtype == torch.float32  # a sum in bf16 would round up @ down away
        if is_fp32 and len(self.down) >= _MERGED_SHARE * min(self.weight.shape):
            weight = self.weight + self.scale * self.up @ self.down
            return F.linear(x, weight, self.bias)
        return super().forward(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


def add_low_rank(model: nn.Module, stacks: Iterable[str], *, rank: int, scale: float) -> None:
    """Freeze a model, and add low-rank matrices to all linear layers of the named stacks."""
    model.requires_grad_(requires_grad=False)
    for stack in stacks:
        for module in [*model.get_submodule(stack).modules()]:
            for name, child in [*module.named_children()]:
                if type(child) is nn.Linear:
                    setattr(module, name, LowRankLinear(child, rank, scale))


def average_tensors(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean of a tensor over several models, in fp32.

    Low-rank matrices are joined instead, so that their product is the mean of the products.
    """
    if name.endswith(_DOWN):
        return torch.cat([*tensors]).float()
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    if name.endswith(_UP):
        total = torch.cat([*tensors], dim=1).double()
    else:
        for tensor in tensors:
            total += tensor
    return (total / len(tensors)).float()


def load_average(model: nn.Module, tensors: dict[str, Tensor], name: str) -> None:
    """Copy tensors of `average_tensors` into a model, as `load_parameters` does."""
    for path, module in model.named_modules():
        if isinstance(module, LowRankLinear):
            module.down, module.up = (
                nn.Parameter(matrix.new_empty(tensors.get(f"{path}{kind}", matrix).shape))
                for kind, matrix in ((_DOWN, module.down), (_UP, module.up))
            )
    load_parameters(model, tensors, name)


def merge_low_rank(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return weights in which W + scale up down takes the place of W, up and down."""
    merged = {name: tensor for name, tensor in weights.items() if not name.endswith((_DOWN, _UP))}
    for name, up in weights.items():
        if name.endswith(_UP):
            layer = name.removesuffix(_UP)
            product = scale * up @ weights[layer + _DOWN]
            merged[f"{layer}.weight"] = merged[f"{layer}.weight"] + product
    return merged
