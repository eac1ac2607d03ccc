"""Updates of a run in order, collated ahead of the training loop in a thread."""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

import torch

from mt.config import TrainingConfig
from mt.data.batches import SOURCE, TARGET, Batch, Indices, collate, split_update
from mt.data.store import PairStore
from mt.training.data import TrainingData
from mt.training.distributed import ALONE, World
from mt.training.state import TrainState
from mt.training.step import TokenCounts

_AHEAD = 4
"""Number of updates whose batches are prepared and kept in memory."""


@dataclass(frozen=True)
class PlannedUpdate:
    """Batches of one update."""

    epoch: int
    number: int
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
        for number, indices in enumerate(plan[first:], start=first):
            cut = split_update(
                indices,
                store.lengths,
                max_tokens_per_batch=training.max_tokens_per_batch,
                ranks=world.size,
            )
            batches = rank_batches(store, cut, world.rank)
            if device.type == "cuda":  # copies from pinned memory are asynchronous
                batches = [batch.pinned() for batch in batches]
            tokens = store.lengths[indices].sum(axis=0, dtype=int).tolist()
            counts = TokenCounts(source=tokens[SOURCE], target=tokens[TARGET])
            yield PlannedUpdate(epoch, number, batches, counts)
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
