"""A little of a training, to tell what the whole of it takes on this machine."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mt.data.batches import SOURCE, TARGET, Indices, collate
from mt.measuring.room import process_bytes
from mt.measuring.training_speed import MatmulRates, session_matmul_rate, timed
from mt.model.matmul_rate import synchronize
from mt.special_ids import EOS
from mt.training.out_of_memory import in_smaller_batches
from mt.training.session import Session
from mt.training.train import save
from mt.training.update import update
from mt.training.validation import validate

PROBE_SECONDS = 15.0
"""How long the timed updates may take, as far as that can be known beforehand."""
FEWEST_UPDATES, MOST_UPDATES = 2, 60
MOST_WARMUP_UPDATES = 5
EXPECTED_SHARE = 0.4
"""Of the rate of matrix products: a guess at what training reaches, to choose how many updates."""
VALIDATION_BATCHES = 6
"""Batches that are decoded to time a validation, spread evenly over the lengths."""


@dataclass(frozen=True)
class Spent:
    """What something takes, in seconds."""

    seconds: float
    """On the clock."""
    cpu_seconds: float
    """Of all cores together."""

    def times(self, factor: float) -> "Spent":
        """Return what so much of it takes."""
        return Spent(self.seconds * factor, self.cpu_seconds * factor)

    def plus(self, other: "Spent") -> "Spent":
        """Return what both take."""
        return Spent(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


@dataclass(frozen=True)
class Probe:
    """What was measured."""

    updates: int
    """So many were timed."""
    update: Spent
    """One that has the mean operations of all."""
    validation: Spent
    """One of the whole validation corpus."""
    checkpoint: Spent
    matmul_rates: MatmulRates
    validation_bytes: int
    """What a whole validation adds to the process."""
    peak_bytes: int | None
    """Of the process, or on a GPU of what is reserved there; None where the system does not say."""


def probe(
    session: Session,
    heaviest: Sequence[Indices],
    *,
    update_flops: NDArray[np.float64],
    averaged: int,
) -> Probe:
    """Take a few updates of a fresh session, a checkpoint, and some of a validation.

    `heaviest` are the batches of an update that takes the most memory, `update_flops` [U] the
    operations of each of the first epoch; the final model will be the mean of `averaged`
    checkpoints.
    """
    rate_before = session_matmul_rate(session)
    updates = _affordable(float(update_flops.mean()) / rate_before)
    update = _time_updates(session, updates, update_flops)
    rates = MatmulRates(rate_before, session_matmul_rate(session))
    _try(session, heaviest)
    bytes_before = process_bytes() or 0
    validation, share = _time_validation(session)
    validation_bytes = ((process_bytes() or 0) - bytes_before) / share
    checkpoint = _timed(session, lambda: save(session))
    session.folder.checkpoints.average([session.state.update] * averaged)  # for its memory
    return Probe(
        updates=updates,
        update=update,
        validation=validation,
        checkpoint=checkpoint,
        matmul_rates=rates,
        validation_bytes=round(validation_bytes),
        peak_bytes=_peak_bytes(session.device),
    )


def _affordable(fewest_seconds: float) -> int:
    """Return how many updates to time, given what one would take as matrix products alone."""
    wanted = PROBE_SECONDS * EXPECTED_SHARE / fewest_seconds
    return int(min(max(wanted, FEWEST_UPDATES), MOST_UPDATES))


def _time_updates(session: Session, updates: int, flops: NDArray[np.float64]) -> Spent:
    """Return what an update of mean operations takes, from some after a warm-up."""
    warmup = min(MOST_WARMUP_UPDATES, updates // 2)
    timing = timed(session, updates, warmup=warmup)
    taken = np.take(flops, np.arange(warmup, warmup + updates), mode="wrap")
    return Spent(timing.seconds, timing.cpu_seconds).times(float(flops.mean() / taken.sum()))


def _try(session: Session, heaviest: Sequence[Indices]) -> None:
    """Take an update for the sake of its memory."""
    store = session.corpus.epoch_store(0)
    batches = [collate(store.examples(batch)) for batch in heaviest]
    in_smaller_batches(session, batches, lambda some: update(session.learner, some, 0.0))


def _time_validation(session: Session) -> tuple[Spent, float]:
    """Return what a validation takes, and how much of one was done to know it.

    Each translation is as long as references are on the average. A model that has learnt next to
    nothing would end its translations anywhere.
    """
    corpus, config = session.corpus, session.config
    lengths = corpus.valid_lengths
    sample = _sample(lengths[:, SOURCE], config.decoding.sentences_at_once)
    part = replace(
        corpus,
        valid=tuple(corpus.valid[number] for number in sample),
        valid_examples=tuple(corpus.valid_examples[number] for number in sample),
    )
    source, target = lengths.sum(axis=0, dtype=int).tolist()
    limits = {"max_length_ratio": target / source, "max_length_extra": 1}
    decoding = config.decoding.model_copy(update=limits)
    with _endless(session.learner.model.output):
        spent = _timed(
            session,
            lambda: validate(
                session.learner, part, config.model_copy(update={"decoding": decoding})
            ),
        )
    share = int(lengths[sample, TARGET].sum()) / target
    return spent.times(1 / share), share


def _sample(lengths: NDArray[np.integer], batch_size: int) -> list[int]:
    """Return the sentences of some batches of like length, as decoding would make them."""
    order = np.argsort(-lengths, kind="stable")
    batches = np.split(order, range(batch_size, len(order), batch_size))
    step = -(-len(batches) // VALIDATION_BATCHES)
    return [int(number) for batch in batches[step // 2 :: step] for number in batch]


@contextmanager
def _endless(output: nn.Module) -> Iterator[None]:
    """Let no translation end before its length limit."""

    def forbid_the_end(_module: nn.Module, _inputs: object, logits: Tensor) -> Tensor:
        logits[..., EOS] = float("-inf")
        return logits

    handle = output.register_forward_hook(forbid_the_end)
    try:
        yield
    finally:
        handle.remove()


def _peak_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return process_bytes()


def _timed(session: Session, work: Callable[[], object]) -> Spent:
    synchronize(session.device)
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    synchronize(session.device)
    return Spent(time.perf_counter() - began, time.process_time() - cpu_began)
