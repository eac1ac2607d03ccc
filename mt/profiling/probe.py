"""A little of a training, to tell what the whole of it takes on this machine."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mt.config import Config, TrainingConfig
from mt.data.batches import SOURCE, TARGET, Indices, Lengths, collate
from mt.errors import RunError
from mt.profiling.cost import BYTES_PER_NUMBER, synchronize
from mt.profiling.training_speed import MatmulRates, session_matmul_rate, timed
from mt.special_ids import EOS
from mt.training.data import Corpus, first_plan
from mt.training.memory import available_memory, estimate_memory, heaviest, in_smaller_batches
from mt.training.run_folder import peak_memory_mib
from mt.training.setup import Session
from mt.training.step import train_step
from mt.training.trainer import save
from mt.training.validation import validate


@dataclass(frozen=True)
class HeaviestBatch:
    """The batch that takes the most memory."""

    pairs: int
    source_length: int
    """Tokens of the longest source, end mark included."""
    target_length: int

    @classmethod
    def of(cls, lengths: Lengths) -> "HeaviestBatch":
        """Describe a batch of pairs of these lengths [B 2]."""
        source, target = lengths.max(axis=0).tolist()
        return cls(len(lengths), source, target)


@dataclass(frozen=True)
class Memory:
    """That of the process on a CPU, of the device elsewhere; None where it is not known."""

    heaviest: HeaviestBatch
    most_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True)
class Disk:
    """What the run folder will hold at most, which is while a checkpoint is written."""

    checkpoint_bytes: int
    most_bytes: int
    free_bytes: int


def process_bytes() -> int | None:
    """Return the most memory that this process has had; None where the system does not say."""
    peak = peak_memory_mib()
    return None if peak is None else int(peak * 2**20)


def free_memory(device: torch.device) -> int | None:
    """Return what a device has to give, of a CPU what the machine has; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_memory() if device.type == "cpu" else None


def expected_bytes(config: Config, corpus: Corpus) -> int:
    """Return what training on a CPU is likely to add to the program before it."""
    budget = config.training.max_tokens_per_batch
    batch = heaviest(first_plan(corpus, config), corpus.store.lengths, max_tokens_per_batch=budget)
    return estimate_memory(
        config,
        corpus.store.lengths[batch],
        source_vocabulary=corpus.tokenizer.source_size,
        target_vocabulary=corpus.tokenizer.target_size,
    )


def require_disk(
    training: TrainingConfig, run: Path, *, parameters: int, learning: int, checkpoints: int
) -> Disk:
    """Return what a training with so many checkpoints takes of the disk where `run` is to be.

    Of the parameters, `learning` are not frozen. Raises RunError where there is too little room.
    """
    weights = BYTES_PER_NUMBER * parameters
    # Adam keeps two numbers for each that learns; beside an average, its latest value is kept.
    others = 2 if training.ema_decay is None else 3
    checkpoint = weights + others * BYTES_PER_NUMBER * learning
    whole = min(training.keep_last + 1, checkpoints)
    best = min(training.keep_best, checkpoints)
    most = whole * checkpoint + best * weights
    near = next(each for each in (run.absolute(), *run.absolute().parents) if each.is_dir())
    there = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    free = shutil.disk_usage(near).free
    if most > free + there:
        raise RunError(
            f"{run}: the checkpoints of this training take up to {_gib(most)}, and {_gib(free)} "
            f"are free there: lower `training.keep_last`, now {training.keep_last}, or "
            f"`training.keep_best`, now {training.keep_best}, make room, or name a folder on "
            "another disk with --run"
        )
    return Disk(checkpoint, most, free)


def _gib(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB"


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
    in_smaller_batches(session, batches, lambda some: train_step(session.learner, some, 0.0))


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
