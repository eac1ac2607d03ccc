import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mt.decoding.constraints import NO_CONSTRAINTS, Constraints, best_candidates
from mt.decoding.engine import LENGTH_NORMALIZATIONS, Hypothesis
from mt.decoding.search import BeamSettings, StepModel, greedy, no_live_row_can_win
from mt.decoding.search import beam as beam_search
from mt.errors import UserError
from mt.special_ids import BOS, EOS, PAD, UNK

A, B = 4, 5
length_penalty = LENGTH_NORMALIZATIONS["gnmt"]
ALPHAS = (0.0, 0.6, 1.0)


def beam(
    model: StepModel,
    limits: Tensor,
    *,
    beam: int,
    length_penalty: float,
    count: int = 1,
    rules: Constraints = NO_CONSTRAINTS,
) -> list[list[Hypothesis]]:
    """Search as `mt` does by default."""
    return beam_search(model, limits, BeamSettings(beam, length_penalty, count=count), rules)


Prefix = tuple[int, ...]


class PrefixModel:
    """A model whose logits depend on the sentence and on every token read, and that checks calls.

    `seeds` has a number per sentence: the same number means the same sentence. The logits of a
    prefix are drawn from a generator seeded by sentence and prefix, so that nothing but a right
    `reorder` and `keep` leads to the right ones.
    """

    def __init__(
        self, seeds: list[int], *, beam: int, vocabulary: int, sharpness: float = 1.0
    ) -> None:
        self.vocabulary, self.beam, self.sharpness = vocabulary, beam, sharpness
        self.seeds = list(seeds)
        self.prefixes: list[Prefix] = [()] * len(seeds)
        self.rows_by_step: list[int] = []
        self.reorders = 0

    def step(self, last_ids: Tensor) -> Tensor:
        rows = self.beam if self.rows_by_step else 1
        assert last_ids.shape == (len(self.seeds) * rows,)
        self.rows_by_step.append(len(last_ids))
        read = [
            (*prefix, last) for prefix, last in zip(self.prefixes, last_ids.tolist(), strict=True)
        ]
        self.prefixes = [prefix for prefix in read for _ in range(self.beam // rows)]
        return torch.stack(
            [self.logits(self.seeds[row // rows], prefix) for row, prefix in enumerate(read)]
        )

    def reorder(self, parents: Tensor) -> None:
        assert parents.shape == (len(self.seeds), self.beam)
        self.reorders += 1
        self.prefixes = [
            self.prefixes[sentence * self.beam + row]
            for sentence, rows in enumerate(parents.tolist())
            for row in rows
        ]

    def keep(self, sentences: Tensor) -> None:
        kept = sentences.tolist()
        assert len(kept) < len(self.seeds), "nothing was dropped"
        self.seeds = [self.seeds[sentence] for sentence in kept]
        self.prefixes = [
            self.prefixes[sentence * self.beam + row]
            for sentence in kept
            for row in range(self.beam)
        ]

    def logits(self, seed: int, prefix: Prefix) -> Tensor:
        number = seed
        for token in prefix:
            number = (number * 1_000_003 + token + 1) % (2**61 - 1)
        generator = torch.Generator().manual_seed(number)
        return self.sharpness * torch.randn(self.vocabulary, generator=generator)


class TableModel:
    """A model with given probabilities after each prefix (BOS left out), one sentence."""

    def __init__(self, table: dict[Prefix, list[float]], *, beam: int) -> None:
        self.table = table
        self.prefixes: list[Prefix] = [()]
        self.beam = beam
        self.steps = 0

    def step(self, last_ids: Tensor) -> Tensor:
        if self.steps:
            self.prefixes = [
                (*prefix, last)
                for prefix, last in zip(self.prefixes, last_ids.tolist(), strict=True)
            ]
        self.steps += 1
        width = len(next(iter(self.table.values())))
        even = [1.0 / width] * width
        logits = torch.tensor([self.table.get(prefix, even) for prefix in self.prefixes]).log()
        self.prefixes = self.prefixes * (self.beam if self.steps == 1 else 1)
        return logits

    def reorder(self, parents: Tensor) -> None:
        self.prefixes = [self.prefixes[row] for row in parents[0].tolist()]

    def keep(self, sentences: Tensor) -> None:
        raise AssertionError("one sentence has nothing to drop")


def forced_log_prob(seed: int, ids: tuple[int, ...], vocabulary: int, sharpness: float) -> float:
    """The log-probability of `ids` read one by one, without any search."""
    model = PrefixModel([seed], beam=1, vocabulary=vocabulary, sharpness=sharpness)
    total = 0.0
    prefix: Prefix = (BOS,)
    for token in ids:
        total += float(model.logits(seed, prefix).double().log_softmax(0)[token])
        prefix = (*prefix, token)
    return total


def every_translation(vocabulary: int, limit: int) -> list[tuple[int, ...]]:
    return [
        (*ids, EOS)
        for length in range(limit)
        for ids in itertools.product(range(EOS + 1, vocabulary), repeat=length)
    ]


def reference_beam(
    seed: int, limit: int, *, beam: int, alpha: float, vocabulary: int, sharpness: float
) -> Hypothesis:
    """Plain lists and no bound: over at the limit, or with `beam` hypotheses and none ahead."""
    model = PrefixModel([seed], beam=1, vocabulary=vocabulary, sharpness=sharpness)
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = [
            (total + float(log_prob), (*ids, token))
            for total, ids in live
            for token, log_prob in enumerate(
                model.logits(seed, (BOS, *ids)).double().log_softmax(0)
            )
            if token not in {PAD, UNK, BOS}
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        penalty = ((5 + length) / 6) ** alpha
        finished += [
            Hypothesis(ids[:-1], total, total / penalty, True)
            for total, ids in candidates[:beam]
            if ids[-1] == EOS
        ]
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam]
        best = max((hypothesis.score for hypothesis in finished), default=-math.inf)
        if not live or (len(finished) >= beam and live[0][0] / penalty <= best):
            break
    if finished:
        return max(finished, key=lambda hypothesis: hypothesis.score)
    total, ids = live[0]
    return Hypothesis(ids, total, total / penalty, False)


def close(found: Hypothesis, wanted: Hypothesis) -> bool:
    return (found.ids, found.finished) == (wanted.ids, wanted.finished) and found.score == (
        pytest.approx(wanted.score, abs=1e-5)
    )


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("vocabulary", "limit"), [(5, 6), (6, 4), (7, 3)])
def test_a_wide_beam_finds_the_best_of_all_translations(
    alpha: float, vocabulary: int, limit: int
) -> None:
    every = every_translation(vocabulary, limit)
    for seed in range(12):
        wanted = max(
            forced_log_prob(seed, ids, vocabulary, 2.0) / length_penalty(len(ids), alpha)
            for ids in every
        )
        width = len(every) + (vocabulary - 4) ** limit
        model = PrefixModel([seed], beam=width, vocabulary=vocabulary, sharpness=2.0)
        best = beam(model, torch.tensor([limit]), beam=width, length_penalty=alpha)[0][0]
        assert best.finished
        assert best.score == pytest.approx(wanted, abs=1e-5)
        rescored = forced_log_prob(seed, (*best.ids, EOS), vocabulary, 2.0)
        assert rescored / length_penalty(len(best.ids) + 1, alpha) == pytest.approx(wanted)


# The right translation, A B A, stays far ahead while poor short ones end beside it.
POOR_AND_SHORT = {
    (): [0.0, 0.0, 0.0, 0.04, 0.96, 0.0],
    (A,): [0.0, 0.0, 0.0, 0.04, 0.0, 0.96],
    (A, B): [0.0, 0.0, 0.0, 0.0, 1.0, 0.0],
    (A, B, A): [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
}


def test_poor_short_hypotheses_do_not_end_the_search() -> None:
    """After two steps `beam` hypotheses are there, while the right row is at 0.92 and ahead."""
    model = TableModel(POOR_AND_SHORT, beam=2)
    found = beam(model, torch.tensor([9]), beam=2, length_penalty=0.6)[0]
    assert found[0].ids == (A, B, A)
    assert found[0].log_prob == pytest.approx(math.log(0.96**2))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 6),
    limit=st.integers(1, 9),
    vocabulary=st.integers(5, 9),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    sharpness=st.sampled_from([0.5, 2.0, 5.0]),
)
def test_stopping_early_never_changes_the_answer(
    seed: int, width: int, limit: int, vocabulary: int, alpha: float, sharpness: float
) -> None:
    wanted = reference_beam(
        seed, limit, beam=width, alpha=alpha, vocabulary=vocabulary, sharpness=sharpness
    )
    model = PrefixModel([seed], beam=width, vocabulary=vocabulary, sharpness=sharpness)
    found = beam(model, torch.tensor([limit]), beam=width, length_penalty=alpha)[0]
    assert close(found[0], wanted)
    assert 1 <= len(found) <= width
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert len({h.ids for h in found}) == len(found)


def test_the_search_does_stop_early() -> None:
    sure = PrefixModel([0], beam=4, vocabulary=8, sharpness=0.0)
    sure.logits = lambda seed, prefix: torch.tensor(  # type: ignore[method-assign]
        [0.0, 0, 0, 9.0 if len(prefix) == 3 else -9, 9.0 if len(prefix) < 3 else -9, 0, 0, 0]
    )
    found = beam(sure, torch.tensor([200]), beam=4, length_penalty=0.6)[0]
    assert found[0].ids == (A, A)
    assert len(sure.rows_by_step) < 10


@settings(max_examples=40, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    width=st.integers(1, 5),
    data=st.data(),
)
def test_batched_is_one_at_a_time(seeds: list[int], width: int, data: st.DataObject) -> None:
    limits = data.draw(st.lists(st.integers(1, 9), min_size=len(seeds), max_size=len(seeds)))
    batched = PrefixModel(seeds, beam=width, vocabulary=7, sharpness=2.0)
    together = beam(batched, torch.tensor(limits), beam=width, length_penalty=0.6)
    batched_greedy = PrefixModel(seeds, beam=1, vocabulary=7, sharpness=2.0)
    greedily = greedy(batched_greedy, torch.tensor(limits))
    for seed, limit, found, taken in zip(seeds, limits, together, greedily, strict=True):
        alone = PrefixModel([seed], beam=width, vocabulary=7, sharpness=2.0)
        assert beam(alone, torch.tensor([limit]), beam=width, length_penalty=0.6) == [found]
        alone = PrefixModel([seed], beam=1, vocabulary=7, sharpness=2.0)
        assert greedy(alone, torch.tensor([limit])) == [taken]
        for hypothesis in [*found, taken]:
            assert len(hypothesis.ids) + hypothesis.finished <= limit
            assert not set(hypothesis.ids) & {PAD, UNK, BOS, EOS}
            assert hypothesis.finished or len(hypothesis.ids) == limit
            ids = (*hypothesis.ids, EOS) if hypothesis.finished else hypothesis.ids
            rescored = forced_log_prob(seed, ids, 7, 2.0)
            assert hypothesis.log_prob == pytest.approx(rescored, abs=1e-5)


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 3.0])
def test_greedy_is_beam_1_exactly_even_where_all_logits_tie(sharpness: float) -> None:
    seeds, limits = list(range(30)), torch.arange(30) % 9 + 1
    one = PrefixModel(seeds, beam=1, vocabulary=6, sharpness=sharpness)
    beams = beam(one, limits, beam=1, length_penalty=0.0)
    assert one.reorders == 0
    other = PrefixModel(seeds, beam=1, vocabulary=6, sharpness=sharpness)
    assert greedy(other, limits) == [found[0] for found in beams]
    assert one.rows_by_step == other.rows_by_step


def test_finished_sentences_leave_the_batch() -> None:
    model = PrefixModel([3] * 4, beam=2, vocabulary=6)
    model.logits = lambda seed, prefix: torch.tensor(  # type: ignore[method-assign]
        [0.0, 0.0, 0.0, -9.0, 1.0, 2.0]
    )
    beam(model, torch.tensor([1, 4, 2, 3]), beam=2, length_penalty=1.0)
    assert model.rows_by_step == [4, 6, 4, 2]


# The likelier first token leads to the less likely sentence.
GARDEN_PATH = {
    (): [0.0, 0.0, 0.0, 0.0, 0.6, 0.4],
    (A,): [0.0, 0.0, 0.0, 0.5, 0.25, 0.25],
    (B,): [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
}


def test_a_beam_finds_what_greedy_misses() -> None:
    limits = torch.tensor([3])
    taken = greedy(TableModel(GARDEN_PATH, beam=1), limits)[0]
    assert taken.ids == (A,)
    assert taken.log_prob == pytest.approx(math.log(0.3))
    found = beam(TableModel(GARDEN_PATH, beam=2), limits, beam=2, length_penalty=0.0)[0]
    assert [h.ids for h in found] == [(B,), (A,)]
    assert found[0].log_prob == pytest.approx(math.log(0.4))


# After A, the end is likelier than going on, but a penalty on length turns that round.
SHORT_OR_LONG = {
    (): [0.0, 0.0, 0.0, 0.0, 1.0, 0.0],
    (A,): [0.0, 0.0, 0.0, 0.55, 0.0, 0.45],
    (A, B): [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    (A, B, B): [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
}


@pytest.mark.parametrize(("alpha", "best"), [(0.0, (A,)), (0.6, (A,)), (2.0, (A, B, B))])
def test_the_length_penalty_decides_between_short_and_long(
    alpha: float, best: tuple[int, ...]
) -> None:
    found = beam(
        TableModel(SHORT_OR_LONG, beam=2), torch.tensor([6]), beam=2, length_penalty=alpha
    )[0]
    assert found[0].ids == best
    assert found[0].score == found[0].log_prob / ((5 + len(best) + 1) / 6) ** alpha


def test_a_sentence_is_over_with_as_many_hypotheses_as_rows() -> None:
    for width, ids in ((1, [(A,)]), (2, [(A, B, B), (A,)])):
        model = TableModel(SHORT_OR_LONG, beam=width)
        found = beam(model, torch.tensor([50]), beam=width, length_penalty=2.0)[0]
        assert [h.ids for h in found] == ids
        assert model.steps == len(ids[0]) + 1


# The end comes first, and both other tokens are wanted beside it.
END_FIRST = {
    (): [0.0, 0.0, 0.0, 0.4, 0.35, 0.25],
    (A,): [0.0, 0.0, 0.0, 0.0, 0.5, 0.5],
    (B,): [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
}


def test_an_end_takes_no_room_from_the_rows_that_go_on() -> None:
    model = TableModel(END_FIRST, beam=2)
    found = beam(model, torch.tensor([9]), beam=2, length_penalty=3.0)[0]
    assert [h.ids for h in found] == [(B,), ()]


NEVER_ENDING = {(): [0.0, 0.0, 0.0, 0.0, 0.75, 0.25], (A,): [0.0, 0.0, 0.0, 0.0, 0.5, 0.5]}


def test_at_the_limit_the_rows_are_taken_as_they_are() -> None:
    found = beam(TableModel(NEVER_ENDING, beam=2), torch.tensor([1]), beam=2, length_penalty=1.0)[0]
    assert [(h.ids, h.finished) for h in found] == [((A,), False), ((B,), False)]
    assert found[0].log_prob == pytest.approx(math.log(0.75))
    assert found[0].score == pytest.approx(math.log(0.75))
    cut = greedy(TableModel(NEVER_ENDING, beam=1), torch.tensor([2]))[0]
    assert (len(cut.ids), cut.finished) == (2, False)


def test_a_finished_hypothesis_goes_before_better_unfinished_ones() -> None:
    table = {(): [0.0, 0.0, 0.0, 0.2, 0.8, 0.0], (A,): [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]}
    found = beam(TableModel(table, beam=2), torch.tensor([2]), beam=2, length_penalty=1.0)[0]
    assert [(h.ids, h.finished) for h in found] == [((), True)]


def test_pad_unk_and_bos_are_never_generated_but_keep_their_probability() -> None:
    table = {(): [0.3, 0.2, 0.1, 0.15, 0.25, 0.0]}
    best = best_candidates(torch.tensor([table[()]]).log(), 2)
    assert best.ids.tolist() == [[A, EOS]]
    assert best.log_probs.exp().tolist()[0] == pytest.approx([0.25, 0.15])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [PAD, EOS, B])
def test_a_model_that_is_not_finite_is_a_clear_error(bad: float, place: int) -> None:
    logits = torch.zeros(3, 7)
    logits[1, place] = bad
    with pytest.raises(UserError, match="not finite"):
        best_candidates(logits, 4)


def test_length_penalty_values() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert length_penalty(100, 0.0) == 1.0


def test_the_bound_decides_by_the_longest_possible_translation() -> None:
    live, finished = torch.tensor([-4.0, -4.0, -4.0]), torch.tensor([-2.0, -1.9, -math.inf])
    penalty = torch.tensor([2.0, 2.1, 2.0])
    assert no_live_row_can_win(live, finished, penalty).tolist() == [True, True, False]
    assert no_live_row_can_win(live, finished, penalty + 0.2).tolist() == [False, False, False]


def test_no_sentences_are_no_hypotheses() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    model = PrefixModel([], beam=3, vocabulary=6)
    assert greedy(model, nothing) == []
    assert beam(model, nothing, beam=3, length_penalty=0.6) == []
