"""The recorded weights are those that the model used, in every variant."""

import typing

import pytest
import torch
from torch import Tensor

from mt.config import ModelConfig
from mt.model.attention import Attention
from mt.model.attention_hooks import AttentionMaps, record_attention
from mt.model.transformer import EncoderLayer, Transformer
from mt.special_ids import BOS, EOS, PAD

POSITIONAL = typing.get_args(ModelConfig.model_fields["positional"].annotation)
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 5, EOS, PAD, PAD]])
TARGET_IN = torch.tensor([[BOS, 7, 8, 9], [BOS, 6, PAD, PAD]])


def tiny(positional: str, **keys: object) -> Transformer:
    config = ModelConfig.model_validate(
        {
            "d_model": 8,
            "d_ff": 8,
            "heads": 2,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "positional": positional,
            "relative_clip": 2,
            "dropout": 0.0,
            **keys,
        }
    )
    return Transformer(config, source_vocabulary=12, target_vocabulary=12).eval()


def each(maps: AttentionMaps) -> tuple[Tensor, Tensor, Tensor]:
    return maps.encoder, maps.decoder, maps.cross


@pytest.mark.parametrize("positional", POSITIONAL)
def test_a_row_of_weights_sums_to_1_and_what_is_masked_is_0(positional: str) -> None:
    maps = record_attention(tiny(positional), SOURCE, TARGET_IN)
    assert [map.shape for map in each(maps)] == [
        (2, 2, 2, 5, 5),
        (3, 2, 2, 4, 4),
        (3, 2, 2, 4, 5),
    ]
    for map in each(maps):
        torch.testing.assert_close(map.sum(-1), torch.ones(map.shape[:-1]))
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)
    assert torch.all(maps.decoder[..., later] == 0)
    assert torch.all(maps.decoder[..., ~later] > 0)
    for looks_at_source in (maps.encoder, maps.cross):
        assert torch.all(looks_at_source[:, 1, ..., 3:] == 0)
        assert torch.all(looks_at_source[:, 0] > 0)
        assert torch.all(looks_at_source[:, 1, ..., :3] > 0)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("positional", sorted({*POSITIONAL} - {"relative"}))
def test_the_weights_times_the_values_are_what_the_model_went_on_with(
    positional: str, kv_heads: int
) -> None:
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


@pytest.mark.parametrize("positional", ["none", "relative"])
def test_the_weights_of_a_layer_are_the_softmax_computed_by_hand(positional: str) -> None:
    model = tiny(positional, heads=1)
    layer = model.encoder[0]
    assert isinstance(layer, EncoderLayer)
    attention = layer.self_attention.attention
    with torch.inference_mode():
        x = model.source_embedding(SOURCE[0]) * 8**0.5
        q, k = attention.query(x), attention.key(x)
        scores = torch.empty(5, 5)
        for t in range(5):
            for s in range(5):
                key = k[s]
                if positional == "relative":
                    rows = dict(model.named_parameters())["encoder_positional.layers.0.keys"]
                    key = key + rows[min(max(s - t, -2), 2) + 2]
                scores[t, s] = q[t] @ key / 8**0.5
        expected = scores.exp() / scores.exp().sum(-1, keepdim=True)
    maps = record_attention(model, SOURCE[:1], TARGET_IN[:1])
    torch.testing.assert_close(maps.encoder[0, 0, 0], expected)


def test_nothing_of_the_recording_stays_in_the_model() -> None:
    model = tiny("sinusoidal")
    before = model(SOURCE, TARGET_IN)
    record_attention(model, SOURCE, TARGET_IN)
    assert not any(module._forward_hooks for module in model.modules())
    torch.testing.assert_close(model(SOURCE, TARGET_IN), before)
