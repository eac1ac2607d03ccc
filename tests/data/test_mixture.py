from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from mt.data.store import Mixture, mix


def taken(mixture: Mixture, epoch: int, *, seed: int = 1) -> Counter[int]:
    return Counter(mixture.pairs(seed=seed, epoch=epoch).tolist())


def test_weights_repeat_or_halve_a_corpus() -> None:
    mixture = mix([30, 40], [2, 0.5])
    epochs = [taken(mixture, epoch) for epoch in range(4)]
    for counted in epochs:
        assert {pair: counted[pair] for pair in range(30)} == dict.fromkeys(range(30), 2)
    halves = [{pair for pair in counted if pair >= 30} for counted in epochs]
    assert [len(half) for half in halves] == [20] * 4
    assert halves[0] | halves[1] == halves[2] | halves[3] == set(range(30, 70))
    assert halves[0] != halves[2]
    same = mix([100, 100], [0.5, 0.5]).pairs(seed=1, epoch=0).tolist()
    assert set(same[:50]) != {pair - 100 for pair in same[50:]}


@pytest.mark.parametrize("weight", [0.013, 0.3, 0.5, 1.0, 1.25, 2.0, 3.7])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_pairs_are_taken_equally_often_up_to_one(size: int, weight: float) -> None:
    mixture, total = mix([size], [weight]), Counter[int]()
    for epoch in range(9):
        counted = taken(mixture, epoch)
        assert counted.total() == mixture.counts(epoch)[0]
        total += counted
        assert total.total() == round((epoch + 1) * weight * size)
        every = [total[pair] for pair in range(size)]
        assert max(every) - min(every) <= 1
    assert set(total) <= set(range(size))


def test_pairs_follow_from_seed_and_epoch() -> None:
    mixture = mix([50, 60], [0.4, 1.5])
    first = [mixture.pairs(seed=3, epoch=epoch) for epoch in range(5)]
    for epoch in reversed(range(5)):
        assert np.array_equal(mix([50, 60], [0.4, 1.5]).pairs(seed=3, epoch=epoch), first[epoch])
    assert not np.array_equal(mixture.pairs(seed=4, epoch=0), first[0])
    assert all(not np.array_equal(one, two) for one, two in pairwise(first))


def test_weight_of_one_takes_all_in_order() -> None:
    mixture = mix([3, 4], [1, 1.0])
    assert mixture.is_plain
    assert mixture.pairs(seed=1, epoch=5).tolist() == list(range(7))
    assert not mix([3, 4], [1, 1.5]).is_plain


def test_temperature_flattens_shares_and_keeps_the_epoch_length() -> None:
    sizes = [10_000, 900, 100]
    assert mix(sizes, [1, 1, 1], temperature=1) == Mixture(tuple(sizes), (1.0, 1.0, 1.0))
    # The square roots are 100, 30, 10: shares of 100, 30, 10 in 140.
    assert mix(sizes, [1, 1, 1], temperature=2).counts(0) == [7857, 2357, 786]
    assert mix(sizes, [1, 1, 0.5], temperature=2).counts(0)[2] == 393
    flat = mix(sizes, [1, 1, 1], temperature=1000).counts(0)
    assert max(flat) - min(flat) < 25
