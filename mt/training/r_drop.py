"""R-Drop: two forward passes with different dropout, and a penalty on their divergence.

Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2.1. For a target
token y with the distributions P and Q of the two passes, the loss is

    -log P(y) - log Q(y) + alpha / 2 (KL(P || Q) + KL(Q || P))

with label smoothing in the first two terms. The objective here is half of it, which has the same
minimum. Its gradient is of the size of one pass, so gradient clipping keeps its meaning; Adam does
not depend on the factor.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import TrainingConfig
from mt.data.batches import Batch
from mt.model.transformer import Transformer
from mt.training.compilation import choose_loss
from mt.training.loss import FusedLoss, LossSums, add_product, chunks, compute_dtype
from mt.training.step import TrainingPass


@dataclass(frozen=True)
class RDropSums(LossSums):
    """Mean losses of both passes, comparable to those without R-Drop, and the objective."""

    regularized: Tensor
    """Mean smoothed loss plus the penalty."""

    @property
    def objective(self) -> Tensor:
        """The sum that training minimises; it carries the gradient."""
        return self.regularized


class RDropPass(nn.Module):
    """Two teacher-forced forward passes from a batch to its loss; twice the time and memory."""

    def __init__(self, model: Transformer, label_smoothing: float, alpha: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.alpha = alpha

    def forward(self, batch: Batch) -> RDropSums:
        """Return the loss, summed over the batch's real target tokens."""
        ids, tokens = (batch.source, batch.target_in, batch.real), batch.source_tokens
        passes = [self.model.states(*ids, source_tokens=tokens) for _ in range(2)]
        return r_drop_loss(
            torch.stack(passes),
            self.model.output.weight,
            targets=batch.target_out.flatten().index_select(0, batch.real),
            smoothing=self.label_smoothing,
            alpha=self.alpha,
        )


def choose_training_pass(model: Transformer, training: TrainingConfig) -> nn.Module:
    """Return the training pass of a config: R-Drop's if `r_drop` is set, else the plain one."""
    if training.r_drop:
        return RDropPass(model, training.label_smoothing, training.r_drop)
    loss_of = choose_loss(training, model.output.weight.device)
    return TrainingPass(model, training.label_smoothing, loss_of)


def r_drop_loss(
    states: Tensor, weight: Tensor, *, targets: Tensor, smoothing: float, alpha: float
) -> RDropSums:
    """Return the summed R-Drop loss of the logits states [2 N D] x weight [V D] and targets [N].

    Only the objective carries a gradient. Softmax and sums are fp32 whatever the precision of the
    logits; the smoothed target is that of `label_smoothed_loss`.
    """
    objective, smoothed, nll = _RDropLoss.apply(states, weight, targets, smoothing, alpha)  # type: ignore[no-untyped-call]
    return RDropSums(smoothed, nll, len(targets), regularized=objective)


class _RDropLoss(FusedLoss):
    """Output layer and loss in chunks of rows, as in `label_smoothed_loss`."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, smoothing: float, alpha: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = compute_dtype(states)
        # fp16 would lose the many small probabilities of the gradient.
        gradient_dtype = torch.float32 if dtype == torch.float16 else dtype
        matrix, gradient_matrix = weight.to(dtype), weight.to(gradient_dtype)
        state_gradient = torch.empty_like(states)
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        sums = weight.new_zeros(3, dtype=torch.float32)
        with torch.autocast(states.device.type, enabled=False):
            # Logits and their differences, for both passes.
            for rows in chunks(states[0], 4 * len(weight)):
                chunk, labels = states[:, rows].to(dtype), targets[rows, None].expand(2, -1, 1)
                log_probs = F.log_softmax(chunk @ matrix.T, dim=-1, dtype=torch.float32)
                chunk_sums, gradient = _sums_and_gradient(log_probs, labels, smoothing, alpha)
                sums += chunk_sums
                gradient = gradient.to(gradient_dtype)
                state_gradient[:, rows] = gradient @ gradient_matrix
                if weight_gradient is not None:
                    add_product(
                        weight_gradient,
                        gradient.flatten(0, 1).T,
                        chunk.to(gradient_dtype).flatten(0, 1),
                    )
        ctx.save_for_backward(state_gradient, weight_gradient)
        objective, smoothed, nll = sums.unbind()
        ctx.mark_non_differentiable(smoothed, nll)
        return objective, smoothed, nll


def _sums_and_gradient(
    log_probs: Tensor, labels: Tensor, smoothing: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return objective, smoothed and plain loss [3], and the objective's gradient [2 n V].

    With respect to the logits of P, the gradient of KL(P || Q) is P (log P - log Q - KL(P || Q));
    with respect to those of Q it is Q - P.
    """
    probs = log_probs.exp()
    log_ratio = log_probs - log_probs.flip(0)
    divergences = (probs * log_ratio).sum(dim=-1, keepdim=True)
    nll = -log_probs.gather(2, labels).sum() / 2
    smoothed = (1.0 - smoothing) * nll - smoothing * log_probs.mean(dim=-1).sum() / 2
    objective = smoothed + alpha / 4 * divergences.sum()
    gradient = probs - smoothing / probs.shape[-1]
    gradient.scatter_add_(2, labels, (smoothing - 1.0) * torch.ones_like(labels, dtype=probs.dtype))
    gradient += alpha / 2 * (probs * (log_ratio - divergences) + probs - probs.flip(0))
    return torch.stack((objective, smoothed, nll)), gradient / 2
