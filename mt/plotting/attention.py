"""What each layer and head looks at while one sentence is translated."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mt.config.load import load_config
from mt.data.vocabulary import Vocabulary
from mt.decoding.run import load_translator
from mt.decoding.run_files import CONFIG_FILE
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.model.recording import record_attention
from mt.plotting.figures import HIDDEN, WEIGHTS, Pieces, check_picture, label_pieces, write_picture
from mt.special_ids import BOS, EOS

_CELL, _LETTER = 0.17, 0.11
"""Inches for a piece, and for a letter of the title."""
_SMALLEST_PANEL = 1.1
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Maps:
    """One kind of attention: weights [L H T S] of L layers and H heads, and what they are of.

    A query stands in each of the T rows, a key in each of the S columns; NaN is masked.
    """

    name: str
    title: str
    weights: NDArray[np.float32]
    queries: Pieces
    keys: Pieces


def plot_attention(
    run: Path, sentence: str, *, output: Path, overrides: Sequence[str] = ()
) -> list[Path]:
    """Translate a sentence and draw every head's attention; return where the pictures lie.

    They are three, `output` with -encoder, -decoder and -cross before its suffix. `overrides` are
    `decoding.KEY=VALUE`. Raises UserError for a sentence that is blank or longer than the model
    knows, and for what `load_translator` refuses.
    """
    places = {
        name: output.with_name(f"{output.stem}-{name}{output.suffix}")
        for name in ("encoder", "decoder", "cross")
    }
    for place in places.values():
        check_picture(place)
    translator = load_translator(run, overrides=overrides, device="cpu")
    config = load_config(run / CONFIG_FILE)
    languages = config.data.source_language, config.data.target_language
    for maps in attention_maps(translator, sentence, languages=languages):
        write_picture(places[maps.name], partial(_draw, maps, f"{maps.title} - {run}"))
    return list(places.values())


def attention_maps(
    translator: Translator, sentence: str, *, languages: tuple[str, str]
) -> list[Maps]:
    """Return the encoder's, the decoder's and the cross-attention of a translated sentence.

    A row of the decoder is named by the piece that it predicts, a column by one that it has read.
    """
    engine, tokenizer = translator.engine, translator.tokenizer
    assert isinstance(engine, TorchEngine)
    source = _source_ids(translator, sentence)
    hypothesis = engine.translate_ids([source], translator.decoding)[0]
    target = [BOS, *hypothesis.ids, EOS]
    if not hypothesis.finished:
        _logger.warning("the translation reached its length limit and is cut there")
        target.pop()
    engine.model.eval()
    recorded = record_attention(engine.model, torch.tensor([source]), torch.tensor([target[:-1]]))
    source_pieces = _pieces(tokenizer.source, source)
    target_pieces = _pieces(tokenizer.target, target)
    looking = Pieces(source_pieces, "source piece (query)", languages[0])
    seen = Pieces(source_pieces, "source piece (key)", languages[0])
    read = Pieces(target_pieces[:-1], "piece already written (key); grey: masked", languages[1])
    predicted = Pieces(target_pieces[1:], "piece to be written next (query)", languages[1])
    decoder = _without_later(recorded.decoder[:, 0].numpy())
    return [
        Maps("encoder", "Encoder self-attention", recorded.encoder[:, 0].numpy(), looking, seen),
        Maps("decoder", "Decoder self-attention", decoder, predicted, read),
        Maps("cross", "Cross-attention", recorded.cross[:, 0].numpy(), predicted, seen),
    ]


def _source_ids(translator: Translator, sentence: str) -> list[int]:
    try:
        sentence.encode()
    except UnicodeEncodeError:
        raise UserError("the sentence is not UTF-8") from None
    if not sentence.strip():
        raise UserError("the sentence is blank: there is nothing to translate")
    ids = translator.tokenizer.encode_source([sentence])[0]
    if len(ids) > translator.longest_source:
        raise UserError(
            f"the sentence has {len(ids)} pieces, the model knows up to "
            f"{translator.longest_source}: give a shorter one"
        )
    return ids


def _pieces(vocabulary: Vocabulary, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(vocabulary.processor.id_to_piece(list(ids)))


def _without_later(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Put NaN where causality masks, so that it is not taken for a small weight."""
    later = np.triu(np.ones(weights.shape[-2:], dtype=bool), k=1)
    return np.where(later, np.float32("nan"), weights)


def _draw(maps: Maps, title: str) -> Figure:
    layers, heads, rows, columns = maps.weights.shape
    width, height = (max(count * _CELL, _SMALLEST_PANEL) for count in (columns, rows))
    # Beside the panels: labels, titles and the colour bar. A long title wants a wide picture.
    size = max(heads * (width + 0.15) + 2.2, _LETTER * len(title)), layers * (height + 1.0) + 0.8
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    colours = matplotlib.colormaps[WEIGHTS].with_extremes(bad=HIDDEN)
    for (layer, head), axes in np.ndenumerate(grid):
        image = axes.imshow(maps.weights[layer, head], cmap=colours, vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"layer {layer + 1}, head {head + 1}", size=8)
        axes.spines[:].set_visible(False)
        label_pieces(axes, maps.queries, maps.keys)
        axes.tick_params(labelleft=head == 0)
    bar = figure.colorbar(image, ax=grid, fraction=0.05, pad=0.01, shrink=min(1, 4 / size[1]))
    bar.set_label("attention weight")
    figure.suptitle(title)
    figure.supylabel(maps.queries.axis)
    figure.supxlabel(maps.keys.axis)
    return figure
