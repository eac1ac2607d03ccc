"""From the lengths of a corpus to the batches of an epoch: plan, split, collate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt.data.store import Example
from mt.special_ids import BOS, PAD

Indices = NDArray[np.int64]
Lengths = NDArray[np.int32]
"""[N 2]: tokens of source and target of each pair, end marks included."""

SOURCE, TARGET = 0, 1


def plan_updates(
    lengths: Lengths, target_tokens_per_update: int, *, seed: int, epoch: int
) -> list[Indices]:
    """Return the sentences of each update of one epoch, every sentence in exactly one.

    An update holds sentences of like length on both sides, so that little padding is needed. The
    corpus is cut into updates of equal size: the number of target tokens, end marks included, is
    the same up to one sentence, and as near to `target_tokens_per_update` as a whole number of
    updates allows; no remainder is dropped or left as a small last update. Order and composition
    follow from `seed` and `epoch` alone; no property of the hardware enters.
    """
    assert target_tokens_per_update > 0
    if len(lengths) == 0:
        return []
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    total = int(lengths[:, TARGET].sum(dtype=np.int64))
    count = max(1, round(total / target_tokens_per_update))
    order = _snake(lengths, strips=max(1, round(count**0.5)), random=random)
    updates = _cut_evenly(order, lengths[order, TARGET], parts=count)
    return [updates[number] for number in random.permutation(len(updates))]


def _snake(lengths: Lengths, *, strips: int, random: np.random.Generator) -> Indices:
    """Order the corpus so that neighbours are alike in both lengths.

    Sorted by target length and cut into strips of equally many target tokens; each strip is
    sorted by source length, upwards and downwards in turn. Ties fall and strips begin at random:
    without that, a sentence would meet the same company in every epoch.
    """
    order = random.permutation(len(lengths))
    order = order[np.argsort(lengths[order, TARGET], kind="stable")]
    filled = np.cumsum(lengths[order, TARGET], dtype=np.int64)
    strip = (filled * (strips / filled[-1]) + random.random()).astype(np.int32)
    upwards = (strip + random.integers(2)) % 2 == 0
    source = lengths[order, SOURCE]
    return order[np.lexsort((np.where(upwards, source, -source), strip))]


def _cut_evenly(order: Indices, tokens: Lengths, *, parts: int) -> list[Indices]:
    """Cut where the running sum of `tokens` is nearest to the multiples of a part's share."""
    middles = np.cumsum(tokens, dtype=np.int64) - tokens / 2
    shares = np.arange(1, parts) * (tokens.sum(dtype=np.int64) / parts)
    return [part for part in np.split(order, np.searchsorted(middles, shares)) if len(part)]


def split_update(
    update: Indices, lengths: Lengths, *, max_tokens_per_batch: int, ranks: int
) -> list[list[Indices]]:
    """Cut one update into micro-batches, by rank: element [rank][number] is a batch's sentences.

    No batch has more than `max_tokens_per_batch` padded positions, rows x the longest side. There
    are as few batches as that allows, rounded up to the same number on every rank, and of like
    padded size. Only where the update has fewer sentences than batches do some ranks get fewer,
    or none. Every sentence of the update is in exactly one batch.
    """
    longest = lengths[update].max(axis=1)
    descending = np.argsort(-longest, kind="stable")
    longest = longest[descending]
    assert ranks > 0
    assert len(update) == 0 or longest[0] <= max_tokens_per_batch, "a sentence exceeds the budget"
    fewest = len(_greedy_starts(longest, max_tokens_per_batch))
    parts = min(-(-fewest // ranks) * ranks, len(update))
    starts = _balanced_starts(longest, parts=parts, budget=max_tokens_per_batch)
    batches = np.split(update[descending], starts[1:]) if parts else []
    return [batches[rank::ranks] for rank in range(ranks)]


def _greedy_starts(longest: Lengths, budget: int) -> list[int]:
    """Return where batches begin if each takes the rows that fit; `longest` is descending."""
    starts, row = [], 0
    while row < len(longest):
        starts.append(row)
        row += budget // int(longest[row])
    return starts


def _balanced_starts(longest: Lengths, *, parts: int, budget: int) -> list[int]:
    """Return the beginnings of exactly `parts` batches, the largest as small as may be."""
    if parts == 0:
        return []
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
    """Share of the computed positions that hold a token, by side; 1.0 is no padding at all."""

    source: float
    target: float


def padding_efficiency(batches: Sequence[Indices], lengths: Lengths) -> PaddingEfficiency:
    """Return real / padded positions over all `batches` (lists of sentences, none empty)."""
    real, padded = np.zeros(2), np.zeros(2)
    for batch in batches:
        rows = lengths[batch]
        real += rows.sum(axis=0)
        padded += rows.max(axis=0) * len(rows)
    efficiency = real / np.maximum(padded, 1)
    return PaddingEfficiency(source=float(efficiency[SOURCE]), target=float(efficiency[TARGET]))


@dataclass(frozen=True, slots=True)
class Batch:
    """Training pairs side by side, PAD after each row's end."""

    source: Tensor
    """[B S] int64."""
    target_in: Tensor
    """[B T] int64: BOS, then the target without its end mark: what the decoder reads."""
    target_out: Tensor
    """[B T] int64: the target, end mark included: what it is to say at each position."""
    real: Tensor
    """[N] int64: the places in `target_out`, read row after row, that are not PAD."""
    source_tokens: int
    """Positions of `source` that are not PAD, counted without asking a device."""
    target_tokens: int
    """Positions of `target_out` that are not PAD, likewise."""
    index: Tensor
    """[B] int64: which pair of the corpus each row is; it stays on the CPU."""

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch with its ids on `device`."""
        return self._each(lambda ids: ids.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """Return the batch in memory from which a GPU copies while the host goes on."""
        return self._each(Tensor.pin_memory)

    def halves(self) -> "tuple[Batch, Batch]":
        """Return the first and the second half of the rows, each as wide as it needs to be."""
        middle = (len(self.index) + 1) // 2
        return self._rows(slice(middle)), self._rows(slice(middle, None))

    def _rows(self, rows: slice) -> "Batch":
        source, target_out = (_narrowed(ids[rows]) for ids in (self.source, self.target_out))
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
        """Return the batch with no position to learn from: loss and gradients are zeros."""
        return replace(self, real=self.real[:0], source_tokens=0, target_tokens=0)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(
            self,
            source=change(self.source),
            target_in=change(self.target_in),
            target_out=change(self.target_out),
            real=change(self.real),
        )


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Sentences to translate, PAD after each row's end."""

    source: Tensor
    """[B S] int64."""

    def to(self, device: torch.device | str) -> "SourceBatch":
        """Return the batch on `device`."""
        return SourceBatch(self.source.to(device, non_blocking=True))


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples into a batch; the teacher-forcing shift happens here and nowhere else.

    Vaswani et al. 2017, section 3.1: the output embeddings are offset by one position.
    """
    target_out = _padded([example.target for example in examples])
    begin = torch.full((len(examples), 1), BOS, dtype=torch.int64)
    target_in = torch.cat([begin, target_out[:, :-1]], dim=1)
    # A row that is shorter than the batch still shows its end mark here; there it is padding.
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


def collate_sources(sources: Sequence[Sequence[int]]) -> SourceBatch:
    """Pad encoded sentences, end marks included, into a batch."""
    return SourceBatch(_padded([np.asarray(source, dtype=np.int64) for source in sources]))


def _narrowed(ids: Tensor) -> Tensor:
    """Return ids [B S] without the last columns, as far as they are PAD in all rows."""
    return ids[:, : int((ids != PAD).sum(dim=1).max())]


def _padded(rows: Sequence[NDArray[np.integer]]) -> Tensor:
    """Return int64 [rows, longest row], PAD to the right."""
    lengths = np.array([len(row) for row in rows])
    padded = np.full((len(rows), int(lengths.max())), PAD, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return torch.from_numpy(padded)
