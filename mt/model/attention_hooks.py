"""The attention weights of one pass, which the model itself does not keep."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mt.model.attention import Attention, AttentionWeights
from mt.model.transformer import DecoderLayer, EncoderLayer, Transformer


@dataclass(frozen=True)
class AttentionMaps:
    """Softmax weights of L layers and H heads in B sentences; the last axis sums to 1."""

    encoder: Tensor
    """Source to source [L B H S S]."""
    decoder: Tensor
    """Target to target [L B H T T]."""
    cross: Tensor
    """Target to source [L B H T S]."""


def record_attention(model: Transformer, source: Tensor, target_in: Tensor) -> AttentionMaps:
    """Return all attention weights of one teacher-forced pass.

    `source` is [B S] with EOS, `target_in` [B T] with BOS. The model, on their device, should be
    in evaluation mode: else the weights are those that dropout leaves.
    """
    with torch.inference_mode(), recording(model) as weights:
        model(source, target_in)
    encoder = [layer for layer in model.encoder if isinstance(layer, EncoderLayer)]
    decoder = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
    return AttentionMaps(
        encoder=_stacked([layer.self_attention.attention for layer in encoder], weights),
        decoder=_stacked([layer.self_attention.attention for layer in decoder], weights),
        cross=_stacked([layer.cross_attention for layer in decoder], weights),
    )


@contextmanager
def recording(model: Transformer) -> Iterator[dict[nn.Module, Tensor]]:
    """Give what each `AttentionWeights` of the model returned last, filled by hooks meanwhile."""
    weights: dict[nn.Module, Tensor] = {}
    hooks = []
    for module in model.modules():
        if isinstance(module, Attention):
            hooks.append(module.register_forward_hook(_spell_out))
        elif isinstance(module, AttentionWeights):
            hooks.append(module.register_forward_hook(partial(_keep, weights)))
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()


def _spell_out(attention: nn.Module, inputs: tuple[Any, ...], _: Tensor) -> None:
    """Compute the weights that stay inside `scaled_dot_product_attention`, for `_keep` to see."""
    assert isinstance(attention, Attention)
    q, k, _, mask = inputs
    attention.weights(q, attention.for_queries(k), mask)


def _keep(
    weights: dict[nn.Module, Tensor], module: nn.Module, _: tuple[Any, ...], output: Tensor
) -> None:
    weights[module] = output


def _stacked(attentions: list[Attention], weights: dict[nn.Module, Tensor]) -> Tensor:
    return torch.stack([weights[attention.weights] for attention in attentions])
