"""What a part of the model is called here and in Hugging Face's Marian, and how both lie in memory.

Marian's sinusoids are all sines and then all cosines, ours alternate (mt/model/positional.py). The
features of the states, D in all, are therefore in another order: the models are equal once every
axis that is one of the states has been put into that order.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mt.config import ModelConfig

SOURCE, TARGET, OUTPUT = "source_embedding.weight", "target_embedding.weight", "output.weight"
SHARED, ENCODER_EMBEDDING, DECODER_EMBEDDING, LM_HEAD, LOGITS_BIAS = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
    "final_logits_bias",
)
_NAMES = {
    "self_attention.attention.query": "self_attn.q_proj",
    "self_attention.attention.key": "self_attn.k_proj",
    "self_attention.attention.value": "self_attn.v_proj",
    "self_attention.attention.output": "self_attn.out_proj",
    "self_residual.norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
_READERS = ("query", "key", "value", "inner")


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of a layer under both names."""

    ours: str
    theirs: str
    part: str
    """The last word of the part's name: `query`, `norm` and so on."""
    states_axis: int | None
    """The axis that is one of the states; None: it has none."""


def layer_tensors(model: ModelConfig) -> Iterator[Named]:
    """Yield every tensor of the layers of both stacks, biases included."""
    stacks = (("encoder", model.encoder_layers), ("decoder", model.decoder_layers))
    layers = [f"{side}.{number}" for side, count in stacks for number in range(count)]
    for layer, (ours, theirs) in itertools.product(layers, _NAMES.items()):
        if layer.startswith("decoder") or not ours.startswith("cross"):
            yield _named(f"{layer}.{ours}", theirs, kind="weight")
            yield _named(f"{layer}.{ours}", theirs, kind="bias")


def sines_first(tensor: Tensor, axis: int | None) -> Tensor:
    """Return a tensor of ours with the features of an axis in Marian's order."""
    return tensor if axis is None else tensor.index_select(axis, _order(tensor.shape[axis]))


def sines_between(tensor: Tensor, axis: int | None) -> Tensor:
    """Return a tensor of Marian's with the features of an axis in our order."""
    if axis is None:
        return tensor
    return tensor.index_select(axis, _order(tensor.shape[axis]).argsort())


def _order(width: int) -> Tensor:
    return torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))


def _named(ours: str, theirs: str, *, kind: Literal["weight", "bias"]) -> Named:
    side, number, name = ours.split(".", maxsplit=2)
    part = name.rsplit(".", maxsplit=1)[1]
    reader_axis = 1 if kind == "weight" else None
    return Named(
        f"{ours}.{kind}",
        f"model.{side}.layers.{number}.{theirs}.{kind}",
        part,
        states_axis=reader_axis if part in _READERS else 0,
    )
