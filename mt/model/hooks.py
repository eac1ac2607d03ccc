"""Attention weights of one pass, read by hooks because the model does not keep them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mt.model.attention import Attention, AttentionWeights
from mt.model.transformer import Transformer


@dataclass(frozen=True)
class AttentionMaps:
    """Softmax weights of L layers and H heads for B sentences; the last axis sums to 1."""

    encoder: Tensor
    """Source to source [L B H S S]."""
    decoder: Tensor
    """Target to target [L B H T T]."""
    cross: Tensor
    """Target to source [L B H T S]."""


def record_attention(model: Transformer, source: Tensor, target_in: Tensor) -> AttentionMaps:
    """Return all attention weights of one teacher-forced pass.

    `source` is [B S] with EOS, `target_in` [B T] with BOS, both on the model's device. In training
    mode, dropout is applied to the weights.
    """
    with torch.inference_mode(), record_weights(model) as weights:
        model(source, target_in)

    def stacked(attentions: list[Attention]) -> Tensor:
        return torch.stack([weights[attention.weights] for attention in attentions])

    return AttentionMaps(
        encoder=stacked([layer.self_attention.attention for layer in model.encoder_layers]),
        decoder=stacked([layer.self_attention.attention for layer in model.decoder_layers]),
        cross=stacked([layer.cross_attention for layer in model.decoder_layers]),
    )


@contextmanager
def record_weights(model: Transformer) -> Iterator[dict[nn.Module, Tensor]]:
    """Yield a dict that hooks fill with the last output of each `AttentionWeights` of the model."""
    weights: dict[nn.Module, Tensor] = {}

    def compute_weights(attention: nn.Module, inputs: tuple[Any, ...], _: Tensor) -> None:
        # The weights inside `scaled_dot_product_attention` are not accessible.
        assert isinstance(attention, Attention)
        q, k, _, mask = inputs
        attention.weights(q, attention.for_queries(k), mask)

    def keep(module: nn.Module, _: tuple[Any, ...], output: Tensor) -> None:
        weights[module] = output

    hooks = []
    for module in model.modules():
        if isinstance(module, Attention):
            hooks.append(module.register_forward_hook(compute_weights))
        elif isinstance(module, AttentionWeights):
            hooks.append(module.register_forward_hook(keep))
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()
