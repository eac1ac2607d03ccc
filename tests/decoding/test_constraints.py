import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.config import DecodingConfig
from mt.decoding.constraints import Constraints
from mt.decoding.sampling import sample
from mt.decoding.search import beam, best_candidates, greedy, largest
from mt.errors import DivergedError
from mt.special_ids import EOS, PAD
from tests.decoding.step_models import (
    Ids,
    PrefixModel,
    beam_settings,
    every_translation,
    exhaustive,
)

VOCABULARY, LIMIT = 6, 5
WIDTH = len(every_translation(VOCABULARY, LIMIT))


def repeats(ids: Ids, size: int) -> bool:
    grams = [ids[place : place + size] for place in range(len(ids) - size)]
    return len(set(grams)) < len(grams)


def begins_with(prefix: Ids) -> Callable[[Ids], bool]:
    return lambda ids: ids[: len(prefix)] == prefix


@pytest.mark.parametrize(
    ("constraints", "oracle"),
    [
        *(
            (
                Constraints(no_repeat_ngram=size),
                {"allowed": lambda ids, size=size: not repeats(ids, size)},
            )
            for size in (1, 2, 3)
        ),
        *(
            (
                Constraints(prefixes=torch.tensor([prefix])),
                {"allowed": begins_with(prefix), "free": len(prefix)},
            )
            for prefix in ((4,), (5, 5), (4, 5, 4))
        ),
        (
            # The prefix itself repeats a bigram.
            Constraints(no_repeat_ngram=1, prefixes=torch.tensor([(4, 4)])),
            {"allowed": lambda ids: ids[:2] == (4, 4) and not repeats(ids[1:], 1), "free": 2},
        ),
    ],
)
def test_wide_beam_finds_the_best_allowed_translations(
    constraints: Constraints, oracle: dict[str, Any]
) -> None:
    settings = beam_settings(WIDTH, 0.6)
    for seed in range(4):
        model = PrefixModel([seed], beam=WIDTH, vocabulary=VOCABULARY)
        found = beam(model, torch.tensor([LIMIT]), settings, 3, constraints)[0]
        wanted = exhaustive(model, LIMIT, **oracle)[:3]
        found = [each for each in found if each.finished][: len(wanted)]
        assert [(*each.ids, EOS) for each in found] == [ids for ids, _ in wanted]
        assert [each.score for each in found] == pytest.approx([s for _, s in wanted], abs=1e-4)


def test_pad_unk_and_bos_are_never_generated_but_keep_their_probability() -> None:
    ids, log_probs = best_candidates(torch.tensor([[0.3, 0.2, 0.1, 0.15, 0.25, 0.0]]).log(), 2)
    assert ids.tolist() == [[4, EOS]]
    assert log_probs.exp().tolist()[0] == pytest.approx([0.25, 0.15])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [PAD, EOS, 5])
@pytest.mark.parametrize("step", [0, 1])
def test_model_output_that_is_not_finite_is_an_error(bad: float, place: int, step: int) -> None:
    class Damaged(PrefixModel):
        def step(self, last_ids: Tensor) -> Tensor:
            logits = super().step(last_ids)
            if len(self.rows_by_step) > step:
                logits[1, place] = bad
            return logits

    limits, numbers = torch.tensor([6, 6, 6]), torch.full((3, 6), 0.5, dtype=torch.float64)
    searches: list[tuple[int, Callable[[PrefixModel], object]]] = [
        (1, lambda model: greedy(model, limits)),
        (3, lambda model: beam(model, limits, beam_settings(3))),
        (1, lambda model: sample(model, limits, numbers, DecodingConfig())),
    ]
    for rows, search in searches:
        with pytest.raises(DivergedError):
            search(Damaged([1, 2, 3], beam=rows, vocabulary=7))


@pytest.mark.parametrize("width", [5, 16, 95, 96, 97, 1000, 8003])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_largest_equals_a_full_sort(width: int, count: int) -> None:
    torch.manual_seed(width)
    rows = torch.randn(40, width + 3)[:, 3:]
    rows[:20] = rows[:20].round()  # ties
    rows[30:, 1:] = float("-inf")
    values, places = largest(rows, count)
    assert torch.equal(values, rows.sort(dim=1, descending=True).values[:, :count])
    assert torch.equal(rows.gather(1, places), values)
    assert all(len(set(each)) == count for each in places.tolist())
