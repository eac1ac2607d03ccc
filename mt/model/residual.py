"""How a sublayer is wrapped: dropout, the residual connection and the normalisation."""

from collections.abc import Callable

from torch import Tensor, nn

from mt.config import ModelConfig

NORMS: dict[str, type[nn.LayerNorm]] = {"layernorm": nn.LayerNorm}


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))) (Vaswani et al. 2017, sections 3.1 and 5.4)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = NORMS[config.norm](config.d_model, eps=config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the wrapped sublayer's output, of the shape of x [... D]."""
        return self.norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


RESIDUALS: dict[str, type[PostNorm]] = {"post": PostNorm}
