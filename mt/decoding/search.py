"""Search for the best translation: greedy and beam, over any model that can take a step.

Axes: B sentences, K rows (beginnings) a sentence, R = B * K rows, V vocabulary, C candidates.
Only `best_continuations` computes on the model's device; its few numbers a row come to the host,
where all bookkeeping is done, with log-probabilities summed in float64.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mt.decoding.engine import Hypothesis
from mt.errors import DivergedError
from mt.special_ids import BOS, EOS

NEVER = float("-inf")


class StepModel(Protocol):
    """What the search knows of a model: rows that read one piece after the other.

    Row r belongs to sentence r // K. Each method's tensor is on the device of the `limits` that
    the search was given.
    """

    def step(self, last_ids: Tensor) -> Tensor:
        """Return the logits [R V] of the piece after `last_ids` [R]; the first step gets BOS."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Let new row i continue former row rows[i] [R], a row of the same sentence."""
        ...

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but those numbered in `sentences`, with all of their rows."""
        ...


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14); EOS counts as a piece."""
    return float(((5 + length) / 6) ** alpha)


def no_live_row_can_win(best_live: Tensor, best_score: Tensor, last_penalty: Tensor) -> Tensor:
    """Return where the best finished hypothesis can no longer be beaten, [B] bool.

    `best_live` is the highest log-probability p of a row still growing, `best_score` the highest
    score of a finished hypothesis (-inf where there is none), `last_penalty` the length penalty
    at the sentence's limit; each [B].

    The bound is exact. A row's continuation finishes with a log-probability q <= p <= 0, for every
    piece adds the logarithm of a probability, and at a length l <= limit. As alpha >= 0, the
    penalty rises with the length, so q / penalty(l) <= p / penalty(l) <= p / penalty(limit): a
    number that is not positive grows when it is divided by more. With equality the row at best
    ties, and a tie goes to what finished first. Without a finished hypothesis the answer is no,
    as long as any row lives.
    """
    return best_score >= best_live / last_penalty


@dataclass(frozen=True, slots=True)
class Continuations:
    """The best next pieces of each row, best first, on the host."""

    log_probs: Tensor
    """[R C] float64, of the piece alone."""
    ids: Tensor
    """[R C]."""


def best_continuations(logits: Tensor, count: int) -> Continuations:
    """Return the `count` most probable next pieces of each row of `logits` [R V].

    PAD, UNK and BOS are never generated, but keep their share of the probability, so that a
    hypothesis has the log-probability that the model gives it. Raises DivergedError where the
    model's output is not finite.
    """
    assert logits.shape[1] > EOS + 1, "the vocabulary holds nothing but special pieces"
    logits = logits.float()
    # The three ids that are not generated stand before EOS. Top-k first, then the normaliser: no
    # second [R V] tensor is written.
    best = logits[:, EOS:].topk(min(count, logits.shape[1] - EOS), dim=1)
    log_probs = (best.values - logits.logsumexp(dim=1, keepdim=True)).cpu().double()
    if not log_probs[:, 0].isfinite().all():
        raise DivergedError(
            "the model's output is not finite (NaN or infinite): its weights are damaged, "
            "or its training diverged"
        )
    return Continuations(log_probs, best.indices.cpu() + EOS)


def greedy(model: StepModel, limits: Tensor) -> list[Hypothesis]:
    """Take the most probable piece at each step, one row a sentence.

    `limits` [B] is the largest number of pieces, EOS included, of each translation; a translation
    that reaches it without EOS is cut there. The result is that of `beam` with one row; its score
    is its log-probability.
    """
    assert bool((limits > 0).all()), "a translation has at least its end mark"
    device, limits = limits.device, limits.cpu()
    found: dict[int, Hypothesis] = {}
    numbers = torch.arange(len(limits))
    last_ids = torch.full_like(numbers, BOS)
    log_probs = torch.zeros(len(limits), dtype=torch.float64)
    pieces = torch.empty(len(limits), 0, dtype=torch.int64)
    while len(numbers):
        # Two where one would do, as in `beam` with one row, so that equal logits fall alike.
        best = best_continuations(model.step(last_ids.to(device)), 2)
        last_ids, log_probs = best.ids[:, 0], log_probs + best.log_probs[:, 0]
        pieces = torch.cat((pieces, last_ids[:, None]), dim=1)
        done = (last_ids == EOS) | (pieces.shape[1] >= limits)
        for row in done.nonzero().flatten().tolist():
            finished = bool(last_ids[row] == EOS)
            ids = pieces[row].tolist()
            log_prob = float(log_probs[row])
            found[int(numbers[row])] = Hypothesis(
                tuple(ids[:-1] if finished else ids), log_prob, log_prob, finished
            )
        stay = (~done).nonzero().flatten()
        if 0 < len(stay) < len(numbers):
            model.keep(stay.to(device))
        numbers, limits, last_ids = numbers[stay], limits[stay], last_ids[stay]
        log_probs, pieces = log_probs[stay], pieces[stay]
    return [found[number] for number in range(len(found))]


def beam(
    model: StepModel, limits: Tensor, *, beam: int, length_penalty: float
) -> list[list[Hypothesis]]:
    """Keep the `beam` most probable beginnings of each sentence; return hypotheses, best first.

    Each step ranks the 2 * `beam` best continuations of a sentence's rows: the first `beam` that
    are not EOS live on, and an EOS among the first `beam` finishes a hypothesis. A sentence is
    over when no row can win any more, at its limit, or once it has `beam` finished hypotheses and
    no row, scored as it stands, is ahead of the best of them. `beam` hypotheses alone would not
    do: poor short ones can fill the list while the right one is still growing.

    `limits` [B] is the largest number of pieces, EOS included, of each translation. Where a
    sentence reaches it without any finished hypothesis, its rows are returned as they stand.
    `length_penalty` is the alpha of the function of that name.
    """
    assert beam > 0
    assert length_penalty >= 0, "the bound behind the early stop needs a penalty that rises"
    assert bool((limits > 0).all()), "a translation has at least its end mark"
    device = limits.device
    beams = _Beams(limits.cpu(), beam, length_penalty)
    while len(beams.numbers):
        logits = model.step(beams.last_ids.flatten().to(device))
        # Of one row at most `beam` pieces can live on, and EOS may stand among them.
        beams.advance(best_continuations(logits, beam + 1))
        stay = beams.retire()
        if 0 < len(stay) < beams.sentences_before:
            model.keep(stay.to(device))
        rows = beams.parent_rows()
        if not torch.equal(rows, torch.arange(len(rows))):
            model.reorder(rows.to(device))
    return beams.ranked()


class _Beams:
    """The beginnings of a batch's unfinished sentences, and all hypotheses found so far.

    The live rows of a sentence stand in order of their log-probability; a row of -inf is empty,
    which happens at the first step and where the vocabulary is smaller than the beam.
    """

    def __init__(self, limits: Tensor, beam: int, alpha: float) -> None:
        sentences = len(limits)
        self.beam = beam
        self.limits = limits
        self.numbers = torch.arange(sentences)
        self.sentences_before = sentences
        self.length = 0
        longest = int(limits.max()) if sentences else 0
        penalties = [length_penalty(length, alpha) for length in range(longest + 1)]
        self.penalties = torch.tensor(penalties, dtype=torch.float64)
        self.log_probs = torch.full((sentences, beam), NEVER, dtype=torch.float64)
        self.log_probs[:, 0] = 0.0
        self.last_ids = torch.full((sentences, beam), BOS)
        self.parents = torch.zeros(sentences, beam, dtype=torch.int64)
        self.pieces = torch.empty(sentences, beam, 0, dtype=torch.int64)
        self.best_score = torch.full((sentences,), NEVER, dtype=torch.float64)
        self.found: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self.found_count = torch.zeros(sentences, dtype=torch.int64)

    def advance(self, continuations: Continuations) -> None:
        """Take one more piece: finish hypotheses, and let the best other rows live on."""
        self.length += 1
        count = continuations.ids.shape[1]
        totals = self.log_probs[:, :, None] + continuations.log_probs.view(-1, self.beam, count)
        # Stable, so that a tie goes to the better row and to the piece that it ranked first.
        log_probs, order = totals.flatten(1).sort(dim=1, descending=True, stable=True)
        log_probs, order = log_probs[:, : 2 * self.beam], order[:, : 2 * self.beam]
        ids = continuations.ids.view(-1, self.beam * count).gather(1, order)
        parents = order // count
        ends = ids == EOS
        self._finish(ends[:, : self.beam], log_probs, parents)
        # A row has one EOS among its candidates, so at least `beam` of the 2 * beam go on.
        living = ends.to(torch.int8).sort(dim=1, stable=True).indices[:, : self.beam]
        self.log_probs = log_probs.gather(1, living)
        self.last_ids = ids.gather(1, living)
        self.parents = parents.gather(1, living)
        former = self.parents[:, :, None].expand(-1, -1, self.pieces.shape[2])
        self.pieces = torch.cat((self.pieces.gather(1, former), self.last_ids[:, :, None]), dim=2)

    def retire(self) -> Tensor:
        """Take out the sentences that are over; return the former places of those that stay."""
        behind = self.log_probs[:, 0] / self.penalties[self.length] <= self.best_score
        over = (
            ((self.found_count >= self.beam) & behind)
            | (self.length >= self.limits)
            | no_live_row_can_win(
                self.log_probs[:, 0], self.best_score, self.penalties[self.limits]
            )
        )
        for place in (over & (self.found_count == 0)).nonzero().flatten().tolist():
            self._take_as_they_stand(place)
        self.sentences_before = len(self.numbers)
        stay = (~over).nonzero().flatten()
        if len(stay) < self.sentences_before:
            self._keep(stay)
        return stay

    def parent_rows(self) -> Tensor:
        """Return which row each row continues, [R], counted over the sentences that stayed."""
        first = torch.arange(len(self.numbers))[:, None] * self.beam
        return (first + self.parents).flatten()

    def ranked(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first; equal ones as they were found."""
        return [
            sorted(found, key=lambda hypothesis: -hypothesis.score)[: self.beam]
            for found in self.found
        ]

    def _keep(self, stay: Tensor) -> None:
        self.numbers, self.limits = self.numbers[stay], self.limits[stay]
        self.log_probs, self.last_ids = self.log_probs[stay], self.last_ids[stay]
        self.parents, self.pieces = self.parents[stay], self.pieces[stay]
        self.best_score, self.found_count = self.best_score[stay], self.found_count[stay]

    def _finish(self, ends: Tensor, log_probs: Tensor, parents: Tensor) -> None:
        """Add a hypothesis for each EOS in `ends` [B K], before the rows' own pieces grow."""
        ends = ends & (log_probs[:, : self.beam] > NEVER)
        for place, rank in ends.nonzero().tolist():
            ids = self.pieces[place, parents[place, rank]].tolist()
            hypothesis = self._hypothesis(ids, float(log_probs[place, rank]), finished=True)
            self.found[int(self.numbers[place])].append(hypothesis)
            self.found_count[place] += 1
            self.best_score[place] = max(float(self.best_score[place]), hypothesis.score)

    def _take_as_they_stand(self, place: int) -> None:
        for log_prob, ids in zip(
            self.log_probs[place].tolist(), self.pieces[place].tolist(), strict=True
        ):
            if log_prob > NEVER:
                hypothesis = self._hypothesis(ids, log_prob, finished=False)
                self.found[int(self.numbers[place])].append(hypothesis)

    def _hypothesis(self, ids: list[int], log_prob: float, *, finished: bool) -> Hypothesis:
        score = log_prob / float(self.penalties[self.length])
        return Hypothesis(tuple(ids), log_prob, score, finished)
