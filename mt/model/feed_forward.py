"""The position-wise feed-forward layer."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.model.dropout import Dropout
from mt.model.weights import glorot

Activation = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2 (Vaswani et al. 2017, equation 2, for ReLU).

    GELU is the exact one, with the error function (Hendrycks and Gimpel 2016); Swish is
    x sigmoid(x) (Ramachandran et al. 2017, beta = 1).
    """

    def __init__(self, activation: Activation, config: ModelConfig, gain: float) -> None:
        super().__init__()
        self.activation = activation
        self.gain = gain
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.dropout = Dropout(config.feed_forward_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices by Glorot's rule, times the gain; biases begin at zero."""
        glorot(self.inner, self.gain)
        glorot(self.outer, self.gain)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [... D] to [... D]."""
        return self.outer(self.dropout(self.activation(self.inner(x))))  # type: ignore[no-any-return]


class GatedFeedForward(nn.Module):
    """(activation(x W + b) * (x V + c)) W2 + b2 (Shazeer 2020, equations 5 and 6)."""

    def __init__(self, activation: Activation, config: ModelConfig, gain: float) -> None:
        super().__init__()
        self.activation = activation
        self.gain = gain
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.dropout = Dropout(config.feed_forward_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices by Glorot's rule, times the gain; biases begin at zero."""
        for linear in (self.gate, self.inner, self.outer):
            glorot(linear, self.gain)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [... D] to [... D]."""
        gated = self.activation(self.gate(x)) * self.inner(x)
        return self.outer(self.dropout(gated))  # type: ignore[no-any-return]


FEED_FORWARD: dict[str, Callable[[ModelConfig, float], nn.Module]] = {
    "relu": partial(FeedForward, F.relu),
    "gelu": partial(FeedForward, F.gelu),
    "swish": partial(FeedForward, F.silu),
    "glu": partial(GatedFeedForward, torch.sigmoid),
    "swiglu": partial(GatedFeedForward, F.silu),
    "geglu": partial(GatedFeedForward, F.gelu),
}
"""Each makes a layer of a config and a gain for its initial weights."""
