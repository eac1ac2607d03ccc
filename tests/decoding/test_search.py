import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.decoding.engine import Hypothesis, Normalization
from mt.decoding.search import beam, greedy, no_live_row_can_win
from mt.special_ids import BOS, EOS, PAD, UNK
from tests.decoding.step_models import (
    Ids,
    PrefixModel,
    TableModel,
    beam_settings,
    every_translation,
    exhaustive,
    log_probs,
)

A, B = 4, 5


@pytest.mark.parametrize(("vocabulary", "limit"), [(5, 6), (6, 4), (7, 3)])
@pytest.mark.parametrize(
    ("normalization", "alpha"),
    [("gnmt", 0.0), ("gnmt", 0.6), ("gnmt", 1.0), ("average", 0.0), ("none", 0.0)],
)
def test_wide_beam_finds_the_best_of_all_translations(
    vocabulary: int, limit: int, normalization: Normalization, alpha: float
) -> None:
    width = len(every_translation(vocabulary, limit)) + (vocabulary - 4) ** limit
    chosen = beam_settings(width, alpha, normalization)
    for seed in range(4):
        model = PrefixModel([seed], beam=width, vocabulary=vocabulary)
        wanted = exhaustive(
            PrefixModel([seed], beam=1, vocabulary=vocabulary),
            limit,
            alpha=alpha,
            normalization=normalization,
        )[:4]
        found = beam(model, torch.tensor([limit]), chosen, 4)[0][:4]
        assert [(*each.ids, EOS) for each in found] == [ids for ids, _ in wanted]
        assert [each.score for each in found] == pytest.approx([s for _, s in wanted], abs=1e-4)
        assert all(each.finished for each in found)


def reference_beam(model: PrefixModel, limit: int, *, width: int, alpha: float) -> Hypothesis:
    """Plain lists and no bound: over at the limit, or with `width` and one that was ahead."""
    live: list[tuple[float, Ids]] = [(0.0, ())]
    finished: list[Hypothesis] = []
    best_has_ended = False
    for length in range(1, limit + 1):
        candidates = [
            (total + log_prob, (*ids, token))
            for total, ids in live
            for token, log_prob in enumerate(log_probs(model.logits(model.seeds[0], (BOS, *ids))))
            if token not in {PAD, UNK, BOS}
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        penalty = ((5 + length) / 6) ** alpha
        finished += [
            Hypothesis(ids[:-1], total, total / penalty, True)
            for total, ids in candidates[:width]
            if ids[-1] == EOS
        ]
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][:width]
        best_has_ended |= candidates[0][1][-1] == EOS
        if not live or (len(finished) >= width and best_has_ended):
            break
    if finished:
        return max(finished, key=lambda hypothesis: hypothesis.score)
    total, ids = live[0]
    return Hypothesis(ids, total, total / penalty, False)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 6),
    limit=st.integers(1, 9),
    vocabulary=st.integers(5, 9),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    sharpness=st.sampled_from([0.5, 2.0, 5.0]),
)
def test_early_stop_never_changes_the_best_hypothesis(
    seed: int, width: int, limit: int, vocabulary: int, alpha: float, sharpness: float
) -> None:
    model = PrefixModel([seed], beam=width, vocabulary=vocabulary, sharpness=sharpness)
    wanted = reference_beam(model, limit, width=width, alpha=alpha)
    found = beam(model, torch.tensor([limit]), beam_settings(width, alpha))[0]
    assert (found[0].ids, found[0].finished) == (wanted.ids, wanted.finished)
    assert found[0].score == pytest.approx(wanted.score, abs=1e-5)
    assert 1 <= len(found) <= width
    assert [each.score for each in found] == sorted((h.score for h in found), reverse=True)
    assert len({each.ids for each in found}) == len(found)


def test_search_stops_early() -> None:
    ends_after_two = [0.001, 0.001, 0.001, 0.99, 0.001, 0.001]
    table = {(): [0.001, 0.001, 0.001, 0.0, 0.99, 0.001], (A, A): ends_after_two}
    model = TableModel({**table, (A,): table[()]}, beam=4)
    found = beam(model, torch.tensor([200]), beam_settings(4, 0.6))[0]
    assert found[0].ids == (A, A)
    assert len(model.rows_by_step) < 10


def test_finished_sentences_leave_the_batch() -> None:
    class NeverEnding(PrefixModel):
        def logits(self, seed: int, prefix: Ids) -> torch.Tensor:
            return torch.tensor([0.0, 0.0, 0.0, -9.0, 1.0, 2.0])

    model = NeverEnding([3] * 4, beam=2, vocabulary=6)
    beam(model, torch.tensor([1, 4, 2, 3]), beam_settings(2, 1.0))
    assert model.rows_by_step == [4, 6, 4, 2]


@settings(max_examples=30, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    width=st.integers(1, 5),
    data=st.data(),
)
def test_batched_search_equals_one_sentence_at_a_time(
    seeds: list[int], width: int, data: st.DataObject
) -> None:
    limits = data.draw(st.lists(st.integers(1, 9), min_size=len(seeds), max_size=len(seeds)))
    chosen = beam_settings(width, 0.6)
    together = beam(PrefixModel(seeds, beam=width, vocabulary=7), torch.tensor(limits), chosen)
    greedily = greedy(PrefixModel(seeds, beam=1, vocabulary=7), torch.tensor(limits))
    for seed, limit, found, taken in zip(seeds, limits, together, greedily, strict=True):
        alone = PrefixModel([seed], beam=width, vocabulary=7)
        assert beam(alone, torch.tensor([limit]), chosen) == [found]
        alone = PrefixModel([seed], beam=1, vocabulary=7)
        assert greedy(alone, torch.tensor([limit])) == [taken]
        for hypothesis in [*found, taken]:
            assert len(hypothesis.ids) + hypothesis.finished <= limit
            assert not set(hypothesis.ids) & {PAD, UNK, BOS, EOS}
            assert hypothesis.finished or len(hypothesis.ids) == limit
            ids = (*hypothesis.ids, EOS) if hypothesis.finished else hypothesis.ids
            forced = sum(PrefixModel([seed], beam=1, vocabulary=7).forced_log_probs(ids))
            assert hypothesis.log_prob == pytest.approx(forced, abs=1e-5)


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 3.0])
def test_greedy_equals_beam_of_one_even_where_all_logits_tie(sharpness: float) -> None:
    seeds, limits = list(range(30)), torch.arange(30) % 9 + 1
    one, other = (PrefixModel(seeds, beam=1, vocabulary=6, sharpness=sharpness) for _ in range(2))
    beams = beam(one, limits, beam_settings(1))
    assert one.reorders == 0
    assert greedy(other, limits) == [found[0] for found in beams]
    assert one.rows_by_step == other.rows_by_step


def test_poor_short_hypotheses_do_not_end_the_search() -> None:
    table = {
        (): [0.0, 0.0, 0.0, 0.04, 0.96, 0.0],
        (A,): [0.0, 0.0, 0.0, 0.04, 0.0, 0.96],
        (A, B): [0.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        (A, B, A): [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
    }
    found = beam(TableModel(table, beam=2), torch.tensor([9]), beam_settings(2, 0.6))[0]
    assert [(each.ids, each.finished) for each in found] == [((A, B, A), True), ((A,), True)]
    assert found[0].log_prob == pytest.approx(math.log(0.96**2), abs=1e-6)


NEVER_ENDING = {(): [0.0, 0.0, 0.0, 0.0, 0.75, 0.25], (A,): [0.0, 0.0, 0.0, 0.0, 0.5, 0.5]}


def test_rows_are_returned_unfinished_at_the_limit() -> None:
    model = TableModel(NEVER_ENDING, beam=2)
    first, second = beam(model, torch.tensor([1]), beam_settings(2, 1.0))[0]
    assert [(each.ids, each.finished) for each in (first, second)] == [((A,), False), ((B,), False)]
    assert (first.log_prob, first.score) == pytest.approx((math.log(0.75), math.log(0.75)))
    [cut] = greedy(TableModel(NEVER_ENDING, beam=1), torch.tensor([2]))
    assert (len(cut.ids), cut.finished) == (2, False)


def test_no_sentences_give_no_hypotheses() -> None:
    nothing, model = torch.empty(0, dtype=torch.int64), PrefixModel([], beam=3, vocabulary=6)
    assert greedy(model, nothing) == []
    assert beam(model, nothing, beam_settings(3)) == []


def test_bound_uses_the_penalty_at_the_limit() -> None:
    live, finished = torch.tensor([-4.0, -4.0, -4.0]), torch.tensor([-2.0, -1.9, -math.inf])
    penalty = torch.tensor([2.0, 2.1, 2.0])
    assert no_live_row_can_win(live, finished, penalty).tolist() == [True, True, False]
    assert no_live_row_can_win(live, finished, penalty + 0.2).tolist() == [False, False, False]
