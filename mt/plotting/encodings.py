"""What a position encoding adds, turns or favours, as numbers to draw."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt.config import ModelConfig
from mt.model.positional import (
    Alibi,
    Learned,
    Positional,
    Relative,
    RelativeBias,
    RelativeLayer,
    Rotary,
    Sinusoidal,
)

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """Values [rows columns] for a heat map; NaN is what is never looked at."""

    values: Array
    rows: str
    """What the rows are, counted from `first_row`."""
    first_row: int
    columns: str
    first_column: int
    unit: str
    """What the values are."""


@dataclass(frozen=True)
class Curves:
    """Numbers by offset, key position - query position; NaN is what is never looked at."""

    offsets: NDArray[np.int64]
    lines: dict[str, Array]
    """By name; a single line has an empty one."""
    unit: str


@dataclass(frozen=True)
class Encoding:
    """A position encoding, or that of one layer: what it is, and what it makes of distance."""

    owner: str
    """Whose it is: `encoder`, `decoder, layer 2`."""
    table: Table
    curves: Curves


def encodings(
    config: ModelConfig, encoder: Positional, decoder: Positional, *, positions: int
) -> list[Encoding]:
    """Return the encodings of both stacks, as one where they are the same.

    Tables of positions begin at 0 and have `positions` rows, or as many as were learned; offsets
    reach half as far to both sides.
    """
    with torch.inference_mode():
        of_encoder = list(_of_stack(config, encoder, positions))
        of_decoder = list(_of_stack(config, decoder, positions))
    if len(of_encoder) == len(of_decoder) == 1 and _same(of_encoder[0], of_decoder[0]):
        return [replace(of_encoder[0], owner="encoder and decoder")]
    return of_encoder + of_decoder


def _of_stack(config: ModelConfig, positional: Positional, positions: int) -> Iterator[Encoding]:
    side = positional.side
    match positional:
        case Sinusoidal() | Learned():
            count = min(positions, positional.longest or positions)
            yield Encoding(side, *_added(positional, count, config.d_model))
        case Rotary():
            yield Encoding(side, *_turned(positional, positions, config.key_width))
        case RelativeBias() | Alibi():
            yield Encoding(side, *_biased(positional, positions // 2))
        case Relative():
            for number, layer in enumerate(positional.layers, start=1):
                assert isinstance(layer, RelativeLayer)
                yield Encoding(f"{side}, layer {number}", *_offset_vectors(layer))


def _added(positional: Positional, positions: int, d_model: int) -> tuple[Table, Curves]:
    """Return what is added to the embeddings, and its mean dot product by offset."""
    vectors = positional.embed(torch.zeros(1, positions, d_model), 0)[0]
    table = Table(vectors.numpy(), "position", 0, "feature", 0, "value added to the embedding")
    return table, _by_offset(vectors @ vectors.T, "dot product of two positions")


def _turned(positional: Positional, positions: int, width: int) -> tuple[Table, Curves]:
    """Return the rotations' cosines and sines, and the mean score of two equal unit vectors.

    The mean over any orthonormal basis is the same: the rotation's trace over its width.
    """
    basis = torch.eye(width)[None, :, None].expand(-1, -1, positions, -1)
    turned = positional.rotate(basis, 0)[0]
    table = turned[0::2].sum(0)  # (1, 0) in each pair becomes (cosine, sine)
    scores = (turned @ turned.transpose(-2, -1)).mean(0)
    columns = "feature of a head: cosine and sine of each pair's angle"
    return (
        Table(table.numpy(), "position", 0, columns, 0, "cosine or sine"),
        _by_offset(scores, "mean score of two equal unit vectors"),
    )


def _biased(positional: Positional, reach: int) -> tuple[Table, Curves]:
    """Return what each head adds to the score by offset."""
    length = 2 * reach + 1
    bias = positional.bias(length, length)
    assert bias is not None
    by_head = bias[0, :, reach].masked_fill(bias[0, :, reach].isinf(), float("nan")).numpy()
    lines = {f"head {number}": line for number, line in enumerate(by_head, start=1)}
    offset, unit = "offset (key position - query position)", "added to the score"
    table = Table(by_head, "head", 1, offset, -reach, unit)
    return table, Curves(np.arange(-reach, reach + 1), lines, unit)


def _offset_vectors(layer: RelativeLayer) -> tuple[Table, Curves]:
    """Return what is added to the keys by offset, and how like each is to that of offset 0."""
    keys = layer.keys.detach()
    like_zero = (keys @ keys[layer.clip]).numpy()
    offsets = np.arange(-layer.clip, layer.last + 1)
    table = Table(keys.numpy(), "offset", -layer.clip, "feature of a head", 0, "added to the key")
    return table, Curves(offsets, {"": like_zero}, "dot product with offset 0")


def _by_offset(scores: Tensor, unit: str) -> Curves:
    """Average scores [query key] over the positions with the same offset, up to half of them."""
    reach = len(scores) // 2
    offsets = np.arange(-reach, reach + 1)
    means = [scores.diagonal(int(offset)).mean() for offset in offsets]
    return Curves(offsets, {"": torch.stack(means).numpy()}, unit)


def _same(one: Encoding, other: Encoding) -> bool:
    return np.array_equal(one.table.values, other.table.values, equal_nan=True)
