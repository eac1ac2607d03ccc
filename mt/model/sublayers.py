"""Parts of a sublayer besides attention: dropout, norms, feed-forward layers, residual wrappers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.config.model import Side
from mt.model.weights import Gains, glorot

Activation = Callable[[Tensor], Tensor]
Sublayer = Callable[..., Tensor]
NORM_EPSILON = 1e-5
"""Added to the variance, or the mean square, before the square root."""
_DRAWS = 2**16
"""Number of values of the 16 random bits that decide about one element."""


class Dropout(nn.Dropout):
    """Zero each element with probability p and multiply the others by 1 / (1 - p).

    Srivastava et al. 2014. On a CPU, 16 random bits decide about an element, which takes 0.4 of the
    time of torch's dropout; p is rounded to a multiple of 2^-16.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x in training; return x unchanged otherwise."""
        if not self.training or self.p == 0.0:
            return x
        if x.device.type != "cpu":
            return super().forward(x)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        dropped = min(round(self.p * _DRAWS), _DRAWS - 1)
        is_kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _DRAWS // 2
        return x * is_kept.to(x.dtype).mul_(_DRAWS / (_DRAWS - dropped))


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
    """Return LayerNorm over the last axis (Ba et al. 2016)."""
    return nn.LayerNorm(config.d_model, eps=NORM_EPSILON, bias=config.bias)


class RMSNorm(nn.RMSNorm):
    """RMSNorm over the last axis: no mean, no bias (Zhang and Sennrich 2019).

    In mixed precision it computes in the precision of its gain, as LayerNorm does under autocast.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.d_model, eps=NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [... D]."""
        return super().forward(x.to(self.weight.dtype))


NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "layernorm": layer_norm,
    "rmsnorm": RMSNorm,
}


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2 (Vaswani et al. 2017, equation 2, for ReLU).

    GELU is exact (Hendrycks and Gimpel 2016); Swish is x sigmoid(x) (Ramachandran et al. 2017).
    """

    def __init__(self, activation: Activation, config: ModelConfig, gain: float) -> None:
        super().__init__()
        self.activation = activation
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.dropout = Dropout(config.feed_forward_dropout)
        for linear in (self.inner, self.outer):
            glorot(linear, gain)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [... D] to [... D]."""
        return self.outer(self.dropout(self.activation(self.inner(x))))  # type: ignore[no-any-return]


class GatedFeedForward(nn.Module):
    """(activation(x W0 + b0) * (x W1 + b1)) W2 + b2 (Shazeer 2020, equations 5 and 6).

    There W0 is W and W1 is V; the code calls them `gate` and `inner`.
    """

    def __init__(self, activation: Activation, config: ModelConfig, gain: float) -> None:
        super().__init__()
        self.activation = activation
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.dropout = Dropout(config.feed_forward_dropout)
        for linear in (self.gate, self.inner, self.outer):
            glorot(linear, gain)

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
"""Constructors by name; the arguments are a config and the gain of the initial weights."""


class PostNorm(nn.Module):
    """Norm(x + Dropout(Sublayer(x))) (Vaswani et al. 2017, sections 3.1 and 5.4)."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__()
        del side  # only DeepNorm treats the stacks differently
        self.norm = NORMS[config.norm](config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Sublayer, *others: Any) -> Tensor:
        """Apply the sublayer to x [... D] and its other arguments; return the shape of x."""
        return self.norm(x + self.dropout(sublayer(x, *others)))  # type: ignore[no-any-return]

    @staticmethod
    def gains(config: ModelConfig, side: Side) -> Gains:
        """Return the gains of the initial weights of the wrapped sublayers."""
        del config, side
        return Gains()

    @staticmethod
    def final_norm(config: ModelConfig) -> nn.Module:
        """Return the module after the last layer of a stack; Post-Norm needs none."""
        del config
        return nn.Identity()


class PreNorm(PostNorm):
    """x + Dropout(Sublayer(Norm(x))), and a norm after the last layer (Xiong et al. 2020)."""

    def forward(self, x: Tensor, sublayer: Sublayer, *others: Any) -> Tensor:
        """Apply the sublayer to x [... D] and its other arguments; return the shape of x."""
        return x + self.dropout(sublayer(self.norm(x), *others))  # type: ignore[no-any-return]

    @staticmethod
    def final_norm(config: ModelConfig) -> nn.Module:
        """Return a norm: the last layer's output is a sum that no norm has scaled."""
        return NORMS[config.norm](config)


class Sandwich(PreNorm):
    """x + Norm(Dropout(Sublayer(Norm(x)))), and a norm after the last layer (Ding et al. 2021)."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.norm_after = NORMS[config.norm](config)

    def forward(self, x: Tensor, sublayer: Sublayer, *others: Any) -> Tensor:
        """Apply the sublayer to x [... D] and its other arguments; return the shape of x."""
        return x + self.norm_after(self.dropout(sublayer(self.norm(x), *others)))  # type: ignore[no-any-return]


class DeepNorm(PostNorm):
    """Norm(alpha x + Dropout(Sublayer(x))), with smaller initial weights (Wang et al. 2022)."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.alpha, _ = deepnorm_constants(config, side)

    def forward(self, x: Tensor, sublayer: Sublayer, *others: Any) -> Tensor:
        """Apply the sublayer to x [... D] and its other arguments; return the shape of x."""
        return self.norm(self.alpha * x + self.dropout(sublayer(x, *others)))  # type: ignore[no-any-return]

    @staticmethod
    def gains(config: ModelConfig, side: Side) -> Gains:
        """Return beta for values, outputs and feed-forward layers, 1 for queries and keys."""
        _, beta = deepnorm_constants(config, side)
        return Gains(query_key=1.0, value=beta, output=beta, feed_forward=beta)


def deepnorm_constants(config: ModelConfig, side: Side) -> tuple[float, float]:
    """Return alpha and beta of a stack (Wang et al. 2022, figure 2, encoder-decoder)."""
    encoder, decoder = config.encoder_layers, config.decoder_layers
    if side == "encoder":
        depth: float = (encoder**4 * decoder) ** (1 / 16)
        return 0.81 * depth, 0.87 / depth
    return float((3 * decoder) ** 0.25), float((12 * decoder) ** -0.25)


RESIDUALS: dict[str, type[PostNorm]] = {
    "post": PostNorm,
    "pre": PreNorm,
    "sandwich": Sandwich,
    "deepnorm": DeepNorm,
}
