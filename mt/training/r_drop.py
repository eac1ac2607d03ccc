"""R-Drop: each batch passes twice through the model, and the two answers are held together.

Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2.1: the two passes
draw other dropout, and of a target token with the distributions P and Q their loss is

    -log P(y) - log Q(y) + alpha / 2 (KL(P || Q) + KL(Q || P))

with label smoothing in the first two terms. Half of it is lowered here, per target token: it has
the same minimum for the same alpha, and its gradient the size of that of one pass, so gradient
clipping means what it means without R-Drop. Adam is blind to the factor.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import TrainingConfig
from mt.data.batches import Batch
from mt.model.transformer import Transformer
from mt.training.loss import LossSums, add_product, chunks, compute_dtype
from mt.training.step import TrainingPass


@dataclass(frozen=True)
class RDropSums(LossSums):
    """The mean of both passes, to be compared with a training without R-Drop, and the objective."""

    regularized: Tensor

    @property
    def objective(self) -> Tensor:
        """What training lowers; it carries the gradient."""
        return self.regularized


class RDropPass(nn.Module):
    """From a batch to its loss by teacher forcing, twice; it takes twice the time and memory."""

    def __init__(self, model: Transformer, label_smoothing: float, alpha: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.alpha = alpha

    def forward(self, batch: Batch) -> RDropSums:
        """Return the summed loss of a batch."""
        passes = [self.model.states(batch.source, batch.target_in, batch.real) for _ in range(2)]
        return r_drop_loss(
            torch.stack(passes),
            self.model.output.weight,
            targets=batch.target_out.flatten().index_select(0, batch.real),
            smoothing=self.label_smoothing,
            alpha=self.alpha,
        )


def choose_training_pass(model: Transformer, training: TrainingConfig) -> nn.Module:
    """Return what a config trains with: a plain pass, or R-Drop's two."""
    if training.r_drop:
        return RDropPass(model, training.label_smoothing, training.r_drop)
    return TrainingPass(model, training.label_smoothing)


def r_drop_loss(
    states: Tensor, weight: Tensor, *, targets: Tensor, smoothing: float, alpha: float
) -> RDropSums:
    """Return R-Drop's loss of the logits states [2 N D] x weight [V D] and targets [N], summed.

    Only the objective carries a gradient. Softmax and sums are fp32 whatever the precision of the
    logits; the smoothed target is that of `label_smoothed_loss`.
    """
    objective, smoothed, nll = _RDropLoss.apply(states, weight, targets, smoothing, alpha)  # type: ignore[no-untyped-call]
    return RDropSums(smoothed, nll, len(targets), regularized=objective)


class _RDropLoss(torch.autograd.Function):
    """Output layer and loss a few rows at a time, as `label_smoothed_loss` has them."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, smoothing: float, alpha: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = compute_dtype(states)
        # fp16 would lose the many small probabilities of the gradient.
        gradient_dtype = torch.float32 if dtype == torch.float16 else dtype
        matrix, gradient_matrix = weight.to(dtype), weight.to(gradient_dtype)
        by_state, by_weight = torch.empty_like(states), torch.zeros_like(weight)
        sums = weight.new_zeros(3, dtype=torch.float32)
        with torch.autocast(states.device.type, enabled=False):
            # Both passes have logits, and both have as many differences.
            for rows in chunks(states[0], 4 * len(weight)):
                some, labels = states[:, rows].to(dtype), targets[rows, None].expand(2, -1, 1)
                log_probs = F.log_softmax(some @ matrix.T, dim=-1, dtype=torch.float32)
                some_sums, gradient = _sums_and_gradient(log_probs, labels, smoothing, alpha)
                sums += some_sums
                gradient = gradient.to(gradient_dtype)
                by_state[:, rows] = gradient @ gradient_matrix
                add_product(
                    by_weight,
                    gradient.flatten(0, 1).T,
                    some.to(gradient_dtype).flatten(0, 1),
                )
        ctx.save_for_backward(by_state, by_weight)
        objective, smoothed, nll = sums.unbind()
        ctx.mark_non_differentiable(smoothed, nll)
        return objective, smoothed, nll

    @staticmethod
    def backward(ctx: Any, by_objective: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        by_state, by_weight = ctx.saved_tensors
        return by_state * by_objective, by_weight * by_objective, None, None, None


def _sums_and_gradient(
    log_probs: Tensor, labels: Tensor, smoothing: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return objective, smoothed loss and plain loss [3], and the objective's gradient [2 n V].

    The gradient is by the logits. That of KL(P || Q) is P (log P - log Q - KL(P || Q)) by those of
    P, and Q - P by those of Q.
    """
    probs = log_probs.exp()
    ahead = log_probs - log_probs.flip(0)
    divergences = (probs * ahead).sum(dim=-1, keepdim=True)
    nll = -log_probs.gather(2, labels).sum() / 2
    smoothed = (1.0 - smoothing) * nll - smoothing * log_probs.mean(dim=-1).sum() / 2
    objective = smoothed + alpha / 4 * divergences.sum()
    gradient = probs - smoothing / probs.shape[-1]
    gradient.scatter_add_(2, labels, (smoothing - 1.0) * torch.ones_like(labels, dtype=probs.dtype))
    gradient += alpha / 2 * (probs * (ahead - divergences) + probs - probs.flip(0))
    return torch.stack((objective, smoothed, nll)), gradient / 2
