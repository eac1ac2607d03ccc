"""The position-wise feed-forward layer."""

from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig


class Relu(nn.Module):
    """max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, equation 2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.feed_forward_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both matrices by Glorot's uniform rule; biases begin at zero."""
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [... D] to [... D]."""
        return self.outer(self.dropout(F.relu(self.inner(x))))  # type: ignore[no-any-return]


FEED_FORWARD: dict[str, type[Relu]] = {"relu": Relu}
