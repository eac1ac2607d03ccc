"""Whether a model looks where it must not, asked of the model itself.

What must not matter is changed, and the log-probabilities of the target pieces are computed again:
no statistic stands between a broken mask and what is seen of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mt.data.batches import Batch, collate
from mt.data.store import Example
from mt.model.transformer import Transformer
from mt.special_ids import PAD

_MOST_PAIRS = 16
_MOST_POSITIONS = 2048
"""Of one side, padding included, so that a probe takes no more memory than training does."""


@dataclass(frozen=True, slots=True)
class MaskProbe:
    """The largest change of a target piece's log-probability, in nats, when something changes."""

    later_pieces: float
    """Other target pieces after it: without a fault 0, but for the noise of the arithmetic."""
    padding: float
    """As much padding again at the end of the source: likewise."""
    source: float
    """The source of another pair: without a fault, anything but 0; inf where all are alike."""


def probe_masks(model: Transformer, examples: Sequence[Example]) -> MaskProbe:
    """Ask a model in eval mode about some pairs, 16 at most and fewer long ones.

    None may be too long for the model. In fp32 and not compiled, whatever the training is: so
    noise is far below any fault.
    """
    chosen = examples[:: -(-len(examples) // _MOST_PAIRS)]
    longest = max(max(len(each.source), len(each.target)) for each in chosen)
    chosen = chosen[: max(2, _MOST_POSITIONS // longest)]
    batch = collate(chosen).to(model.output.weight.device)
    source, target_in = batch.source, batch.target_in
    middle, length = target_in.shape[1] // 2, target_in.shape[1]
    late = torch.arange(length, device=target_in.device) >= middle
    other_ending = target_in.masked_fill(late & (target_in != PAD), model.output.out_features - 1)
    others, width = source.roll(1, dims=0), source.shape[1]
    room = width if model.longest is None else min(width, model.longest - width)
    with torch.no_grad():
        plain = log_probabilities(model, batch, source, target_in)
        later = log_probabilities(model, batch, source, other_ending) - plain
        padded = log_probabilities(model, batch, F.pad(source, (0, room), value=PAD), target_in)
        other = log_probabilities(model, batch, others, target_in) - plain
    return MaskProbe(
        later_pieces=_largest(later[batch.real % length < middle]),
        padding=_largest(padded - plain),
        source=math.inf if torch.equal(others, source) else _largest(other),
    )


def log_probabilities(
    model: Transformer, batch: Batch, source: Tensor, target_in: Tensor
) -> Tensor:
    """Return those of the real target pieces of a batch [N] with this source and beginning."""
    # The method of the class: that of the model may have been replaced by a compiled one.
    states = Transformer.states(model, source, target_in, batch.real)
    pieces = batch.target_out.flatten().index_select(0, batch.real)
    return -F.cross_entropy(model.output(states), pieces, reduction="none")


def _largest(changes: Tensor) -> float:
    return float(changes.abs().max()) if len(changes) else 0.0
