"""Guided alignment: the alignment against loops over dicts, and attention that learns from it."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from mt.data.batches import Batch, collate
from mt.data.store import Chunk, Example, LeftOut, PairStore, Rows, write_store
from mt.decoding.engine import Hypothesis
from mt.decoding.torch_engine import TorchEngine
from mt.special_ids import PAD
from mt.training.checkpoint import MODEL
from mt.training.objectives import GuidedPass, TranslationTable, learn_table
from mt.training.step import TrainingPass, train_step
from tests.factories import CPU, examples, learner, train_with, transformer


def stored(folder: Path, pairs: list[Example]) -> PairStore:
    path = folder / "pairs.arrow"
    source = Rows.of([each.source.tolist() for each in pairs])
    target = Rows.of([each.target.tolist() for each in pairs])
    write_store(path, [Chunk(source, target, LeftOut(0, 0, len(pairs)))], doing=None)
    return PairStore(path)


@pytest.fixture
def table(tmp_path: Path) -> TranslationTable:
    return learn_table(stored(tmp_path, examples(60)))


def brown(pairs: list[Example]) -> dict[tuple[int, int], float]:
    """Return p(target token | source token) after five iterations of IBM Model 1."""
    texts = [([PAD, *e.source[:-1].tolist()], e.target[:-1].tolist()) for e in pairs]
    table: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(5):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in texts:
            for t in target:
                norm = sum(table[s, t] for s in source)
                for s in source:
                    counts[s, t] += table[s, t] / norm
                    totals[s] += table[s, t] / norm
        table = {key: count / totals[key[0]] for key, count in counts.items()}
    return table


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


def gradients(training_pass: torch.nn.Module, batches: list[Batch]) -> list[torch.Tensor]:
    training_pass.zero_grad()
    for batch in batches:
        training_pass(batch).objective.backward()
    return [p.grad.clone() for p in training_pass.parameters() if p.grad is not None]


def test_gradient_does_not_depend_on_the_cut_and_weight_0_is_the_plain_pass(
    table: TranslationTable,
) -> None:
    model, batch = transformer(decoder_layers=2), collate(examples())
    guided = GuidedPass(model, 0.1, 0.5, table)
    whole = gradients(guided, [batch])
    torch.testing.assert_close(gradients(guided, [*batch.halves()]), whole)
    plain = gradients(TrainingPass(model, 0.1), [batch])
    off = gradients(GuidedPass(model, 0.1, 0.0, table), [batch])
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
        made = replace(made, training_pass=GuidedPass(made.model, 0.1, weight, table))
        for _ in range(150):
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


def test_stopped_run_is_bit_for_bit_the_uninterrupted_one(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = ["guided_alignment=0.2", "validate_every=5"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_with(tiny_recipe, whole, *settings, "max_updates=10")
    train_with(tiny_recipe, stopped, *settings, "max_updates=5")
    train_with(tiny_recipe, stopped, *settings, "max_updates=10")
    assert (whole / MODEL).read_bytes() == (stopped / MODEL).read_bytes()
