"""Sentences longer than any in training, and longer than the model's positions."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mt.config import DecodingConfig
from mt.decoding.torch_engine import TorchEngine
from mt.special_ids import EOS
from tests.factories import transformer

Program = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("positional", ["learned", "sinusoidal"])
def test_a_translation_ends_where_the_positions_do(search: str, positional: str) -> None:
    model = transformer(positional=positional, max_positions=6)
    with torch.no_grad():
        model.target_embedding.weight[EOS] *= 0  # EOS becomes improbable
    engine = TorchEngine(model, torch.device("cpu"))
    decoding = DecodingConfig.model_validate({"search": search, "max_length_extra": 9})
    found = engine.translate_ids([[5, 6, EOS], [7, 8, 9, 10, 11, EOS]], decoding)
    longest = [6, 6] if positional == "learned" else [12, 15]
    assert [len(hypothesis.ids) for hypothesis in found] == longest
    assert not any(hypothesis.finished for hypothesis in found)


def test_pairs_too_long_for_the_model_are_left_out_of_training(
    tiny_recipe: Path, tmp_path: Path, program: Program
) -> None:
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    shutil.copytree(tiny_recipe.parent, corpus)
    for split in ("train", "valid"):
        for side, word in (("en", "one"), ("de", "eno")):
            with (corpus / f"{split}.{side}").open("a", encoding="utf-8") as file:
                file.write(f"{word} " * 300 + "\n")
    recipe = corpus / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace(str(tiny_recipe.parent), str(corpus)))
    settings = (
        "model.positional=learned",
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
