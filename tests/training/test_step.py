"""One training step: accumulation, precision, clipping, skipping."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mt.data.batches import Batch, collate
from mt.training.optimizer import Precision, choose_precision
from mt.training.step import Learner, StepMetrics, fetch_metrics, train_step
from tests.factories import CPU, examples, learner

VOCABULARY = 20
PAIRS = examples(vocabulary=VOCABULARY)
WHOLE = [collate(PAIRS)]


def step(made: Learner, batches: list[Batch] = WHOLE, rate: float = 0.002) -> StepMetrics:
    (metrics,) = fetch_metrics([train_step(made, batches, rate)])
    return metrics


def stepped_gradients(made: Learner, batches: list[Batch]) -> list[torch.Tensor]:
    """Return the gradients that the optimizer gets in a step."""
    found: list[torch.Tensor] = []
    handle = made.optimizer.register_step_pre_hook(
        lambda *_: found.extend(
            p.grad.clone() for p in made.model.parameters() if p.grad is not None
        )
    )
    train_step(made, batches, 0.0)
    handle.remove()
    return found


def test_gradient_does_not_depend_on_how_an_update_is_cut() -> None:
    made = learner(clip=0.0)
    whole = stepped_gradients(made, WHOLE)
    assert len(whole) == len([*made.model.parameters()])
    parts = [collate(PAIRS[:1]), collate(PAIRS[1:6]), collate(PAIRS[6:])]
    torch.testing.assert_close(stepped_gradients(made, parts), whole, atol=1e-6, rtol=1e-4)


def test_metrics_are_sums_over_all_micro_batches() -> None:
    metrics = step(learner(), [collate(PAIRS[:10]), collate(PAIRS[10:])])
    assert metrics.tokens.target == sum(len(pair.target) for pair in PAIRS)
    assert metrics.tokens.source == sum(len(pair.source) for pair in PAIRS)
    once = step(learner())
    assert metrics.nll == pytest.approx(once.nll, rel=1e-5)
    assert metrics.smoothed == pytest.approx(once.smoothed, rel=1e-5)
    # An untrained model is about as good as chance.
    assert metrics.nll / metrics.tokens.target == pytest.approx(math.log(VOCABULARY), rel=0.25)


def loss_after_50_steps(precision: str, device: torch.device = CPU) -> float:
    made = learner(precision=precision, device=device)
    batch = WHOLE[0].to(device)
    *_, last = fetch_metrics([train_step(made, [batch], 0.002) for _ in range(50)])
    state = [tensor for entry in made.optimizer.state.values() for tensor in entry.values()]
    assert {tensor.dtype for tensor in [*made.model.parameters(), *state]} == {torch.float32}
    return last.smoothed / last.tokens.target


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_half_precision_learns_like_fp32(device: str) -> None:
    expected = loss_after_50_steps("fp32", torch.device(device))
    for precision in ("bf16", "fp16"):
        loss = loss_after_50_steps(precision, torch.device(device))
        assert loss == pytest.approx(expected, rel=0.02)
        assert loss != expected


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradient_that_is_not_finite_skips_the_update(precision: str) -> None:
    made = learner(precision=precision)
    step(made)
    scale = made.precision.scaler.get_scale()
    before = [parameter.clone() for parameter in made.model.parameters()]
    poisoned = made.model.encoder[0].feed_forward.inner.weight  # type: ignore[union-attr]
    handle = poisoned.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[operator]
    assert step(made).skipped
    assert all(map(torch.equal, made.model.parameters(), before))
    if precision == "fp16":
        assert made.precision.scaler.get_scale() == scale / 2
    handle.remove()
    assert not step(made).skipped
    assert not torch.equal(next(iter(made.model.parameters())), before[0])


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [("fp32", "cuda", "high"), ("fp32", "cpu", "highest"), ("bf16", "cpu", "highest")],
)
def test_only_updates_in_fp32_on_cuda_use_tf32(
    precision: str, device: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learner(precision=precision)
    made = replace(made, precision=choose_precision(precision, torch.device(device)))
    found, backward = [], Precision.backward

    def seen(precision: Precision, loss: Tensor) -> None:
        found.append(torch.get_float32_matmul_precision())
        backward(precision, loss)

    monkeypatch.setattr(Precision, "backward", seen)
    made.training_pass.register_forward_hook(
        lambda *_: found.append(torch.get_float32_matmul_precision())
    )
    train_step(made, [collate(examples(3))], 0.1)
    assert found == [expected, expected]
    assert torch.get_float32_matmul_precision() == "highest"


def test_overflow_of_fp16_lowers_the_scale_until_it_fits() -> None:
    made = learner(precision="fp16")
    step(made)
    made.precision.scaler.update(2.0**40)
    assert step(made).skipped
    assert made.precision.scaler.get_scale() == 2.0**39
    assert not [step(made) for _ in range(30)][-1].skipped


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_clipping_acts_on_unscaled_gradients(precision: str) -> None:
    true_norm = step(learner(clip=0.0), rate=0.0).gradient_norm
    made = learner(precision=precision, clip=true_norm / 4)
    assert step(made, rate=0.0).gradient_norm == pytest.approx(true_norm, rel=0.02)
    clipped = torch.cat([each.flatten() for each in stepped_gradients(made, WHOLE)])
    assert float(clipped.norm()) == pytest.approx(true_norm / 4, rel=0.02)
