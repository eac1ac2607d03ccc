"""Sentences longer than any seen, and longer than the model can take."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mt.config import DecodingConfig, ModelConfig
from mt.decoding.torch_engine import TorchEngine
from mt.model.transformer import Transformer
from mt.special_ids import EOS

Program = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("positional", ["learned", "sinusoidal"])
def test_a_translation_ends_where_the_positions_do(search: str, positional: str) -> None:
    config = ModelConfig.model_validate(
        {
            "d_model": 16,
            "d_ff": 16,
            "heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "positional": positional,
            "max_positions": 6,
        }
    )
    model = Transformer(config, source_vocabulary=20, target_vocabulary=20)
    with torch.no_grad():
        model.target_embedding.weight[EOS] *= 0  # it hardly ever ends by itself
    engine = TorchEngine(model, torch.device("cpu"))
    decoding = DecodingConfig.model_validate({"search": search, "max_length_extra": 9})
    found = engine.translate_ids([[5, 6, EOS], [7, 8, 9, 10, 11, EOS]], decoding)
    longest = [6, 6] if positional == "learned" else [12, 15]
    assert [len(hypothesis.ids) for hypothesis in found] == longest
    assert not any(hypothesis.finished for hypothesis in found)


@pytest.mark.parametrize("positional", ["learned", "rotary", "sinusoidal"])
def test_pairs_too_long_for_the_model_do_not_stop_a_training(
    positional: str, tiny_recipe: Path, tmp_path: Path, program: Program
) -> None:
    """Such pairs are left out of the training split, not of the others.

    This one is longer than what the model is built with, of positions or of rows of a table.
    """
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    shutil.copytree(tiny_recipe.parent, corpus)
    for split in ("train", "valid"):
        for side, word in (("en", "one"), ("de", "eno")):
            with (corpus / f"{split}.{side}").open("a", encoding="utf-8") as file:
                file.write(f"{word} " * 300 + "\n")
    recipe = corpus / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace(str(tiny_recipe.parent), str(corpus)))
    settings = (
        f"model.positional={positional}",
        "model.max_positions=40",  # as many as `data.max_tokens`
        "training.max_tokens_per_batch=2000",
        "training.max_updates=2",
        "training.validate_every=1",
        "decoding.max_length_extra=60",
    )
    options = [part for setting in settings for part in ("--set", setting)]
    status, _, err = program("train", recipe, "--run", run, *options)
    assert status == 0, err
    assert "1 too long" in err
    status, out, err = program("translate", run, stdin=b"one two\n" + b"one " * 100 + b"\n")
    assert status == 0, err
    assert len(out.splitlines()) == 2
