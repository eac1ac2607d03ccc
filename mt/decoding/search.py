"""Greedy search and beam search over a step model.

Axes: B sentences, K rows (partial hypotheses) per sentence, R = B * K rows, V vocabulary,
C candidates, S source tokens. Besides the model, only `best_candidates` computes on its
device. A few numbers per row move to the host, which sums log-probabilities in float64 and does
all bookkeeping.
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
    """Model that reads one token of each row per step.

    Row r belongs to sentence r // K. All tensors are on the device of the search's `limits`.
    """

    def step(self, last_ids: Tensor) -> Tensor:
        """Return the logits [R V] of the token after `last_ids` [R].

        The first step has one row per sentence: BOS as `last_ids` [B], logits [B V].
        """
        ...

    def reorder(self, parents: Tensor) -> None:
        """Let row k of sentence b continue its former row `parents[b, k]` [B K]."""
        ...

    def keep(self, sentences: Tensor) -> None:
        """Drop all rows of the sentences that are not numbered in `sentences`."""
        ...


@runtime_checkable
class AttentiveStepModel(StepModel, Protocol):
    """Step model with access to its attention, for a coverage penalty."""

    def attention(self) -> Tensor:
        """Return the attention of the last step's rows to each source token [R S], 1 at padding.

        Called between `step` and `keep`.
        """
        ...


def greedy(
    model: StepModel, limits: Tensor, constraints: Constraints = NO_CONSTRAINTS
) -> list[Hypothesis]:
    """Take the most probable token at each step, one row per sentence.

    `limits` [B] is the maximum length of each translation, including EOS; a translation that
    reaches it without EOS is unfinished. The result equals that of `beam` with one row; the score
    is the log-probability.
    """

    def best(logits: Tensor, prefixes: Prefixes) -> tuple[Tensor, Tensor]:
        # Two candidates, as in `beam` with one row, so that ties are broken alike.
        candidates = best_candidates(logits, 2, constraints, prefixes)
        return candidates.ids[:, 0], candidates.log_probs[:, 0]

    return extend(model, limits, best)


Choose = Callable[[Tensor, Prefixes], tuple[Tensor, Tensor]]
"""Map logits [R V] to each row's next token [R] and its log-probability [R], on the host."""


def extend(model: StepModel, limits: Tensor, choose: Choose) -> list[Hypothesis]:
    """Extend one row per sentence by the tokens that `choose` returns, up to EOS or the limit."""
    assert bool((limits > 0).all()), "a translation has at least an EOS"
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


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """Parameters of beam search."""

    beam: int
    """Rows per sentence."""
    alpha: float = 0.0
    """Exponent of the length penalty."""
    normalization: Normalization = "gnmt"
    """Key of LENGTH_NORMALIZATIONS."""
    count: int = 1
    """Number of hypotheses per sentence that must be the best ones."""
    coverage: float = 0.0
    """beta of the coverage penalty, see `coverage_cost`."""


def beam(
    model: StepModel,
    limits: Tensor,
    settings: BeamSettings,
    constraints: Constraints = NO_CONSTRAINTS,
) -> list[list[Hypothesis]]:
    """Keep the `beam` most probable rows of each sentence; return its hypotheses, best first.

    Each step ranks the 2 * `beam` best candidates of a sentence. The first `beam` that are not EOS
    live on; each EOS among the first `beam` candidates finishes a hypothesis. A sentence ends

    - at its limit,
    - when no live row can reach the best `count` hypotheses any more, or
    - with `beam` finished hypotheses, when the best live row at its present length scores no
      higher than the best `count` of them.

    Stopping at `beam` finished hypotheses alone would fail: poor short hypotheses can fill the
    list while the best one still grows.

    `limits` [B] is the maximum length of each translation, including EOS. A sentence that reaches
    it without any finished hypothesis returns its unfinished rows.
    """
    assert 0 < settings.count <= settings.beam
    assert settings.alpha >= 0, "the early stop needs a penalty that does not fall with the length"
    assert bool((limits > 0).all()), "a translation has at least an EOS"
    device = limits.device
    beams = _Beams(limits.cpu(), settings)
    while len(beams.numbers):
        logits = model.step(beams.last_ids.flatten().to(device))
        # At most `beam` tokens of one row can live on, and EOS may be among the candidates.
        count = settings.beam + 1
        candidates = best_candidates(logits, count, constraints, beams.prefixes())
        if settings.coverage:
            assert isinstance(model, AttentiveStepModel), "a coverage penalty needs attention"
            beams.add_attention(model.attention().cpu().double())
        beams.advance(candidates)
        before = len(beams.numbers)
        stay = beams.retire()
        if 0 < len(stay) < before:
            model.keep(stay.to(device))
        if bool((beams.parents != torch.arange(settings.beam)).any()):
            model.reorder(beams.parents.to(device))
    return beams.ranked()


class _Beams:
    """Live rows of the unfinished sentences, and all hypotheses found so far.

    The rows of a sentence are sorted by log-probability: one row before the first step, then K. A
    row of -inf is empty, because the vocabulary is smaller than the beam.
    """

    def __init__(self, limits: Tensor, settings: BeamSettings) -> None:
        sentences, beam = len(limits), settings.beam
        self.beam, self.beta = beam, settings.coverage
        self.limits = limits
        self.numbers = torch.arange(sentences)
        self.length = 0
        longest = int(limits.max()) if sentences else 0
        penalty = LENGTH_NORMALIZATIONS[settings.normalization]
        penalties = [penalty(length, settings.alpha) for length in range(longest + 1)]
        self.penalties = torch.tensor(penalties, dtype=torch.float64)
        self.log_probs = torch.zeros(sentences, 1, dtype=torch.float64)
        self.last_ids = torch.full((sentences, 1), BOS)
        self.parents = torch.zeros(sentences, 1, dtype=torch.int64)
        self.tokens = torch.empty(sentences, 1, 0, dtype=torch.int64)
        # Coverage cost of a hypothesis that ends here, and the summed attention to each source
        # token [B K S], empty without a coverage penalty.
        self.costs = torch.zeros(sentences, 1, dtype=torch.float64)
        self.coverage = torch.zeros(sentences, 1, 0, dtype=torch.float64)
        # Scores of the best `count` finished hypotheses of each sentence, best first.
        self.best_scores = torch.full((sentences, settings.count), NEVER, dtype=torch.float64)
        self.found: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self.found_count = torch.zeros(sentences, dtype=torch.int64)

    def prefixes(self) -> Prefixes:
        """Return the tokens of all rows."""
        rows = self.tokens.shape[1]
        return Prefixes(self.numbers.repeat_interleave(rows), self.tokens.flatten(0, 1))

    def add_attention(self, attention: Tensor) -> None:
        """Add the attention of the current step to each source token [R S]."""
        attention = attention.view(*self.log_probs.shape, -1)
        self.coverage = self.coverage + attention if self.length else attention
        self.costs = self.beta * coverage_cost(self.coverage)

    def advance(self, candidates: Candidates) -> None:
        """Append one token to each row: finish hypotheses and keep the best other candidates."""
        self.length += 1
        sentences, rows = self.log_probs.shape
        count = candidates.ids.shape[1]
        totals = self.log_probs[:, :, None] + candidates.log_probs.view(sentences, rows, count)
        missing = max(0, 2 * self.beam - rows * count)
        totals = F.pad(totals.flatten(1), (0, missing), value=NEVER)
        ids = F.pad(candidates.ids.view(sentences, -1), (0, missing), value=BOS)
        # Stable, so that a tie goes to the better row, then to the candidate ranked first.
        log_probs, order = totals.sort(dim=1, descending=True, stable=True)
        log_probs, order = log_probs[:, : 2 * self.beam], order[:, : 2 * self.beam]
        ids = ids.gather(1, order)
        parents = (order // count).clamp(max=rows - 1)
        ends = ids == EOS
        self._finish(ends[:, : self.beam], log_probs, parents)
        # Each row has at most one EOS candidate, so at least `beam` of the 2 * beam live on.
        living = ends.to(torch.int8).sort(dim=1, stable=True).indices[:, : self.beam]
        self.log_probs = log_probs.gather(1, living)
        self.last_ids = ids.gather(1, living)
        self.parents = parents.gather(1, living)
        tokens = _of_parents(self.tokens, self.parents)
        self.tokens = torch.cat((tokens, self.last_ids[:, :, None]), dim=2)
        self.coverage = _of_parents(self.coverage, self.parents)
        self.costs = self.costs.gather(1, self.parents)

    def retire(self) -> Tensor:
        """Remove the sentences that have ended; return the former places of the others."""
        to_beat = self.best_scores[:, -1]
        behind = self.log_probs[:, 0] / self.penalties[self.length] <= to_beat
        over = (
            ((self.found_count >= self.beam) & behind)
            | (self.length >= self.limits)
            | no_live_row_can_win(self.log_probs[:, 0], to_beat, self.penalties[self.limits])
        )
        for place in (over & (self.found_count == 0)).nonzero().flatten().tolist():
            self._add_unfinished(place)
        stay = (~over).nonzero().flatten()
        if len(stay) < len(self.numbers):
            self._keep(stay)
        return stay

    def ranked(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first; ties in the order of finishing."""
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
        """Add a hypothesis for each EOS in `ends` [B K]; called before `tokens` are updated."""
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

    def _add_unfinished(self, place: int) -> None:
        """Add the live rows of a sentence as unfinished hypotheses."""
        log_probs = self.log_probs[place]
        scores = log_probs / self.penalties[self.length] - self.costs[place]
        for log_prob, score, ids in zip(
            log_probs.tolist(), scores.tolist(), self.tokens[place].tolist(), strict=True
        ):
            if log_prob > NEVER:
                hypothesis = Hypothesis(tuple(ids), log_prob, score, finished=False)
                self.found[int(self.numbers[place])].append(hypothesis)


_LEAST_COVERAGE = 1e-10
"""Lower bound that keeps the cost of a source token without attention finite."""


def coverage_cost(coverage: Tensor) -> Tensor:
    """Return -cp(X; Y) / beta for the summed attention to each source token [... S].

    Wu et al. 2016, equation 14: the sum of log(min(coverage, 1)), with the sign reversed. The cost
    is never negative, so the early stop stays exact: a live row may still lose its cost.
    """
    return -coverage.clamp(min=_LEAST_COVERAGE, max=1.0).log().sum(dim=-1)


def no_live_row_can_win(best_live: Tensor, best_score: Tensor, last_penalty: Tensor) -> Tensor:
    """Return where no live row can beat the finished hypotheses any more, bool [B].

    `best_live` is the highest log-probability p of a live row, `best_score` the score of the
    finished hypothesis to beat (-inf if there is none), `last_penalty` the length penalty at the
    sentence's limit; each [B].

    The bound is exact. A continuation finishes with a log-probability q <= p <= 0, as each token
    adds the logarithm of a probability, and at a length l <= limit. The penalty does not fall with
    the length, so q / penalty(l) <= p / penalty(l) <= p / penalty(limit): dividing a non-positive
    number by more raises it. At equality a live row at best ties, and ties go to the hypothesis
    that finished first.
    """
    return best_score >= best_live / last_penalty


def _of_parents(rows: Tensor, parents: Tensor) -> Tensor:
    """Select the rows [B K X] of the parents [B K] from the former rows."""
    return rows.gather(1, parents[:, :, None].expand(-1, -1, rows.shape[2]))
