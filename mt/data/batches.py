"""Updates and micro-batches of an epoch: plan, split, collate."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt.data.store import Example
from mt.special_ids import BOS, PAD

Indices = NDArray[np.int64]
Lengths = NDArray[np.int32]
"""[N 2] Tokens of source and target of each pair, EOS included."""
Counts = NDArray[np.int32]
"""[N] Tokens of one side of each pair, or of its longer side."""

Update = list[Indices]
"""Sentences of an update, in runs of similar lengths: no batch has sentences of two runs."""

SOURCE, TARGET = 0, 1
_RUN_TOKENS = 3000
"""Least number of target tokens in a run, about those of a batch on a CPU: a run is a batch of its
own, and each further batch of an update costs time."""
_MOST_RUNS = 4
"""Largest number of runs in an update."""


def plan_updates(
    lengths: Lengths, target_tokens_per_update: int, *, seed: int, epoch: int
) -> list[Update]:
    """Return the updates of an epoch; each sentence is in exactly one.

    An update has one run of sentences for each 3,000 target tokens, at most four. A run has
    sentences of similar length on both sides, so that little padding is needed; four runs in turn,
    of one update or of several, are one from each quarter of the corpus by length. Updates have
    equal numbers of target tokens up to a sentence for each run, as near to
    `target_tokens_per_update` as a whole number of updates allows; there is no small last update.
    The plan follows from `lengths`, `seed` and `epoch` alone, on any hardware.
    """
    assert target_tokens_per_update > 0
    if len(lengths) == 0:
        return []
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    total = int(lengths[:, TARGET].sum(dtype=np.int64))
    count = max(1, round(total / target_tokens_per_update))
    runs_per_update = min(max(target_tokens_per_update // _RUN_TOKENS, 1), _MOST_RUNS)
    strips = max(1, round((count * runs_per_update) ** 0.5))
    order = _snake(lengths, strips=strips, random=random)
    # Cut where the running sum of the tokens is nearest to a multiple of their share.
    tokens = lengths[order, TARGET]
    middles = np.cumsum(tokens, dtype=np.int64) - tokens / 2
    parts = count * runs_per_update
    runs = np.split(order, np.searchsorted(middles, np.arange(1, parts) * (total / parts)))
    # Runs in rounds: one of each quarter of them, shuffled.
    places = [
        random.permutation(len(quarter)) + random.random(len(quarter))
        for quarter in np.array_split(np.arange(parts), _MOST_RUNS)
    ]
    groups = np.array_split(np.argsort(np.concatenate(places)), count)
    updates = ([runs[index] for index in group if len(runs[index])] for group in groups)
    return [update for update in updates if update]


def _snake(lengths: Lengths, *, strips: int, random: np.random.Generator) -> Indices:
    """Order the corpus so that neighbours have similar lengths on both sides.

    The corpus is sorted by target length and cut into strips with equal numbers of target tokens;
    each strip is sorted by source length, ascending and descending in turn. Ties and the beginnings
    of strips are random, so that updates differ between epochs.
    """
    order = random.permutation(len(lengths))
    order = order[np.argsort(lengths[order, TARGET], kind="stable")]
    filled = np.cumsum(lengths[order, TARGET], dtype=np.int64)
    strip = (filled * (strips / filled[-1]) + random.random()).astype(np.int32)
    upwards = (strip + random.integers(2)) % 2 == 0
    source = lengths[order, SOURCE]
    return order[np.lexsort((np.where(upwards, source, -source), strip))]


def split_update(
    update: Update, lengths: Lengths, *, max_tokens_per_batch: int, ranks: int
) -> list[list[Indices]]:
    """Cut an update into micro-batches: for each rank, the sentences of each of its batches.

    Each sentence is in exactly one batch, with others of its run. No batch has more than
    `max_tokens_per_batch` padded positions, rows x the longest side. Each run has the smallest
    possible number of batches, and their padded sizes are similar; the runs with the largest
    batches get more, up to a multiple of `ranks` in all. If the update has fewer sentences than
    batches, some ranks get fewer or none.
    """
    assert ranks > 0
    runs, longest = [], []
    for run in update:
        sides = lengths[run].max(axis=1)
        descending = np.argsort(-sides, kind="stable")
        runs.append(run[descending])
        longest.append(sides[descending])
    assert all(sides[0] <= max_tokens_per_batch for sides in longest), "a sentence exceeds a batch"
    parts = [len(_greedy_starts(sides, max_tokens_per_batch)) for sides in longest]
    while sum(parts) % ranks:
        sizes = [
            float(sides.sum()) / count if count < len(sides) else 0.0
            for sides, count in zip(longest, parts, strict=True)
        ]
        if not any(sizes):
            break
        parts[int(np.argmax(sizes))] += 1
    batches: list[Indices] = []
    for run, sides, count in zip(runs, longest, parts, strict=True):
        starts = _balanced_starts(sides, parts=count, budget=max_tokens_per_batch)
        batches += np.split(run, starts[1:])
    return [batches[rank::ranks] for rank in range(ranks)]


def count_tokens(update: Update, lengths: Lengths) -> tuple[int, int]:
    """Return the source and the target tokens of an update."""
    source, target = lengths[np.concatenate(update)].sum(axis=0, dtype=int).tolist()
    return source, target


def _greedy_starts(longest: Counts, budget: int) -> list[int]:
    """Return where batches begin if each is filled; `longest` [N] is descending."""
    starts, row = [], 0
    while row < len(longest):
        starts.append(row)
        row += budget // int(longest[row])
    return starts


def _balanced_starts(longest: Counts, *, parts: int, budget: int) -> list[int]:
    """Return the beginnings of `parts` batches such that the largest is as small as possible."""
    low, high = int(longest[0]), budget
    while low < high:
        middle = (low + high) // 2
        if len(_greedy_starts(longest, middle)) <= parts:
            high = middle
        else:
            low = middle + 1
    starts = _greedy_starts(longest, low)
    while len(starts) < parts:
        ends = [*starts[1:], len(longest)]
        rows = [end - start for start, end in zip(starts, ends, strict=True)]
        costs = [
            count * int(longest[start]) if count > 1 else 0
            for start, count in zip(starts, rows, strict=True)
        ]
        largest = int(np.argmax(costs))
        starts.insert(largest + 1, starts[largest] + (rows[largest] + 1) // 2)
    return starts


@dataclass(frozen=True, slots=True)
class PaddingEfficiency:
    """Share of the computed positions that hold a token; 1.0 means no padding."""

    source: float
    target: float


def padding_efficiency(batches: Sequence[Indices], lengths: Lengths) -> PaddingEfficiency:
    """Return real / padded positions over all `batches`; no batch is empty."""
    real, padded = np.zeros(2), np.zeros(2)
    for batch in batches:
        rows = lengths[batch]
        real += rows.sum(axis=0)
        padded += rows.max(axis=0) * len(rows)
    efficiency = real / np.maximum(padded, 1)
    return PaddingEfficiency(source=float(efficiency[SOURCE]), target=float(efficiency[TARGET]))


@dataclass(frozen=True, slots=True)
class Batch:
    """Training pairs, padded with PAD on the right."""

    source: Tensor
    """[B S] int64."""
    target_in: Tensor
    """[B T] int64: decoder input, BOS and the target without EOS."""
    target_out: Tensor
    """[B T] int64: labels, the target with EOS."""
    real: Tensor
    """[N] int64: indices of the labels that are not PAD in the flattened `target_out`."""
    source_tokens: int
    """Positions of `source` that are not PAD, counted on the host."""
    target_tokens: int
    """Positions of `target_out` that are not PAD."""
    index: Tensor
    """[B] int64: `Example.index` of each row; it stays on the CPU."""

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch with its ids on `device`."""
        # A copy from pageable memory must end before that memory is reused.
        return self._changed(lambda ids: ids.to(device, non_blocking=ids.is_pinned()))

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory, for asynchronous copies to a GPU."""
        return self._changed(Tensor.pin_memory)

    def halves(self) -> "tuple[Batch, Batch]":
        """Return the first and the second half of the rows, each without superfluous padding."""
        middle = (len(self.index) + 1) // 2
        return self._rows(slice(middle)), self._rows(slice(middle, None))

    def _rows(self, rows: slice) -> "Batch":
        source, target_out = (
            ids[rows, : int((ids[rows] != PAD).sum(dim=1).max())]
            for ids in (self.source, self.target_out)
        )
        real = torch.nonzero(target_out.flatten() != PAD).flatten()
        return Batch(
            source=source,
            target_in=self.target_in[rows, : target_out.shape[1]],
            target_out=target_out,
            real=real,
            source_tokens=int((source != PAD).sum()),
            target_tokens=len(real),
            index=self.index[rows],
        )

    def without_targets(self) -> "Batch":
        """Return the batch without labels; its loss and gradients are zero."""
        return replace(self, real=self.real[:0], source_tokens=0, target_tokens=0)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(
            self,
            source=change(self.source),
            target_in=change(self.target_in),
            target_out=change(self.target_out),
            real=change(self.real),
        )


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples into a batch, with the target shifted by one position for teacher forcing.

    Vaswani et al. 2017, section 3.1: "the output embeddings are offset by one position".
    """
    target_out = _padded([example.target for example in examples])
    begin = torch.full((len(examples), 1), BOS, dtype=torch.int64)
    target_in = torch.cat([begin, target_out[:, :-1]], dim=1)
    # The shift moves EOS into the padding of shorter rows; pad the same positions on both sides.
    target_in[target_out == PAD] = PAD
    return Batch(
        source=_padded([example.source for example in examples]),
        target_in=target_in,
        target_out=target_out,
        real=torch.nonzero(target_out.flatten() != PAD).flatten(),
        source_tokens=sum(len(example.source) for example in examples),
        target_tokens=sum(len(example.target) for example in examples),
        index=torch.tensor([example.index for example in examples], dtype=torch.int64),
    )


def _padded(rows: Sequence[NDArray[np.integer]]) -> Tensor:
    """Return int64 [rows, longest row], padded with PAD on the right."""
    lengths = np.array([len(row) for row in rows])
    padded = np.full((len(rows), int(lengths.max())), PAD, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return torch.from_numpy(padded)


def micro_batches(
    plan: Iterable[Update], lengths: Lengths, *, max_tokens_per_batch: int
) -> list[Indices]:
    """Return the micro-batches of some updates, for one rank, in order."""
    return [
        batch
        for update in plan
        for batch in split_update(
            update, lengths, max_tokens_per_batch=max_tokens_per_batch, ranks=1
        )[0]
    ]
