"""Which positions a Transformer's attention may look at, on a small batch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from mt.config import ModelConfig
from mt.data.batches import collate
from mt.data.store import Example
from mt.model.recording import record_attention
from mt.model.transformer import Transformer
from mt.plotting.figures import HIDDEN, Pieces, check_picture, label_pieces, write_picture

PAIRS = (
    ("the dog sleeps </s>", "der Hund schläft </s>"),
    ("a black cat lies on it </s>", "eine schwarze Katze liegt auf ihm </s>"),
)
"""A batch of two: the first pair is drawn, and is padded since the second is longer."""
_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
_ALLOWED = "#0072b2"
_NOTE = (
    "Rows of <pad> are computed like the others, but no real piece reads them, nor does the loss."
)


@dataclass(frozen=True)
class ShownMask:
    """Where the queries (rows) of one attention may look among the keys (columns)."""

    title: str
    allowed: NDArray[np.bool_]
    queries: Pieces
    keys: Pieces


def plot_masks(output: Path) -> Path:
    """Draw the three masks of a small batch; return where the picture lies."""
    check_picture(output)
    masks = example_masks()
    write_picture(output, lambda: _draw(masks))
    return output


def example_masks() -> list[ShownMask]:
    """Return the masks of encoder, decoder and cross-attention for the first of PAIRS.

    They are seen from outside: a tiny Transformer with random weights reads the batch, and what it
    may look at is what gets a weight above 0.
    """
    words = list(dict.fromkeys([*_SPECIAL, *" ".join(map(" ".join, PAIRS)).split()]))
    batch = collate([_example(number, words) for number in range(len(PAIRS))])
    config = ModelConfig(d_model=8, d_ff=8, heads=1, encoder_layers=1, decoder_layers=1)
    with torch.random.fork_rng(devices=[]):
        model = Transformer(config, source_vocabulary=len(words), target_vocabulary=len(words))
    recorded = record_attention(model.eval(), batch.source, batch.target_in)
    source, read, predicted = (
        tuple(words[number] for number in ids[0])
        for ids in (batch.source, batch.target_in, batch.target_out)
    )
    looking = Pieces(source, "source piece (query)", "en")
    seen = Pieces(source, "source piece (key)", "en")
    before = Pieces(read, "piece already written (key)", "de")
    written = Pieces(predicted, "piece to be written next (query)", "de")
    return [
        ShownMask("Encoder self-attention", _allowed(recorded.encoder), looking, seen),
        ShownMask("Decoder self-attention", _allowed(recorded.decoder), written, before),
        ShownMask("Cross-attention", _allowed(recorded.cross), written, seen),
    ]


def _example(number: int, words: list[str]) -> Example:
    source, target = (
        np.array([words.index(word) for word in side.split()], dtype=np.int32)
        for side in PAIRS[number]
    )
    return Example(number, source, target)


def _allowed(weights: Tensor) -> NDArray[np.bool_]:
    """Return where the only layer and head [1 B 1 T S] may look in the first sentence."""
    return (weights[0, 0, 0] > 0).numpy()


def _draw(masks: list[ShownMask]) -> Figure:
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    figure.suptitle("Where attention may look: a short sentence in a batch with a longer one")
    for axes, mask in zip(figure.subplots(1, len(masks)), masks, strict=True):
        rows, columns = (np.arange(count) for count in mask.allowed.shape)
        colours = ListedColormap([HIDDEN, _ALLOWED])
        axes.pcolormesh(columns, rows, mask.allowed, cmap=colours, vmin=0, vmax=1, edgecolors="w")
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        axes.set_title(mask.title)
        axes.set(xlabel=mask.keys.axis, ylabel=mask.queries.axis)
        label_pieces(axes, mask.queries, mask.keys)
    meanings = {"may look": _ALLOWED, "masked": HIDDEN}
    patches = [Patch(color=colour, label=meaning) for meaning, colour in meanings.items()]
    figure.legend(handles=patches, loc="outside lower left", ncols=2, frameon=False)
    figure.text(0.99, 0.02, _NOTE, ha="right", size=8)
    return figure
