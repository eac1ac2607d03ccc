"""Constraints on translations, and the best next tokens under them.

Axes: R rows, V vocabulary, C candidates, T tokens so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mt.errors import DivergedError
from mt.special_ids import EOS

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Tokens of the rows so far, on the host."""

    sentences: Tensor
    """Number of each row's sentence in the batch [R]."""
    tokens: Tensor
    """Tokens without BOS [R T]."""


@dataclass(frozen=True)
class Constraints:
    """Required and forbidden content of translations; empty by default."""

    no_repeat_ngram: int | None = None
    """Length of the n-grams that may occur only once (Paulus et al. 2018, section 2.5)."""
    repetition_penalty: float = 1.0
    """Factor on the log-probability of a token that occurred before.

    Keskar et al. 2019, section 4.1, divide the logit and therefore need one case for each sign;
    log-probabilities have only one sign.
    """
    shortest: Tensor | None = None
    """Minimum length of each translation, including EOS [B]."""
    prefixes: Sequence[Sequence[int]] = field(default=())
    """Forced beginning of each translation; empty: nothing is forced."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is constrained."""
        return (
            self.no_repeat_ngram is None
            and self.repetition_penalty == 1.0
            and self.shortest is None
            and not self.prefixes
        )

    def apply(self, logits: Tensor, normaliser: Tensor, prefixes: Prefixes) -> None:
        """Change logits [R V] in place; `normaliser` [R 1] keeps the model's probabilities.

        A forced prefix overrides all other constraints and costs nothing: divided by the length
        penalty, the log-probability of an improbable prefix would reward length. A row without
        any allowed token may end.
        """
        tokens = prefixes.tokens
        end = logits[:, EOS].clone()
        if self.repetition_penalty != 1.0 and tokens.shape[1]:
            before = tokens.to(logits.device)
            log_probs = logits.gather(1, before) - normaliser
            logits.scatter_(1, before, self.repetition_penalty * log_probs + normaliser)
        if self.no_repeat_ngram is not None:
            rows, ids = repeating_tokens(tokens, self.no_repeat_ngram)
            logits[rows.to(logits.device), ids.to(logits.device)] = NEVER
        if self.shortest is not None:
            early = tokens.shape[1] + 1 < self.shortest[prefixes.sentences]
            logits[early.nonzero().flatten().to(logits.device), EOS] = NEVER
        rows, ids = (each.to(logits.device) for each in self._forced(prefixes))
        logits[rows] = NEVER
        logits[rows, ids] = normaliser[rows, 0]
        stuck = logits[:, EOS:].amax(dim=1) == NEVER
        logits[:, EOS] = torch.where(stuck, end, logits[:, EOS])

    def _forced(self, prefixes: Prefixes) -> tuple[Tensor, Tensor]:
        """Return the rows inside their forced prefix, and the next token of each."""
        place = prefixes.tokens.shape[1]
        sentences = prefixes.sentences.tolist() if self.prefixes else []
        forced = [
            (row, self.prefixes[sentence][place])
            for row, sentence in enumerate(sentences)
            if place < len(self.prefixes[sentence])
        ]
        rows, ids = torch.tensor(forced, dtype=torch.int64).reshape(-1, 2).unbind(dim=1)
        return rows, ids


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best next tokens of each row, best first, on the host."""

    log_probs: Tensor
    """Log-probability of the token alone, float64 [R C]."""
    ids: Tensor
    """Tokens [R C]."""


def best_candidates(
    logits: Tensor,
    count: int,
    constraints: Constraints = NO_CONSTRAINTS,
    prefixes: Prefixes | None = None,
) -> Candidates:
    """Return the `count` most probable next tokens of each row of `logits` [R V].

    PAD, UNK and BOS are never generated but keep their share of the probability, so each
    hypothesis has the model's own log-probability (scaled by a repetition penalty). Forbidden
    tokens also keep their share and have the log-probability -inf. Raises DivergedError if the
    logits are not finite.
    """
    assert logits.shape[1] > EOS + 1, "the vocabulary holds nothing but special tokens"
    logits, normaliser = apply_constraints(logits, constraints, prefixes)
    # PAD, UNK and BOS precede EOS. Subtracting the normaliser after the choice avoids a second
    # [R V] tensor.
    values, places = largest(logits[:, EOS:], min(count, logits.shape[1] - EOS))
    log_probs = (values - normaliser).cpu().double()
    require_finite(log_probs[:, 0])
    return Candidates(log_probs, places.cpu() + EOS)


def apply_constraints(
    logits: Tensor, constraints: Constraints, prefixes: Prefixes | None
) -> tuple[Tensor, Tensor]:
    """Return constrained fp32 logits [R V] and the normaliser [R 1] of the unconstrained ones."""
    logits = logits.float()
    # A few rows at a time stay in a CPU's cache: a whole beam search takes 0.93 of the time.
    rows = 32 if logits.device.type == "cpu" else max(1, len(logits))
    parts = [some.logsumexp(dim=1, keepdim=True) for some in torch.split(logits, rows)]
    normaliser = torch.cat(parts)
    if not constraints.is_empty:
        assert prefixes is not None, "constraints depend on the tokens so far"
        constraints.apply(logits, normaliser, prefixes)
    return logits, normaliser


def require_finite(log_probs: Tensor) -> None:
    """Raise DivergedError unless all log-probabilities are finite."""
    if not log_probs.isfinite().all():
        raise DivergedError(
            "the model's output is not finite (NaN or infinite): its weights are damaged, "
            "or its training diverged"
        )


def repeating_tokens(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return rows and ids of all next tokens that would repeat an n-gram of length `size`.

    `tokens` [R T] are the tokens of each row so far.
    """
    length = tokens.shape[1]
    if length < size:
        nothing = torch.empty(0, dtype=torch.int64)
        return nothing, nothing
    # Tokens that end an n-gram, and whether the size - 1 tokens before them equal the row's last.
    last_of_ngram = tokens[:, size - 1 :]
    same_context = torch.ones_like(last_of_ngram, dtype=torch.bool)
    for back in range(1, size):
        same_context &= tokens[:, size - 1 - back : length - back] == tokens[:, length - back, None]
    rows, places = same_context.nonzero().unbind(dim=1)
    return rows, last_of_ngram[rows, places]


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
