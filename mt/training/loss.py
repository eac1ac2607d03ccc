"""Label-smoothed cross-entropy of the output layer, summed over target tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mt.model.device import device_traits

ChunkLoss = Callable[..., tuple[Any, ...]]
"""Type of `chunk_loss`, which may be compiled; one more sum may precede the gradient."""
LEAST_ROWS = 64
"""Of a chunk."""


@dataclass(frozen=True)
class LossSums:
    """Losses summed over `tokens` target tokens, in nats."""

    objective: Tensor
    """Sum that training minimises; it carries the gradient."""
    smoothed: Tensor
    """Label-smoothed cross-entropy: the objective, unless a penalty is added to it."""
    nll: Tensor
    """Plain cross-entropy."""
    tokens: int


def chunk_loss(
    states: Tensor,
    matrix: Tensor,
    labels: Tensor,
    *,
    smoothing: float,
    vocabulary: int,
    gradient_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return smoothed and plain loss, summed, and the gradient of the logits [n V'] in a dtype.

    The logits are states [n D] x matrix [V' D], whose rows from `vocabulary` = V on are padding:
    their gradient is 0. `labels` are [n 1]. For probabilities p, the gradient of the smoothed loss
    is p - smoothing / V, and 1 - smoothing less at the label. Without a dtype, it is None.
    """
    log_probs = F.log_softmax((states @ matrix.T)[:, :vocabulary], dim=-1, dtype=torch.float32)
    nll = -log_probs.gather(1, labels).sum()
    smoothed = (1.0 - smoothing) * nll - smoothing * log_probs.mean(dim=-1).sum()
    if gradient_dtype is None:
        return smoothed, nll, None
    gradient = log_probs.exp_()
    if smoothing:
        gradient.sub_(smoothing / vocabulary)
    if torch.compiler.is_compiling():  # one kernel with the rest; alone, it takes longer
        columns = torch.arange(vocabulary, device=labels.device)
        gradient = torch.where(columns == labels, gradient + (smoothing - 1.0), gradient)
    else:
        reference = gradient.new_full((1, 1), smoothing - 1.0).expand(labels.shape)
        gradient.scatter_add_(1, labels, reference)
    padding = len(matrix) - vocabulary
    gradient = gradient.to(gradient_dtype)
    return smoothed, nll, F.pad(gradient, (0, padding)) if padding else gradient


def label_smoothed_loss(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    loss_of: ChunkLoss = chunk_loss,
) -> LossSums:
    """Return the summed cross-entropy of the logits states [N D] x weight [V D] and targets [N].

    The smoothed target puts 1 - smoothing on the reference and spreads `smoothing` evenly over all
    V tokens (Szegedy et al. 2016, section 7), as `torch.nn.functional.cross_entropy` does.
    Softmax and sums are fp32 whatever the precision of the logits; `nll` carries no gradient.
    """
    smoothed, nll, _ = FusedLoss.apply(states, weight, targets, smoothing, loss_of)  # type: ignore[no-untyped-call]
    return LossSums(smoothed, smoothed, nll, len(targets))


class FusedLoss(torch.autograd.Function):
    """Output layer and loss in chunks of rows; each chunk's gradient is computed while in cache.

    The logits of a batch never exist together, which also is faster than F.cross_entropy.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        loss_of: ChunkLoss,
    ) -> tuple[Tensor, ...]:
        """Return the three sums of `loss_of` for states [N D], or of several passes [P N D]."""
        device = states.device.type
        is_mixed = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_mixed else states.dtype
        # fp16 would lose the many small probabilities of the gradient.
        gradient_dtype = torch.float32 if dtype == torch.float16 else dtype
        needs_gradient = any(ctx.needs_input_grad)
        matrix = _pad_rows(weight.to(dtype))
        gradient_matrix = (
            matrix if gradient_dtype == dtype else _pad_rows(weight.to(gradient_dtype))
        )
        state_gradient = torch.empty_like(states) if needs_gradient else states
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        sums = weight.new_zeros(3, dtype=torch.float32).unbind()
        # Several passes are compared: each has its logits and their differences from the others.
        logits = states.shape[:-2].numel() ** 2 * len(weight)
        size = max(device_traits(states.device).max_logits // logits, LEAST_ROWS)
        with torch.autocast(device, enabled=False):
            for first in range(0, len(targets), size):
                rows = slice(first, first + size)
                chunk = states[..., rows, :].to(dtype)
                *chunk_sums, gradient = loss_of(
                    chunk,
                    matrix,
                    targets[rows, None],
                    smoothing=smoothing,
                    vocabulary=len(weight),
                    gradient_dtype=gradient_dtype if needs_gradient else None,
                )
                for total, value in zip(sums, chunk_sums, strict=False):
                    total += value
                if gradient is None:
                    continue
                state_gradient[..., rows, :] = gradient @ gradient_matrix
                if weight_gradient is None:
                    continue
                left = gradient.flatten(0, -2)[:, : len(weight)].T
                right = chunk.to(gradient_dtype).flatten(0, -2)
                if left.dtype == weight_gradient.dtype:  # in one kernel
                    weight_gradient.addmm_(left, right)
                else:
                    weight_gradient.add_(left @ right)
        ctx.save_for_backward(state_gradient, weight_gradient)
        ctx.mark_non_differentiable(*sums[1:])
        return sums

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the saved gradients times that of the first sum."""
        state_gradient, weight_gradient = ctx.saved_tensors
        scaled = None if weight_gradient is None else weight_gradient * upstream
        return state_gradient * upstream, scaled, None, None, None


def _pad_rows(weight: Tensor) -> Tensor:
    """Return a matrix [V D] with rows of 0 up to a multiple of 64 where that is faster."""
    missing = -len(weight) % device_traits(weight.device).vocabulary_multiple
    return F.pad(weight, (0, 0, 0, missing)) if missing else weight
