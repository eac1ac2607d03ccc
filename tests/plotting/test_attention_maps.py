"""Plots of the attention weights of a translated sentence."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.model.hooks import record_attention
from mt.plotting.attention_maps import (
    TokenAxis,
    compute_maps,
    draw_attention,
    label_tokens,
    plot_attention,
)
from mt.plotting.pictures import check_picture, write_picture
from mt.special_ids import BOS

SENTENCE = "one two three"
CHINESE = "这只黑猫在睡觉，直骨"


def test_maps_are_those_of_the_sentence_and_its_translation(finished_run: Path) -> None:
    translator = Translator.load(finished_run, device="cpu")
    cross, encoder, decoder = compute_maps(translator, SENTENCE)
    tokenizer, engine = translator.tokenizer, translator.engine
    assert isinstance(engine, TorchEngine)
    source = tokenizer.encode_source([SENTENCE])[0]
    hypothesis = engine.translate_ids([source], translator.decoding)[0]
    assert hypothesis.finished
    tokens = [tokenizer.target.processor.id_to_piece(token) for token in hypothesis.ids]
    assert "".join(encoder.keys.tokens) == "▁one▁two▁three</s>"
    assert encoder.queries.tokens == encoder.keys.tokens == cross.keys.tokens
    assert decoder.keys.tokens == ("<s>", *tokens)
    assert decoder.queries.tokens == cross.queries.tokens == (*tokens, "</s>")
    target_in = torch.tensor([[BOS, *hypothesis.ids]])
    recorded = record_attention(engine.model.eval(), torch.tensor([source]), target_in)
    np.testing.assert_array_equal(encoder.weights, recorded.encoder[:, 0])
    np.testing.assert_array_equal(cross.weights, recorded.cross[:, 0])
    later = np.triu(np.ones(decoder.weights.shape[-2:], dtype=bool), k=1)
    assert np.isnan(decoder.weights[..., later]).all()
    np.testing.assert_array_equal(
        decoder.weights[..., ~later], recorded.decoder[:, 0].numpy()[..., ~later]
    )


def test_an_incomplete_translation_has_no_eos(
    finished_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["decoding.max_length_ratio=0.0", "decoding.max_length_extra=1"]
    translator = Translator.load(finished_run, overrides=settings, device="cpu")
    cross, _, decoder = compute_maps(translator, SENTENCE)
    assert decoder.keys.tokens == ("<s>",)
    assert len(cross.queries.tokens) == 1
    assert cross.queries.tokens != ("</s>",)
    assert caplog.messages == ["the translation reached its length limit and is incomplete"]


@pytest.mark.parametrize("sentence", [" \u3000\n", "one two " * 50], ids=["blank", "long"])
def test_a_sentence_that_cannot_be_translated_is_an_error(
    sentence: str, finished_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        plot_attention(finished_run, sentence, output=tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_one_picture_has_all_kinds_of_attention(finished_run: Path, tmp_path: Path) -> None:
    plot_attention(finished_run, SENTENCE, output=tmp_path / "a.b.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.b.svg"]
    figure = draw_attention(compute_maps(Translator.load(finished_run), SENTENCE), "run")
    axes = [area.axes for area in figure.subfigs]
    assert [len(panels) for panels in axes] == [3, 3, 3], "two heads and a colour bar each"


def drawing(text: str) -> Callable[[], Figure]:
    def draw() -> Figure:
        figure = Figure(figsize=(3, 2), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow([[0, 1], [1, 0]])
        columns = TokenAxis(("▁a", r"$\no$"), "", "en")
        label_tokens(axes, TokenAxis((text, "a\tb"), "rows", "zh"), columns)
        return figure

    return draw


@pytest.mark.parametrize(("name", "begins"), [("A.PNG", b"\x89PNG\r\n\x1a\n"), ("a.svg", b"<?xml")])
def test_bytes_depend_on_the_suffix_and_the_figure_only(
    name: str, begins: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_picture(tmp_path / name, drawing(CHINESE))
    first = (tmp_path / name).read_bytes()
    assert first.startswith(begins)
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "x", "axes.facecolor": "red"}):
        write_picture(tmp_path / name, drawing(CHINESE))
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / name).read_bytes() == first
    assert caplog.messages == []


def test_missing_glyphs_give_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_picture(tmp_path / "a.png", drawing("ไทยไทย"))
    (message,) = caplog.messages
    assert message.startswith("characters without a glyph in any font are shown as boxes")


@pytest.mark.parametrize("name", ["a.pdf", ".png", "none/a.png", "folder.png"])
def test_another_suffix_or_place_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError):
        check_picture(tmp_path / name)
