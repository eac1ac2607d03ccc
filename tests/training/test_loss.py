"""The loss against torch's own."""

import pytest
import torch
from torch.nn import functional as F

from mt.training.loss import label_smoothed_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_value_and_gradient_are_those_of_cross_entropy(smoothing: float) -> None:
    logits = torch.randn(7, 11, requires_grad=True)
    targets = torch.randint(0, 11, (7,))
    sums = label_smoothed_loss(logits, targets, smoothing)
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(sums.smoothed, expected)
    assert sums.tokens == 7
    (ours,) = torch.autograd.grad(sums.smoothed, logits)
    (theirs,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(ours, theirs)


def test_nll_is_the_plain_loss_and_carries_no_gradient() -> None:
    logits, targets = torch.randn(5, 9, requires_grad=True), torch.randint(0, 9, (5,))
    sums = label_smoothed_loss(logits, targets, 0.2)
    torch.testing.assert_close(sums.nll, F.cross_entropy(logits, targets, reduction="sum").detach())
    assert not sums.nll.requires_grad


def test_half_precision_logits_are_summed_in_fp32() -> None:
    logits, targets = torch.randn(4000, 50), torch.randint(0, 50, (4000,))
    half = label_smoothed_loss(logits.bfloat16(), targets, 0.1)
    assert half.smoothed.dtype == torch.float32
    whole = label_smoothed_loss(logits.bfloat16().float(), targets, 0.1)
    torch.testing.assert_close(half.smoothed, whole.smoothed)
