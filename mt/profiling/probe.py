"""Timing of a few updates, a validation and a checkpoint, from which `mt plan` extrapolates."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from mt.data.batches import SOURCE, TARGET
from mt.profiling.cost import synchronize
from mt.profiling.training_speed import timed
from mt.special_ids import EOS
from mt.training.setup import Session
from mt.training.trainer import save
from mt.training.validation import validate

PROBE_SECONDS = 15.0
"""Approximate time that the measured updates may take."""
MOST_UPDATES = 60
"""Maximum number of updates, those of the warm-up included."""
VALIDATION_BATCHES = 6
"""Batches that are decoded to time a validation, spread evenly over the lengths."""


@dataclass(frozen=True)
class Probe:
    """Measured times, in seconds."""

    updates: int
    """Number of timed updates."""
    update: float
    """An update with the mean number of operations."""
    validation: float
    """A validation of the whole split."""
    checkpoint: float


def probe(session: Session, *, update_flops: NDArray[np.float64]) -> Probe:
    """Time updates, a validation and a checkpoint of a new session.

    `update_flops` [U] are the operations of each update of the first epoch.
    """
    updates, update = _time_updates(session, update_flops)
    return Probe(
        updates=updates,
        update=update,
        validation=_time_validation(session),
        checkpoint=_timed(session, lambda: save(session)),
    )


def _time_updates(session: Session, flops: NDArray[np.float64]) -> tuple[int, float]:
    """Return the number of timed updates, and the time of an update with the mean operations."""
    first = timed(session, 1, warmup=1)
    updates = int(np.clip(PROBE_SECONDS / first.seconds, 1, MOST_UPDATES - 3))
    begin = session.state.update + 1
    timing = timed(session, updates, warmup=1)
    taken = np.take(flops, np.arange(begin, begin + updates), mode="wrap")
    return updates, timing.seconds * float(flops.mean() / taken.sum())


def _time_validation(session: Session) -> float:
    """Return the time of a validation, extrapolated from a sample of the split.

    Each translation gets the mean length of the references: the output of an untrained model ends
    anywhere.
    """
    corpus, config = session.corpus, session.config
    lengths, batch_size = corpus.valid_lengths, config.decoding.sentences_at_once
    order = np.argsort(-lengths[:, SOURCE], kind="stable")
    batches = np.split(order, range(batch_size, len(order), batch_size))
    step = -(-len(batches) // VALIDATION_BATCHES)
    sample = np.concatenate(batches[step // 2 :: step]).tolist()
    part = replace(
        corpus,
        valid=tuple(corpus.valid[number] for number in sample),
        valid_examples=tuple(corpus.valid_examples[number] for number in sample),
    )
    source, target = lengths.sum(axis=0, dtype=int).tolist()
    limits = {"max_length_ratio": target / source, "max_length_extra": 1}
    limited = config.model_copy(update={"decoding": config.decoding.model_copy(update=limits)})
    with _without_eos(session.learner.model.output):
        seconds = _timed(session, lambda: validate(session.learner, part, limited))
    return seconds * float(target / lengths[sample, TARGET].sum())


@contextmanager
def _without_eos(output: nn.Module) -> Iterator[None]:
    """Set the logit of EOS to -inf, so that each translation reaches its length limit."""

    def forbid_eos(_module: nn.Module, _inputs: object, logits: Tensor) -> Tensor:
        logits[..., EOS] = float("-inf")
        return logits

    handle = output.register_forward_hook(forbid_eos)
    try:
        yield
    finally:
        handle.remove()


def _timed(session: Session, work: Callable[[], object]) -> float:
    synchronize(session.device)
    began = time.perf_counter()
    work()
    synchronize(session.device)
    return time.perf_counter() - began
