"""What an engine is, and what it finds; without torch, for the engines that need none."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mt.config import DecodingConfig

Prefixes = Sequence[Sequence[int]]
"""What the translation of each source begins with, pieces of text alone; empty: nothing is forced.

Either there are none at all, or one for each source.
"""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation that the search found."""

    ids: tuple[int, ...]
    """The pieces, without BOS and EOS."""
    log_prob: float
    """Sum of the pieces' natural log-probabilities, that of EOS included where it was reached."""
    score: float
    """`log_prob`, that of a forced prefix left out, divided by the length penalty of the whole.

    It is what hypotheses are ranked by.
    """
    finished: bool
    """False where the length limit cut it off before EOS."""


class Engine(ABC):
    """Translates ids to ids."""

    @abstractmethod
    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: Prefixes = (),
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, best first, at least one.

        Each source ends with EOS; the lists are in the order of the sources. Fewer than `count`
        come back where the search has found no more: beam search has as many as its beam at most,
        greedy search has one. Each begins with the prefix of its source, whose pieces count in its
        log-probability and its length; a prefix longer than the length limit is cut there.
        """

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        *,
        prefixes: Prefixes = (),
    ) -> list[Hypothesis]:
        """Return the best hypothesis of each source, which begins with its prefix."""
        found = self.n_best_ids(sources, decoding, 1, prefixes=prefixes)
        return [hypotheses[0] for hypotheses in found]
