from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mt.data.batches import (
    Batch,
    Indices,
    Lengths,
    Update,
    collate,
    padding_efficiency,
    plan_updates,
    split_update,
)
from mt.data.store import Example


def corpus_lengths(pairs: int, seed: int = 0) -> Lengths:
    """Return skewed lengths that correlate between the sides, as in real corpora."""
    random = np.random.default_rng(seed)
    source = 2 + random.gamma(3.0, 5.0, pairs)
    target = source * random.normal(1.1, 0.2, pairs)
    return np.clip(np.stack([source, target], axis=1), 2, 256).astype(np.int32)


lengths_of_any_corpus = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=0, max_size=120
).map(lambda rows: np.array(rows, dtype=np.int32).reshape(-1, 2))


@given(
    lengths=lengths_of_any_corpus,
    tokens=st.integers(1, 15_000),
    seed=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 1000),
)
def test_each_sentence_is_in_one_update_of_equal_size(
    lengths: Lengths, tokens: int, seed: int, epoch: int
) -> None:
    updates = plan_updates(lengths, tokens, seed=seed, epoch=epoch)
    assert sorted(chain.from_iterable(chain(*updates))) == list(range(len(lengths)))
    if len(lengths) == 0:
        return
    total, longest = int(lengths[:, 1].sum()), int(lengths[:, 1].max())
    share, runs = total / max(1, round(total / tokens)), min(max(tokens // 3000, 1), 4)
    sizes = [int(lengths[np.concatenate(update), 1].sum()) for update in updates]
    assert min(sizes) > 0
    assert max(sizes) <= share + runs * longest
    assert {len(update) for update in updates} <= set(range(1, runs + 1))
    if longest < share / runs:  # else a sentence may be a run of its own
        assert len(updates) == max(1, round(total / tokens))
        assert min(sizes) >= share - runs * longest
        assert {len(update) for update in updates} == {runs}


@pytest.mark.parametrize("other", [{"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3}])
def test_other_epoch_or_seed_changes_composition_and_order(other: dict[str, int]) -> None:
    lengths = corpus_lengths(5000)
    one, again = (joined(plan_updates(lengths, 900, seed=3, epoch=2)) for _ in range(2))
    assert [update.tolist() for update in one] == [update.tolist() for update in again]
    two = joined(plan_updates(lengths, 900, **other))
    number = np.empty(len(lengths), dtype=np.int64)
    for position, update in enumerate(two):
        number[update] = position
    pairs = sum(len(update) * (len(update) - 1) for update in one)
    together = sum(int((np.bincount(number[update]) ** 2).sum()) - len(update) for update in one)
    assert together / pairs < 0.6  # 1.0 where only the order is drawn anew
    means = [[float(lengths[update, 1].mean()) for update in plan] for plan in (one, two)]
    assert abs(np.corrcoef(means[0], means[1])[0, 1]) < 0.5
    assert abs(np.corrcoef(means[0], np.arange(len(one)))[0, 1]) < 0.3  # not ordered by length


def test_sentences_of_equal_lengths_are_shuffled_in_every_epoch() -> None:
    lengths = np.full((1000, 2), 5, dtype=np.int32)
    one, two = (joined(plan_updates(lengths, 500, seed=1, epoch=epoch)) for epoch in (0, 1))
    assert max(len(set(a.tolist()) & set(b.tolist())) for a in one for b in two) < 40  # of 100


def joined(plan: list[Update]) -> list[Indices]:
    """Return the sentences of each update."""
    return [np.concatenate(update) for update in plan]


@pytest.mark.parametrize("tokens", [500, 2000, 6000, 12_000])
def test_four_runs_in_turn_are_as_long_as_the_corpus(tokens: int) -> None:
    lengths = corpus_lengths(60_000)
    median = np.quantile(np.repeat(lengths[:, 1], lengths[:, 1]), 0.5)
    plan = joined(plan_updates(lengths, tokens, seed=1, epoch=0))
    together = 4 // max(tokens // 3000, 1)
    shares = []
    for first in range(0, len(plan), together):
        target = lengths[np.concatenate(plan[first : first + together]), 1]
        shares.append(target[target > median].sum() / target.sum())
    assert np.std(shares) < 0.08  # 0.25 if chosen at random


@given(
    lengths=lengths_of_any_corpus,
    budget=st.integers(60, 2000),
    ranks=st.integers(1, 5),
    runs=st.integers(1, 4),
)
def test_split_keeps_each_sentence_with_its_run_within_the_budget(
    lengths: Lengths, budget: int, ranks: int, runs: int
) -> None:
    shuffled = np.random.default_rng(0).permutation(len(lengths))
    update = [run for run in np.array_split(shuffled, runs) if len(run)]
    by_rank = split_update(update, lengths, max_tokens_per_batch=budget, ranks=ranks)
    assert len(by_rank) == ranks
    batches = [batch for rank in by_rank for batch in rank]
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    assert all(0 < len(batch) * lengths[batch].max() <= budget for batch in batches)
    assert all(any(set(batch) <= set(run) for run in update) for batch in batches)
    if len(lengths) >= len(batches) + ranks:
        assert len({len(rank) for rank in by_rank}) == 1


@pytest.mark.parametrize(
    ("sentences", "ranks", "sizes"),
    [
        (10, 1, [[5, 5]]),  # not 9 and 1
        (10, 3, [[4], [4], [2]]),
        (2, 4, [[1], [1], [], []]),
    ],
)
def test_ranks_get_the_fewest_batches_of_similar_size(
    sentences: int, ranks: int, sizes: list[list[int]]
) -> None:
    lengths = np.full((sentences, 2), 10, dtype=np.int32)
    by_rank = split_update([np.arange(sentences)], lengths, max_tokens_per_batch=90, ranks=ranks)
    found = [[len(batch) for batch in rank] for rank in by_rank]
    assert sorted(found, reverse=True) == sizes


@pytest.mark.parametrize(
    ("tokens", "budget", "ranks", "sizes"),
    [
        ([600, 300], 300, 1, [[300, 300, 300]]),
        ([600, 300], 700, 1, [[600, 300]]),  # not together, though they would fit
        ([600, 300], 1000, 3, [[300], [300], [300]]),
        ([300, 300, 300, 300], 1000, 2, [[300, 300], [300, 300]]),
    ],
)
def test_runs_are_not_joined_and_the_largest_is_cut_for_ranks(
    tokens: list[int], budget: int, ranks: int, sizes: list[list[int]]
) -> None:
    counts = [each // 10 for each in tokens]
    lengths = np.full((sum(counts), 2), 10, dtype=np.int32)
    update = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    by_rank = split_update(update, lengths, max_tokens_per_batch=budget, ranks=ranks)
    assert [[10 * len(batch) for batch in rank] for rank in by_rank] == sizes


@pytest.mark.parametrize("tokens", [500, 1500, 4096])
def test_plan_needs_little_padding(tokens: int) -> None:
    lengths = corpus_lengths(60_000)
    updates = plan_updates(lengths, tokens, seed=1, epoch=0)
    split = [split_update(each, lengths, max_tokens_per_batch=4096, ranks=1)[0] for each in updates]
    efficiency = padding_efficiency([batch for batches in split for batch in batches], lengths)
    assert min(efficiency.source, efficiency.target) > 0.95


def example(index: int, source: list[int], target: list[int]) -> Example:
    return Example(index, np.array(source, dtype=np.int32), np.array(target, dtype=np.int32))


def test_collate_shifts_the_target_by_one_and_pads() -> None:
    batch = collate([example(7, [5, 6, 3], [8, 3]), example(4, [9, 3], [10, 11, 12, 3])])
    assert batch.source.tolist() == [[5, 6, 3], [9, 3, 0]]
    assert batch.target_out.tolist() == [[8, 3, 0, 0], [10, 11, 12, 3]]
    assert batch.target_in.tolist() == [[2, 8, 0, 0], [2, 10, 11, 12]]
    assert batch.target_tokens == 6
    assert batch.index.tolist() == [7, 4]
    assert {t.dtype for t in (batch.source, batch.target_in, batch.target_out)} == {torch.int64}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=9))
def test_halves_equal_the_batches_of_half_the_examples(lengths: list[tuple[int, int]]) -> None:
    examples = [
        Example(10 + index, *(np.arange(4, 4 + length, dtype=np.int32) for length in both))
        for index, both in enumerate(lengths)
    ]
    middle = (len(examples) + 1) // 2
    expected = [collate(examples[:middle]), collate(examples[middle:])]
    for half, whole in zip(collate(examples).halves(), expected, strict=True):
        for name in Batch.__dataclass_fields__:
            one, other = getattr(half, name), getattr(whole, name)
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
