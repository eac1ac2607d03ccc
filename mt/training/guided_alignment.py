"""Guided alignment: one cross-attention is also trained to align target and source.

Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models", section 4.2.
The objective gets the term weight * sum over target tokens of -log a, where a is the attention to
the aligned source token. It is the attention that `explain` reads, the mean over the heads of the
`alignment_layer`; the paper trains one head.

The alignment has the table of IBM Model 1 (Brown et al. 1993), learned from the training pairs
before the training, and prefers neighbours of the last aligned token, as in the HMM of Vogel et al.
1996. Each batch is aligned when it is trained on, so that nothing has to be stored.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mt.data.batches import Batch
from mt.data.store import PairStore
from mt.model.attention import Attention
from mt.model.transformer import Transformer
from mt.special_ids import EOS, PAD
from mt.training.loss import LossSums
from mt.training.step import TrainingPass

_MOST_CELLS = 2**23
"""Pairs of a source and a target token in the sentences that a lexicon is learned from."""
_ITERATIONS = 5
_NULL = PAD
"""Source token of target tokens without a counterpart, while the table is learned."""
_JUMP_COST, _LONGEST_JUMP = 0.5, 3
"""In nats and tokens, chosen on the quickstart."""
_LEAST = 1e-9
"""Probability of tokens that do not occur together."""


@dataclass(frozen=True)
class Lexicon:
    """Probability of a target token given a source token, for pairs that occur together."""

    keys: Tensor
    """Pairs in ascending order, source id * 2^32 + target id."""
    probabilities: Tensor

    def align(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the place in source [B S] of each token of target [B T]; EOS and PAD have -1.

        The places are those of the most probable path, on which a step to a source token that is d
        tokens away costs `_JUMP_COST` times d, up to `_LONGEST_JUMP` (Viterbi 1967).
        """
        keys = (source.long() << 32)[:, None, :] + target[:, :, None]
        numbers = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        known = self.keys[numbers] == keys
        scores = torch.where(known, self.probabilities[numbers], 0.0).clamp(min=_LEAST).log()
        scores.masked_fill_(((source == PAD) | (source == EOS))[:, None], float("-inf"))
        places = torch.arange(source.shape[1], device=source.device)
        distances = (places[:, None] - places).abs().clamp(max=_LONGEST_JUMP)
        best, steps = scores[:, 0], []
        for row in scores.unbind(1)[1:]:
            found, before = (best[:, :, None] - _JUMP_COST * distances).max(dim=1)
            best = found + row
            steps.append(before)
        path = [best.argmax(dim=1)]
        for before in reversed(steps):
            path.append(before.gather(1, path[-1][:, None])[:, 0])
        aligned = torch.stack(path[::-1], dim=1)
        return aligned.masked_fill((target == PAD) | (target == EOS), -1)


def learn_lexicon(store: PairStore) -> Lexicon:
    """Learn a lexicon from the pairs of a store, evenly spread over it, by EM from equal values."""
    sources, targets, tokens = _cells(store)
    keys, cells = np.unique(sources << 32 | targets, return_inverse=True)
    source_of_key = keys >> 32
    probabilities = np.ones(len(keys))
    for _ in range(_ITERATIONS):
        weights = probabilities[cells]
        weights /= np.bincount(tokens, weights)[tokens]
        counts = np.bincount(cells, weights)
        probabilities = counts / np.bincount(source_of_key, counts)[source_of_key]
    return Lexicon(torch.from_numpy(keys), torch.from_numpy(probabilities.astype(np.float32)))


def _cells(store: PairStore) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return source id, target id and number of the target token for each pair of tokens."""
    lengths = store.lengths.astype(np.int64)
    step = max(1, -(-int((lengths[:, 0] * (lengths[:, 1] - 1)).sum()) // _MOST_CELLS))
    sources, targets, tokens, count = [], [], [], 0
    for example in store.examples(range(0, len(store), step)):
        source = np.concatenate(([_NULL], example.source[:-1])).astype(np.int64)
        target = example.target[:-1].astype(np.int64)
        sources.append(np.tile(source, len(target)))
        targets.append(np.repeat(target, len(source)))
        tokens.append(np.repeat(np.arange(count, count + len(target)), len(source)))
        count += len(target)
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(tokens)


@dataclass(frozen=True)
class GuidedSums(LossSums):
    """Losses of the translation, and the objective with the loss of the alignment."""

    guided: Tensor
    """Smoothed loss plus the weighted loss of the alignment."""

    @property
    def objective(self) -> Tensor:
        """The sum that training minimises; it carries the gradient."""
        return self.guided


class GuidedPass(nn.Module):
    """Teacher-forced forward pass from a batch to its loss, with guided alignment."""

    keys: Tensor
    probabilities: Tensor

    def __init__(
        self, model: Transformer, label_smoothing: float, weight: float, lexicon: Lexicon
    ) -> None:
        super().__init__()
        self.model = model
        self.plain = TrainingPass(model, label_smoothing)
        self.weight = weight
        device = model.output.weight.device
        self.lexicon = Lexicon(lexicon.keys.to(device), lexicon.probabilities.to(device))
        self.attention = model.alignment_attention

    def forward(self, batch: Batch) -> GuidedSums:
        """Return the loss, summed over the batch's real target tokens."""
        with _mean_weights(self.attention) as found:
            sums: LossSums = self.plain(batch)
        places = self.lexicon.align(batch.source, batch.target_out)
        aligned = found[0].gather(2, places.clamp(min=0)[:, :, None])[:, :, 0]
        nll = -aligned.clamp(min=torch.finfo(aligned.dtype).tiny).log()[places >= 0].sum()
        return GuidedSums(
            sums.smoothed, sums.nll, sums.tokens, guided=sums.smoothed + self.weight * nll
        )


@contextmanager
def _mean_weights(attention: Attention) -> Iterator[list[Tensor]]:
    """Yield a list that gets the weights [B T S] of each call, in fp32, averaged over the heads."""
    found: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], _: Tensor) -> None:
        assert isinstance(module, Attention)
        q, k, _, mask = inputs
        with torch.autocast(q.device.type, enabled=False):
            weights = module.weights(q.float(), module.for_queries(k).float(), mask)
        found.append(weights.mean(dim=1))

    hook = attention.register_forward_hook(keep)
    try:
        yield found
    finally:
        hook.remove()
