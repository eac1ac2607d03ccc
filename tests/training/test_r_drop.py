"""R-Drop's loss against its formula, and its two passes against one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.config import TrainingConfig
from mt.data.batches import Batch, collate
from mt.training import objectives
from mt.training.objectives import RDropPass, choose_training_pass, r_drop_loss
from mt.training.step import TrainingPass, fetch_metrics, train_step
from tests.factories import examples, learner, transformer

ROWS, WIDTH, TOKENS = 7, 6, 11


def inputs(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    states = torch.randn(2, rows, WIDTH, requires_grad=True)
    weight = torch.randn(TOKENS, WIDTH, requires_grad=True)
    return states, weight, torch.randint(0, TOKENS, (rows,))


def formula(
    logits: Tensor, targets: Tensor, *, smoothing: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return half of the paper's equation (4) by torch's own functions, and its cross-entropy."""
    p, q = F.log_softmax(logits, dim=-1)
    entropies = [
        F.cross_entropy(each, targets, label_smoothing=smoothing, reduction="sum")
        for each in logits
    ]
    there = F.kl_div(q, p, log_target=True, reduction="sum")  # KL(P || Q)
    back = F.kl_div(p, q, log_target=True, reduction="sum")
    both = entropies[0] + entropies[1]
    return (both + alpha / 2 * (there + back)) / 2, both / 2


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut chunks of three rows, so that the last of seven is alone."""

    def by_three(states: Tensor, vocabulary: int) -> list[slice]:
        return [slice(first, first + 3) for first in range(0, len(states), 3)]

    monkeypatch.setattr(objectives, "chunks", by_three)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_value_and_gradients_equal_the_formula(smoothing: float, alpha: float) -> None:
    states, weight, targets = inputs()
    sums = r_drop_loss(states, weight, targets=targets, smoothing=smoothing, alpha=alpha)
    settings = {"smoothing": smoothing, "alpha": alpha}
    objective, smoothed = formula(states @ weight.T, targets, **settings)
    torch.testing.assert_close(sums.objective, objective)
    torch.testing.assert_close(sums.smoothed, smoothed.detach())
    plain, _ = formula(states @ weight.T, targets, smoothing=0.0, alpha=0.0)
    torch.testing.assert_close(sums.nll, plain.detach())
    assert not sums.smoothed.requires_grad
    assert sums.tokens == ROWS
    # The upstream gradient, here 1 / 3, must reach both.
    ours = torch.autograd.grad(sums.objective / 3, (states, weight))
    theirs = torch.autograd.grad(objective / 3, (states, weight))
    torch.testing.assert_close(ours, theirs)
    frozen = r_drop_loss(states, weight.detach(), targets=targets, **settings)
    kept: Any = frozen.objective.grad_fn
    assert kept.saved_tensors[1] is None
    torch.testing.assert_close(torch.autograd.grad(frozen.objective / 3, states), ours[:1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_fp32(dtype: torch.dtype) -> None:
    states, weight, targets = inputs(2000)
    with torch.autocast("cpu", dtype=dtype):
        half = r_drop_loss(states, weight, targets=targets, smoothing=0.1, alpha=5.0)
    rounded = states.detach().to(dtype) @ weight.detach().to(dtype).T
    whole, _ = formula(rounded.float(), targets, smoothing=0.1, alpha=5.0)
    torch.testing.assert_close(half.objective.detach(), whole)
    exact, _ = formula(states @ weight.T, targets, smoothing=0.1, alpha=5.0)
    ours = torch.autograd.grad(half.objective, (states, weight))
    for one, other in zip(ours, torch.autograd.grad(exact, (states, weight)), strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


def gradients(training_pass: torch.nn.Module, batch: Batch) -> list[Tensor]:
    training_pass.zero_grad()
    training_pass(batch).objective.backward()
    return [p.grad.clone() for p in training_pass.parameters() if p.grad is not None]


def test_without_dropout_the_loss_is_the_plain_one() -> None:
    model, batch = transformer(), collate(examples())
    plain, twice = TrainingPass(model, 0.1), RDropPass(model, 0.1, 5.0)
    sums, expected = twice(batch), plain(batch)
    torch.testing.assert_close(sums.objective, expected.smoothed)
    torch.testing.assert_close(sums.nll, expected.nll)
    torch.testing.assert_close(gradients(twice, batch), gradients(plain, batch))


def test_passes_have_different_dropout_and_the_metrics_exclude_the_penalty() -> None:
    model, batch = transformer(dropout=0.2), collate(examples())
    made = replace(learner(model), training_pass=RDropPass(model, 0.1, 5.0))
    sums = made.training_pass(batch)
    assert float(sums.objective.detach() - sums.smoothed) / sums.tokens > 0.01
    results = [train_step(made, [batch], 0.002) for _ in range(60)]
    first, last = fetch_metrics([results[0], results[-1]])
    assert last.smoothed < 0.9 * first.smoothed
    assert first.smoothed == pytest.approx(float(sums.smoothed), rel=0.1)


def test_config_chooses_the_pass() -> None:
    model = transformer(dropout=0.1)
    assert type(choose_training_pass(model, TrainingConfig())) is TrainingPass
    chosen = choose_training_pass(model, TrainingConfig(r_drop=5.0, label_smoothing=0.2))
    assert isinstance(chosen, RDropPass)
    assert (chosen.alpha, chosen.label_smoothing) == (5.0, 0.2)
