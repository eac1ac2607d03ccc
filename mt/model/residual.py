"""How a sublayer is wrapped: dropout, the residual connection and the normalisation."""

from collections.abc import Callable

from torch import Tensor, nn

from mt.config import ModelConfig
from mt.config.model import Side
from mt.model.dropout import Dropout
from mt.model.weights import Gains

Sublayer = Callable[[Tensor], Tensor]


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
    """Return LayerNorm over the last axis (Ba et al. 2016)."""
    return nn.LayerNorm(config.d_model, eps=config.norm_epsilon, bias=config.bias)


class RMSNorm(nn.RMSNorm):
    """RMSNorm over the last axis: no mean, no bias (Zhang and Sennrich 2019).

    In mixed precision it computes in that of its gain, as autocast lets LayerNorm do.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.d_model, eps=config.norm_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [... D]."""
        return super().forward(x.to(self.weight.dtype))


NORMS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "layernorm": layer_norm,
    "rmsnorm": RMSNorm,
}


class PostNorm(nn.Module):
    """Norm(x + Dropout(Sublayer(x))) (Vaswani et al. 2017, sections 3.1 and 5.4)."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__()
        del side  # only DeepNorm treats the stacks differently
        self.norm = NORMS[config.norm](config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Return the wrapped sublayer's output, of the shape of x [... D]."""
        return self.norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]

    @staticmethod
    def gains(config: ModelConfig, side: Side) -> Gains:
        """Return what the initial weights of the wrapped sublayers are scaled by."""
        del config, side
        return Gains()

    @staticmethod
    def final_norm(config: ModelConfig) -> nn.Module:
        """Return what stands after the last layer of a stack: here nothing."""
        del config
        return nn.Identity()


class PreNorm(PostNorm):
    """x + Dropout(Sublayer(Norm(x))), and a norm after the last layer (Xiong et al. 2020)."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Return the wrapped sublayer's output, of the shape of x [... D]."""
        return x + self.dropout(sublayer(self.norm(x)))  # type: ignore[no-any-return]

    @staticmethod
    def final_norm(config: ModelConfig) -> nn.Module:
        """Return a norm: the sum that leaves the last layer has not been through any."""
        return NORMS[config.norm](config)


class Sandwich(PreNorm):
    """x + Norm(Dropout(Sublayer(Norm(x)))), and a norm after the last layer (Ding et al. 2021)."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.norm_after = NORMS[config.norm](config)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Return the wrapped sublayer's output, of the shape of x [... D]."""
        return x + self.norm_after(self.dropout(sublayer(self.norm(x))))  # type: ignore[no-any-return]


class DeepNorm(PostNorm):
    """Norm(alpha x + Dropout(Sublayer(x))), with smaller initial weights (Wang et al. 2022).

    alpha, and beta for the weights, follow from the depths of both stacks (their figure 2).
    """

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.alpha, _ = deepnorm_constants(config, side)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Return the wrapped sublayer's output, of the shape of x [... D]."""
        return self.norm(self.alpha * x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]

    @staticmethod
    def gains(config: ModelConfig, side: Side) -> Gains:
        """Return beta for values, outputs and feed-forward, 1 for queries and keys."""
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
