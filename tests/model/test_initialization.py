"""The weights that a model begins with."""

import math

import pytest
import torch
from torch import nn

from mt.config import ModelConfig
from mt.config.model import Side
from mt.model.sublayers import deepnorm_constants
from mt.model.transformer import Transformer

CONFIG = ModelConfig(
    d_model=64,
    d_ff=96,
    heads=4,
    kv_heads=2,
    d_head=24,
    encoder_layers=3,
    decoder_layers=2,
    feed_forward="swiglu",
)
ATTENTION = ("query", "key", "value", "output")


def build(residual: str) -> Transformer:
    config = CONFIG.model_copy(update={"residual": residual})
    return Transformer(config, source_vocabulary=9, target_vocabulary=9)


@pytest.mark.parametrize("residual", ["post", "pre", "sandwich", "deepnorm"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_matrices_are_drawn_by_glorots_rule_times_the_gains_of_the_layout(
    residual: str, side: Side
) -> None:
    """A bound of sqrt(6 / (inputs + outputs)); with one for queries, keys and values together."""
    gains = dict.fromkeys(("query", "key", "value"), math.sqrt(0.5))
    if residual == "deepnorm":
        beta = deepnorm_constants(CONFIG, side)[1]
        gains = {"query": 1.0, "key": 1.0, **dict.fromkeys(("value", "output"), beta)}
        gains |= dict.fromkeys(("gate", "inner", "outer"), beta)
    seen = set()
    for name, module in build(residual).named_modules():
        kind = name.split(".")[-1]
        if not name.startswith(f"{side}.") or not isinstance(module, nn.Linear):
            continue
        bound = gains.get(kind, 1.0) * math.sqrt(6 / sum(module.weight.shape))
        assert module.weight.abs().max().item() == pytest.approx(bound, rel=0.02), name
        assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
        assert torch.equal(module.bias, torch.zeros_like(module.bias)), name
        seen.add(kind)
    assert seen == {*ATTENTION, "gate", "inner", "outer"}


def test_one_joint_matrix_of_queries_keys_and_values_would_be_drawn_alike() -> None:
    """sqrt(6 / (D + 3D)) is the bound of the square matrices times the square root of a half."""
    joint = nn.Linear(64, 3 * 64)
    nn.init.xavier_uniform_(joint.weight)
    config = CONFIG.model_copy(update={"kv_heads": None, "d_head": None})
    model = Transformer(config, source_vocabulary=9, target_vocabulary=9)
    query = model.get_parameter("encoder.0.self_attention.attention.query.weight")
    assert query.std().item() == pytest.approx(joint.weight.std().item(), rel=0.05)
