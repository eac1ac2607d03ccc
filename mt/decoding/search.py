"""Greedy search and beam search over a step model.

Axes: B sentences, K rows (partial hypotheses) per sentence, R = B * K rows, V vocabulary,
C candidates, S source tokens. The state of a search is on the device of the model. The host reads
a few flags of each sentence once per step, and the hypotheses at the end.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from mt.config import DecodingConfig
from mt.decoding.constraints import NEVER, NO_CONSTRAINTS, Constraints, History
from mt.decoding.engine import LENGTH_NORMALIZATIONS, Hypothesis
from mt.errors import DivergedError
from mt.model.device import device_traits
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


def greedy(
    model: StepModel, limits: Tensor, constraints: Constraints = NO_CONSTRAINTS
) -> list[Hypothesis]:
    """Take the most probable token at each step, one row per sentence.

    `limits` [B] is the maximum length of each translation, including EOS; a translation that
    reaches it without EOS is unfinished. The result equals that of `beam` with one row; the score
    is the log-probability.
    """

    def best(logits: Tensor, history: History) -> tuple[Tensor, Tensor]:
        # Two candidates, as in `beam` with one row, so that ties are broken alike.
        ids, log_probs = best_candidates(logits, 2, constraints, history)
        return ids[:, 0], log_probs[:, 0]

    return extend(model, limits, best)


Choose = Callable[[Tensor, History], tuple[Tensor, Tensor]]
"""Map logits [R V] to each row's next token [R] and its log-probability [R]."""


def extend(model: StepModel, limits: Tensor, choose: Choose) -> list[Hypothesis]:
    """Extend one row per sentence by the tokens that `choose` returns, up to EOS or the limit."""
    device, count = limits.device, len(limits)
    assert bool((limits > 0).all()), "a translation has at least an EOS"
    found, live = _Found(count), _LiveSentences(count, device)
    sentences = torch.arange(count, device=device)
    last_ids = torch.full_like(sentences, BOS)
    log_probs = torch.zeros(count, dtype=sum_dtype(device), device=device)
    tokens = torch.empty(count, 0, dtype=torch.int64, device=device)
    while live.count:
        logits = model.step(last_ids)
        last_ids, added = choose(logits, History(sentences, tokens))
        log_probs = log_probs + added
        tokens = torch.cat((tokens, last_ids[:, None]), dim=1)
        ends = last_ids == EOS
        done = (ends | (tokens.shape[1] >= limits)) & ~live.over
        flags = torch.stack((done, ends, log_probs.isfinite() | live.over)).cpu().numpy()
        is_done, is_end, is_finite = flags
        require_finite(is_finite)
        if not is_done.any():
            continue
        numbers = live.numbers[is_done]
        places = _places(done, len(numbers))
        scores = log_probs[places]
        found.add(numbers, tokens[places], scores, scores, finished=is_end[is_done])
        stay = live.end(done, is_done)
        if stay is None:
            continue
        if live.count:
            model.keep(stay)
        sentences, limits, last_ids = sentences[stay], limits[stay], last_ids[stay]
        log_probs, tokens = log_probs[stay], tokens[stay]
    return [hypothesis for (hypothesis,) in found.by_sentence()]


class _LiveSentences:
    """Sentences of the batch that go on, and those that have ended and are not removed yet.

    Where `DeviceTraits.drops_ended_at_once` does not hold, they are removed when half of the batch
    has ended.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.numbers = np.arange(count)
        """Number in the batch of each sentence that is not removed."""
        self.over = torch.zeros(count, dtype=torch.bool, device=device)
        """Sentences that have ended, on the device."""
        self._goes_on = np.ones(count, dtype=np.bool_)
        self._waits_for_half = not device_traits(device).drops_ended_at_once

    @property
    def count(self) -> int:
        """Number of sentences that go on."""
        return int(self._goes_on.sum())

    def end(self, over: Tensor, is_over: NDArray[np.bool_]) -> Tensor | None:
        """End sentences, given on the device and on the host.

        Return the places of the others if those that have ended are to be removed, else None.
        """
        self.over = self.over | over
        self._goes_on &= ~is_over
        if self._waits_for_half and 2 * self.count > len(self.numbers):
            return None
        stay = _places(~self.over, self.count)
        self.over = self.over[stay]
        self.numbers = self.numbers[self._goes_on]
        self._goes_on = np.ones(len(self.numbers), dtype=np.bool_)
        return stay


class _Found:
    """Hypotheses found so far; their tokens and scores stay on the device until the end."""

    def __init__(self, sentences: int) -> None:
        self._sentences = sentences
        self._records: list[tuple[int, int, bool]] = []
        self._tokens: list[Tensor] = []
        self._scores: list[Tensor] = []

    def add(
        self,
        sentences: NDArray[np.int64],
        tokens: Tensor,
        log_probs: Tensor,
        scores: Tensor,
        *,
        finished: NDArray[np.bool_] | bool,
    ) -> None:
        """Add a hypothesis of each of these sentences: tokens [N T], log_probs [N], scores [N]."""
        length, ends = tokens.shape[1], np.broadcast_to(finished, len(sentences))
        self._records += [
            (sentence, length, end)
            for sentence, end in zip(sentences.tolist(), ends.tolist(), strict=True)
        ]
        self._tokens.append(tokens.flatten())
        self._scores.append(torch.stack((log_probs, scores)))

    def by_sentence(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence in the order of finding, without empty rows."""
        lists: list[list[Hypothesis]] = [[] for _ in range(self._sentences)]
        if not self._records:
            return lists
        ids = torch.cat(self._tokens).tolist()
        log_probs, scores = torch.cat(self._scores, dim=1).tolist()
        first = 0
        for (number, length, finished), log_prob, score in zip(
            self._records, log_probs, scores, strict=True
        ):
            tokens = ids[first : first + length]
            first += length
            if log_prob > NEVER:
                text = tuple(tokens[:-1] if tokens[-1:] == [EOS] else tokens)
                lists[number].append(Hypothesis(text, log_prob, score, finished))
        return lists


def _places(flags: Tensor, count: int) -> Tensor:
    """Return the places of the True values of flags [N], whose number the host knows already.

    `nonzero` would wait for the device to count them.
    """
    places = torch.arange(len(flags), device=flags.device)
    return torch.where(flags, places, len(flags)).sort().values[:count]


def beam(
    model: StepModel,
    limits: Tensor,
    decoding: DecodingConfig,
    count: int = 1,
    constraints: Constraints = NO_CONSTRAINTS,
) -> list[list[Hypothesis]]:
    """Keep the `beam` most probable rows of each sentence; return its hypotheses, best first.

    Beam and length penalty are those of `decoding`; the first `count` hypotheses are the best ones.

    Each step ranks the 2 * `beam` best candidates of a sentence. The first `beam` that are not EOS
    live on; each EOS among the first `beam` candidates finishes a hypothesis. A sentence ends

    - at its limit,
    - when no live row can reach the best `count` hypotheses any more, or
    - with `beam` finished hypotheses, if one of them was ahead of all rows when it finished.

    Stopping at `beam` finished hypotheses alone would fail: poor short hypotheses can fill the
    list while the best one still grows. CTranslate2 stops by the same rule.

    `limits` [B] is the maximum length of each translation, including EOS. A sentence that reaches
    it without any finished hypothesis returns its unfinished rows.
    """
    assert 0 < count <= decoding.beam
    beams = _Beams(limits, decoding, count, keeps_sentences=not constraints.is_empty)
    while beams.live.count:
        logits = model.step(beams.last_ids.flatten())
        # At most `beam` tokens of one row can live on, and EOS may be among the candidates.
        stay, moved = beams.advance(
            *best_candidates(logits, decoding.beam + 1, constraints, beams.history())
        )
        if stay is not None and beams.live.count:
            model.keep(stay)
        if moved:
            model.reorder(beams.parents)
    return beams.ranked()


class _Beams:
    """Live rows of the unfinished sentences, and all hypotheses found so far.

    The rows of a sentence are sorted by log-probability: one row before the first step, then K. A
    row of -inf is empty, because the vocabulary is smaller than the beam.
    """

    def __init__(
        self, limits: Tensor, decoding: DecodingConfig, count: int, *, keeps_sentences: bool
    ) -> None:
        sentences, beam, device = len(limits), decoding.beam, limits.device
        dtype = sum_dtype(device)
        lengths = limits.tolist()
        assert all(length > 0 for length in lengths), "a translation has at least an EOS"
        self.beam = beam
        self.limits = limits
        self.live = _LiveSentences(sentences, device)
        self.sentences = torch.arange(sentences, device=device) if keeps_sentences else None
        """Number in the batch, on the device; None where no constraint depends on it."""
        self.length = 0
        penalty = LENGTH_NORMALIZATIONS[decoding.length_normalization]
        penalties = [
            penalty(length, decoding.length_penalty)
            for length in range(max(lengths, default=0) + 1)
        ]
        self.penalties = torch.tensor(penalties, dtype=dtype, device=device)
        self.log_probs = torch.zeros(sentences, 1, dtype=dtype, device=device)
        self.last_ids = torch.full((sentences, 1), BOS, device=device)
        self.parents = torch.zeros_like(self.last_ids)
        self.unmoved = torch.arange(beam, device=device)
        self.tokens = torch.empty(sentences, 1, 0, dtype=torch.int64, device=device)
        # Scores of the best `count` finished hypotheses of each sentence, best first.
        self.best_scores = self.log_probs.new_full((sentences, count), NEVER)
        self.found_count = torch.zeros(sentences, dtype=torch.int64, device=device)
        # Sentences of which the most probable row has ended once.
        self.best_has_ended = torch.zeros(sentences, dtype=torch.bool, device=device)
        self.found = _Found(sentences)

    def history(self) -> History | None:
        """Return the tokens of all rows; None where no constraint depends on them."""
        if self.sentences is None:
            return None
        rows = self.tokens.shape[1]
        return History(self.sentences.repeat_interleave(rows), self.tokens.flatten(0, 1))

    def advance(self, ids: Tensor, added: Tensor) -> tuple[Tensor | None, bool]:
        """Append one of the candidates of `best_candidates` to each row, and end sentences.

        Return the former places of the sentences that stay, or None if all stay, and whether any
        row continues another one. Raises DivergedError if the log-probabilities are not finite.
        """
        self.length += 1
        finite = added[:, 0].isfinite().view(len(self.limits), -1).all(dim=1) | self.live.over
        totals, ids, parents = self._ranked(ids, added)
        is_end = ids == EOS
        log_probs, origins, former = totals[:, : self.beam], parents[:, : self.beam], self.tokens
        ends = is_end[:, : self.beam] & (log_probs > NEVER) & ~self.live.over[:, None]
        scores = log_probs / self.penalties[self.length]
        # Each row has at most one EOS candidate, so at least `beam` of the 2 * beam live on.
        living = is_end.to(torch.int8).sort(dim=1, stable=True).indices[:, : self.beam]
        self.log_probs = totals.gather(1, living)
        self.last_ids = ids.gather(1, living)
        self.parents = parents.gather(1, living)
        tokens = former.gather(1, self.parents[:, :, None].expand(-1, -1, former.shape[2]))
        self.tokens = torch.cat((tokens, self.last_ids[:, :, None]), dim=2)
        over = self._over(ends, scores) & ~self.live.over
        without = over & (self.found_count == 0)
        moved = (self.parents != self.unmoved).any(dim=1) & ~self.live.over
        flags = torch.stack((over, without, moved, finite), dim=1)
        flags_and_ends = torch.cat((flags, ends), dim=1).cpu().numpy()
        is_over, is_without, is_moved, is_finite = flags_and_ends[:, :4].T
        require_finite(is_finite)

        places, _ = flags_and_ends[:, 4:].nonzero()
        if len(places):
            rows = _places(ends.flatten(), len(places))
            tokens = former[rows // self.beam, origins.flatten()[rows]]
            values = log_probs.flatten()[rows], scores.flatten()[rows]
            self.found.add(self.live.numbers[places], tokens, *values, finished=True)
        if is_without.any():
            numbers = self.live.numbers[is_without]
            self._add_unfinished(numbers, _places(without, len(numbers)))
        if not is_over.any():
            return None, bool(is_moved.any())
        stay = self.live.end(over, is_over)
        if stay is not None:
            self._keep(stay)
        return stay, bool(is_moved[~is_over].any())

    def ranked(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, best first; ties in the order of finishing."""
        return [
            sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[: self.beam]
            for hypotheses in self.found.by_sentence()
        ]

    def _ranked(self, ids: Tensor, added: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, tokens and parents of the best 2 * `beam` candidates [B 2K]."""
        sentences, rows = self.log_probs.shape
        count = ids.shape[1]
        totals = self.log_probs[:, :, None] + added.view(sentences, rows, count)
        missing = max(0, 2 * self.beam - rows * count)
        totals = F.pad(totals.flatten(1), (0, missing), value=NEVER)
        ids = F.pad(ids.view(sentences, -1), (0, missing), value=BOS)
        # Stable, so that a tie goes to the better row, then to the candidate ranked first.
        totals, order = totals.sort(dim=1, descending=True, stable=True)
        totals, order = totals[:, : 2 * self.beam], order[:, : 2 * self.beam]
        return totals, ids.gather(1, order), (order // count).clamp(max=rows - 1)

    def _over(self, ends: Tensor, scores: Tensor) -> Tensor:
        """Count the hypotheses that end here, and return which sentences are over [B].

        `ends` and `scores` are [B K], those of the best candidates.
        """
        self.found_count = self.found_count + ends.sum(dim=1)
        scores = torch.cat((self.best_scores, scores.masked_fill(~ends, NEVER)), dim=1)
        count = self.best_scores.shape[1]
        self.best_scores = scores.sort(dim=1, descending=True).values[:, :count]
        to_beat = self.best_scores[:, -1]
        self.best_has_ended = self.best_has_ended | ends[:, 0]
        return (
            ((self.found_count >= self.beam) & self.best_has_ended)
            | (self.length >= self.limits)
            | no_live_row_can_win(self.log_probs[:, 0], to_beat, self.penalties[self.limits])
        )

    def _add_unfinished(self, numbers: NDArray[np.int64], places: Tensor) -> None:
        """Add the live rows of the sentences at these places as unfinished hypotheses."""
        log_probs = self.log_probs[places]
        scores = log_probs / self.penalties[self.length]
        self.found.add(
            np.repeat(numbers, self.beam),
            self.tokens[places].flatten(0, 1),
            log_probs.flatten(),
            scores.flatten(),
            finished=False,
        )

    def _keep(self, stay: Tensor) -> None:
        """Keep the sentences at these places."""
        self.limits, self.log_probs = self.limits[stay], self.log_probs[stay]
        self.last_ids, self.parents = self.last_ids[stay], self.parents[stay]
        self.tokens, self.best_scores = self.tokens[stay], self.best_scores[stay]
        self.found_count = self.found_count[stay]
        self.best_has_ended = self.best_has_ended[stay]
        if self.sentences is not None:
            self.sentences = self.sentences[stay]


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


def best_candidates(
    logits: Tensor,
    count: int,
    constraints: Constraints = NO_CONSTRAINTS,
    history: History | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the `count` best next tokens of each row of `logits` [R V], with log-probabilities.

    Both are [R C], best first, the latter in the precision of `sum_dtype`.
    PAD, UNK and BOS are never generated but keep their share of the probability, so each
    hypothesis has the model's own log-probability (scaled by a repetition penalty). Forbidden
    tokens also keep their share and have the log-probability -inf.
    """
    assert logits.shape[1] > EOS + 1, "the vocabulary holds nothing but special tokens"
    logits, normaliser = apply_constraints(logits, constraints, history)
    # PAD, UNK and BOS precede EOS. Subtracting the normaliser after the choice avoids a second
    # [R V] tensor.
    values, places = largest(logits[:, EOS:], min(count, logits.shape[1] - EOS))
    log_probs = (values - normaliser).to(sum_dtype(logits.device))
    return places + EOS, log_probs


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the precision of summed log-probabilities: fp64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def apply_constraints(
    logits: Tensor, constraints: Constraints, history: History | None
) -> tuple[Tensor, Tensor]:
    """Return constrained fp32 logits [R V] and the normaliser [R 1] of the unconstrained ones."""
    logits = logits.float()
    # A few rows at a time stay in a CPU's cache: a whole beam search takes 0.93 of the time.
    rows = 32 if logits.device.type == "cpu" else max(1, len(logits))
    parts = [some.logsumexp(dim=1, keepdim=True) for some in torch.split(logits, rows)]
    normaliser = torch.cat(parts)
    if not constraints.is_empty:
        assert history is not None, "constraints depend on the tokens so far"
        constraints.apply(logits, normaliser, history)
    return logits, normaliser


def require_finite(finite: NDArray[np.bool_]) -> None:
    """Raise DivergedError unless all of the model's outputs are `finite`."""
    if not finite.all():
        raise DivergedError(
            "the model's output is not finite (NaN or infinite): its weights are damaged, "
            "or its training diverged"
        )


_LINES = 16


def largest(numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row [R N] and their places, both [R C], sorted.

    Equals `topk` but takes half the time on a CPU for vocabularies of 4,000 to 32,000: with a row
    cut into lines of equal length, the largest values are in the columns with the largest maxima.
    """
    width = numbers.shape[1] // _LINES
    if width < 2 * count:
        return tuple(numbers.topk(count, dim=1))  # type: ignore[return-value]
    lines = numbers[:, : _LINES * width].view(-1, _LINES, width)
    columns = lines.amax(dim=1).topk(count, dim=1, sorted=False).indices[:, None]
    rest = torch.arange(_LINES * width, numbers.shape[1], device=numbers.device)
    places = columns + torch.arange(_LINES, device=numbers.device)[:, None] * width
    places = torch.cat((places.flatten(1), rest.expand(len(numbers), -1)), dim=1)
    best = numbers.gather(1, places).topk(count, dim=1)
    return best.values, places.gather(1, best.indices)
