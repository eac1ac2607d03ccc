"""Output layer and loss of a few rows, with the gradient: the part that is compiled on a GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mt.config import TrainingConfig

ChunkLoss = Callable[..., tuple[Tensor, Tensor, Tensor | None]]
"""Type of `chunk_loss`, which may be compiled."""


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

    The logits are states [n D] x matrix [V' D], without the columns from `vocabulary` on: their
    gradient is 0. `labels` are [n 1]. Without a dtype, the gradient is None.
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


def choose_loss(training: TrainingConfig, device: torch.device) -> ChunkLoss:
    """Return `chunk_loss`; if the stacks are compiled on a GPU, compiled for any number of rows."""
    if not training.is_compiled or device.type == "cpu":
        return chunk_loss
    compiled = torch.compile(chunk_loss)

    def loss_of(states: Tensor, matrix: Tensor, labels: Tensor, **keys: Any) -> Any:
        for each in (states, labels):
            torch._dynamo.maybe_mark_dynamic(each, 0)
        return compiled(states, matrix, labels, **keys)

    return loss_of
