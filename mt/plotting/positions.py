"""Pictures of position encodings: the values themselves, and what they make of distance."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mt.config import Config
from mt.config.load import load_config
from mt.decoding.run import load_translator
from mt.decoding.run_files import CONFIG_FILE
from mt.decoding.torch_engine import TorchEngine
from mt.errors import UserError
from mt.model.positional import POSITIONAL
from mt.plotting.encodings import Curves, Encoding, Table, encodings
from mt.plotting.figures import (
    HIDDEN,
    SIGNED,
    check_picture,
    legend_beside,
    line_look,
    write_picture,
)

_ROW_HEIGHT = 3.2


def plot_positions(config: Config, output: Path, *, name: str, positions: int) -> Path:
    """Draw the position encoding that a model of a config begins with; return where it lies.

    What is learned is random then, drawn by the config's seed, and the title says so. Raises
    UserError for `model.positional: none`, of which there is nothing to draw.
    """
    check_picture(output)
    kind = _kind(config, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        encoder, decoder = (
            POSITIONAL[kind](config.model, "encoder"),
            POSITIONAL[kind](config.model, "decoder"),
        )
    learned = any(True for _ in encoder.parameters())
    state = "random, as before training" if learned else "nothing in it is learned"
    drawn = encodings(config.model, encoder, decoder, positions=positions)
    write_picture(output, lambda: _draw(drawn, f"{name} - positional: {kind} ({state})"))
    return output


def plot_learned_positions(run: Path, output: Path, *, positions: int) -> Path:
    """Draw the position encoding of a run's final model; return where it lies.

    Raises UserError as `plot_positions` and `load_translator` do.
    """
    check_picture(output)
    engine = load_translator(run, device="cpu").engine
    assert isinstance(engine, TorchEngine)
    config = load_config(run / CONFIG_FILE)
    kind = _kind(config, str(run))
    encoder, decoder = engine.model.encoder_positional, engine.model.decoder_positional
    drawn = encodings(config.model, encoder, decoder, positions=positions)
    write_picture(output, lambda: _draw(drawn, f"{run} - positional: {kind} (after training)"))
    return output


def _kind(config: Config, name: str) -> str:
    kind = config.model.positional
    if kind == "none":
        raise UserError(f"{name}: `model.positional: none` has nothing to draw")
    return kind


def _draw(drawn: Sequence[Encoding], title: str) -> Figure:
    figure = Figure(figsize=(12, _ROW_HEIGHT * len(drawn) + 0.5), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(len(drawn), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), encoding in zip(grid, drawn, strict=True):
        left.set_title(f"{encoding.owner}: values")
        _draw_table(figure, left, encoding.table)
        right.set_title(f"{encoding.owner}: by distance")
        _draw_curves(right, encoding.curves)
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
    hidden = " (grey: never looked at)" if np.isnan(table.values).any() else ""
    axes.set(xlabel=table.columns + hidden, ylabel=table.rows)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label=table.unit)


def _draw_curves(axes: Axes, curves: Curves) -> None:
    for number, (name, line) in enumerate(curves.lines.items()):
        axes.plot(curves.offsets, line, label=name, **line_look(number))
    axes.axvline(0, color=HIDDEN, zorder=0)
    axes.axhline(0, color=HIDDEN, zorder=0)
    axes.set(xlabel="offset (key position - query position)", ylabel=curves.unit)
    if len(curves.lines) > 1:
        columns = 1 + len(curves.lines) // 20
        legend_beside(axes, ncols=columns, fontsize=8, labelspacing=0.2)
