"""Plots of position encodings: their values, and their effect by distance."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np
import torch
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from mt.config import ModelConfig
from mt.config.decoding import IN_TORCH
from mt.config.loading import load_config
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import load_translator
from mt.errors import UserError
from mt.model.positional import (
    POSITIONAL,
    Alibi,
    Learned,
    Positional,
    Relative,
    RelativeBias,
    RelativeLayer,
    Rotary,
    Sinusoidal,
)
from mt.plotting.figures import HIDDEN, SIGNED, check_picture, write_picture
from mt.runs import CONFIG_FILE

Array = NDArray[np.float32]
# Colours that the colour-blind can distinguish (Okabe and Ito 2008).
_COLOURS = cycler(color=["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9"])
_POSITIONS = 128
_LINE_STYLES = cycler(linestyle=["-", "--", "-.", ":"]) * _COLOURS


@dataclass(frozen=True)
class Table:
    """Values [rows columns] of a heat map; NaN where attention is masked."""

    values: Array
    rows: str
    """Label of the rows, which are counted from `first_row`."""
    first_row: int
    columns: str
    first_column: int
    unit: str


@dataclass(frozen=True)
class Curves:
    """Lines by offset (key position - query position); NaN where attention is masked."""

    offsets: NDArray[np.int64]
    lines: dict[str, Array]
    """Lines by name; the name of a single line is empty."""
    unit: str


@dataclass(frozen=True)
class Encoding:
    """Position encoding of a stack or a layer: its values, and its effect by distance."""

    owner: str
    """`encoder`, `decoder, layer 2`."""
    table: Table
    curves: Curves


def describe_encodings(
    config: ModelConfig, encoder: Positional, decoder: Positional, *, positions: int
) -> list[Encoding]:
    """Return the encodings of both stacks, or a single one where they are equal.

    Tables by position have `positions` rows from 0 on, or as many as were learned. Offsets reach
    half as far to both sides.
    """
    with torch.inference_mode():
        of_encoder = list(_describe_stack(config, encoder, positions))
        of_decoder = list(_describe_stack(config, decoder, positions))
    both = of_encoder + of_decoder
    if len(both) == 2 and np.array_equal(both[0].table.values, both[1].table.values):
        return [replace(both[0], owner="encoder and decoder")]
    return both


def _describe_stack(
    config: ModelConfig, positional: Positional, positions: int
) -> Iterator[Encoding]:
    side = positional.side
    match positional:
        case Sinusoidal() | Learned():
            count = min(positions, positional.longest or positions)
            yield Encoding(side, *_describe_added(positional, count, config.d_model))
        case Rotary():
            yield Encoding(side, *_describe_rotation(positional, positions, config.key_width))
        case RelativeBias() | Alibi():
            yield Encoding(side, *_describe_bias(positional, positions // 2))
        case Relative():
            for layer_number, layer in enumerate(positional.layers, start=1):
                assert isinstance(layer, RelativeLayer)
                yield Encoding(f"{side}, layer {layer_number}", *_describe_offsets(layer))


def _describe_added(positional: Positional, positions: int, d_model: int) -> tuple[Table, Curves]:
    """Return the vectors that are added to embeddings, and their mean dot product by offset."""
    vectors = positional.embed(torch.zeros(1, positions, d_model), 0)[0]
    table = Table(vectors.numpy(), "position", 0, "feature", 0, "value added to the embedding")
    return table, _average_by_offset(vectors @ vectors.T, "dot product of two positions")


def _describe_rotation(positional: Positional, positions: int, width: int) -> tuple[Table, Curves]:
    """Return cosines and sines of the rotations, and the mean score of two equal unit vectors.

    The mean is that over any orthonormal basis: the trace of the rotation over its width.
    """
    basis = torch.eye(width)[None, :, None].expand(-1, -1, positions, -1)
    rotated = positional.rotate(basis, 0)[0]
    table = rotated[0::2].sum(0)  # (1, 0) in each pair becomes (cosine, sine)
    scores = (rotated @ rotated.transpose(-2, -1)).mean(0)
    columns = "feature of a head: cosine and sine of each pair's angle"
    return (
        Table(table.numpy(), "position", 0, columns, 0, "cosine or sine"),
        _average_by_offset(scores, "mean score of two equal unit vectors"),
    )


def _describe_bias(positional: Positional, reach: int) -> tuple[Table, Curves]:
    """Return the bias of each head by offset."""
    length = 2 * reach + 1
    bias = positional.bias(length, length)
    assert bias is not None
    by_head = bias[0, :, reach].masked_fill(bias[0, :, reach].isinf(), float("nan")).numpy()
    lines = {f"head {head}": line for head, line in enumerate(by_head, start=1)}
    offset, unit = "offset (key position - query position)", "added to the score"
    table = Table(by_head, "head", 1, offset, -reach, unit)
    return table, Curves(np.arange(-reach, reach + 1), lines, unit)


def _describe_offsets(layer: RelativeLayer) -> tuple[Table, Curves]:
    """Return the key vectors by offset, and the dot product of each with that of offset 0."""
    keys = layer.keys.detach()
    like_zero = (keys @ keys[layer.clip]).numpy()
    offsets = np.arange(-layer.clip, layer.last + 1)
    table = Table(keys.numpy(), "offset", -layer.clip, "feature of a head", 0, "added to the key")
    return table, Curves(offsets, {"": like_zero}, "dot product with offset 0")


def _average_by_offset(scores: Tensor, unit: str) -> Curves:
    """Average scores [query key] over equal offsets, up to half the positions."""
    reach = len(scores) // 2
    offsets = np.arange(-reach, reach + 1)
    means = [scores.diagonal(int(offset)).mean() for offset in offsets]
    return Curves(offsets, {"": torch.stack(means).numpy()}, unit)


def plot_positions(model: ModelConfig, output: Path, *, seed: int, title: str) -> None:
    """Draw the position encoding of an untrained model.

    Learned encodings are random, drawn by the seed. Raises UserError for
    `model.positional: none`.
    """
    check_picture(output)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = POSITIONAL[model.positional](model, "encoder")
        decoder = POSITIONAL[model.positional](model, "decoder")
    encodings = describe_encodings(model, encoder, decoder, positions=_POSITIONS)
    _write_encodings(
        encodings, output, f"{title} - positional: {model.positional} (before training)"
    )


def plot_learned_positions(run: Path, output: Path) -> None:
    """Draw the position encoding of a run's final model.

    Raises UserError as `plot_positions` and `load_translator` do.
    """
    check_picture(output)
    engine = load_translator(run, overrides=IN_TORCH, device="cpu").engine
    assert isinstance(engine, TorchEngine)
    model = load_config(run / CONFIG_FILE).model
    encoder, decoder = engine.model.encoder_positional, engine.model.decoder_positional
    encodings = describe_encodings(model, encoder, decoder, positions=_POSITIONS)
    _write_encodings(encodings, output, f"{run} - positional: {model.positional} (after training)")


def _write_encodings(encodings: Sequence[Encoding], output: Path, title: str) -> None:
    if not encodings:
        raise UserError(f"{title}: nothing to draw; choose another encoding")
    write_picture(output, lambda: _draw_encodings(encodings, title))


def _draw_encodings(encodings: Sequence[Encoding], title: str) -> Figure:
    figure = Figure(figsize=(12, 3.2 * len(encodings) + 0.5), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(len(encodings), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), encoding in zip(grid, encodings, strict=True):
        left.set_title(f"{encoding.owner}: values")
        _draw_table(figure, left, encoding.table)
        right.set_title(f"{encoding.owner}: by distance")
        right.set_prop_cycle(_LINE_STYLES)
        for name, line in encoding.curves.lines.items():
            right.plot(encoding.curves.offsets, line, label=name)
        right.axvline(0, color=HIDDEN, zorder=0)
        right.axhline(0, color=HIDDEN, zorder=0)
        right.set(xlabel="offset (key position - query position)", ylabel=encoding.curves.unit)
        if len(encoding.curves.lines) > 1:
            # Beside the axes, where it hides no line.
            right.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    return figure


def _draw_table(figure: Figure, axes: Axes, table: Table) -> None:
    rows, columns = table.values.shape
    left, top = table.first_column - 0.5, table.first_row - 0.5
    largest = float(np.nanmax(np.abs(table.values)))
    image = axes.imshow(
        table.values,
        cmap=matplotlib.colormaps[SIGNED].with_extremes(bad=HIDDEN),
        vmin=-largest,
        vmax=largest,
        aspect="auto",
        extent=(left, left + columns, top + rows, top),
    )
    hidden = " (grey: masked)" if np.isnan(table.values).any() else ""
    axes.set(xlabel=table.columns + hidden, ylabel=table.rows)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label=table.unit)
