"""The best next pieces of each row, and the rules that a translation keeps.

Axes: R rows, V vocabulary, C candidates, T pieces so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mt.errors import DivergedError
from mt.special_ids import EOS

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Written:
    """What the rows of a step hold so far, on the host."""

    sentences: Tensor
    """[R]: the number of each row's sentence in its batch."""
    pieces: Tensor
    """[R T]."""


@dataclass(frozen=True)
class Rules:
    """What a translation must begin with and must not do; by default there is no rule."""

    no_repeat_ngram: int | None = None
    """No sequence of so many pieces comes twice (Paulus et al. 2018, section 2.5)."""
    repetition_penalty: float = 1.0
    """Multiplies the log-probability of a piece that was written before.

    Keskar et al. 2019, section 4.1, divide the logit, whose sign makes two cases; a
    log-probability has one.
    """
    shortest: Tensor | None = None
    """[B]: the fewest pieces of each translation, EOS included."""
    prefixes: Sequence[Sequence[int]] = field(default=())
    """What each translation begins with; empty: nothing is forced."""

    @property
    def silent(self) -> bool:
        """Tell whether there is nothing to apply."""
        return (
            self.no_repeat_ngram is None
            and self.repetition_penalty == 1.0
            and self.shortest is None
            and not self.prefixes
        )

    def apply(self, logits: Tensor, normaliser: Tensor, written: Written) -> None:
        """Change logits [R V] so that no rule is broken; `normaliser` [R 1] stays what it was.

        A row that nothing else is left for may end.
        """
        end = logits[:, EOS].clone()
        if self.repetition_penalty != 1.0 and written.pieces.shape[1]:
            before = written.pieces.to(logits.device)
            log_probs = logits.gather(1, before) - normaliser
            logits.scatter_(1, before, self.repetition_penalty * log_probs + normaliser)
        if self.no_repeat_ngram is not None:
            rows, ids = repeating(written.pieces, self.no_repeat_ngram)
            logits[rows.to(logits.device), ids.to(logits.device)] = NEVER
        if self.shortest is not None:
            early = written.pieces.shape[1] + 1 < self.shortest[written.sentences]
            logits[early.nonzero().flatten().to(logits.device), EOS] = NEVER
        self._force(logits, written)
        stuck = logits[:, EOS:].amax(dim=1) == NEVER
        logits[:, EOS] = torch.where(stuck, end, logits[:, EOS])

    def _force(self, logits: Tensor, written: Written) -> None:
        """Leave no choice to rows that are still in their prefix."""
        if not self.prefixes:
            return
        place = written.pieces.shape[1]
        for row, sentence in enumerate(written.sentences.tolist()):
            if place < len(self.prefixes[sentence]):
                piece = self.prefixes[sentence][place]
                kept = logits[row, piece].clone()
                logits[row] = NEVER
                logits[row, piece] = kept


NO_RULES = Rules()


def repeating(pieces: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the rows and ids of all pieces that would make an n-gram of `size` come again.

    `pieces` [R T] are those of each row so far.
    """
    length = pieces.shape[1]
    if length < size:
        nothing = torch.empty(0, dtype=torch.int64)
        return nothing, nothing
    # Each place that has size - 1 pieces before it, and what stands there.
    next_ids = pieces[:, size - 1 :]
    ends_alike = torch.ones_like(next_ids, dtype=torch.bool)
    for back in range(1, size):
        ends_alike &= pieces[:, size - 1 - back : length - back] == pieces[:, length - back, None]
    rows, places = ends_alike.nonzero().unbind(dim=1)
    return rows, next_ids[rows, places]


@dataclass(frozen=True, slots=True)
class Continuations:
    """The best next pieces of each row, best first, on the host."""

    log_probs: Tensor
    """[R C] float64, of the piece alone."""
    ids: Tensor
    """[R C]."""


def best_continuations(
    logits: Tensor, count: int, rules: Rules = NO_RULES, written: Written | None = None
) -> Continuations:
    """Return the `count` most probable next pieces of each row of `logits` [R V].

    PAD, UNK and BOS are never generated, but keep their share of the probability, so that a
    hypothesis has the log-probability that the model gives it; so does what the rules forbid,
    which has the log-probability -inf here. Raises DivergedError where the model's output is not
    finite.
    """
    assert logits.shape[1] > EOS + 1, "the vocabulary holds nothing but special pieces"
    logits, normaliser = ruled(logits, rules, written)
    # The three ids that are not generated stand before EOS. Top-k first, then the normaliser: no
    # second [R V] tensor is written.
    best = logits[:, EOS:].topk(min(count, logits.shape[1] - EOS), dim=1)
    log_probs = (best.values - normaliser).cpu().double()
    require_finite(log_probs[:, 0])
    return Continuations(log_probs, best.indices.cpu() + EOS)


def ruled(logits: Tensor, rules: Rules, written: Written | None) -> tuple[Tensor, Tensor]:
    """Return fp32 logits [R V] that keep the rules, and the normaliser [R 1] of the model's own."""
    logits = logits.float()
    normaliser = logits.logsumexp(dim=1, keepdim=True)
    if not rules.silent:
        assert written is not None, "rules are about what is written"
        rules.apply(logits, normaliser, written)
    return logits, normaliser


def require_finite(log_probs: Tensor) -> None:
    """Raise DivergedError unless the log-probabilities of the best pieces are all finite."""
    if not log_probs.isfinite().all():
        raise DivergedError(
            "the model's output is not finite (NaN or infinite): its weights are damaged, "
            "or its training diverged"
        )
