"""Translation table: probabilities of token translations, and the alignments that they give."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.data.store import PairStore
from mt.special_ids import EOS, PAD

_MOST_CELLS = 2**23
"""Pairs of a source and a target token in the sentences that a table is learned from."""
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

    The table of IBM Model 1 (Brown et al. 1993), learned from the training pairs before the
    training.
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
    """Learn a table from an even sample of the pairs of a store, by EM from equal values."""
    lengths = store.lengths.astype(np.int64)
    step = max(1, -(-int((lengths[:, 0] * (lengths[:, 1] - 1)).sum()) // _MOST_CELLS))
    # Source id, target id and number of the target token for each pair of tokens.
    of_source, of_target, of_token, count = [], [], [], 0
    for example in store.examples(range(0, len(store), step)):
        source = np.concatenate(([_NULL], example.source[:-1])).astype(np.int64)
        target = example.target[:-1].astype(np.int64)
        of_source.append(np.tile(source, len(target)))
        of_target.append(np.repeat(target, len(source)))
        of_token.append(np.repeat(np.arange(count, count + len(target)), len(source)))
        count += len(target)
    tokens = np.concatenate(of_token)
    pairs = np.concatenate(of_source) << 32 | np.concatenate(of_target)
    keys, cells = np.unique(pairs, return_inverse=True)
    source_of_key = keys >> 32
    probabilities = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        weights = probabilities[cells]
        weights /= np.bincount(tokens, weights)[tokens]
        counts = np.bincount(cells, weights)
        probabilities = counts / np.bincount(source_of_key, counts)[source_of_key]
    return TranslationTable(
        torch.from_numpy(keys), torch.from_numpy(probabilities.astype(np.float32))
    )
