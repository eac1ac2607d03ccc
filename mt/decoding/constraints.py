"""Constraints on translations, and the best next tokens under them.

Axes: R rows, V vocabulary, C candidates, T tokens so far. All tensors are on the model's device.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt.errors import DivergedError
from mt.special_ids import EOS, PAD

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Tokens of the rows so far."""

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
    prefixes: Tensor | None = None
    """Forced beginning of each translation [B T], padded with PAD."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is constrained."""
        return (
            self.no_repeat_ngram is None
            and self.repetition_penalty == 1.0
            and self.shortest is None
            and self.prefixes is None
        )

    def apply(self, logits: Tensor, normaliser: Tensor, prefixes: Prefixes) -> None:
        """Change logits [R V] in place; `normaliser` [R 1] keeps the model's probabilities.

        A forced prefix overrides all other constraints and costs nothing: divided by the length
        penalty, the log-probability of an improbable prefix would reward length. A row without
        any allowed token may end.
        """
        tokens, place = prefixes.tokens, prefixes.tokens.shape[1]
        end = logits[:, EOS].clone()
        if self.repetition_penalty != 1.0 and place:
            log_probs = logits.gather(1, tokens) - normaliser
            logits.scatter_(1, tokens, self.repetition_penalty * log_probs + normaliser)
        if self.no_repeat_ngram is not None and place >= self.no_repeat_ngram:
            ids, repeats = repeating_tokens(tokens, self.no_repeat_ngram)
            never = torch.zeros_like(repeats, dtype=logits.dtype).masked_fill_(repeats, NEVER)
            logits.scatter_add_(1, ids, never)
        if self.shortest is not None:
            early = place + 1 < self.shortest[prefixes.sentences]
            logits[:, EOS].masked_fill_(early, NEVER)
        if self.prefixes is not None and place < self.prefixes.shape[1]:
            ids = self.prefixes[prefixes.sentences, place][:, None]
            logits.masked_fill_(ids != PAD, NEVER)
            logits.scatter_(1, ids, torch.where(ids != PAD, normaliser, logits.gather(1, ids)))
        stuck = logits[:, EOS:].amax(dim=1) == NEVER
        logits[:, EOS] = torch.where(stuck, end, logits[:, EOS])


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best next tokens of each row, best first."""

    log_probs: Tensor
    """Log-probability of the token alone [R C], in the precision of `sum_dtype`."""
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
    tokens also keep their share and have the log-probability -inf.
    """
    assert logits.shape[1] > EOS + 1, "the vocabulary holds nothing but special tokens"
    logits, normaliser = apply_constraints(logits, constraints, prefixes)
    # PAD, UNK and BOS precede EOS. Subtracting the normaliser after the choice avoids a second
    # [R V] tensor.
    values, places = largest(logits[:, EOS:], min(count, logits.shape[1] - EOS))
    log_probs = (values - normaliser).to(sum_dtype(logits.device))
    return Candidates(log_probs, places + EOS)


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the precision of summed log-probabilities: fp64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


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


def require_finite(finite: NDArray[np.bool_]) -> None:
    """Raise DivergedError unless all of the model's outputs are `finite`."""
    if not finite.all():
        raise DivergedError(
            "the model's output is not finite (NaN or infinite): its weights are damaged, "
            "or its training diverged"
        )


def repeating_tokens(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return tokens of each row [R N], and where they would repeat an n-gram of length `size`.

    `tokens` [R T] are the tokens of each row so far, at least `size`.
    """
    length = tokens.shape[1]
    # Tokens that end an n-gram, and whether the size - 1 tokens before them equal the row's last.
    last_of_ngram = tokens[:, size - 1 :]
    same_context = torch.ones_like(last_of_ngram, dtype=torch.bool)
    for back in range(1, size):
        same_context &= tokens[:, size - 1 - back : length - back] == tokens[:, length - back, None]
    return last_of_ngram, same_context


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
