"""Parity with Llama in transformers: rotary, RMSNorm, SwiGLU and grouped heads."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from mt.config import ModelConfig
from mt.config.model import Side
from mt.model.attention import CAUSAL
from mt.model.positional import POSITIONAL, ROTARY_BASE
from mt.model.sublayers import NORM_EPSILON
from mt.model.transformer import Transformer
from tests.factories import unsettle

CONFIG = ModelConfig(
    d_model=32,
    d_ff=48,
    heads=4,
    kv_heads=2,
    d_head=12,
    d_value=12,
    encoder_layers=3,
    decoder_layers=1,
    positional="rotary",
    norm="rmsnorm",
    residual="pre",
    feed_forward="swiglu",
    bias=False,
    dropout=0.0,
)
NAMES = {
    "self_attention.attention.": "self_attn.",
    "self_residual.norm.": "input_layernorm.",
    "feed_forward_residual.norm.": "post_attention_layernorm.",
    "feed_forward.": "mlp.",
    "query.": "q_proj.",
    "key.": "k_proj.",
    "value.": "v_proj.",
    "output.": "o_proj.",
    "gate.": "gate_proj.",
    "inner.": "up_proj.",
    "outer.": "down_proj.",
}
"""Names of the parts here and in Llama."""
SIDES: list[Side] = ["encoder", "decoder"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("first", [0, 1, 700])
def test_rotation_equals_llamas(side: Side, first: int) -> None:
    heads = torch.randn(2, 4, 9, CONFIG.key_width)
    found = POSITIONAL["rotary"](CONFIG, side).rotate(heads, first)
    cos, sin = LlamaRotaryEmbedding(llama_config())(heads, torch.arange(first, first + 9)[None])
    expected, _ = apply_rotary_pos_emb(halves(heads, -1), halves(heads, -1), cos, sin)
    # Llama's angles are in single precision, where one near 700 is off by up to 7e-5.
    torch.testing.assert_close(halves(found, -1), expected, atol=1e-5 + 1e-7 * first, rtol=0)


def test_a_stack_of_layers_equals_llamas() -> None:
    """A causal encoder is a Llama without its vocabulary."""
    ours = Transformer(CONFIG, source_vocabulary=40, target_vocabulary=40).eval()
    unsettle(ours)
    theirs = LlamaModel(llama_config()).eval()
    theirs.layers.load_state_dict(as_llama(ours.encoder))
    theirs.norm.load_state_dict(ours.encoder_norm.state_dict())

    def stack(x: Tensor) -> Tensor:
        for number, layer in enumerate(ours.encoder):
            x = layer(x, CAUSAL, ours.encoder_positional.layer(number))
        return ours.encoder_norm(x)  # type: ignore[no-any-return]

    assert_same(
        stack,
        lambda x: theirs(inputs_embeds=x).last_hidden_state,
        torch.randn(3, 11, CONFIG.d_model),
    )


def llama_config(config: ModelConfig = CONFIG) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=8,
        hidden_size=config.d_model,
        intermediate_size=config.d_ff,
        num_hidden_layers=config.encoder_layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.key_heads,
        head_dim=config.key_width,
        rms_norm_eps=NORM_EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        attn_implementation="eager",
    )


def halves(x: Tensor, axis: int) -> Tensor:
    """Reorder features: Llama has all first features of the pairs before all second ones."""
    features = torch.arange(x.shape[axis])
    return x.index_select(axis, torch.cat((features[::2], features[1::2])))


def as_llama(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by Llama's names and in its order of features."""
    found = {}
    for name, data in module.state_dict().items():
        if "query." in name or "key." in name:
            data = halves(data.view(-1, CONFIG.key_width, CONFIG.d_model), 1).flatten(0, 1)
        found[llama_name(name)] = data
    return found


def llama_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def assert_same(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], x: Tensor
) -> None:
    """Compare the outputs for x, and the gradients of x for the same output gradient."""
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    found, expected = ours(inputs[0]), theirs(inputs[1])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    probe = torch.randn_like(expected)
    torch.autograd.backward((found, expected), (probe, probe))
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, atol=1e-5, rtol=1e-5)
