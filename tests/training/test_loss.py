"""Fused output layer and loss against torch's own, chunked and in half precision."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.config import TrainingConfig
from mt.model.device import DEVICE_TRAITS, DeviceTraits
from mt.training.loss import ChunkLoss, chunk_loss, label_smoothed_loss
from mt.training.passes import choose_loss

ROWS, WIDTH, VOCABULARY = 7, 6, 11


def inputs(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    states = torch.randn(rows, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    return states, weight, torch.randint(0, VOCABULARY, (rows,))


def reference_loss(states: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(states @ weight.T, targets, label_smoothing=smoothing, reduction="sum")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_value_and_gradients_equal_cross_entropy(smoothing: float) -> None:
    states, weight, targets = inputs()
    sums = label_smoothed_loss(states, weight, targets, smoothing)
    expected = reference_loss(states, weight, targets, smoothing)
    torch.testing.assert_close(sums.smoothed, expected)
    assert sums.tokens == ROWS
    # The upstream gradient, here 1 / 3, must reach both.
    ours = torch.autograd.grad(sums.smoothed / 3, (states, weight))
    theirs = torch.autograd.grad(expected / 3, (states, weight))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("vocabulary", [11, 64, 97, 130])
def test_padded_vocabulary_changes_nothing(
    vocabulary: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICE_TRAITS, "cpu", DeviceTraits(vocabulary_multiple=64, max_logits=1))
    loss_of, widths = compiled_loss(monkeypatch) if compiled else chunk_loss, set()

    def seen(states: Tensor, matrix: Tensor, *arguments: Any, **keys: Any) -> Any:
        assert not matrix[vocabulary:].any()
        widths.add(len(matrix))
        return loss_of(states, matrix, *arguments, **keys)

    states, weight = (
        torch.randn(rows, WIDTH, dtype=torch.float64, requires_grad=True)
        for rows in (ROWS, vocabulary)
    )
    targets = torch.randint(0, vocabulary, (ROWS,))
    targets[0] = vocabulary - 1
    sums = label_smoothed_loss(states, weight, targets, 0.1, seen)
    assert widths == {-(-vocabulary // 64) * 64}
    expected = reference_loss(states, weight, targets, 0.1)
    torch.testing.assert_close(sums.smoothed.double(), expected, atol=1e-5, rtol=1e-6)
    ours = torch.autograd.grad(sums.smoothed, (states, weight))
    theirs = torch.autograd.grad(expected, (states, weight))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def compiled_loss(monkeypatch: pytest.MonkeyPatch, backend: Any = "aot_eager") -> ChunkLoss:
    torch.compiler.reset()
    compiling = partial(torch.compile, backend=backend, fullgraph=True)
    monkeypatch.setattr(torch, "compile", compiling)
    return choose_loss(TrainingConfig(compile="on"), torch.device("cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_compiled_loss_serves_all_numbers_of_rows(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = []

    def counted(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    loss_of = compiled_loss(monkeypatch, counted)
    matrix = torch.randn(64, WIDTH).to(dtype)
    keys: dict[str, Any] = {"smoothing": 0.1, "vocabulary": 60, "gradient_dtype": dtype}
    for rows in (4194, 7, 2, 100, 512):
        states, labels = torch.randn(rows, WIDTH).to(dtype), torch.randint(0, 60, (rows, 1))
        found = loss_of(states, matrix, labels, **keys)
        expected = chunk_loss(states, matrix, labels, **keys)
        torch.testing.assert_close(found, expected)
        assert expected[2] is not None
        assert expected[2].dtype == dtype
    assert len(graphs) == 1


def test_nll_is_the_plain_loss_without_a_gradient() -> None:
    states, weight, targets = inputs()
    sums = label_smoothed_loss(states, weight, targets, 0.2)
    torch.testing.assert_close(sums.nll, reference_loss(states, weight, targets, 0.0).detach())
    assert not sums.nll.requires_grad


@pytest.mark.parametrize("frozen", ["states", "weight"])
def test_frozen_states_or_weight_get_no_gradient(frozen: str) -> None:
    states, weight, targets = inputs()
    {"states": states, "weight": weight}[frozen].requires_grad_(False)
    (wanted,) = (each for each in (states, weight) if each.requires_grad)
    expected = torch.autograd.grad(reference_loss(states, weight, targets, 0.1), wanted)
    label_smoothed_loss(states, weight, targets, 0.1).smoothed.backward()  # type: ignore[no-untyped-call]
    assert wanted.grad is not None
    torch.testing.assert_close(wanted.grad, expected[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_fp32(dtype: torch.dtype) -> None:
    states, weight, targets = inputs(4000)
    with torch.autocast("cpu", dtype=dtype):
        half = label_smoothed_loss(states, weight, targets, 0.1)
    assert half.smoothed.dtype == torch.float32
    rounded = states.detach().to(dtype) @ weight.detach().to(dtype).T
    whole = F.cross_entropy(rounded.float(), targets, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(half.smoothed.detach(), whole)
    ours = torch.autograd.grad(half.smoothed, (states, weight))
    theirs = torch.autograd.grad(reference_loss(states, weight, targets, 0.1), (states, weight))
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.01 * other.norm()
