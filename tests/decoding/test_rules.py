"""What a translation may not do, against every translation there is."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mt.decoding.constraints import Constraints, Prefixes, best_candidates, repeating
from mt.decoding.engine import LENGTH_NORMALIZATIONS, Normalization
from mt.decoding.search import BeamSettings, beam, greedy
from mt.special_ids import BOS, EOS

VOCABULARY, LIMIT = 6, 5
EVERY = [
    (*ids, EOS)
    for length in range(LIMIT)
    for ids in itertools.product(range(EOS + 1, VOCABULARY), repeat=length)
]
WIDTH = len(EVERY)
Ids = tuple[int, ...]


class Bigrams:
    """A model whose next token depends on the last one and on how many there were."""

    def __init__(self, seed: int, *, rows: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (LIMIT + 1, VOCABULARY, VOCABULARY)
        self.table = 2 * torch.randn(shape, generator=generator)
        self.rows, self.place = rows, 0

    def step(self, last_ids: Tensor) -> Tensor:
        self.place += 1
        return self.table[self.place - 1, last_ids]

    def reorder(self, parents: Tensor) -> None:
        """Nothing is kept but the place."""

    def keep(self, sentences: Tensor) -> None:
        raise AssertionError("one sentence has nothing to drop")

    def log_probs(self, ids: Ids) -> list[float]:
        last, found = BOS, []
        for place, token in enumerate(ids):
            found.append(float(self.table[place, last].double().log_softmax(0)[token]))
            last = token
        return found


def found_by_beam(
    seed: int, rules: Constraints, *, count: int = 1, normalization: Normalization = "gnmt"
) -> list[tuple[Ids, float]]:
    settings = BeamSettings(WIDTH, 0.6, normalization, count)
    model = Bigrams(seed, rows=WIDTH)
    found = beam(model, torch.tensor([LIMIT]), settings, rules)[0]
    return [((*each.ids, EOS), each.score) for each in found if each.finished][:count]


def best_of_all(
    seed: int,
    allowed: Callable[[Ids], bool],
    *,
    count: int = 1,
    penalty: float = 1.0,
    normalization: Normalization = "gnmt",
    free: int = 0,
) -> list[tuple[Ids, float]]:
    """Rank all translations; the first `free` tokens cost nothing."""
    model, normalize = Bigrams(seed, rows=1), LENGTH_NORMALIZATIONS[normalization]
    scores = {}
    for ids in filter(allowed, EVERY):
        parts = model.log_probs(ids)
        total = sum(
            part * (penalty if token in ids[:place] else 1.0)
            for place, (token, part) in enumerate(zip(ids, parts, strict=True))
            if place >= free
        )
        scores[ids] = total / normalize(len(ids), 0.6)
    return sorted(scores.items(), key=lambda item: -item[1])[:count]


def same(found: list[tuple[Ids, float]], wanted: list[tuple[Ids, float]]) -> bool:
    return [ids for ids, _ in found] == [ids for ids, _ in wanted] and [
        score for _, score in found
    ] == pytest.approx([score for _, score in wanted], abs=1e-5)


def repeats(ids: Ids, size: int) -> bool:
    grams = [ids[place : place + size] for place in range(len(ids) - size)]
    return len(set(grams)) < len(grams)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("normalization", LENGTH_NORMALIZATIONS)
def test_n_best_are_the_best_of_all(seed: int, normalization: Normalization) -> None:
    found = found_by_beam(seed, Constraints(), count=7, normalization=normalization)
    wanted = best_of_all(seed, lambda _: True, count=7, normalization=normalization)
    assert same(found, wanted)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_sequence_comes_twice(seed: int, size: int) -> None:
    found = found_by_beam(seed, Constraints(no_repeat_ngram=size), count=5)
    assert same(found, best_of_all(seed, lambda ids: not repeats(ids, size), count=5))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_repeated_costs_more(seed: int) -> None:
    found = found_by_beam(seed, Constraints(repetition_penalty=1.7), count=5)
    assert same(found, best_of_all(seed, lambda _: True, penalty=1.7, count=5))


@pytest.mark.parametrize("seed", range(8))
def test_none_is_shorter_than_it_may_be(seed: int) -> None:
    found = found_by_beam(seed, Constraints(shortest=torch.tensor([4])), count=3)
    assert same(found, best_of_all(seed, lambda ids: len(ids) >= 4, count=3))


@pytest.mark.parametrize("prefix", [(4,), (5, 5), (4, 5, 4)])
def test_all_begin_with_the_prefix(prefix: Ids) -> None:
    for seed in range(4):
        found = found_by_beam(seed, Constraints(prefixes=[prefix]), count=3)
        wanted = best_of_all(
            seed, lambda ids: ids[: len(prefix)] == prefix, count=3, free=len(prefix)
        )
        assert same(found, wanted)


@pytest.mark.parametrize(
    "rules",
    [
        Constraints(),
        Constraints(no_repeat_ngram=1),
        Constraints(no_repeat_ngram=2, repetition_penalty=1.3),
        Constraints(shortest=torch.tensor([3]), prefixes=[(5,)]),
    ],
)
def test_greedy_keeps_the_rules_of_a_beam_of_one(rules: Constraints) -> None:
    for seed in range(10):
        limits = torch.tensor([LIMIT])
        taken = greedy(Bigrams(seed, rows=1), limits, rules)[0]
        found = beam(Bigrams(seed, rows=1), limits, BeamSettings(1), rules)[0][0]
        assert (taken.ids, taken.finished) == (found.ids, found.finished)
        assert taken.log_prob == pytest.approx(found.log_prob)


def test_a_row_that_nothing_is_left_for_may_end() -> None:
    """Both tokens stand there already, and it is too short to end."""
    rules = Constraints(no_repeat_ngram=1, shortest=torch.tensor([9]))
    written = Prefixes(torch.tensor([0]), torch.tensor([[4, 5]]))
    best = best_candidates(torch.zeros(1, VOCABULARY), 2, rules, written)
    assert best.ids[0, 0] == EOS
    assert float(best.log_probs[0, 0]) == pytest.approx(-math.log(VOCABULARY))
    assert float(best.log_probs[0, 1]) == -math.inf


def test_what_would_repeat_is_what_followed_the_same_end() -> None:
    tokens = torch.tensor([[4, 5, 6, 4, 5], [7, 7, 7, 7, 7], [4, 5, 6, 7, 8]])
    for size, wanted in (
        (1, [(0, 4), (0, 5), (0, 6), (1, 7), (2, 4), (2, 5), (2, 6), (2, 7), (2, 8)]),
        (2, [(0, 6), (1, 7)]),
        (3, [(0, 6), (1, 7)]),
        (4, [(1, 7)]),
        (5, [(1, 7)]),
        (6, []),
    ):
        rows, ids = repeating(tokens, size)
        assert sorted(set(zip(rows.tolist(), ids.tolist(), strict=True))) == wanted
