"""Plots of the attention weights of a translated sentence."""

import functools
import logging
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from numpy.typing import NDArray

from mt.config.decoding import PYTORCH_ONLY
from mt.decoding.text_files import open_output
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.errors import UserError, escape_line, install_hint
from mt.files import check_output
from mt.model.hooks import record_attention
from mt.special_ids import BOS, EOS

_CELL, _LETTER = 0.17, 0.11
"""Inches for a token, and for a letter of the title."""
_MIN_PANEL = 1.1
_HIDDEN = "#d9d9d9"
"""Colour of masked cells."""
_METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
"""Metadata to leave out, by format, so that the same input gives the same bytes."""
_DOTS_PER_INCH = 120
_MAX_DOTS = 16_000
_CJK_PACKAGE, _CJK_FILE = "notojp_matplotlib", "fonts/NotoSansCJKjp-Regular.otf"
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

    name: str
    title: str
    weights: NDArray[np.float32]
    queries: TokenAxis
    keys: TokenAxis


def plot_attention(
    run: Path, sentence: str, *, output: Path, overrides: Sequence[str] = ()
) -> list[Path]:
    """Translate a sentence and draw the attention of every head; return the three pictures.

    That of the cross-attention is `output`, those before it have -encoder and -decoder before the
    suffix. `overrides` are `decoding.KEY=VALUE`. Raises UserError for a blank or too long sentence,
    and the errors of `Translator.load`.
    """
    pictures = {
        name: output.with_name(f"{output.stem}-{name}{output.suffix}")
        for name in ("encoder", "decoder")
    }
    pictures["cross"] = output
    for picture in pictures.values():
        check_picture(picture)
    translator = Translator.load(run, overrides=[*overrides, *PYTORCH_ONLY], device="cpu")
    for maps in compute_maps(translator, sentence):
        write_picture(pictures[maps.name], partial(draw_maps, maps, f"{maps.title} - {run}"))
    return list(pictures.values())


def compute_maps(translator: Translator, sentence: str) -> list[HeadMaps]:
    """Return the encoder's, the decoder's and the cross-attention of a translated sentence.

    A decoder row is labelled with the predicted token, a column with an input token.
    """
    engine, tokenizer, languages = translator.engine, translator.tokenizer, translator.direction
    assert isinstance(engine, TorchEngine)
    try:
        sentence.encode()
    except UnicodeEncodeError:
        raise UserError("the sentence is not valid UTF-8") from None
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
    engine.model.eval()
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
        HeadMaps(
            "encoder", "Encoder self-attention", recorded.encoder[:, 0].numpy(), queries, keys
        ),
        HeadMaps("decoder", "Decoder self-attention", decoder, predicted, inputs),
        HeadMaps("cross", "Cross-attention", recorded.cross[:, 0].numpy(), predicted, keys),
    ]


def draw_maps(maps: HeadMaps, title: str) -> Figure:
    """Return a figure with a panel for each head, a row for each layer."""
    layers, heads, rows, columns = maps.weights.shape
    width, height = (max(count * _CELL, _MIN_PANEL) for count in (columns, rows))
    # Around the panels: labels, titles and the colour bar. A long title needs a wide picture.
    size = max(heads * (width + 0.15) + 2.2, _LETTER * len(title)), layers * (height + 1.0) + 0.8
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=_HIDDEN)
    for (layer, head), axes in np.ndenumerate(grid):
        image = axes.imshow(maps.weights[layer, head], cmap=colours, vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"layer {layer + 1}, head {head + 1}", size=8)
        axes.spines[:].set_visible(False)
        label_tokens(axes, maps.queries, maps.keys)
        axes.tick_params(labelleft=head == 0)
    bar = figure.colorbar(image, ax=grid, fraction=0.05, pad=0.01, shrink=min(1, 4 / size[1]))
    bar.set_label("attention weight")
    figure.suptitle(title)
    figure.supylabel(maps.queries.label)
    figure.supxlabel(maps.keys.label)
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


def check_picture(path: Path) -> None:
    """Raise UserError where no picture can be written to `path`."""
    if _picture_format(path) not in _METADATA:
        raise UserError(f"{path}: not a picture; the name must end in .png or .svg")
    check_output(path)


def write_picture(path: Path, draw: Callable[[], Figure]) -> None:
    """Write the figure that `draw` returns as PNG or SVG, by the suffix of `path`.

    The same figure gives the same bytes, whatever the user's matplotlib settings. An existing file
    is replaced when the new one is complete. Characters without a glyph give one warning.
    """
    with matplotlib.rc_context(), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": find_fonts(),
                "font.size": 9,
                "axes.titlesize": 10,
                "figure.titlesize": 12,
                "figure.labelsize": 9,
                "text.parse_math": False,  # a dollar sign is a token like any other
                "svg.fonttype": "path",  # the viewer may not have the font
                "svg.hashsalt": "mt",
            }
        )
        figure = draw()
        dots = min(_DOTS_PER_INCH, _MAX_DOTS / max(figure.get_size_inches()))
        picture_format = _picture_format(path)
        metadata = _METADATA[picture_format]
        with open_output(path) as file:
            figure.savefig(file, format=picture_format, dpi=dots, metadata=metadata)
    if any(str(warning.message).startswith("Glyph") for warning in caught):
        remedy = "" if find_spec(_CJK_PACKAGE) else f"; for a CJK font: {install_hint('plot')}"
        _logger.warning("characters without a glyph in any font are shown as boxes%s", remedy)


@functools.cache
def find_fonts() -> list[str]:
    """Return the fonts to search for a glyph, in order: Latin and others, then CJK."""
    package = find_spec(_CJK_PACKAGE)  # importing it would change matplotlib's settings
    if package is None or package.origin is None:
        return ["DejaVu Sans"]
    fontManager.addfont(Path(package.origin).parent / _CJK_FILE)
    return ["DejaVu Sans", "Noto Sans CJK JP"]


def _picture_format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")
