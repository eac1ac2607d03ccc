"""Heads for CTranslate2: as many keys and values as queries, and all of one width."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mt.config import ModelConfig

Array: TypeAlias = NDArray[np.float32]
Linear: TypeAlias = tuple[Array, Array | None]
"""Matrix [out in] and bias [out], which may be absent."""


def head_width(config: ModelConfig) -> int:
    """Return the one width of all heads: that of queries and keys, or of values if larger."""
    return max(config.key_width, config.value_width)


def projection(linear: Linear, config: ModelConfig, *, repeats: int) -> Linear:
    """Return a projection to heads with each head `repeats` times, and of the common width."""
    heads = config.heads // repeats

    def widened(rows: Array) -> Array:
        by_head = rows.reshape(heads, len(rows) // heads, *rows.shape[1:]).repeat(repeats, axis=0)
        wide = padded(by_head, head_width(config), axis=1)
        return wide.reshape(-1, *rows.shape[1:])

    matrix, bias = linear
    return widened(matrix), None if bias is None else widened(bias)


def stacked(*linears: Linear) -> Linear:
    """Return one layer that computes several, their outputs in a row."""
    biases = [bias for _, bias in linears if bias is not None]
    return np.concatenate([matrix for matrix, _ in linears]), (
        np.concatenate(biases) if biases else None
    )


def padded(array: Array, size: int, *, axis: int) -> Array:
    """Return an array with zeros at the end of an axis, up to a size."""
    missing = [
        (0, size - length if place == axis else 0) for place, length in enumerate(array.shape)
    ]
    return np.pad(array, missing)
