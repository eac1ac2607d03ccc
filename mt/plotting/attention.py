"""Plots of attention: the weights of a translated sentence, and the masks of a small batch."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from mt.config import ModelConfig
from mt.config.loading import load_config
from mt.data.batches import collate
from mt.data.store import Example
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator, load_translator
from mt.errors import UserError
from mt.model.attention_hooks import record_attention
from mt.model.transformer import Transformer
from mt.plotting.figures import HIDDEN, WEIGHTS, Tokens, check_picture, label_tokens, write_picture
from mt.runs import CONFIG_FILE
from mt.special_ids import BOS, EOS

_CELL, _LETTER = 0.17, 0.11
"""Inches for a token, and for a letter of the title."""
_SMALLEST_PANEL = 1.1
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Maps:
    """Weights [L H T S] of one kind of attention, for L layers and H heads; NaN where masked."""

    name: str
    title: str
    weights: NDArray[np.float32]
    queries: Tokens
    keys: Tokens


def plot_attention(
    run: Path, sentence: str, *, output: Path, overrides: Sequence[str] = ()
) -> list[Path]:
    """Translate a sentence and draw the attention of every head; return the three pictures.

    Their names are `output` with -encoder, -decoder and -cross before the suffix. `overrides` are
    `decoding.KEY=VALUE`. Raises UserError for a blank or too long sentence, and the errors of
    `load_translator`.
    """
    places = {
        name: output.with_name(f"{output.stem}-{name}{output.suffix}")
        for name in ("encoder", "decoder", "cross")
    }
    for place in places.values():
        check_picture(place)
    translator = load_translator(run, overrides=overrides, device="cpu")
    data = load_config(run / CONFIG_FILE).data
    languages = data.source_language, data.target_language
    for maps in attention_maps(translator, sentence, languages=languages):
        write_picture(places[maps.name], partial(_draw, maps, f"{maps.title} - {run}"))
    return list(places.values())


def attention_maps(
    translator: Translator, sentence: str, *, languages: tuple[str, str]
) -> list[Maps]:
    """Return the encoder's, the decoder's and the cross-attention of a translated sentence.

    A decoder row is labelled with the predicted token, a column with an input token.
    """
    engine, tokenizer = translator.engine, translator.tokenizer
    assert isinstance(engine, TorchEngine)
    source = _source_ids(translator, sentence)
    prefixes = [tokenizer.target_prefix]
    hypothesis = engine.translate_ids([source], translator.decoding, prefixes=prefixes)[0]
    target = [BOS, *hypothesis.ids, EOS]
    if not hypothesis.finished:
        _logger.warning("the translation reached its length limit and is incomplete")
        target.pop()
    engine.model.eval()
    recorded = record_attention(engine.model, torch.tensor([source]), torch.tensor([target[:-1]]))
    source_tokens, target_tokens = (
        tuple(vocabulary.processor.id_to_piece(ids))
        for vocabulary, ids in ((tokenizer.source, source), (tokenizer.target, target))
    )
    queries = Tokens(source_tokens, "source token (query)", languages[0])
    keys = Tokens(source_tokens, "source token (key)", languages[0])
    inputs = Tokens(target_tokens[:-1], "input token (key); grey: masked", languages[1])
    predicted = Tokens(target_tokens[1:], "predicted token (query)", languages[1])
    decoder = recorded.decoder[:, 0].numpy()
    # NaN, so that a masked weight is not mistaken for a small one.
    later = np.triu(np.ones(decoder.shape[-2:], dtype=bool), k=1)
    decoder = np.where(later, np.float32("nan"), decoder)
    return [
        Maps("encoder", "Encoder self-attention", recorded.encoder[:, 0].numpy(), queries, keys),
        Maps("decoder", "Decoder self-attention", decoder, predicted, inputs),
        Maps("cross", "Cross-attention", recorded.cross[:, 0].numpy(), predicted, keys),
    ]


def _source_ids(translator: Translator, sentence: str) -> list[int]:
    try:
        sentence.encode()
    except UnicodeEncodeError:
        raise UserError("the sentence is not valid UTF-8") from None
    if not sentence.strip():
        raise UserError("the sentence is blank; give one with words")
    ids = translator.tokenizer.encode_source([sentence])[0]
    if len(ids) > translator.longest_source:
        raise UserError(
            f"the sentence has {len(ids)} tokens, and the model takes up to "
            f"{translator.longest_source}; give a shorter one"
        )
    return ids


def _draw(maps: Maps, title: str) -> Figure:
    layers, heads, rows, columns = maps.weights.shape
    width, height = (max(count * _CELL, _SMALLEST_PANEL) for count in (columns, rows))
    # Around the panels: labels, titles and the colour bar. A long title needs a wide picture.
    size = max(heads * (width + 0.15) + 2.2, _LETTER * len(title)), layers * (height + 1.0) + 0.8
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    colours = matplotlib.colormaps[WEIGHTS].with_extremes(bad=HIDDEN)
    for (layer, head), axes in np.ndenumerate(grid):
        image = axes.imshow(maps.weights[layer, head], cmap=colours, vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"layer {layer + 1}, head {head + 1}", size=8)
        axes.spines[:].set_visible(False)
        label_tokens(axes, maps.queries, maps.keys)
        axes.tick_params(labelleft=head == 0)
    bar = figure.colorbar(image, ax=grid, fraction=0.05, pad=0.01, shrink=min(1, 4 / size[1]))
    bar.set_label("attention weight")
    figure.suptitle(title)
    figure.supylabel(maps.queries.axis)
    figure.supxlabel(maps.keys.axis)
    return figure


PAIRS = (
    ("the dog sleeps </s>", "der Hund schläft </s>"),
    ("a black cat lies on it </s>", "eine schwarze Katze liegt auf ihm </s>"),
)
"""A batch of two pairs; the first one is drawn, padded to the length of the second."""
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
_ALLOWED = "#0072b2"
_NOTE = "Rows of <pad> are computed like the others, but neither real tokens nor the loss use them."


@dataclass(frozen=True)
class ShownMask:
    """Keys (columns) that each query (row) of an attention may attend to."""

    title: str
    allowed: NDArray[np.bool_]
    queries: Tokens
    keys: Tokens


def plot_masks(output: Path) -> Path:
    """Draw the three masks of a small batch; return `output`."""
    check_picture(output)
    masks = example_masks()
    write_picture(output, lambda: _draw_masks(masks))
    return output


def example_masks() -> list[ShownMask]:
    """Return the masks of encoder, decoder and cross-attention for the first of PAIRS.

    They are measured: a key is allowed where a tiny Transformer with random weights gives it a
    weight above 0.
    """
    words = list(dict.fromkeys([*_SPECIAL, *" ".join(map(" ".join, PAIRS)).split()]))
    examples = []
    for number, sides in enumerate(PAIRS):
        source, target = ([words.index(word) for word in side.split()] for side in sides)
        examples.append(Example(number, np.array(source, np.int32), np.array(target, np.int32)))
    batch = collate(examples)
    config = ModelConfig(d_model=8, d_ff=8, heads=1, encoder_layers=1, decoder_layers=1)
    with torch.random.fork_rng(devices=[]):
        model = Transformer(config, source_vocabulary=len(words), target_vocabulary=len(words))
    recorded = record_attention(model.eval(), batch.source, batch.target_in)

    def tokens(ids: Tensor, axis: str, language: str) -> Tokens:
        return Tokens(tuple(words[number] for number in ids[0]), axis, language)

    queries = tokens(batch.source, "source token (query)", "en")
    keys = tokens(batch.source, "source token (key)", "en")
    inputs = tokens(batch.target_in, "input token (key)", "de")
    outputs = tokens(batch.target_out, "predicted token (query)", "de")
    return [
        ShownMask("Encoder self-attention", _allowed(recorded.encoder), queries, keys),
        ShownMask("Decoder self-attention", _allowed(recorded.decoder), outputs, inputs),
        ShownMask("Cross-attention", _allowed(recorded.cross), outputs, keys),
    ]


def _allowed(weights: Tensor) -> NDArray[np.bool_]:
    """Return the mask of the first sentence from weights of one layer and head [1 B 1 T S]."""
    return (weights[0, 0, 0] > 0).numpy()


def _draw_masks(masks: list[ShownMask]) -> Figure:
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    figure.suptitle("Attention masks: a short sentence in a batch with a longer one")
    for axes, mask in zip(figure.subplots(1, len(masks)), masks, strict=True):
        rows, columns = (np.arange(count) for count in mask.allowed.shape)
        colours = ListedColormap([HIDDEN, _ALLOWED])
        axes.pcolormesh(columns, rows, mask.allowed, cmap=colours, vmin=0, vmax=1, edgecolors="w")
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        axes.set_title(mask.title)
        axes.set(xlabel=mask.keys.axis, ylabel=mask.queries.axis)
        label_tokens(axes, mask.queries, mask.keys)
    meanings = {"allowed": _ALLOWED, "masked": HIDDEN}
    patches = [Patch(color=colour, label=meaning) for meaning, colour in meanings.items()]
    figure.legend(handles=patches, loc="outside lower left", ncols=2, frameon=False)
    figure.text(0.99, 0.02, _NOTE, ha="right", size=8)
    return figure
