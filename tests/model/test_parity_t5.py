"""Parity with T5 in transformers: buckets of offsets, and a whole model with GeGLU."""

import math
import re

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, T5Model
from transformers.models.t5.modeling_t5 import T5Attention

from mt.config import ModelConfig
from mt.config.model import Side
from mt.model.positional import BUCKETS, MAX_DISTANCE, POSITIONAL
from mt.model.sublayers import NORM_EPSILON
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD

CONFIG = ModelConfig(
    d_model=32,
    d_ff=48,
    heads=4,
    d_head=12,
    d_value=12,
    attention_temperature=1 / math.sqrt(12),  # T5 does not divide scores by sqrt(d_head)
    encoder_layers=2,
    decoder_layers=3,
    positional="relative_bias",
    norm="rmsnorm",
    residual="pre",
    feed_forward="geglu",
    bias=False,
    dropout=0.0,
)
VOCABULARY = 40
LENGTH = 14
_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
NAMES = {
    "encoder_positional.table": f"encoder.{_BIAS}",
    "decoder_positional.table": f"decoder.{_BIAS}",
    "encoder_norm.": "encoder.final_layer_norm.",
    "decoder_norm.": "decoder.final_layer_norm.",
    "target_embedding.": "shared.",
    "self_attention.attention.": "layer.0.SelfAttention.",
    "self_residual.norm.": "layer.0.layer_norm.",
    "cross_attention.": "layer.1.EncDecAttention.",
    "cross_residual.norm.": "layer.1.layer_norm.",
    "feed_forward.": "layer.last.DenseReluDense.",
    "feed_forward_residual.norm.": "layer.last.layer_norm.",
    "query.": "q.",
    "key.": "k.",
    "value.": "v.",
    "output.": "o.",
    "gate.": "wi_0.",
    "inner.": "wi_1.",
    "outer.": "wo.",
}
"""Names of the parts here and in T5."""
SIDES: list[Side] = ["encoder", "decoder"]


@pytest.mark.parametrize("side", SIDES)
def test_buckets_equal_t5s(side: Side) -> None:
    config = CONFIG.changed(heads=1)
    positional = POSITIONAL["relative_bias"](config, side)
    # The bias of bucket n is n, so that a bias is the number of its bucket.
    positional.load_state_dict({"table": torch.arange(float(BUCKETS))[:, None]})
    bias = positional.bias(301, 301)
    assert bias is not None
    positions = torch.arange(301)
    offsets = positions[None, :] - positions[:, None]
    expected = T5Attention._relative_position_bucket(
        offsets, bidirectional=side == "encoder", num_buckets=BUCKETS, max_distance=MAX_DISTANCE
    )
    visible = offsets <= (300 if side == "encoder" else 0)
    assert torch.equal(bias[0, 0][visible], expected[visible].float())
    assert (bias[0, 0][~visible] == -math.inf).all()


def test_a_whole_model_equals_t5() -> None:
    ours = Transformer(CONFIG, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY).eval()
    for name, parameter in ours.named_parameters():
        if parameter.dim() == 1 or name.endswith("positional.table"):
            nn.init.normal_(parameter, mean=0.5, std=0.3)  # off the initial values
    theirs = T5Model(t5_config("encoder")).eval()
    weights = as_t5(ours)
    report = theirs.load_state_dict(weights, strict=False)
    assert not report.unexpected_keys
    tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    assert set(report.missing_keys) <= tied
    source = torch.randint(EOS + 1, VOCABULARY, (3, LENGTH))
    source[torch.arange(LENGTH) >= torch.tensor([[14], [9], [2]])] = PAD
    target_in = torch.randint(EOS + 1, VOCABULARY, (3, 12))
    target_in[:, 0] = BOS
    memory = ours.encode(source)
    expected = theirs(
        input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target_in
    )
    real = source != PAD
    assert_close(memory.states[real], expected.encoder_last_hidden_state[real])
    states = ours.decode(target_in, memory)
    assert_close(states, expected.last_hidden_state)
    probe = torch.randn_like(states) / math.sqrt(states[..., 0].numel())
    torch.autograd.backward((states, expected.last_hidden_state), (probe, probe))
    for name, parameter in ours.named_parameters():
        if not name.startswith("target_embedding"):  # its scale is T5's embedding itself
            assert_close(parameter.grad, theirs.get_parameter(t5_name(name)).grad)


def t5_config(side: Side) -> T5Config:
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=CONFIG.d_model,
        d_kv=CONFIG.key_width,
        d_ff=CONFIG.d_ff,
        num_layers=CONFIG.encoder_layers,
        num_decoder_layers=CONFIG.decoder_layers,
        num_heads=CONFIG.heads,
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=MAX_DISTANCE,
        layer_norm_epsilon=NORM_EPSILON,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        is_decoder=side == "decoder",
        pad_token_id=PAD,
        attn_implementation="eager",
    )
    config.dense_act_fn = "gelu"  # with the error function; T5 itself approximates it by tanh
    return config


def as_t5(model: Transformer) -> dict[str, Tensor]:
    """Return the parameters by T5's names, with scaled embeddings: T5 does not scale them."""
    found = {t5_name(name): tensor.detach() for name, tensor in model.named_parameters()}
    found["shared.weight"] = found["shared.weight"] * model.scale
    return found


def t5_name(name: str) -> str:
    """Return T5's name of a parameter; a block's sublayers are numbered there."""
    name = re.sub(r"^(encoder|decoder)\.(\d)", r"\1.block.\2", name)
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name.replace("layer.last", "layer.2" if name.startswith("decoder") else "layer.1")


def assert_close(found: Tensor | None, expected: Tensor | None) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
