"""Plots of the attention weights of a translated sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import load_translator
from mt.errors import UserError
from mt.model.hooks import record_attention
from mt.plotting.attention_maps import compute_maps, plot_attention
from mt.special_ids import BOS

SENTENCE = "one two three"


def test_maps_are_those_of_the_sentence_and_its_translation(finished_run: Path) -> None:
    translator = load_translator(finished_run, device="cpu")
    encoder, decoder, cross = compute_maps(translator, SENTENCE, languages=("en", "de"))
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
    translator = load_translator(finished_run, overrides=settings, device="cpu")
    _, decoder, cross = compute_maps(translator, SENTENCE, languages=("en", "de"))
    assert decoder.keys.tokens == ("<s>",)
    assert len(cross.queries.tokens) == 1
    assert cross.queries.tokens != ("</s>",)
    assert caplog.messages == ["the translation reached its length limit and is incomplete"]


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        (" \u3000\n", "the sentence is blank"),
        ("one two " * 50, r"the sentence has \d+ tokens, and the model takes up to"),
        ("a\udce4b", "the sentence is not valid UTF-8"),
    ],
)
def test_a_sentence_that_cannot_be_translated_is_an_error(
    sentence: str, message: str, finished_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        plot_attention(finished_run, sentence, output=tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_three_pictures_are_written(finished_run: Path, tmp_path: Path) -> None:
    pictures = plot_attention(finished_run, SENTENCE, output=tmp_path / "a.b.svg")
    names = ["a.b-encoder.svg", "a.b-decoder.svg", "a.b.svg"]
    assert [picture.name for picture in pictures] == names
    assert all(picture.stat().st_size > 5_000 for picture in pictures)


def test_an_output_that_cannot_be_written_is_an_error_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "a-decoder.png").mkdir()
    with pytest.raises(UserError, match=r"a-decoder\.png: is a folder"):
        plot_attention(tmp_path / "no run", SENTENCE, output=tmp_path / "a.png")
