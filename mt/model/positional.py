"""How the model knows the order of the pieces."""

import math

import torch
from torch import Tensor, nn

from mt.config import ModelConfig


class Positional(nn.Module):
    """A positional encoding; each kind overrides the hooks that it needs, the others do nothing.

    The stack that owns it calls the hooks, attention itself knows nothing of positions.
    """

    def embed(self, x: Tensor, first: int) -> Tensor:
        """Add positions to embeddings x [B T D], whose first column stands at position `first`."""
        return x

    def rotate(self, heads: Tensor, first: int) -> Tensor:
        """Turn queries or keys [B H T K], whose first column stands at position `first`."""
        return heads

    def bias(self, queries: Tensor, keys: Tensor, first: int) -> Tensor | None:
        """Return what is added to the scores [B H T S] of queries that begin at `first`, if any."""
        return None


class Sinusoidal(Positional):
    """Sines and cosines of geometrically growing wavelengths (Vaswani et al. 2017, section 3.5).

    PE(position, 2i) = sin(position / 10000^(2i / d_model)), and the cosine of it at 2i + 1.
    The table grows with the longest sequence seen, so there is no longest position.
    """

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.register_buffer("table", sinusoids(256, config.d_model), persistent=False)

    def embed(self, x: Tensor, first: int) -> Tensor:
        """Add the table's rows to x [B T D]."""
        last = first + x.shape[1]
        if last > len(self.table):
            self.table = sinusoids(2 * last, self.d_model).to(self.table)
        return x + self.table[first:last]


def sinusoids(positions: int, d_model: int) -> Tensor:
    """Return the table [positions d_model] of sinusoidal encodings, sines at even columns."""
    frequencies = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


POSITIONAL: dict[str, type[Sinusoidal]] = {"sinusoidal": Sinusoidal}
