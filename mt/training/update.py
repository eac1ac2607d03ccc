"""One optimiser step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mt.data.batches import Batch
from mt.model.transformer import Transformer
from mt.special_ids import PAD
from mt.training.loss import LossSums, label_smoothed_loss
from mt.training.precision import Precision


@dataclass(frozen=True)
class UpdateResult:
    """What one update did; sums over its `tokens` target pieces, in nats."""

    smoothed: float
    nll: float
    tokens: int
    source_tokens: int
    gradient_norm: float

    @property
    def skipped(self) -> bool:
        """Tell whether a loss or gradient that is not finite left the weights as they were."""
        return not math.isfinite(self.gradient_norm)


@dataclass(frozen=True)
class Learner:
    """What an update acts on."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    precision: Precision
    label_smoothing: float
    gradient_clip: float


def update(learner: Learner, micro_batches: Sequence[Batch], learning_rate: float) -> UpdateResult:
    """Take one optimiser step on the micro-batches together.

    Their summed losses are divided by the target pieces of them all, so the gradient is the same
    however an update is cut.
    """
    for group in learner.optimizer.param_groups:
        group["lr"] = learning_rate
    tokens = sum(batch.target_tokens for batch in micro_batches)
    smoothed, nll = torch.zeros(()), torch.zeros(())
    for batch in micro_batches:
        with learner.precision.autocast():
            sums = batch_loss(learner.model, batch, learner.label_smoothing)
        learner.precision.backward(sums.smoothed / tokens)
        smoothed = smoothed.to(sums.nll.device) + sums.smoothed.detach()
        nll = nll.to(sums.nll.device) + sums.nll
    norm = learner.precision.step(learner.model, learner.optimizer, learner.gradient_clip)
    source_tokens = sum(batch.source_tokens for batch in micro_batches)
    return UpdateResult(float(smoothed), float(nll), tokens, source_tokens, norm)


def batch_loss(model: Transformer, batch: Batch, label_smoothing: float) -> LossSums:
    """Return the teacher-forced loss of a batch."""
    logits = model(batch.source, batch.target_in)
    targets = batch.target_out[batch.target_out != PAD]
    return label_smoothed_loss(logits, targets, label_smoothing)
