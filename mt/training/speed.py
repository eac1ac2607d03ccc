"""Training speed of a config on this device, measured on random tokens."""

import time
from contextlib import suppress

import numpy as np
import torch

from mt.config import Config
from mt.data.batches import SOURCE, TARGET, Batch, Indices, Lengths, collate, plan_updates
from mt.data.store import Example
from mt.errors import UserError
from mt.special_ids import EOS
from mt.training.data import micro_batches
from mt.training.setup import build_learner, new_model
from mt.training.step import BatchTooLarge, count_tokens, train_step

_PAIRS = 4096
"""Pairs whose lengths the measured updates have."""


def training_speed(
    config: Config,
    lengths: Lengths,
    *,
    vocabularies: tuple[int, int],
    device: torch.device,
    seconds: float = 3.0,
) -> float:
    """Measure the target tokens per second of training steps, for about `seconds`.

    `lengths` [N 2] are those of the corpus or of a sample; `vocabularies` the sizes of both sides.
    The first update, which maps memory and chooses kernels, is left out. Batches are halved until
    they fit the device's memory; raises UserError where none fits.
    """
    tokens, longest = config.training.max_tokens_per_batch, config.data.max_tokens
    while True:
        with suppress(BatchTooLarge):
            sized = config.changed(training=config.training.changed(max_tokens_per_batch=tokens))
            return _measure(sized, lengths, vocabularies, device, seconds)
        if tokens <= longest:
            raise UserError(
                f"the device has too little memory for this model and sentences of {longest} "
                "tokens: make the model smaller, or lower `data.max_tokens`"
            )
        tokens = max(tokens // 2, longest)


def _measure(
    config: Config,
    lengths: Lengths,
    vocabularies: tuple[int, int],
    device: torch.device,
    seconds: float,
) -> float:
    """Return the target tokens per second of training steps; raises BatchTooLarge."""
    random = np.random.default_rng(0)
    lengths = lengths[random.permutation(len(lengths))[:_PAIRS]]
    plan = plan_updates(lengths, config.training.target_tokens_per_update, seed=0, epoch=0)
    learner = build_learner(config, new_model(config.model, vocabularies, device), device)
    learner.model.train()
    tokens, began, taken = 0, time.perf_counter(), 0.0
    for number in range(len(plan) + 1):
        batches = _random_batches(plan[number % len(plan)], lengths, config, vocabularies, random)
        result = train_step(learner, [batch.to(device) for batch in batches], learning_rate=0.0)
        float(result.gradient_norm)  # waits for the device
        if number == 0:
            began = time.perf_counter()
            continue
        tokens += count_tokens(batches).target
        taken = time.perf_counter() - began
        if taken > seconds:
            break
    return tokens / taken


def _random_batches(
    update: Indices,
    lengths: Lengths,
    config: Config,
    vocabularies: tuple[int, int],
    random: np.random.Generator,
) -> list[Batch]:
    """Return the batches of an update with random tokens of the given lengths."""

    def tokens(length: int, vocabulary: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        return random.integers(EOS, vocabulary, length).astype(np.int32)

    budget = config.training.max_tokens_per_batch
    return [
        collate(
            [
                Example(
                    index,
                    tokens(int(lengths[index, SOURCE]), vocabularies[SOURCE]),
                    tokens(int(lengths[index, TARGET]), vocabularies[TARGET]),
                )
                for index in indices.tolist()
            ]
        )
        for indices in micro_batches([update], lengths, max_tokens_per_batch=budget)
    ]
