"""Beam search, over any model that can take a step.

Axes: B sentences, K rows (beginnings) a sentence, R = B * K rows, V vocabulary, C candidates.
Only `best_candidates` computes on the model's device; its few numbers a row come to the host,
where all bookkeeping is done, with log-probabilities summed in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from mt.decoding.constraints import (
    NEVER,
    NO_CONSTRAINTS,
    Candidates,
    Constraints,
    Prefixes,
    best_candidates,
)
from mt.decoding.engine import LENGTH_NORMALIZATIONS, Hypothesis, Normalization
from mt.special_ids import BOS, EOS


class StepModel(Protocol):
    """What the search knows of a model: rows that read one token after the other.

    Row r belongs to sentence r // K. Each method's tensor is on the device of the `limits` that
    the search was given.
    """

    def step(self, last_ids: Tensor) -> Tensor:
        """Return the logits [R V] of the token after `last_ids` [R].

        The first step gets BOS, once a sentence: `last_ids` [B], logits [B V].
        """
        ...

    def reorder(self, parents: Tensor) -> None:
        """Let row k of sentence b go on from what was its row `parents[b, k]` [B K]."""
        ...

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but those numbered in `sentences`, with all of their rows."""
        ...


@runtime_checkable
class AttentiveStepModel(StepModel, Protocol):
    """A model that also tells where it looks, for a search with a coverage penalty."""

    def attention(self) -> Tensor:
        """Return how much the last step's rows look at each source token [R S], 1 at padding.

        It is asked between `step` and `keep`.
        """
        ...


Choose = Callable[[Tensor, Prefixes], tuple[Tensor, Tensor]]
"""From logits [R V] to each row's next token [R] and its log-probability [R], on the host."""


def greedy(
    model: StepModel, limits: Tensor, rules: Constraints = NO_CONSTRAINTS
) -> list[Hypothesis]:
    """Take the most probable token at each step, one row a sentence.

    `limits` [B] is the largest number of tokens, EOS included, of each translation; a translation
    that reaches it without EOS is cut there. The result is that of `beam` with one row; its score
    is its log-probability.
    """

    def best(logits: Tensor, written: Prefixes) -> tuple[Tensor, Tensor]:
        # Two where one would do, as in `beam` with one row, so that equal logits fall alike.
        found = best_candidates(logits, 2, rules, written)
        return found.ids[:, 0], found.log_probs[:, 0]

    return extend(model, limits, best)


def extend(model: StepModel, limits: Tensor, choose: Choose) -> list[Hypothesis]:
    """Write each translation token by token as `choose` says."""
    assert bool((limits > 0).all()), "a translation has at least its end mark"
    device, limits = limits.device, limits.cpu()
    found: dict[int, Hypothesis] = {}
    numbers = torch.arange(len(limits))
    last_ids = torch.full_like(numbers, BOS)
    log_probs = torch.zeros(len(limits), dtype=torch.float64)
    tokens = torch.empty(len(limits), 0, dtype=torch.int64)
    while len(numbers):
        logits = model.step(last_ids.to(device))
        last_ids, added = choose(logits, Prefixes(numbers, tokens))
        log_probs = log_probs + added
        tokens = torch.cat((tokens, last_ids[:, None]), dim=1)
        done = (last_ids == EOS) | (tokens.shape[1] >= limits)
        for row in done.nonzero().flatten().tolist():
            finished = bool(last_ids[row] == EOS)
            ids = tokens[row].tolist()
            log_prob = float(log_probs[row])
            found[int(numbers[row])] = Hypothesis(
                tuple(ids[:-1] if finished else ids), log_prob, log_prob, finished
            )
        stay = (~done).nonzero().flatten()
        if 0 < len(stay) < len(numbers):
            model.keep(stay.to(device))
        numbers, limits, last_ids = numbers[stay], limits[stay], last_ids[stay]
        log_probs, tokens = log_probs[stay], tokens[stay]
    return [found[number] for number in range(len(found))]


_LEAST_COVERAGE = 1e-10
"""So that a token of no attention at all costs much and not everything."""


def no_live_row_can_win(best_live: Tensor, best_score: Tensor, last_penalty: Tensor) -> Tensor:
    """Return where what is finished can no longer be beaten, [B] bool.

    `best_live` is the highest log-probability p of a row still growing, `best_score` the score of
    the finished hypothesis to beat (-inf where there is none), `last_penalty` the length penalty
    at the sentence's limit; each [B].

    The bound is exact. A row's continuation finishes with a log-probability q <= p <= 0, for every
    token adds the logarithm of a probability, and at a length l <= limit. As the penalty does not
    fall with the length, q / penalty(l) <= p / penalty(l) <= p / penalty(limit): a number that is
    not positive grows when it is divided by more. With equality the row at best ties, and a tie
    goes to what finished first. Without enough finished hypotheses the answer is no, as long as
    any row lives.
    """
    return best_score >= best_live / last_penalty


def coverage_cost(coverage: Tensor) -> Tensor:
    """Return -cp(X; Y) / beta of hypotheses that have looked at the source tokens so much [... S].

    Wu et al. 2016, equation 14: the sum of log(min(coverage, 1)), here with the sign turned. It is
    never negative, so that the early stop stays exact: a row still growing may get rid of it.
    """
    return -coverage.clamp(min=_LEAST_COVERAGE, max=1.0).log().sum(dim=-1)


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """How beam search goes."""

    beam: int
    """Beginnings kept of each sentence."""
    alpha: float = 0.0
    normalization: Normalization = "gnmt"
    """With alpha, what hypotheses are ranked by: see LENGTH_NORMALIZATIONS."""
    count: int = 1
    """How many hypotheses of each sentence have to be the best ones."""
    coverage: float = 0.0
    """beta of the coverage penalty, `coverage_cost`."""


def beam(
    model: StepModel, limits: Tensor, settings: BeamSettings, rules: Constraints = NO_CONSTRAINTS
) -> list[list[Hypothesis]]:
    """Keep the `beam` most probable beginnings of each sentence; return hypotheses, best first.

    Each step ranks the 2 * `beam` best candidates of a sentence's rows: the first `beam` that
    are not EOS live on, and an EOS among the first `beam` finishes a hypothesis. A sentence is
    over when no row can come among the best `count` any more, at its limit, or once it has `beam`
    finished hypotheses and no row, scored as it stands, is ahead of the best `count` of them.
    `beam` hypotheses alone would not do: poor short ones can fill the list while the right one is
    still growing.

    `limits` [B] is the largest number of tokens, EOS included, of each translation. Where a
    sentence reaches it without any finished hypothesis, its rows are returned as they stand.
    """
    assert 0 < settings.count <= settings.beam
    assert settings.alpha >= 0, "the bound behind the early stop needs a penalty that rises"
    assert bool((limits > 0).all()), "a translation has at least its end mark"
    device = limits.device
    beams = _Beams(limits.cpu(), settings)
    while len(beams.numbers):
        logits = model.step(beams.last_ids.flatten().to(device))
        # Of one row at most `beam` tokens can live on, and EOS may stand among them.
        count = settings.beam + 1
        candidates = best_candidates(logits, count, rules, beams.written())
        if settings.coverage:
            assert isinstance(model, AttentiveStepModel), "coverage is counted in attention"
            beams.look(model.attention().cpu().double())
        beams.advance(candidates)
        stay = beams.retire()
        if 0 < len(stay) < beams.sentences_before:
            model.keep(stay.to(device))
        if bool((beams.parents != torch.arange(settings.beam)).any()):
            model.reorder(beams.parents.to(device))
    return beams.ranked()


class _Beams:
    """The beginnings of a batch's unfinished sentences, and all hypotheses found so far.

    The live rows of a sentence stand in order of their log-probability: one before the first step,
    K from then on. A row of -inf is empty: the vocabulary is smaller than the beam.
    """

    def __init__(self, limits: Tensor, settings: BeamSettings) -> None:
        sentences, beam = len(limits), settings.beam
        self.beam, self.beta = beam, settings.coverage
        self.limits = limits
        self.numbers = torch.arange(sentences)
        self.sentences_before = sentences
        self.length = 0
        longest = int(limits.max()) if sentences else 0
        penalty = LENGTH_NORMALIZATIONS[settings.normalization]
        penalties = [penalty(length, settings.alpha) for length in range(longest + 1)]
        self.penalties = torch.tensor(penalties, dtype=torch.float64)
        self.log_probs = torch.zeros(sentences, 1, dtype=torch.float64)
        self.last_ids = torch.full((sentences, 1), BOS)
        self.parents = torch.zeros(sentences, 1, dtype=torch.int64)
        self.tokens = torch.empty(sentences, 1, 0, dtype=torch.int64)
        # What a hypothesis that ends here pays for coverage; and how much each source token was
        # looked at, a column each, empty without a penalty.
        self.costs = torch.zeros(sentences, 1, dtype=torch.float64)
        self.coverage = torch.zeros(sentences, 1, 0, dtype=torch.float64)
        # Of the best `count` finished hypotheses of each sentence, the best first.
        self.best_scores = torch.full((sentences, settings.count), NEVER, dtype=torch.float64)
        self.found: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self.found_count = torch.zeros(sentences, dtype=torch.int64)

    def written(self) -> Prefixes:
        """Return what the rows hold."""
        rows = self.tokens.shape[1]
        return Prefixes(self.numbers.repeat_interleave(rows), self.tokens.flatten(0, 1))

    def look(self, attention: Tensor) -> None:
        """Add how much the rows looked at the source tokens when they chose the next one [R S]."""
        attention = attention.view(*self.log_probs.shape, -1)
        self.coverage = self.coverage + attention if self.length else attention
        self.costs = self.beta * coverage_cost(self.coverage)

    def advance(self, candidates: Candidates) -> None:
        """Take one more token: finish hypotheses, and let the best other rows live on."""
        self.length += 1
        sentences, rows = self.log_probs.shape
        count = candidates.ids.shape[1]
        totals = self.log_probs[:, :, None] + candidates.log_probs.view(sentences, rows, count)
        missing = max(0, 2 * self.beam - rows * count)
        totals = F.pad(totals.flatten(1), (0, missing), value=NEVER)
        ids = F.pad(candidates.ids.view(sentences, -1), (0, missing), value=BOS)
        # Stable, so that a tie goes to the better row and to the token that it ranked first.
        log_probs, order = totals.sort(dim=1, descending=True, stable=True)
        log_probs, order = log_probs[:, : 2 * self.beam], order[:, : 2 * self.beam]
        ids = ids.gather(1, order)
        parents = (order // count).clamp(max=rows - 1)
        ends = ids == EOS
        self._finish(ends[:, : self.beam], log_probs, parents)
        # A row has one EOS among its candidates, so at least `beam` of the 2 * beam go on.
        living = ends.to(torch.int8).sort(dim=1, stable=True).indices[:, : self.beam]
        self.log_probs = log_probs.gather(1, living)
        self.last_ids = ids.gather(1, living)
        self.parents = parents.gather(1, living)
        tokens = _of_parents(self.tokens, self.parents)
        self.tokens = torch.cat((tokens, self.last_ids[:, :, None]), dim=2)
        self.coverage = _of_parents(self.coverage, self.parents)
        self.costs = self.costs.gather(1, self.parents)

    def retire(self) -> Tensor:
        """Take out the sentences that are over; return the former places of those that stay."""
        to_beat = self.best_scores[:, -1]
        behind = self.log_probs[:, 0] / self.penalties[self.length] <= to_beat
        over = (
            ((self.found_count >= self.beam) & behind)
            | (self.length >= self.limits)
            | no_live_row_can_win(self.log_probs[:, 0], to_beat, self.penalties[self.limits])
        )
        for place in (over & (self.found_count == 0)).nonzero().flatten().tolist():
            self._take_as_they_stand(place)
        self.sentences_before = len(self.numbers)
        stay = (~over).nonzero().flatten()
        if len(stay) < self.sentences_before:
            self._keep(stay)
        return stay

    def ranked(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first; equal ones as they were found."""
        return [
            sorted(found, key=lambda hypothesis: -hypothesis.score)[: self.beam]
            for found in self.found
        ]

    def _keep(self, stay: Tensor) -> None:
        self.numbers, self.limits = self.numbers[stay], self.limits[stay]
        self.log_probs, self.last_ids = self.log_probs[stay], self.last_ids[stay]
        self.parents, self.tokens = self.parents[stay], self.tokens[stay]
        self.coverage, self.costs = self.coverage[stay], self.costs[stay]
        self.best_scores, self.found_count = self.best_scores[stay], self.found_count[stay]

    def _finish(self, ends: Tensor, log_probs: Tensor, parents: Tensor) -> None:
        """Add a hypothesis for each EOS in `ends` [B K], before the rows' own tokens extend."""
        log_probs, parents = log_probs[:, : self.beam], parents[:, : self.beam]
        ends = ends & (log_probs > NEVER)
        scores = log_probs / self.penalties[self.length] - self.costs.gather(1, parents)
        places, ranks = ends.nonzero().unbind(dim=1)
        for number, ids, log_prob, score in zip(
            self.numbers[places].tolist(),
            self.tokens[places, parents[places, ranks]].tolist(),
            log_probs[places, ranks].tolist(),
            scores[places, ranks].tolist(),
            strict=True,
        ):
            self.found[number].append(Hypothesis(tuple(ids), log_prob, score, finished=True))
        self.found_count += ends.sum(dim=1)
        scores = torch.cat((self.best_scores, scores.masked_fill(~ends, NEVER)), dim=1)
        count = self.best_scores.shape[1]
        self.best_scores = scores.sort(dim=1, descending=True).values[:, :count]

    def _take_as_they_stand(self, place: int) -> None:
        log_probs = self.log_probs[place]
        scores = log_probs / self.penalties[self.length] - self.costs[place]
        for log_prob, score, ids in zip(
            log_probs.tolist(), scores.tolist(), self.tokens[place].tolist(), strict=True
        ):
            if log_prob > NEVER:
                hypothesis = Hypothesis(tuple(ids), log_prob, score, finished=False)
                self.found[int(self.numbers[place])].append(hypothesis)


def _of_parents(rows: Tensor, parents: Tensor) -> Tensor:
    """Return what the parents [B K] had [B K X], of what each former row had."""
    return rows.gather(1, parents[:, :, None].expand(-1, -1, rows.shape[2]))
