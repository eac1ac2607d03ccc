"""The weights that linear layers begin with."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Gains:
    """Factors on Glorot's deviation for the matrices of a layer.

    Queries, keys and values are drawn as if one matrix [D 3D] held them: Glorot's bound for that
    shape. With a gain of 1 each, the first updates of a Post-Norm stack are less stable.
    """

    query_key: float = 2**-0.5
    value: float = 2**-0.5
    output: float = 1.0
    feed_forward: float = 1.0


def glorot(linear: nn.Linear, gain: float) -> None:
    """Draw the matrix by Glorot's uniform rule times `gain`; a bias begins at zero."""
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
