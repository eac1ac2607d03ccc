"""The fused output layer and loss against torch's own, and its chunks against the whole."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.training import loss as loss_module
from mt.training.loss import label_smoothed_loss

ROWS, WIDTH, VOCABULARY = 7, 6, 11


def made(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    states = torch.randn(rows, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    return states, weight, torch.randint(0, VOCABULARY, (rows,))


def torchs(states: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(states @ weight.T, targets, label_smoothing=smoothing, reduction="sum")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have three rows in a chunk, so that the last of seven stands alone."""

    def by_three(states: Tensor, vocabulary: int) -> list[slice]:
        return [slice(first, first + 3) for first in range(0, len(states), 3)]

    monkeypatch.setattr(loss_module, "chunks", by_three)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_value_and_gradients_are_those_of_cross_entropy(smoothing: float) -> None:
    states, weight, targets = made()
    sums = label_smoothed_loss(states, weight, targets, smoothing)
    expected = torchs(states, weight, targets, smoothing)
    torch.testing.assert_close(sums.smoothed, expected)
    assert sums.tokens == ROWS
    # A factor in front, as an update has, must reach both gradients.
    ours = torch.autograd.grad(sums.smoothed / 3, (states, weight))
    theirs = torch.autograd.grad(expected / 3, (states, weight))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("small_chunks")
def test_gradients_are_those_of_finite_differences() -> None:
    states, weight, targets = made(4)
    inputs = tuple(tensor.detach().double().requires_grad_() for tensor in (states, weight))

    def smoothed(states: Tensor, weight: Tensor) -> Tensor:
        return label_smoothed_loss(states, weight, targets, 0.1).smoothed

    # Sums are fp32, so steps are wide and the tolerance is theirs.
    assert torch.autograd.gradcheck(smoothed, inputs, eps=1e-2, atol=1e-2)


def test_chunks_are_cut_by_the_vocabulary_and_cover_every_row() -> None:
    states = torch.empty(5000, 2)
    for vocabulary in (8000, 37_000, 10**7):
        chunks = loss_module.chunks(states, vocabulary)
        rows = [*range(5000)]
        assert [row for chunk in chunks for row in rows[chunk]] == rows
        assert chunks[0].stop == max(2**22 // vocabulary, 64)


def test_nll_is_the_plain_loss_and_carries_no_gradient() -> None:
    states, weight, targets = made()
    sums = label_smoothed_loss(states, weight, targets, 0.2)
    torch.testing.assert_close(sums.nll, torchs(states, weight, targets, 0.0).detach())
    assert not sums.nll.requires_grad


@pytest.mark.parametrize("frozen", ["states", "weight"])
def test_what_needs_no_gradient_gets_none(frozen: str) -> None:
    states, weight, targets = made()
    {"states": states, "weight": weight}[frozen].requires_grad_(False)
    (wanted,) = (each for each in (states, weight) if each.requires_grad)
    expected = torch.autograd.grad(torchs(states, weight, targets, 0.1), wanted)
    label_smoothed_loss(states, weight, targets, 0.1).smoothed.backward()  # type: ignore[no-untyped-call]
    assert wanted.grad is not None
    torch.testing.assert_close(wanted.grad, expected[0])


Sums = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_fp32(dtype: torch.dtype) -> None:
    states, weight, targets = made(4000)
    with torch.autocast("cpu", dtype=dtype):
        half = label_smoothed_loss(states, weight, targets, 0.1)
    assert half.smoothed.dtype == torch.float32
    rounded = states.detach().to(dtype) @ weight.detach().to(dtype).T
    whole = F.cross_entropy(rounded.float(), targets, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(half.smoothed.detach(), whole)
    ours = torch.autograd.grad(half.smoothed, (states, weight))
    theirs = torch.autograd.grad(torchs(states, weight, targets, 0.1), (states, weight))
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.01 * other.norm()
