"""Fixtures of exports."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mt.config import ModelConfig
from mt.data.tokenizer import Tokenizer
from mt.decoding.load import FinishedRun, read_run
from mt.model.transformer import Transformer
from mt.model.weights import parameter_tensors
from tests.factories import unsettle


@pytest.fixture
def random_run(finished_run: Path) -> Callable[..., FinishedRun]:
    """Return a function that builds a run with random weights, gains and biases."""

    def make(model: ModelConfig, tokenizer: Tokenizer | None = None) -> FinishedRun:
        run = read_run(finished_run)
        tokenizer = tokenizer or run.tokenizer
        sizes = tokenizer.source_size, tokenizer.target_size
        ours = Transformer(model, source_vocabulary=sizes[0], target_vocabulary=sizes[1])
        unsettle(ours)
        config = run.config.changed(model=model)
        return replace(run, config=config, weights=parameter_tensors(ours), tokenizer=tokenizer)

    return make
