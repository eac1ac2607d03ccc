"""Automatic settings: rules, budget, and runs that keep what was chosen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.config import Config
from mt.config.loading import automatic_keys, load_config, value_at
from mt.errors import ConfigError
from mt.training import automatic
from mt.training.automatic import Choices, Facts, choose_settings
from tests import factories
from tests.factories import journal, train_with

CPU = torch.device("cpu")
GIVEN: dict[str, Any] = {
    "tokenizer.algorithm": "bpe",
    "tokenizer.vocabulary": "separate",
    "tokenizer.vocabulary_size": 3210,
    "tokenizer.character_coverage": 0.97,
    "model.d_model": 96,
    "model.d_ff": 100,
    "model.heads": 3,
    "model.encoder_layers": 5,
    "model.decoder_layers": 7,
    "model.positional": "alibi",
    "model.residual": "sandwich",
    "model.feed_forward": "gelu",
    "model.dropout": 0.45,
    "model.tie_embeddings": "none",
    "training.max_updates": 77,
    "training.patience": 3,
    "training.target_tokens_per_update": 321,
    "training.max_tokens_per_batch": 5000,
    "training.learning_rate": 0.0123,
    "training.schedule": "cosine",
    "training.warmup_updates": 7,
    "training.decay_updates": 99,
    "training.ema_decay": 0.9,
    "training.validate_every": 13,
    "training.average": "last",
}
"""A value that no rule chooses for each automatic key."""


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that sets the speed, in target tokens per second at a width of 256."""

    def set_speed(tokens: float) -> None:
        def measured(config: Config, *_: object, **__: object) -> float:
            return tokens * 256 / config.model.d_model

        monkeypatch.setattr(automatic, "training_speed", measured)

    set_speed(1000.0)
    return set_speed


def write(folder: Path, source: list[str], target: list[str]) -> None:
    for side, lines in (("source", source), ("target", target)):
        (folder / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def config(folder: Path, **sections: dict[str, Any]) -> Config:
    """Return a config with only `data`, and `sections`."""
    files = {"source": str(folder / "source"), "target": str(folder / "target")}
    data = {"source_language": "en", "target_language": "de", "train": files, "valid": files}
    return Config.model_validate({"data": data, **sections})


ENGLISH, GERMAN = ["the little dog sleeps"] * 60, ["der kleine hund schläft"] * 60


def test_every_automatic_key_is_chosen_unless_it_is_given(tmp_path: Path, speed: object) -> None:
    write(tmp_path, ENGLISH, GERMAN)
    open_config = config(tmp_path)
    assert sorted(automatic_keys(open_config)) == sorted(GIVEN)
    chosen = choose_settings(open_config, CPU).made
    for key, value in GIVEN.items():
        section, name = key.split(".")
        fixed = config(tmp_path, **{section: {name: value}})
        choices = choose_settings(fixed, CPU)
        assert key not in choices.made
        assert value_at(choices.applied(), key) == value
        assert chosen.get(key) is None or chosen[key].value != value


@given(
    pairs=st.integers(100, 10_000_000),
    letters=st.integers(5, 200),
    tokens_per_second=st.floats(100, 1e6),
    seconds=st.none() | st.floats(60, 1e5),
)
@settings(max_examples=100, deadline=None)
def test_chosen_settings_are_valid_and_grow_with_the_budget(
    pairs: int, letters: int, tokens_per_second: float, seconds: float | None
) -> None:
    ...
