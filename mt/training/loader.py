"""Updates of a run in order, collated ahead in a thread, and cut until they fit the device."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from mt.config import TrainingConfig
from mt.data.batches import (
    Batch,
    Indices,
    Lengths,
    Update,
    collate,
    count_tokens,
    micro_batches,
    split_update,
)
from mt.data.store import PairStore
from mt.errors import UserError
from mt.model.device import device_traits, is_out_of_memory
from mt.training.data import TrainingData
from mt.training.distributed import ALONE, World
from mt.training.passes import begin_update
from mt.training.progress import Progress
from mt.training.state import TrainState
from mt.training.step import BatchTooLarge, Learner, TokenCounts, report_large_batch

T = TypeVar("T")
ADAM_MOMENTS = 2
"""Tensors that Adam keeps for each parameter, from the first step on."""
_AHEAD = 4
"""Number of updates whose batches are prepared and kept in memory."""


@dataclass(frozen=True)
class PlannedUpdate:
    """Batches of one update."""

    epoch: int
    index: int
    """Position in the epoch, from 0."""
    batches: list[Batch]
    """Micro-batches of this rank."""
    tokens: TokenCounts
    """Tokens of the whole update, on all ranks."""


def planned_updates(
    training: TrainingConfig,
    data: TrainingData,
    state: TrainState,
    device: torch.device,
    world: World = ALONE,
) -> Iterator[PlannedUpdate]:
    """Yield this rank's share of the updates, from the state's to the end of the last epoch."""
    first = state.update_in_epoch
    for epoch in count(state.epoch):
        if training.max_epochs is not None and epoch >= training.max_epochs:
            return
        store = data.epoch_store(epoch)
        plan = data.plan_epoch(epoch)
        for index, update in enumerate(plan[first:], start=first):
            cut = split_update(
                update,
                store.lengths,
                max_tokens_per_batch=training.max_tokens_per_batch,
                ranks=world.size,
            )
            batches = rank_batches(store, cut, world.rank)
            if device.type == "cuda":  # copies from pinned memory are asynchronous
                batches = [batch.pinned() for batch in batches]
            counts = TokenCounts(*count_tokens(update, store.lengths))
            yield PlannedUpdate(epoch, index, batches, counts)
        first = 0


def rank_batches(store: PairStore, cut: list[list[Indices]], rank: int) -> list[Batch]:
    """Return the micro-batches of a rank, at least one, from the result of `split_update`.

    If an update has fewer sentences than there are ranks, the last ranks get a batch without
    targets, because every rank must take part in the all-reduce of the gradients.
    """
    if cut[rank]:
        return [collate(store.examples(batch)) for batch in cut[rank]]
    return [collate(store.examples(cut[0][0])).without_targets()]


class Prefetcher:
    """Iterator over updates that a thread prepares ahead; the thread ends with the context."""

    def __init__(self, updates: Iterator[PlannedUpdate]) -> None:
        self.waited_seconds = 0.0
        """Time that the training loop has waited for data."""
        self._updates = updates
        self._thread = ThreadPoolExecutor(1, "prefetcher")
        self._pending = deque(self._submit() for _ in range(_AHEAD))

    def _submit(self) -> Future[PlannedUpdate | None]:
        return self._thread.submit(next, self._updates, None)

    def __iter__(self) -> Iterator[PlannedUpdate]:
        """Yield the updates; raise the exceptions of the thread."""
        while True:
            began_at = time.perf_counter()
            update = self._pending.popleft().result()
            self.waited_seconds += time.perf_counter() - began_at
            if update is None:
                return
            self._pending.append(self._submit())
            yield update

    def __enter__(self) -> "Prefetcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def heaviest(plan: Sequence[Update], lengths: Lengths, *, max_tokens_per_batch: int) -> Indices:
    """Return the micro-batch of a plan with the most positions, source and target together."""
    batches = micro_batches(plan, lengths, max_tokens_per_batch=max_tokens_per_batch)
    return max(batches, key=lambda batch: len(batch) * int(lengths[batch].max(axis=0).sum()))


@dataclass
class BatchFitter:
    """Fits batches into the memory of the device: finds an automatic size, halves others."""

    learner: Learner
    data: TrainingData
    progress: Progress
    world: World
    tokens: int
    """Size of a batch, `training.max_tokens_per_batch`; at least `longest`."""
    longest: int
    is_automatic: bool = False
    """True if the size may be halved; a size that is given stays."""
    seed: int = 0

    def try_heaviest(self, epoch: int) -> None:
        """Compute the gradients of the heaviest batch on a GPU; fit an automatic size to it.

        The gradients are dropped and dropout is seeded by each update, so training is not affected.
        Raises UserError as `run` does.
        """
        if not device_traits(self.learner.precision.device).runs_out_late:
            return
        store, plan = self.data.epoch_store(epoch), self.data.plan_epoch(epoch)

        def heaviest_batch(tokens: int) -> Batch:
            indices = heaviest(plan, store.lengths, max_tokens_per_batch=tokens)
            return collate(store.examples(indices))

        if self.is_automatic:
            sizes = self.tokens, self.longest
            self.tokens = fit_size(self.learner, heaviest_batch, *sizes, self.world)
            self.progress.print_line(f"batches of at most {self.tokens:,} tokens, padding included")
        if not self.is_automatic or self.tokens == self.longest:
            attempt = partial(add_gradients, self.learner)
            self.run(attempt, [heaviest_batch(self.tokens)], update=0)
            self.learner.optimizer.zero_grad(set_to_none=True)

    def run(
        self, attempt: Callable[[list[Batch]], T], batches: Sequence[Batch], *, update: int
    ) -> T:
        """Call `attempt` with the batches on the device, in halves where they do not fit.

        Dropout is seeded before, by the run's seed, the update and the rank alone, and the
        objective prepared for the update. `attempt` raises BatchTooLarge; the gradients that it has
        added until then are dropped.

        Raises UserError where a single pair does not fit, and where a batch does not fit on one of
        several ranks: the ranks wait for each other batch by batch.
        """
        batches, device = list(batches), self.learner.precision.device
        begin_update(self.learner.training_pass, update + 1)
        while True:
            # A repeated or resumed update draws the same numbers, without a saved state.
            seeds = np.random.SeedSequence([self.seed, update, self.world.rank])
            torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0]))
            try:
                return attempt([batch.to(device) for batch in batches])
            except BatchTooLarge as error:
                too_large = error.index
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise UserError(
                    "the device has too little memory for the model and its optimizer: make the "
                    "model smaller in a new run (--run), or use a larger device"
                ) from None
            self.learner.optimizer.zero_grad(set_to_none=True)
            batch = batches[too_large]
            rows, key = len(batch.index), f"`training.max_tokens_per_batch`, now {self.tokens}"
            if isinstance(self.learner.training_pass, DistributedDataParallel):
                raise UserError(
                    f"this rank's device has too little memory for a batch of {rows} pairs: lower "
                    f"{key}; the updates stay the same"
                )
            if rows == 1:
                raise UserError(
                    f"pair {int(batch.index) + 1:,} of the encoded corpus, with "
                    f"{batch.source_tokens} source and {batch.target_tokens} target tokens, does "
                    "not fit into the device's memory: in a new run (--run) lower "
                    "`data.max_tokens`, make the model smaller or set `training.precision` to bf16"
                )
            self.progress.warn_once(
                "split_batches",
                "the device has too little memory for a batch: such batches are split in halves, "
                f"which is slower, and the updates stay the same; to avoid it, lower {key}",
                update=update,
            )
            batches[too_large : too_large + 1] = batch.halves()


def fit_size(
    learner: Learner, heaviest_batch: Callable[[int], Batch], most: int, least: int, world: World
) -> int:
    """Return the largest size of batches, `most` or halves of it, that fits on all devices.

    `heaviest_batch` returns the largest batch of a size, whose gradients are computed and dropped.
    `least` is returned without an attempt.
    """
    device, size = learner.precision.device, most
    while size > least:
        fits = True
        try:
            with report_large_batch(0):
                add_gradients(learner, [heaviest_batch(size).to(device)])
        except BatchTooLarge:
            fits = False
        learner.optimizer.zero_grad(set_to_none=True)
        if not fits and device.type == "cuda":
            # The next attempt, and the measured peak, begin without the blocks of this one.
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        if not world.all_reduce_max(int(not fits)):
            break
        size = max(size // 2, least)
    return size


def add_gradients(learner: Learner, batches: Sequence[Batch]) -> None:
    """Add the gradients of some batches on this rank alone, beside memory for Adam's moments."""
    total = max(sum(batch.target_tokens for batch in batches), 1)
    count = ADAM_MOMENTS if isinstance(learner.optimizer, torch.optim.Adam) else 0
    moments = [
        torch.empty_like(parameter)
        for parameter in learner.model.parameters()
        if parameter.requires_grad and parameter not in learner.optimizer.state
        for _ in range(count)
    ]
    training_pass = learner.training_pass
    if isinstance(training_pass, DistributedDataParallel):
        training_pass = training_pass.module  # a rank without memory would let others wait
    for position, batch in enumerate(batches):
        with report_large_batch(position):
            with learner.precision.autocast():
                sums = training_pass(batch)
            learner.precision.backward(sums.objective / total)
    del moments
