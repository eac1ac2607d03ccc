"""Plots of the attention weights of a translated sentence."""

import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mt.config.decoding import PYTORCH_ONLY
from mt.decoding.preparation import repair_unicode
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.errors import UserError, escape_line
from mt.model.hooks import record_attention
from mt.plotting.pictures import check_picture, write_picture
from mt.special_ids import BOS, EOS

_CELL, _LETTER = 0.17, 0.11
"""Inches for a token, and for a letter of the title."""
_MIN_PANEL = 1.1
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenAxis:
    """Tokens along an axis, the axis label, and the language code of the tokens."""

    tokens: tuple[str, ...]
    label: str
    language: str


@dataclass(frozen=True)
class HeadMaps:
    """Weights [L H T S] of one kind of attention, for L layers and H heads; NaN where masked."""

    title: str
    weights: NDArray[np.float32]
    queries: TokenAxis
    keys: TokenAxis


def plot_attention(
    run: Path, sentence: str, *, output: Path, overrides: Sequence[str] = ()
) -> None:
    """Draw the attention of every head for a sentence; raise UserError if it is blank or long."""
    check_picture(output)
    translator = Translator.load(run, overrides=[*overrides, *PYTORCH_ONLY], device="cpu")
    write_picture(output, partial(draw_attention, compute_maps(translator, sentence), str(run)))


def compute_maps(translator: Translator, sentence: str) -> list[HeadMaps]:
    """Return the cross-attention, the encoder's and the decoder's of a translated sentence.

    A decoder row is labelled with the predicted token, a column with an input token.
    """
    engine, tokenizer, languages = translator.engine, translator.tokenizer, translator.direction
    assert isinstance(engine, TorchEngine)
    sentence, _ = repair_unicode(sentence)
    if not sentence.strip():
        raise UserError("the sentence is blank; give one with words")
    source = tokenizer.encode_source([sentence])[0]
    if len(source) > translator.longest_source:
        raise UserError(
            f"the sentence has {len(source)} tokens, and the model takes up to "
            f"{translator.longest_source}; give a shorter one"
        )
    prefixes = [tokenizer.target_prefix]
    hypothesis = engine.translate_ids([source], translator.decoding, prefixes=prefixes)[0]
    target = [BOS, *hypothesis.ids, EOS]
    if not hypothesis.finished:
        _logger.warning("the translation reached its length limit and is incomplete")
        target.pop()
    recorded = record_attention(engine.model, torch.tensor([source]), torch.tensor([target[:-1]]))
    source_tokens, target_tokens = (
        tuple(vocabulary.processor.id_to_piece(ids))
        for vocabulary, ids in ((tokenizer.source, source), (tokenizer.target, target))
    )
    queries = TokenAxis(source_tokens, "source token (query)", languages[0])
    keys = TokenAxis(source_tokens, "source token (key)", languages[0])
    inputs = TokenAxis(target_tokens[:-1], "input token (key); grey: masked", languages[1])
    predicted = TokenAxis(target_tokens[1:], "predicted token (query)", languages[1])
    decoder = recorded.decoder[:, 0].numpy()
    # NaN, so that a masked weight is not mistaken for a small one.
    later = np.triu(np.ones(decoder.shape[-2:], dtype=bool), k=1)
    decoder = np.where(later, np.float32("nan"), decoder)
    return [
        HeadMaps("Cross-attention", recorded.cross[:, 0].numpy(), predicted, keys),
        HeadMaps("Encoder self-attention", recorded.encoder[:, 0].numpy(), queries, keys),
        HeadMaps("Decoder self-attention", decoder, predicted, inputs),
    ]


def draw_attention(kinds: Sequence[HeadMaps], title: str) -> Figure:
    """Return a figure with a panel for each head, a row for each layer, and colour bars."""
    widths, heights = [_LETTER * len(title)], list[float]()
    for maps in kinds:
        layers, heads, rows, columns = maps.weights.shape
        width, height = (max(count * _CELL, _MIN_PANEL) for count in (columns, rows))
        # Around the panels: labels, titles and the colour bar.
        widths.append(heads * (width + 0.15) + 2.2)
        heights.append(layers * (height + 1.0) + 0.8)
    figure = Figure(figsize=(max(widths), sum(heights)), layout="constrained")
    figure.suptitle(title)
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="#d9d9d9")
    areas = figure.subfigures(len(kinds), squeeze=False, height_ratios=heights)[:, 0]
    for maps, area, height in zip(kinds, areas, heights, strict=True):
        grid = area.subplots(*maps.weights.shape[:2], squeeze=False)
        for (layer, head), axes in np.ndenumerate(grid):
            weights = maps.weights[layer, head]
            image = axes.imshow(weights, cmap=colours, vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"layer {layer + 1}, head {head + 1}", size=8)
            axes.spines[:].set_visible(False)
            label_tokens(axes, maps.queries, maps.keys)
            axes.tick_params(labelleft=head == 0)
        bar = area.colorbar(image, ax=grid, fraction=0.05, pad=0.01, shrink=min(1, 4 / height))
        bar.set_label("attention weight")
        area.suptitle(maps.title)
        area.supylabel(maps.queries.label)
        area.supxlabel(maps.keys.label)
    return figure


def label_tokens(axes: Axes, rows: TokenAxis, columns: TokenAxis) -> None:
    """Label the rows and columns of a heat map with tokens, in the glyphs of their language.

    Tokens of columns with wide characters, such as Chinese, are written from top to bottom; others
    are rotated.
    """
    labels = [escape_line(token) for token in rows.tokens]
    # Chinese and Japanese have different shapes of the same character.
    axes.yaxis.set_ticks(range(len(labels)), labels, language=rows.language)
    labels = [escape_line(token) for token in columns.tokens]
    wide = [any(unicodedata.east_asian_width(c) in "WF" for c in label) for label in labels]
    labels = ["\n".join(x) if is_wide else x for x, is_wide in zip(labels, wide, strict=True)]
    axes.xaxis.set_ticks(range(len(labels)), labels, language=columns.language)
    for label, is_wide in zip(axes.get_xticklabels(), wide, strict=True):
        label.set_rotation(0 if is_wide else 90)
    axes.tick_params(length=0, labelsize=8)
