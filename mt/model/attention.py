"""Multi-head attention."""

from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig

# Queries, keys and values drawn as if one matrix [D 3D] held them: Glorot's bound for that shape.
# With a gain of 1 each, the first updates of a Post-Norm stack are less stable.
_PROJECTION_GAIN = 2**-0.5


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d_head)) V in parallel heads (Vaswani et al. 2017, section 3.2).

    The three steps are separate methods, so that whoever owns the attention can keep keys and
    values (caches), turn them (rotary) or share them between rows.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.attention_dropout
        self.query = nn.Linear(config.d_model, config.d_model)
        self.key = nn.Linear(config.d_model, config.d_model)
        self.value = nn.Linear(config.d_model, config.d_model)
        self.output = nn.Linear(config.d_model, config.d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices by Glorot's uniform rule; biases begin at zero."""
        for linear in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(linear.weight, gain=_PROJECTION_GAIN)
            nn.init.zeros_(linear.bias)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def queries(self, x: Tensor) -> Tensor:
        """Project x [B T D] to queries [B H T K]."""
        return self._split(self.query(x))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project x [B S D] to keys and values, each [B H S K]."""
        return self._split(self.key(x)), self._split(self.value(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend with queries [B H T K] to keys and values [B H S K]; return [B T D].

        `mask` broadcasts to [B H T S]: True where a query may look, or a float that is added to
        the scores; None lets every query see every key.
        """
        dropout = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.output(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
