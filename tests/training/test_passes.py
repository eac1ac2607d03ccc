"""R-Drop's loss against its formula; guided alignment against loops over dicts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.config import TrainingConfig
from mt.data.batches import Batch, collate
from mt.data.store import Chunk, Example, LeftOut, PairStore, Rows, write_store
from mt.decoding.engine import Hypothesis
from mt.decoding.torch_engine import TorchEngine
from mt.model.device import DEVICE_TRAITS
from mt.special_ids import EOS, PAD
from mt.training.checkpoint import MODEL
from mt.training.passes import (
    GuidedPass,
    RDropPass,
    begin_update,
    choose_training_pass,
    r_drop_loss,
)
from mt.training.step import TrainingPass, fetch_metrics, train_step
from mt.training.translation_table import TranslationTable, learn_table
from tests.factories import CPU, examples, learner, train_with, transformer

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


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("alpha", "multiple"), [(0.3, 1), (5.0, 1), (5.0, 64)])
def test_value_and_gradients_equal_the_formula(
    smoothing: float, alpha: float, multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    traits = replace(DEVICE_TRAITS["cpu"], vocabulary_multiple=multiple)
    monkeypatch.setitem(DEVICE_TRAITS, "cpu", traits)
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
    torch.testing.assert_close(torch.autograd.grad(frozen.objective / 3, states), ours[:1])


def gradients(training_pass: torch.nn.Module, *batches: Batch) -> list[Tensor]:
    training_pass.zero_grad()
    for batch in batches:
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


def stored(folder: Path, pairs: list[Example]) -> PairStore:
    path = folder / "pairs.arrow"
    source = Rows.of([each.source.tolist() for each in pairs])
    target = Rows.of([each.target.tolist() for each in pairs])
    write_store(path, [Chunk(source, target, LeftOut(0, 0, len(pairs)))])
    return PairStore(path)


@pytest.fixture
def table(tmp_path: Path) -> TranslationTable:
    return learn_table(stored(tmp_path, examples(60)))


def brown(pairs: list[Example]) -> dict[tuple[int, int], float]:
    """Return p(target token | source token) after five iterations of IBM Model 1."""
    count = 1 + max(int(side.max()) for pair in pairs for side in (pair.source, pair.target))
    count_tokens = partial(np.bincount, minlength=count)
    source = np.stack([count_tokens([PAD, *pair.source[:-1]]) for pair in pairs])
    target = np.stack([count_tokens(pair.target[:-1]) for pair in pairs])
    table = np.ones((count, count))
    for _ in range(5):
        counts = table * (source.T @ (target / np.maximum(source @ table, 1e-9)))
        table = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-9)
    together = zip(*np.nonzero(source.T @ target), strict=True)
    return {(int(s), int(t)): float(table[s, t]) for s, t in together}


def test_table_of_long_sentences_is_that_of_the_formula(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    sides = np.append(random.integers(4, 12, (2, 3, 700), np.int32), np.full((2, 3, 1), EOS), 2)
    pairs = [Example(n, *sides[:, n].astype(np.int32)) for n in range(3)]
    table, expected = learn_table(stored(tmp_path, pairs)), brown(pairs)
    torch.testing.assert_close(table.probabilities, torch.tensor([*expected.values()]))
    assert [(key >> 32, key & 0xFFFFFFFF) for key in table.keys.tolist()] == [*expected]


def test_table_and_alignment_are_those_of_the_formula(table: TranslationTable) -> None:
    pairs = examples(60)
    expected = brown(pairs)
    assert [(key >> 32, key & 0xFFFFFFFF) for key in table.keys.tolist()] == sorted(expected)
    wanted = torch.tensor([expected[key] for key in sorted(expected)])
    torch.testing.assert_close(table.probabilities, wanted)
    batch = collate(pairs)
    found = table.align(batch.source, batch.target_out)
    for pair, row in zip(pairs, found.tolist(), strict=True):
        count, written = len(pair.source) - 1, len(pair.target) - 1
        assert row[written:] == [-1] * (len(row) - written)
        if count**written > 300:
            continue

        def score(path: Sequence[int], pair: Example = pair) -> float:
            likely = (expected.get((pair.source[s], t), 1e-9) for s, t in zip(path, pair.target))  # noqa: B905
            jumps = (min(abs(one - other), 3) for one, other in pairwise(path))
            return sum(map(math.log, likely)) - 0.5 * sum(jumps)

        best = max(map(score, product(range(count), repeat=written)))
        assert score(row[:written]) == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_alignment_is_the_most_probable_path(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(8, 4, generator=random) ** 2
    tokens = torch.arange(10, 18), torch.arange(20, 24)
    keys = ((tokens[0][:, None] << 32) + tokens[1]).flatten()
    source = torch.cat([tokens[0], torch.tensor([EOS])])
    target = torch.cat([tokens[1], torch.tensor([EOS])])
    found = TranslationTable(keys, probabilities.flatten()).align(source[None], target[None])
    paths = torch.cartesian_prod(*[torch.arange(8)] * 4)
    jumps = paths.diff(dim=1).abs().clamp(max=3).sum(dim=1)
    scores = probabilities.log()[paths, torch.arange(4)].sum(dim=1) - 0.5 * jumps
    assert found.tolist() == [[*paths[scores.argmax()].tolist(), -1]]


def test_gradient_does_not_depend_on_the_cut_and_weight_0_is_the_plain_pass(
    table: TranslationTable,
) -> None:
    model, batch = transformer(decoder_layers=2), collate(examples())
    guided = GuidedPass(model, 0.1, 0.5, lambda: table)
    whole = gradients(guided, batch)
    torch.testing.assert_close(gradients(guided, *batch.halves()), whole)
    plain = gradients(TrainingPass(model, 0.1), batch)
    off = gradients(GuidedPass(model, 0.1, 0.0, lambda: table), batch)
    torch.testing.assert_close(off, plain)
    assert any(not torch.allclose(one, other) for one, other in zip(whole, plain, strict=True))
    sums, expected = guided(batch), TrainingPass(model, 0.1)(batch)
    torch.testing.assert_close(sums.smoothed, expected.smoothed)
    assert sums.objective > sums.smoothed


def test_attention_learns_the_alignment(table: TranslationTable) -> None:
    pairs = examples(60)
    batch = collate(pairs)
    aligned = table.align(batch.source, batch.target_out)

    def agreement(weight: float) -> float:
        made = learner(transformer(decoder_layers=2, d_model=32))
        made = replace(made, training_pass=GuidedPass(made.model, 0.1, weight, lambda: table))
        for _ in range(60):
            train_step(made, [batch], 0.01)
        found = [Hypothesis(tuple(e.target[:-1].tolist()), 0, 0, finished=True) for e in pairs]
        details = TorchEngine(made.model, CPU).explain([e.source.tolist() for e in pairs], found)
        wanted = {
            (row, place, token)
            for row, places in enumerate(aligned.tolist())
            for token, place in enumerate(places)
            if place >= 0
        }
        got = {(row, *pair) for row, each in enumerate(details) for pair in each.alignment}
        return len(wanted & got) / len(wanted)

    assert agreement(1.0) > 0.95 > 0.8 > agreement(0.0)


def test_weight_falls_to_0_and_the_pass_is_then_the_plain_one(table: TranslationTable) -> None:
    model, batch = transformer(decoder_layers=2), collate(examples())
    falling, constant = (
        GuidedPass(model, 0.1, 0.5, lambda: table, 8),
        GuidedPass(model, 0.1, 0.5, lambda: table),
    )
    for update, weight in ((1, 0.4375), (4, 0.25), (8, 0.0), (9, 0.0)):
        for each in (falling, constant):
            begin_update(each, update)
        assert (falling.weight, constant.weight) == (weight, 0.5)
        sums = falling(batch)
        assert (sums.objective > sums.smoothed) == (weight > 0)
    begin_update(TrainingPass(model, 0.1), 1)  # has no weight
    resumed = GuidedPass(model, 0.1, 0.5, lambda: pytest.fail("the table is learned"), 8)
    begin_update(resumed, 8)
    resumed(batch)


def test_stopped_run_is_bit_for_bit_the_uninterrupted_one(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = ["guided_alignment=0.2", "guided_alignment_updates=8", "validate_every=5"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_with(tiny_recipe, whole, *settings, "max_updates=10")
    train_with(tiny_recipe, stopped, *settings, "max_updates=5")
    train_with(tiny_recipe, stopped, *settings, "max_updates=10")
    assert (whole / MODEL).read_bytes() == (stopped / MODEL).read_bytes()
