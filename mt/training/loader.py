"""The updates of a run in their order, made ready in a thread while the model learns."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch

from mt.config import Config
from mt.data.batches import SOURCE, TARGET, Batch, Indices, collate, split_update
from mt.data.store import PairStore
from mt.training.data import Corpus, first_plan
from mt.training.distributed import ALONE, World
from mt.training.state import TrainState
from mt.training.step import TokenCounts

_AHEAD = 4
"""Updates that are ready at most; each holds its batches in memory."""
_LOOK_EVERY_SECONDS = 0.2


@dataclass(frozen=True)
class PlannedUpdate:
    """What an update learns from."""

    epoch: int
    number: int
    """Its place in the epoch, from 0."""
    batches: list[Batch]
    """The micro-batches of this rank."""
    tokens: TokenCounts
    """Those of the whole update, on all ranks."""


def planned_updates(
    config: Config, corpus: Corpus, state: TrainState, device: torch.device, world: World = ALONE
) -> Iterator[PlannedUpdate]:
    """Yield this rank's share of the updates, from the state's to the last epoch's end."""
    training = config.training
    first = state.update_in_epoch
    for epoch in count(state.epoch):
        if training.max_epochs is not None and epoch >= training.max_epochs:
            return
        store = corpus.epoch_store(epoch)
        plan = first_plan(corpus, config, epoch=epoch)
        for number, indices in enumerate(plan[first:], start=first):
            cut = split_update(
                indices,
                store.lengths,
                max_tokens_per_batch=training.max_tokens_per_batch,
                ranks=world.size,
            )
            tokens = store.lengths[indices].sum(axis=0, dtype=int).tolist()
            yield PlannedUpdate(
                epoch,
                number,
                [_on_its_way(batch, device) for batch in rank_batches(store, cut, world.rank)],
                TokenCounts(source=tokens[SOURCE], target=tokens[TARGET]),
            )
        first = 0


def rank_batches(store: PairStore, cut: list[list[Indices]], rank: int) -> list[Batch]:
    """Return the micro-batches of a rank, never none, from what `split_update` has cut.

    Where an update has fewer sentences than there are ranks, the last ones have none. They too have
    to take part in adding up gradients, and do so with a batch that has none to add.
    """
    if cut[rank]:
        return [collate(store.examples(batch)) for batch in cut[rank]]
    return [collate(store.examples(cut[0][0])).without_targets()]


def _on_its_way(batch: Batch, device: torch.device) -> Batch:
    """Return the batch where a copy to the device holds nobody up."""
    return batch.pinned() if device.type == "cuda" else batch


class Prefetcher:
    """Updates that a thread prepares ahead, and the time that the model waited for them."""

    def __init__(self, updates: Iterator[PlannedUpdate]) -> None:
        self.waited_seconds = 0.0
        self._updates = updates
        self._ready: queue.Queue[PlannedUpdate | BaseException | None] = queue.Queue(_AHEAD)
        self._stopped = threading.Event()

    def __iter__(self) -> Iterator[PlannedUpdate]:
        """Yield the updates; what fails in the thread is raised here."""
        while True:
            asked_at = time.perf_counter()
            found = self._ready.get()
            self.waited_seconds += time.perf_counter() - asked_at
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found

    def prepare(self) -> None:
        """Fill the queue until the updates end or `stop` is called."""
        try:
            for update in self._updates:
                if not self._put(update):
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def stop(self) -> None:
        """Let `prepare` return soon."""
        self._stopped.set()

    def _put(self, item: PlannedUpdate | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._ready.put(item, timeout=_LOOK_EVERY_SECONDS)
            except queue.Full:
                continue
            return True
        return False


@contextmanager
def prepared_ahead(updates: Iterator[PlannedUpdate]) -> Iterator[Prefetcher]:
    """Prepare updates in a thread that ends with the context."""
    feed = Prefetcher(updates)
    thread = threading.Thread(target=feed.prepare, name="feed", daemon=True)
    thread.start()
    try:
        yield feed
    finally:
        feed.stop()
        thread.join()
