"""Parity with torch's own Transformer: states, and gradients of all parameters."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.model.sublayers import FEED_FORWARD, NORM_EPSILON, GatedFeedForward
from mt.model.transformer import Memory, Transformer
from mt.special_ids import BOS, EOS, PAD
from tests.factories import unsettle

CONFIG = ModelConfig(
    d_model=32,
    d_ff=48,
    heads=4,
    encoder_layers=2,
    decoder_layers=3,
    positional="none",
    tie_embeddings="none",
    dropout=0.0,
)
VOCABULARY = 40
RENAMED = {
    "encoder": {
        "self_attention.attention.": "self_attn.",
        "self_residual.norm.": "norm1.",
        "feed_forward.inner.": "linear1.",
        "feed_forward.outer.": "linear2.",
        "feed_forward_residual.norm.": "norm2.",
    },
    "decoder": {
        "self_attention.attention.": "self_attn.",
        "self_residual.norm.": "norm1.",
        "cross_attention.": "multihead_attn.",
        "cross_residual.norm.": "norm2.",
        "feed_forward.inner.": "linear1.",
        "feed_forward.outer.": "linear2.",
        "feed_forward_residual.norm.": "norm3.",
    },
}
"""Names of the parts of a layer here and in torch."""

variants = pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            CONFIG.changed(residual=residual, feed_forward=feed_forward, bias=bias),
            id=f"{residual}-{feed_forward}-{'bias' if bias else 'no_bias'}",
        )
        for residual, feed_forward, bias in (("post", "relu", True), ("pre", "gelu", False))
    ],
)


@variants
def test_the_encoder_equals_torchs(config: ModelConfig) -> None:
    model = build(config)
    source = torch.tensor([[5, 6, 7, 8, EOS], [9, 5, EOS, PAD, PAD], [11, EOS, PAD, PAD, PAD]])
    real = source != PAD
    theirs = torch_encoder(config)
    theirs.load_state_dict(as_torch(dict(model.named_parameters()), "encoder"))
    table, embedded = embed(source, model.source_embedding.weight)
    states = model.encode(source).states[real]
    expected = theirs(embedded, src_key_padding_mask=~real)[real]
    assert_close(states, expected)
    backward(states, expected)
    assert_close(gradient(model.source_embedding.weight), gradient(table))
    assert_same_gradients(model, theirs, "encoder")


@variants
def test_the_decoder_equals_torchs(config: ModelConfig) -> None:
    model = build(config)
    target_in = torch.tensor([[BOS, 12, 13, 14], [BOS, 15, 12, PAD], [BOS, 17, PAD, PAD]])
    real = target_in != PAD
    source_mask = torch.arange(5) < torch.tensor([[5], [3], [1]])
    ours_memory = torch.randn(3, 5, CONFIG.d_model, requires_grad=True)
    memory = ours_memory.detach().clone().requires_grad_()
    theirs = torch_decoder(config)
    theirs.load_state_dict(as_torch(dict(model.named_parameters()), "decoder"))
    table, embedded = embed(target_in, model.target_embedding.weight)
    states = model.decode(target_in, Memory(ours_memory, source_mask))[real]
    expected = theirs(
        embedded,
        memory,
        tgt_mask=torch.ones(4, 4, dtype=torch.bool).triu(1),
        memory_key_padding_mask=~source_mask,
    )[real]
    assert_close(states, expected)
    backward(states, expected)
    assert_close(gradient(model.target_embedding.weight), gradient(table))
    assert_close(gradient(ours_memory), gradient(memory))
    assert_same_gradients(model, theirs, "decoder")


def test_glu_equals_torchs() -> None:
    layer = FEED_FORWARD["glu"](CONFIG, 1.0)
    assert isinstance(layer, GatedFeedForward)
    x = torch.randn(3, 7, CONFIG.d_model)
    halves = torch.cat((layer.inner(x), layer.gate(x)), dim=-1)  # torch gates with the second half
    assert_close(layer(x), layer.outer(F.glu(halves)))


def build(config: ModelConfig) -> Transformer:
    model = Transformer(config, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    return unsettle(model).eval()


def layer_arguments(config: ModelConfig) -> dict[str, Any]:
    return {
        "d_model": config.d_model,
        "nhead": config.heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "activation": config.feed_forward,
        "layer_norm_eps": NORM_EPSILON,
        "batch_first": True,
        "norm_first": config.residual == "pre",
        "bias": config.bias,
    }


def torch_encoder(config: ModelConfig) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(**layer_arguments(config))
    return nn.TransformerEncoder(
        layer, config.encoder_layers, torch_final_norm(config), enable_nested_tensor=False
    ).eval()


def torch_decoder(config: ModelConfig) -> nn.TransformerDecoder:
    layer = nn.TransformerDecoderLayer(**layer_arguments(config))
    return nn.TransformerDecoder(layer, config.decoder_layers, torch_final_norm(config)).eval()


def torch_final_norm(config: ModelConfig) -> nn.LayerNorm | None:
    if config.residual == "post":
        return None
    return nn.LayerNorm(config.d_model, eps=NORM_EPSILON, bias=config.bias)


def as_torch(tensors: dict[str, Tensor], side: str) -> dict[str, Tensor]:
    """Return one side's tensors by torch's names; queries, keys and values are one matrix there."""
    found = {}
    for name, tensor in tensors.items():
        if not name.startswith((f"{side}.", f"{side}_norm.")) or ".key." in name:
            continue
        if ".value." in name:
            continue
        renamed = name.replace(f"{side}_norm.", "norm.").replace(f"{side}.", "layers.")
        for ours, theirs in RENAMED[side].items():
            renamed = renamed.replace(f".{ours}", f".{theirs}")
        if ".query." in name:
            renamed = renamed.replace("query.", "in_proj_")
            parts = [tensors[name.replace("query", part)] for part in ("query", "key", "value")]
            tensor = torch.cat(parts)
        found[renamed.replace(".output.", ".out_proj.")] = tensor
    return found


def embed(ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a copy of the embedding matrix, and the scaled embeddings of the ids."""
    table = weight.detach().clone().requires_grad_()
    return table, F.embedding(ids, table, padding_idx=PAD) * math.sqrt(CONFIG.d_model)


def backward(ours: Tensor, theirs: Tensor) -> None:
    """Send the same random gradient, of unit scale over all positions, through both."""
    probe = torch.randn_like(theirs) / math.sqrt(len(theirs))
    torch.autograd.backward((ours, theirs), (probe, probe))


def gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def assert_same_gradients(ours: Transformer, theirs: nn.Module, side: str) -> None:
    gradients = {
        name: parameter.grad
        for name, parameter in ours.named_parameters()
        if parameter.grad is not None
    }
    found = as_torch(gradients, side)
    expected = {name: gradient(parameter) for name, parameter in theirs.named_parameters()}
    assert found.keys() == expected.keys()
    for name in expected:
        assert_close(found[name], expected[name])


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
