"""How much a model gains from the right source: its loss with it and with another pair's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mt.data.batches import collate, split_update
from mt.data.store import Example
from mt.model.transformer import Transformer
from mt.training.mask_probes import log_probabilities

_MOST_PAIRS = 256
_POSITIONS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class SourceUse:
    """What was found on some validation pairs, in nats per target piece."""

    loss: float
    loss_with_others: float
    """Each pair has the source of another one, of about the same length."""
    unigram_entropy: float
    """That of the target pieces by themselves: the loss of who knows no more than how frequent."""

    pairs: int

    @property
    def learnt(self) -> float:
        """By how much the loss is below the unigram entropy; below 0 at the start of a run."""
        return self.unigram_entropy - self.loss

    @property
    def gain(self) -> float:
        """By how much the right source lowers the loss."""
        return self.loss_with_others - self.loss


def measure_source_use(model: Transformer, examples: Sequence[Example]) -> SourceUse:
    """Ask a model in eval mode about some pairs, 256 at most, none too long for it."""
    chosen = examples[:: -(-len(examples) // _MOST_PAIRS)]
    lengths = np.array([(len(each.source), len(each.target)) for each in chosen], np.int32)
    budget = max(_POSITIONS_AT_ONCE, 4 * int(lengths.max()))  # so that hardly one is alone
    batches = split_update(np.arange(len(chosen)), lengths, max_tokens_per_batch=budget, ranks=1)[0]
    right = wrong = pieces = 0.0
    with torch.no_grad():
        for indices in batches:
            batch = collate([chosen[number] for number in indices]).to(model.output.weight.device)
            others = batch.source.roll(1, dims=0)
            right -= float(log_probabilities(model, batch, batch.source, batch.target_in).sum())
            wrong -= float(log_probabilities(model, batch, others, batch.target_in).sum())
            pieces += batch.target_tokens
    return SourceUse(right / pieces, wrong / pieces, _unigram_entropy(chosen), len(chosen))


def _unigram_entropy(examples: Sequence[Example]) -> float:
    _, counts = np.unique(np.concatenate([each.target for each in examples]), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
