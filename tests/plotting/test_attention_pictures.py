"""The attention of one translated sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator, load_translator
from mt.errors import UserError
from mt.model.attention_hooks import record_attention
from mt.plotting.attention import attention_maps, plot_attention
from mt.special_ids import BOS

SENTENCE = "one two three"


@pytest.fixture
def translator(finished_run: Path) -> Translator:
    return load_translator(finished_run, device="cpu")


def test_the_maps_are_of_the_sentence_and_its_translation(translator: Translator) -> None:
    encoder, decoder, cross = attention_maps(translator, SENTENCE, languages=("en", "de"))
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


def test_a_translation_that_is_cut_has_no_end_mark(
    finished_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["decoding.max_length_ratio=0.0", "decoding.max_length_extra=1"]
    translator = load_translator(finished_run, overrides=settings, device="cpu")
    _, decoder, cross = attention_maps(translator, SENTENCE, languages=("en", "de"))
    assert decoder.keys.tokens == ("<s>",)
    assert len(cross.queries.tokens) == 1
    assert cross.queries.tokens != ("</s>",)
    assert caplog.messages == ["the translation reached its length limit and is cut there"]


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("", "the sentence is blank"),
        (" \u3000\n", "the sentence is blank"),
        ("one two " * 50, r"the sentence has \d+ tokens, the model knows up to"),
        ("a\udce4b", "the sentence is not UTF-8"),
    ],
)
def test_a_sentence_that_cannot_be_translated_whole(
    sentence: str, told: str, finished_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told):
        plot_attention(finished_run, sentence, output=tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_three_pictures_and_the_same_ones_again(finished_run: Path, tmp_path: Path) -> None:
    def draw() -> dict[str, bytes]:
        places = plot_attention(finished_run, SENTENCE, output=tmp_path / "a.b.svg")
        return {place.name: place.read_bytes() for place in places}

    first = draw()
    assert list(first) == ["a.b-encoder.svg", "a.b-decoder.svg", "a.b-cross.svg"]
    assert all(len(content) > 5_000 for content in first.values())
    assert draw() == first


def test_no_work_is_done_where_one_of_the_three_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a-cross.png").mkdir()
    with pytest.raises(UserError, match=r"a-cross\.png: is a folder"):
        plot_attention(tmp_path / "no run", SENTENCE, output=tmp_path / "a.png")
