"""DeepNorm's constants, sums and initial weights, held against figure 2 of Wang et al. 2022."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.config.model import Side
from mt.model.sublayers import DeepNorm
from mt.model.transformer import Transformer

SIDES: list[Side] = ["encoder", "decoder"]
CONSTANTS = {
    # N encoder layers and M decoder layers: alpha and beta of the encoder, then of the decoder.
    (1, 1): (0.81, 0.87, 1.316074, 0.537285),
    (6, 6): (1.417938, 0.496989, 2.059767, 0.343295),
    (16, 1): (1.62, 0.435, 1.316074, 0.537285),  # (16^4)^(1/16) = 2
    (1, 16): (0.963257, 0.731580, 2.632148, 0.268642),
    (16, 16): (1.926515, 0.365790, 2.632148, 0.268642),  # (2^20)^(1/16) = 2^(5/4)
}


@pytest.mark.parametrize(("depths", "constants"), CONSTANTS.items())
def test_sums_are_weighted_by_the_papers_alpha(
    depths: tuple[int, int], constants: tuple[float, ...]
) -> None:
    model = build(d_model=8, d_ff=8, depths=depths)
    alphas = {"encoder": constants[0], "decoder": constants[2]}
    x = torch.randn(5, 8)
    for side in SIDES:
        wraps = [m for m in model.get_submodule(side).modules() if isinstance(m, DeepNorm)]
        assert len(wraps) == (2 * depths[0] if side == "encoder" else 3 * depths[1])
        for wrap in wraps:
            expected = F.layer_norm(alphas[side] * x + 3 * x.sin(), (8,))
            torch.testing.assert_close(wrap(x, lambda y: 3 * y.sin()), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("depths", [(1, 1), (1, 16), (16, 1)])
def test_initial_weights_have_the_papers_deviations(depths: tuple[int, int]) -> None:
    """Glorot's deviation is sqrt(2 / (in + out)); beta shrinks all but queries and keys."""
    constants = CONSTANTS[depths]
    betas = {"encoder": constants[1], "decoder": constants[3]}
    model = build(d_model=160, d_ff=240, depths=depths)
    for side in SIDES:
        for name, linear in model.get_submodule(side).named_modules():
            if not isinstance(linear, nn.Linear):
                continue
            beta = 1.0 if name.endswith((".query", ".key")) else betas[side]
            glorot = (2 / (linear.in_features + linear.out_features)) ** 0.5
            deviation = linear.weight.std().item()
            assert deviation == pytest.approx(beta * glorot, rel=0.02), f"{side}.{name}"


def build(*, d_model: int, d_ff: int, depths: tuple[int, int]) -> Transformer:
    config = ModelConfig(
        d_model=d_model,
        d_ff=d_ff,
        heads=4,
        kv_heads=2,
        encoder_layers=depths[0],
        decoder_layers=depths[1],
        residual="deepnorm",
        feed_forward="geglu",
        dropout=0.0,
    )
    return Transformer(config, source_vocabulary=8, target_vocabulary=8)
