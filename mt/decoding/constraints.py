"""Constraints on translations.

Axes: B sentences, R rows, V vocabulary, T tokens so far. All tensors are on the model's device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mt.special_ids import PAD

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class History:
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
    prefixes: Tensor | None = None
    """Forced beginning of each translation [B T], padded with PAD."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is constrained."""
        return self.no_repeat_ngram is None and self.prefixes is None

    def apply(self, logits: Tensor, normaliser: Tensor, history: History) -> None:
        """Change logits [R V] in place; `normaliser` [R 1] keeps the model's probabilities.

        A forced prefix overrides all other constraints and costs nothing: divided by the length
        penalty, the log-probability of an improbable prefix would reward length.
        """
        tokens, place = history.tokens, history.tokens.shape[1]
        if self.no_repeat_ngram is not None and place >= self.no_repeat_ngram:
            ids, repeats = repeating_tokens(tokens, self.no_repeat_ngram)
            never = torch.zeros_like(repeats, dtype=logits.dtype).masked_fill_(repeats, NEVER)
            logits.scatter_add_(1, ids, never)
        if self.prefixes is not None and place < self.prefixes.shape[1]:
            ids = self.prefixes[history.sentences, place][:, None]
            logits.masked_fill_(ids != PAD, NEVER)
            logits.scatter_(1, ids, torch.where(ids != PAD, normaliser, logits.gather(1, ids)))


NO_CONSTRAINTS = Constraints()


def repeating_tokens(tokens: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return tokens [R N] of rows [R T], and where they would repeat an n-gram of length `size`."""
    length = tokens.shape[1]
    # Tokens that end an n-gram, and whether the size - 1 tokens before them equal the row's last.
    last_of_ngram = tokens[:, size - 1 :]
    same_context = torch.ones_like(last_of_ngram, dtype=torch.bool)
    for back in range(1, size):
        same_context &= tokens[:, size - 1 - back : length - back] == tokens[:, length - back, None]
    return last_of_ngram, same_context
