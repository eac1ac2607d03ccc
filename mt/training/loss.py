"""Label-smoothed cross-entropy, summed over target pieces."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class LossSums:
    """Sums over `tokens` target pieces, in nats: the smoothed loss and the plain one."""

    smoothed: Tensor
    nll: Tensor
    tokens: int


def label_smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float) -> LossSums:
    """Return the summed cross-entropy of logits [N V] against targets [N].

    The smoothed target puts 1 - smoothing on the reference and spreads `smoothing` evenly over all
    V pieces (Szegedy et al. 2016, section 7; as `torch.nn.functional.cross_entropy` does it).
    Computed in fp32 whatever the precision of the logits; `nll` carries no gradient.
    """
    log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    nll = F.nll_loss(log_probs, targets, reduction="sum")
    uniform = -log_probs.mean(dim=-1).sum()
    smoothed = (1.0 - smoothing) * nll + smoothing * uniform
    return LossSums(smoothed, nll.detach(), len(targets))
