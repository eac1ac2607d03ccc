"""Parameters of each part of a model, and its floating-point operations (FLOPs).

Only matrix products are counted, a multiply-add as two operations: norms, softmax, activations and
positional encodings that are added or rotated cost little in comparison. Masks save nothing: causal
attention counts in full.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mt.config import ModelConfig
from mt.errors import UserError
from mt.model.transformer import Transformer

_SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


@dataclass(frozen=True)
class PartCost:
    """Parameters of a part of the model, and its operations in the forward pass of one pair."""

    name: str
    parameters: int
    flops: int


def count_parts(
    config: ModelConfig, *, lengths: tuple[int, int], vocabularies: tuple[int, int]
) -> list[PartCost]:
    """Count the cost of each part of a config's Transformer, without memory for its weights.

    `lengths` are the tokens of source and target of the pair, end marks included; `vocabularies`
    the sizes of both. A matrix that the output layer shares counts as an embedding. Raises
    UserError where the model has too few positions for the pair.
    """
    with torch.device("meta"):
        model = Transformer(
            config, source_vocabulary=vocabularies[0], target_vocabulary=vocabularies[1]
        )
    model.eval().to("meta")  # with the position tables, which are computed on the CPU
    if model.longest is not None and max(lengths) > model.longest:
        raise UserError(
            f"a sentence of {max(lengths)} tokens does not fit into the {model.longest} positions "
            f"of `model.positional: {config.positional}` (`model.max_positions`)"
        )
    parameters: Counter[str] = Counter()
    for path, parameter in model.named_parameters():
        stack, *inside = path.split(".")
        part = "output layer" if stack == "output" else "norms and positions"
        if sublayer := next(filter(inside.__contains__, _SUBLAYERS), None):
            part = f"{stack} {sublayer.replace('_', '-')}"
        elif stack.endswith("_embedding"):
            part = "embeddings"
        parameters[part] += parameter.numel()
    # The unfused attention kernel: the fused ones have counting rules of their own.
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), torch.device("meta"), sdpa_kernel(SDPBackend.MATH), counter:
        source, target = (torch.ones(1, length, dtype=torch.long) for length in lengths)
        model.output(model.states(source, target, torch.arange(lengths[1])))
    flops: Counter[str] = Counter()
    for path, by_operator in counter.get_flop_counts().items():
        count = sum(by_operator.values())
        module, _, name = path.partition(".")
        stack = module.removesuffix("Layer").lower()
        if name in _SUBLAYERS:
            flops[f"{stack} {name.replace('_', '-')}"] += count
            flops[f"{stack} cross-attention"] -= count
        # A layer of the decoder projects the memory's keys outside the sublayers.
        elif path in {"EncoderLayer", "DecoderLayer"}:
            flops[f"{stack} cross-attention"] += count
        elif path == "Linear":
            flops["output layer"] += count
    names = dict.fromkeys([*parameters, *(name for name, count in flops.items() if count)])
    return [PartCost(name, parameters[name], flops[name]) for name in names]
