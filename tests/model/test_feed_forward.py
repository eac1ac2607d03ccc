"""The feed-forward layers, held against their formulas."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.model.sublayers import FEED_FORWARD, FeedForward, GatedFeedForward

CONFIG = ModelConfig(d_model=8, d_ff=13, heads=2)  # no multiple of anything
X = torch.linspace(-4, 4, 5 * 8).view(5, 8)


def layer(name: str, **changes: object) -> nn.Module:
    made = FEED_FORWARD[name](CONFIG.model_copy(update=changes), 1.0).eval()
    for parameter in made.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return made


def linear(x: Tensor, part: nn.Linear) -> Tensor:
    return x @ part.weight.T + part.bias


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "swish": lambda x: x / (1 + torch.exp(-x)),
}
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": lambda x: 1 / (1 + torch.exp(-x)),
    "swiglu": PLAIN["swish"],
    "geglu": PLAIN["gelu"],
}


def test_all_layers_are_here() -> None:
    assert set(FEED_FORWARD) == set(PLAIN) | set(GATES)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_layer_is_two_matrices_around_its_activation(name: str) -> None:
    made = layer(name)
    assert isinstance(made, FeedForward)
    expected = linear(PLAIN[name](linear(X, made.inner)), made.outer)
    torch.testing.assert_close(made(X), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", GATES)
def test_a_gate_multiplies_a_second_projection(name: str) -> None:
    made = layer(name)
    assert isinstance(made, GatedFeedForward)
    expected = linear(GATES[name](linear(X, made.gate)) * linear(X, made.inner), made.outer)
    torch.testing.assert_close(made(X), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gelu", "geglu"])
def test_gelu_is_not_approximated(name: str) -> None:
    made = layer(name)
    exact = made(X)
    assert isinstance(made, FeedForward | GatedFeedForward)
    made.activation = lambda x: F.gelu(x, approximate="tanh")
    assert 1e-5 < (made(X) - exact).abs().max() < 1e-1, "the test can tell the two apart"
    made.activation = lambda x: F.gelu(x, approximate="none")
    assert torch.equal(made(X), exact)


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_d_ff_is_the_width_that_is_used(name: str) -> None:
    shapes = {key: (*tensor.shape,) for key, tensor in layer(name).named_parameters()}
    gate = {"gate.weight": (13, 8), "gate.bias": (13,)} if name in GATES else {}
    assert shapes == {
        **gate,
        "inner.weight": (13, 8),
        "inner.bias": (13,),
        "outer.weight": (8, 13),
        "outer.bias": (8,),
    }


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_dropout_acts_on_the_inner_activation_and_in_training_only(name: str) -> None:
    made = layer(name, feed_forward_dropout=0.5)
    assert isinstance(made, FeedForward | GatedFeedForward)
    inner: list[Tensor] = []
    made.outer.register_forward_pre_hook(lambda _, inputs: inner.append(inputs[0]))
    x = torch.randn(50, 8)
    assert torch.equal(made(x), made(x))
    calm = inner[-1]
    made.train()
    assert not torch.equal(made(x), made(x))
    kept = inner[-1] != 0
    assert 0.4 < kept[calm != 0].float().mean() < 0.6
    torch.testing.assert_close(inner[-1], 2 * calm * kept)
