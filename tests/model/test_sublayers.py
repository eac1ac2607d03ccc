"""Dropout, norms, feed-forward layers and residual wrappers against their formulas."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mt.config.model import Side
from mt.model.sublayers import (
    FEED_FORWARD,
    NORM_EPSILON,
    NORMS,
    RESIDUALS,
    DeepNorm,
    Dropout,
    FeedForward,
    GatedFeedForward,
    Sandwich,
    deepnorm_constants,
)
from tests.factories import model_config, transformer

DEPTHS = {"encoder_layers": 4, "decoder_layers": 3}
CONFIG = model_config(d_model=8, d_ff=13, **DEPTHS)
SIDES: list[Side] = ["encoder", "decoder"]
FEATURES = torch.linspace(-4, 4, 5 * 8).view(5, 8)


def unsettled(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=0.5)
    return module


# Dropout


def dropped(p: float, shape: tuple[int, ...] = (500, 401)) -> Tensor:
    """Return ones after dropout; the number of elements is no multiple of four."""
    torch.manual_seed(1)
    result: Tensor = Dropout(p).train()(torch.ones(shape))
    return result


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_each_element_is_dropped_independently_with_probability_p(p: float) -> None:
    zeros = dropped(p) == 0.0
    count = zeros.numel()
    assert abs(int(zeros.sum()) - p * count) < 5 * (p * (1 - p) * count) ** 0.5
    for both in (
        zeros[1:] & zeros[:-1],
        zeros[:, 1:] & zeros[:, :-1],
        zeros[:, 4:] & zeros[:, :-4],
    ):
        assert abs(int(both.sum()) - p**2 * both.numel()) < 6 * (p**2 * both.numel()) ** 0.5 + 3
    share = 1 - min(round(p * 2**16), 2**16 - 1) / 2**16
    assert {*dropped(p).flatten().tolist()} - {0.0} <= {float(torch.tensor(1 / share))}
    assert share == pytest.approx(1 - p, abs=2**-16)


def test_gradient_is_dropped_where_the_value_is() -> None:
    x = torch.randn(40, 50, requires_grad=True)
    y = Dropout(0.3).train()(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_dropout_follows_the_seed_and_draws_anew_at_each_call() -> None:
    assert torch.equal(dropped(0.2), dropped(0.2))
    layer = Dropout(0.2).train()
    assert not torch.equal(layer(torch.ones(100)), layer(torch.ones(100)))


@pytest.mark.parametrize("layer", [Dropout(0.0).train(), Dropout(0.4).eval()], ids=str)
def test_dropout_that_is_off_changes_nothing(layer: Dropout) -> None:
    x = torch.randn(3, 5)
    assert torch.equal(layer(x), x)


# Norms


def layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.LayerNorm)
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + NORM_EPSILON).sqrt() * norm.weight + norm.bias


def rms_norm(x: Tensor, norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.RMSNorm)
    return x / (x.square().mean(-1, keepdim=True) + NORM_EPSILON).sqrt() * norm.weight


NORM_FORMULAS = {"layernorm": layer_norm, "rmsnorm": rms_norm}


@pytest.mark.parametrize("name", NORMS)
def test_norm_is_its_formula_with_the_epsilon_of_the_config(name: str) -> None:
    norm = unsettled(NORMS[name](CONFIG))
    x = torch.randn(5, 8) / 10
    torch.testing.assert_close(norm(x), NORM_FORMULAS[name](x, norm))


# Feed-forward layers


def relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def swish(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": relu, "gelu": gelu, "swish": swish}
ACTIVATIONS |= {"glu": lambda x: 1 / (1 + torch.exp(-x)), "swiglu": swish, "geglu": gelu}


def linear(x: Tensor, part: nn.Linear) -> Tensor:
    return x @ part.weight.T + part.bias


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_feed_forward_is_its_formula(name: str) -> None:
    layer, activation = unsettled(FEED_FORWARD[name](CONFIG, 1.0)).eval(), ACTIVATIONS[name]
    if isinstance(layer, GatedFeedForward):
        inner = activation(linear(FEATURES, layer.gate)) * linear(FEATURES, layer.inner)
    else:
        assert isinstance(layer, FeedForward)
        inner = activation(linear(FEATURES, layer.inner))
    assert inner.shape == (5, 13)
    torch.testing.assert_close(layer(FEATURES), linear(inner, layer.outer), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["relu", "swiglu"])
def test_feed_forward_drops_the_inner_activation_in_training_only(name: str) -> None:
    layer = FEED_FORWARD[name](CONFIG.changed(feed_forward_dropout=0.5), 1.0).eval()
    assert isinstance(layer, FeedForward | GatedFeedForward)
    inner: list[Tensor] = []
    layer.outer.register_forward_pre_hook(lambda _, inputs: inner.append(inputs[0]))
    x = torch.randn(50, 8)
    assert torch.equal(layer(x), layer(x))
    calm = inner[-1]
    layer.train()(x)
    kept = inner[-1] != 0
    assert 0.4 < kept[calm != 0].float().mean() < 0.6
    torch.testing.assert_close(inner[-1], 2 * calm * kept)


# Residual wrappers


def sublayer(x: Tensor) -> Tensor:
    return 3 * x.sin() + 1


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", RESIDUALS)
def test_residual_is_its_formula(name: str, norm: str, side: Side, dropout: float) -> None:
    config = CONFIG.changed(norm=norm, dropout=dropout)
    residual = RESIDUALS[name](config, side)
    unsettled(residual)
    x = torch.randn(4, 8)
    torch.manual_seed(3)
    found = residual(x, sublayer)
    torch.manual_seed(3)  # so that the same elements are dropped

    def normed(y: Tensor) -> Tensor:
        return NORM_FORMULAS[norm](y, residual.norm)

    def after_dropout(y: Tensor) -> Tensor:
        kept: Tensor = Dropout(dropout).train()(y)
        return kept

    if name == "post":
        expected = normed(x + after_dropout(sublayer(x)))
    elif name == "pre":
        expected = x + after_dropout(sublayer(normed(x)))
    elif name == "sandwich":
        assert isinstance(residual, Sandwich)
        inside = after_dropout(sublayer(normed(x)))
        expected = x + NORM_FORMULAS[norm](inside, residual.norm_after)
    else:
        alpha = {"encoder": 0.81 * (4**4 * 3) ** (1 / 16), "decoder": (3 * 3) ** (1 / 4)}[side]
        expected = normed(alpha * x + after_dropout(sublayer(x)))
    torch.testing.assert_close(found, expected)
    residual.eval()
    assert torch.equal(residual(x, sublayer), residual(x, sublayer))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", RESIDUALS)
def test_states_of_both_stacks_are_normalised(name: str, norm: str) -> None:
    model = transformer(residual=name, norm=norm, d_model=8, **DEPTHS)
    kind = type(NORMS[norm](CONFIG)) if name in ("pre", "sandwich") else nn.Identity
    assert type(model.encoder_norm) is type(model.decoder_norm) is kind
    source = torch.tensor([[5, 6, 7, 3]])
    memory = model.encode(source)
    for states in (memory.states, model.decode(source, memory)):
        assert states.square().mean(-1).tolist()[0] == pytest.approx([1.0] * 4, abs=0.05)


@pytest.mark.parametrize(
    ("depths", "constants"),
    [
        # Encoder and decoder layers: alpha and beta of the encoder, then of the decoder.
        ((1, 1), (0.81, 0.87, 1.316074, 0.537285)),
        ((6, 6), (1.417938, 0.496989, 2.059767, 0.343295)),
        ((16, 1), (1.62, 0.435, 1.316074, 0.537285)),  # (16^4)^(1/16) = 2
        ((1, 16), (0.963257, 0.731580, 2.632148, 0.268642)),
    ],
)
def test_deepnorm_has_the_constants_of_the_papers_figure_2(
    depths: tuple[int, int], constants: tuple[float, ...]
) -> None:
    layers = {"encoder_layers": depths[0], "decoder_layers": depths[1]}
    model = transformer(residual="deepnorm", **layers)
    found = [*(deepnorm_constants(model_config(**layers), side) for side in SIDES)]
    assert [*found[0], *found[1]] == pytest.approx([*constants], abs=1e-6)
    for side, (alpha, _), sublayers in zip(SIDES, found, (2, 3), strict=True):
        wraps = [m for m in model.get_submodule(side).modules() if isinstance(m, DeepNorm)]
        assert [wrap.alpha for wrap in wraps] == [alpha] * sublayers * layers[f"{side}_layers"]
