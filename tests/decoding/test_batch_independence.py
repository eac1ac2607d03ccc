"""A translation does not depend on the other sentences of its batch."""

import random
from pathlib import Path

import numpy as np
import pytest

from mt.config.loading import load_config
from mt.decoding.translator import Translator
from mt.training.trainer import train

ROOT = Path(__file__).parents[2]
TIE = 1e-5
"""Scores that differ by no more are equal but for rounding."""


def differing_lines(run: Path, lines: list[str]) -> set[int]:
    """Return the lines with other translations in other batches; raise unless they are ties."""
    translator = Translator.load(run, overrides=[], device="cpu")
    sources = translator.tokenizer.encode_source(lines)
    sources = [each for each in sources if len(each) <= translator.longest_source]
    orders = [(size, [*range(len(sources))]) for size in (1, 7, 64)]
    orders.append((64, random.Random(1).sample(range(len(sources)), k=len(sources))))
    results = []
    for size, order in orders:
        decoding = translator.decoding.model_copy(update={"batch_size": size})
        found = translator.engine.translate_ids([sources[place] for place in order], decoding)
        results.append([found[place] for place in np.argsort(order)])
    different = set()
    for other in results[1:]:
        for line, (one, two) in enumerate(zip(results[0], other, strict=True)):
            if one.ids != two.ids:
                assert abs(one.score - two.score) <= TIE, line
                different.add(line)
    return different


def test_translations_are_the_same_in_all_batches(finished_run: Path, tiny_corpus: Path) -> None:
    lines = (tiny_corpus / "train.en").read_text().splitlines()
    assert len(differing_lines(finished_run, lines)) <= 1


@pytest.mark.slow
def test_translations_of_real_text_are_the_same_in_all_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    settings = ["max_updates=30", "validate_every=30", "device=cpu"]
    overrides = [f"training.{setting}" for setting in settings]
    train(load_config(Path("configs/quickstart.yaml"), overrides=overrides), tmp_path / "run")
    lines = Path("data/quickstart/test.en").read_text(encoding="utf-8").splitlines()
    assert len(differing_lines(tmp_path / "run", lines[:100])) <= 1
