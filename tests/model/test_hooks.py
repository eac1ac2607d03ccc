"""Recorded attention weights are those that the model used, in every variant."""

import typing
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.config import ModelConfig
from mt.model.attention import Attention
from mt.model.hooks import AttentionMaps, record_attention
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD
from tests.factories import transformer

POSITIONAL = typing.get_args(ModelConfig.model_fields["positional"].annotation)
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 5, EOS, PAD, PAD]])
TARGET_IN = torch.tensor([[BOS, 7, 8, 9], [BOS, 6, PAD, PAD]])


def tiny(positional: str, **keys: Any) -> Transformer:
    keys |= {"positional": positional, "relative_clip": 2, "encoder_layers": 2, "decoder_layers": 3}
    return transformer(**keys).eval()


def each(maps: AttentionMaps) -> tuple[Tensor, Tensor, Tensor]:
    return maps.encoder, maps.decoder, maps.cross


@pytest.mark.parametrize("positional", POSITIONAL)
def test_weights_sum_to_1_and_are_0_where_masked(positional: str) -> None:
    maps = record_attention(tiny(positional), SOURCE, TARGET_IN)
    assert [map.shape for map in each(maps)] == [(2, 2, 2, 5, 5), (3, 2, 2, 4, 4), (3, 2, 2, 4, 5)]
    for map in each(maps):
        torch.testing.assert_close(map.sum(-1), torch.ones(map.shape[:-1]))
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)
    assert torch.all(maps.decoder[..., later] == 0)
    assert torch.all(maps.decoder[..., ~later] > 0)
    for to_source in (maps.encoder, maps.cross):
        assert torch.all(to_source[:, 1, ..., 3:] == 0)
        assert torch.all(to_source[:, 0] > 0)
        assert torch.all(to_source[:, 1, ..., :3] > 0)


@pytest.mark.parametrize(
    ("positional", "kv_heads"),
    [*((kind, 2) for kind in POSITIONAL if kind != "relative"), ("sinusoidal", 1)],
)
def test_weights_times_values_are_the_outputs_of_the_model(positional: str, kv_heads: int) -> None:
    model = tiny(positional, kv_heads=kv_heads, attention_temperature=0.5)
    seen: dict[Attention, tuple[Tensor, Tensor]] = {}

    def see(attention: Attention, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[attention] = attention.for_queries(inputs[2]), output

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for attention in attentions:
        attention.register_forward_hook(see)
    maps = record_attention(model, SOURCE, TARGET_IN)
    assert len(seen) == 2 + 2 * 3
    in_order = [
        *maps.encoder,
        *(map for pair in zip(maps.decoder, maps.cross, strict=True) for map in pair),
    ]
    for attention, weights in zip(attentions, in_order, strict=True):
        values, output = seen[attention]
        with torch.inference_mode():
            torch.testing.assert_close(attention.join(weights @ values), output)


def test_weights_of_relative_positions_are_the_softmax_by_hand() -> None:
    model = tiny("relative", heads=1)
    layer = model.encoder_layers[0]
    attention = layer.self_attention.attention
    rows = model.get_parameter("encoder_positional.layers.0.keys")
    with torch.inference_mode():
        x = model.source_embedding(SOURCE[0]) * model.scale
        q, k = attention.query(x), attention.key(x)
        keys = [[k[s] + rows[min(max(s - t, -2), 2) + 2] for s in range(5)] for t in range(5)]
        scores = torch.stack([torch.stack(keys[t]) @ q[t] / 16**0.5 for t in range(5)])
        expected = scores.exp() / scores.exp().sum(-1, keepdim=True)
    maps = record_attention(model, SOURCE[:1], TARGET_IN[:1])
    torch.testing.assert_close(maps.encoder[0, 0, 0], expected)


def test_recording_removes_its_hooks() -> None:
    model = tiny("sinusoidal")
    before = model(SOURCE, TARGET_IN)
    record_attention(model, SOURCE, TARGET_IN)
    assert not any(module._forward_hooks for module in model.modules())
    torch.testing.assert_close(model(SOURCE, TARGET_IN), before)
