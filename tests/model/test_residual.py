"""Norms and residual layouts, held against their formulas."""

import math

import pytest
import torch
from torch import Tensor, nn

from mt.config import ModelConfig
from mt.config.model import Side
from mt.model.sublayers import NORMS, RESIDUALS, DeepNorm, Dropout, Sandwich, deepnorm_constants
from mt.model.transformer import Transformer
from mt.model.weights import Gains

EPSILON = 1e-2  # large enough to show
CONFIG = ModelConfig(
    d_model=8,
    d_ff=8,
    heads=2,
    encoder_layers=4,
    decoder_layers=3,
    norm_epsilon=EPSILON,
    dropout=0.0,
)
SIDES: list[Side] = ["encoder", "decoder"]


def sublayer(x: Tensor) -> Tensor:
    return 3 * x.sin() + 1


def unsettled(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=0.5)
    return module


def layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.LayerNorm)
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + EPSILON).sqrt() * norm.weight + norm.bias


def rms_norm(x: Tensor, norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.RMSNorm)
    return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * norm.weight


FORMULAS = {"layernorm": layer_norm, "rmsnorm": rms_norm}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_its_formula_with_the_epsilon_of_the_config(name: str) -> None:
    norm = unsettled(NORMS[name](CONFIG))
    x = torch.randn(5, 8) / 10
    torch.testing.assert_close(norm(x), FORMULAS[name](x, norm))


def test_layernorm_has_no_bias_where_nothing_has() -> None:
    bare = CONFIG.model_copy(update={"bias": False})
    assert [name for name, _ in NORMS["layernorm"](bare).named_parameters()] == ["weight"]
    assert [name for name, _ in NORMS["rmsnorm"](CONFIG).named_parameters()] == ["weight"]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", RESIDUALS)
def test_a_layout_is_its_formula(name: str, norm: str, side: Side, dropout: float) -> None:
    config = CONFIG.model_copy(update={"norm": norm, "dropout": dropout})
    residual = RESIDUALS[name](config, side)
    unsettled(residual)
    x = torch.randn(4, 8)
    torch.manual_seed(3)
    found = residual(x, sublayer)
    torch.manual_seed(3)  # so that the same numbers are dropped

    def normed(y: Tensor) -> Tensor:
        return FORMULAS[norm](y, residual.norm)

    def dropped(y: Tensor) -> Tensor:
        kept: Tensor = Dropout(dropout).train()(y)
        return kept

    if name == "post":
        expected = normed(x + dropped(sublayer(x)))
    elif name == "pre":
        expected = x + dropped(sublayer(normed(x)))
    elif name == "sandwich":
        assert isinstance(residual, Sandwich)
        expected = x + FORMULAS[norm](dropped(sublayer(normed(x))), residual.norm_after)
    else:
        alpha = {"encoder": 0.81 * (4**4 * 3) ** (1 / 16), "decoder": (3 * 3) ** (1 / 4)}[side]
        expected = normed(alpha * x + dropped(sublayer(x)))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", RESIDUALS)
def test_dropout_acts_in_training_only(name: str) -> None:
    residual = RESIDUALS[name](CONFIG.model_copy(update={"dropout": 0.5}), "encoder").eval()
    x = torch.randn(4, 8)
    assert torch.equal(residual(x, sublayer), residual(x, sublayer))
    residual.train()
    assert not torch.equal(residual(x, sublayer), residual(x, sublayer))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", RESIDUALS)
def test_a_stack_that_ends_in_a_bare_sum_has_a_final_norm(name: str, norm: str) -> None:
    config = CONFIG.model_copy(update={"residual": name, "norm": norm})
    model = Transformer(config, source_vocabulary=9, target_vocabulary=9)
    kind = type(NORMS[norm](config)) if name in ("pre", "sandwich") else nn.Identity
    for final in (model.encoder_norm, model.decoder_norm):
        assert type(final) is kind
    # It is applied: what leaves a stack has a mean square of 1 (up to epsilon).
    source = torch.tensor([[5, 6, 7, 3]])
    memory = model.encode(source)
    for states in (memory.states, model.decode(source, memory)):
        assert states.square().mean(-1).tolist()[0] == pytest.approx([1.0] * 4, abs=0.05)


def test_deepnorm_has_the_constants_of_the_papers_figure() -> None:
    """With 6 + 6 layers, by hand: alpha and beta of the encoder, then of the decoder."""
    config = CONFIG.model_copy(update={"encoder_layers": 6, "decoder_layers": 6})
    depth = 6 ** (5 / 16)
    assert deepnorm_constants(config, "encoder") == pytest.approx((0.81 * depth, 0.87 / depth))
    assert deepnorm_constants(config, "encoder") == pytest.approx((1.418, 0.497), abs=1e-3)
    assert deepnorm_constants(config, "decoder") == pytest.approx((2.060, 0.343), abs=1e-3)
    assert DeepNorm(config, "decoder").alpha == pytest.approx(18**0.25)


@pytest.mark.parametrize("side", SIDES)
def test_gains_of_the_initial_weights(side: Side) -> None:
    _, beta = deepnorm_constants(CONFIG, side)
    assert RESIDUALS["deepnorm"].gains(CONFIG, side) == Gains(1.0, beta, beta, beta)
    for name in ("post", "pre", "sandwich"):
        gains = RESIDUALS[name].gains(CONFIG, side)
        assert gains == Gains(math.sqrt(0.5), math.sqrt(0.5), 1.0, 1.0)


def test_each_sublayer_is_wrapped_with_the_constants_of_its_stack() -> None:
    config = CONFIG.model_copy(update={"residual": "deepnorm"})
    model = Transformer(config, source_vocabulary=9, target_vocabulary=9)
    alphas = {
        name: [part.alpha for part in stack.modules() if isinstance(part, DeepNorm)]
        for name, stack in (("encoder", model.encoder), ("decoder", model.decoder))
    }
    assert alphas == {
        "encoder": [deepnorm_constants(config, "encoder")[0]] * 2 * 4,
        "decoder": [deepnorm_constants(config, "decoder")[0]] * 3 * 3,
    }
