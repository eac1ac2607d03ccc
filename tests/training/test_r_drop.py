"""R-Drop's loss against the formula written out, and its two passes against one."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.config import ModelConfig, TrainingConfig
from mt.data.batches import Batch, collate
from mt.data.store import Example
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training import r_drop as r_drop_module
from mt.training.optimizer import build_optimizer, choose_precision
from mt.training.r_drop import RDropPass, choose_training_pass, r_drop_loss
from mt.training.step import Learner, TrainingPass, fetch_metrics, update

CPU = torch.device("cpu")
CONFIG = ModelConfig(d_model=32, d_ff=64, heads=4, encoder_layers=1, decoder_layers=1)
ROWS, WIDTH, TOKENS = 7, 6, 11
VOCABULARY = 60


def made(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    states = torch.randn(2, rows, WIDTH, requires_grad=True)
    weight = torch.randn(TOKENS, WIDTH, requires_grad=True)
    return states, weight, torch.randint(0, TOKENS, (rows,))


def written_out(
    logits: Tensor, targets: Tensor, *, smoothing: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Half of equation (4) of the paper, by torch's own functions; and the cross-entropy in it."""
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
    """Have three rows in a chunk, so that the last of seven stands alone."""

    def by_three(states: Tensor, vocabulary: int) -> list[slice]:
        return [slice(first, first + 3) for first in range(0, len(states), 3)]

    monkeypatch.setattr(r_drop_module, "chunks", by_three)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_value_and_gradients_are_those_of_the_formula(smoothing: float, alpha: float) -> None:
    states, weight, targets = made()
    sums = r_drop_loss(states, weight, targets=targets, smoothing=smoothing, alpha=alpha)
    settings = {"smoothing": smoothing, "alpha": alpha}
    objective, smoothed = written_out(states @ weight.T, targets, **settings)
    torch.testing.assert_close(sums.objective, objective)
    torch.testing.assert_close(sums.smoothed, smoothed.detach())
    plain, _ = written_out(states @ weight.T, targets, smoothing=0.0, alpha=0.0)
    torch.testing.assert_close(sums.nll, plain.detach())
    assert not sums.smoothed.requires_grad
    assert sums.tokens == ROWS
    # A factor in front, as an update has, must reach both gradients.
    ours = torch.autograd.grad(sums.objective / 3, (states, weight))
    theirs = torch.autograd.grad(objective / 3, (states, weight))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_fp32(dtype: torch.dtype) -> None:
    states, weight, targets = made(2000)
    with torch.autocast("cpu", dtype=dtype):
        half = r_drop_loss(states, weight, targets=targets, smoothing=0.1, alpha=5.0)
    rounded = states.detach().to(dtype) @ weight.detach().to(dtype).T
    whole, _ = written_out(rounded.float(), targets, smoothing=0.1, alpha=5.0)
    torch.testing.assert_close(half.objective.detach(), whole)
    exact, _ = written_out(states @ weight.T, targets, smoothing=0.1, alpha=5.0)
    ours = torch.autograd.grad(half.objective, (states, weight))
    for one, other in zip(ours, torch.autograd.grad(exact, (states, weight)), strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


def batch() -> Batch:
    """Pairs of 2 to 7 tokens, the target the source backwards."""
    made = []
    for index in range(24):
        tokens = torch.randint(4, VOCABULARY, (1 + index % 6,)).numpy().astype("int32")
        sides = [np.append(side, np.int32(EOS)) for side in (tokens, tokens[::-1])]
        made.append(Example(index, *sides))
    return collate(made)


def transformer(dropout: float) -> Transformer:
    torch.manual_seed(3)
    config = CONFIG.model_copy(update={"dropout": dropout})
    return Transformer(config, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)


def gradients(training_pass: torch.nn.Module, pairs: Batch) -> list[Tensor]:
    training_pass.zero_grad()
    training_pass(pairs).objective.backward()
    return [p.grad.clone() for p in training_pass.parameters() if p.grad is not None]


def test_without_dropout_both_passes_agree_and_r_drop_is_the_plain_loss() -> None:
    model, pairs = transformer(0.0), batch()
    plain, twice = TrainingPass(model, 0.1), RDropPass(model, 0.1, 5.0)
    sums, expected = twice(pairs), plain(pairs)
    torch.testing.assert_close(sums.objective, expected.smoothed)
    torch.testing.assert_close(sums.nll, expected.nll)
    torch.testing.assert_close(gradients(twice, pairs), gradients(plain, pairs))


def test_the_passes_draw_different_dropout_and_learning_brings_them_together() -> None:
    model, pairs = transformer(0.2), batch()
    learner = Learner(
        model,
        RDropPass(model, 0.1, 5.0),
        build_optimizer(model, CPU),
        choose_precision("fp32", CPU),
        1.0,
    )
    torch.manual_seed(4)
    sums = learner.training_pass(pairs)
    apart = float(sums.objective.detach() - sums.smoothed) / sums.tokens
    assert apart > 0.01
    results = [update(learner, [pairs], 0.002) for _ in range(60)]
    first, last = fetch_metrics([results[0], results[-1]])
    assert last.smoothed < 0.8 * first.smoothed
    # What is reported is the loss without R-Drop's own term.
    assert first.smoothed == pytest.approx(float(sums.smoothed), rel=0.1)


def test_the_config_chooses_the_pass() -> None:
    model = transformer(0.1)
    assert type(choose_training_pass(model, TrainingConfig())) is TrainingPass
    chosen = choose_training_pass(model, TrainingConfig(r_drop=5.0, label_smoothing=0.2))
    assert isinstance(chosen, RDropPass)
    assert (chosen.alpha, chosen.label_smoothing) == (5.0, 0.2)
