"""Translation table: probabilities of token translations, and the alignments that they give."""

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.data.batches import Lengths
from mt.data.store import PairStore
from mt.special_ids import EOS, PAD

_MOST_CELLS = 2**23
"""Pairs of a source and a target token in the sentences that a table is learned from."""
_BLOCK_CELLS = 2**19
"""Cells whose weights are in memory at once."""
_BYTES_PER_CELL = 33
"""Measured. Three arrays of 8-byte numbers are in memory while the cells are sorted."""
_ITERATIONS = 5
_NULL = PAD
"""Source token of target tokens without a counterpart, while the table is learned."""
_JUMP_COST, _LONGEST_JUMP = 0.5, 3
"""In nats and tokens, chosen on the quickstart."""
_LEAST = 1e-9
"""Probability of tokens that do not occur together."""


@dataclass(frozen=True)
class TranslationTable:
    """Probability of a target token given a source token, for pairs that occur together.

    The table of IBM Model 1 (Brown et al. 1993), learned from the training pairs.
    """

    keys: Tensor
    """Pairs in ascending order, source id * 2^32 + target id."""
    probabilities: Tensor
    term_ids: tuple[int, int] | None = None
    """Tags of shown target terms, whose tokens translate themselves."""

    def ids(self) -> tuple[Tensor, Tensor]:
        """Return the source id and the target id of each pair."""
        return self.keys >> 32, self.keys & (2**32 - 1)

    def look_up(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the probabilities of pairs of tokens, 0 for those that do not occur together."""
        keys = (source.long() << 32) + target
        numbers = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[numbers] == keys, self.probabilities[numbers], 0.0)

    def align(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the position in source [B S] of each token of target [B T]; EOS and PAD have -1.

        They are those of the most probable path, on which a step to a source token that is d
        tokens away costs `_JUMP_COST` times d, up to `_LONGEST_JUMP` (Vogel et al. 1996).
        """
        scores = self.look_up(source[:, None, :], target[:, :, None]).clamp(min=_LEAST).log()
        if self.term_ids is not None:
            opened, closed = ((source == tag).cumsum(1) for tag in self.term_ids)
            is_shown = (opened > closed)[:, None] & (source[:, None] == target[:, :, None])
            scores.masked_fill_(is_shown, 0.0)
        scores.masked_fill_(((source == PAD) | (source == EOS))[:, None], float("-inf"))
        # Steps of fewer tokens than the longest are compared in a window; all others cost the same.
        wide = _LONGEST_JUMP - 1
        near = torch.arange(-wide, wide + 1, device=source.device)
        costs = _JUMP_COST * near.abs()
        first_near = torch.arange(source.shape[1], device=source.device) - wide
        padded = F.pad(scores[:, 0], (wide, wide), value=float("-inf"))
        best, windows = padded[:, wide:-wide], padded.unfold(1, len(near), 1)
        steps = []
        for row in scores.unbind(1)[1:]:
            far, from_far = best.max(dim=1, keepdim=True)
            reached, shift = (windows - costs).max(dim=2)
            far -= _JUMP_COST * _LONGEST_JUMP
            steps.append(torch.where(reached > far, first_near + shift, from_far))
            torch.add(torch.maximum(reached, far), row, out=best)
        path = [best.argmax(dim=1, keepdim=True)]
        for before in reversed(steps):
            path.append(before.gather(1, path[-1]))
        aligned = torch.cat(path[::-1], dim=1)
        return aligned.masked_fill((target == PAD) | (target == EOS), -1)


def learn_table(store: PairStore) -> TranslationTable:
    """Learn a table from an even sample of the pairs of a store, by EM from equal values.

    A pair of tokens in the sentences is a cell. `learning_bytes` has the memory that this takes.
    """
    sizes = _count_cells(store.lengths)
    step = max(1, -(-int(sizes.sum(dtype=np.int64)) // _MOST_CELLS))
    sample = np.arange(0, len(store), step)
    ends = np.cumsum(sizes[sample], dtype=np.int64)
    blocks = np.split(sample, np.flatnonzero(np.diff(ends // _BLOCK_CELLS)) + 1)
    pairs, end = np.empty(ends[-1], np.int64), 0
    for example in chain.from_iterable(map(store.examples, blocks)):
        source, target = example.source.astype(np.int64), example.target[:-1, None]
        begin, end = end, end + len(source) * len(target)
        rows = pairs[begin:end].reshape(len(target), len(source))
        np.bitwise_or(np.append(_NULL, source[:-1]) << 32, target, out=rows)
    order = np.argsort(pairs)
    pairs = pairs[order]
    is_new = np.append(True, pairs[1:] != pairs[:-1])
    keys = pairs[is_new]
    del pairs
    cells = np.empty(len(order), np.int32)
    cells[order] = np.cumsum(is_new, dtype=np.int32) - 1
    del order, is_new
    source_of_key, probabilities = keys >> 32, np.ones(len(keys))
    for _ in range(_ITERATIONS):
        counts, end = np.zeros(len(keys)), 0
        for block in blocks:
            source_sizes, target_sizes = store.lengths[block].T
            widths = np.repeat(source_sizes, target_sizes - 1)
            tokens = np.repeat(np.arange(len(widths)), widths)
            begin, end = end, end + len(tokens)
            of_block = cells[begin:end].astype(np.intp)
            weights = probabilities[of_block]
            weights /= np.bincount(tokens, weights)[tokens]
            np.add.at(counts, of_block, weights)
        probabilities = counts / np.bincount(source_of_key, counts)[source_of_key]
    return TranslationTable(
        torch.from_numpy(keys), torch.from_numpy(probabilities.astype(np.float32))
    )


def learning_bytes(lengths: Lengths) -> int:
    """Return the bytes that `learn_table` takes at most for pairs with these lengths [N 2]."""
    return _BYTES_PER_CELL * min(int(_count_cells(lengths).sum(dtype=np.int64)), _MOST_CELLS)


def _count_cells(lengths: Lengths) -> Lengths:
    """Return the cells of pairs [N]: EOS has no translation, the empty token stands for it."""
    return lengths[:, 0] * (lengths[:, 1] - 1)
