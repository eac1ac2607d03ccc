"""What an engine is, and what it finds; without torch, for the engines that need none."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mt.config import DecodingConfig


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation that the search found."""

    ids: tuple[int, ...]
    """The pieces, without BOS and EOS."""
    log_prob: float
    """Sum of the pieces' natural log-probabilities, that of EOS included where it was reached."""
    score: float
    """`log_prob` divided by the length penalty: what hypotheses are ranked by."""
    finished: bool
    """False where the length limit cut it off before EOS."""


class Engine(ABC):
    """Translates ids to ids."""

    @abstractmethod
    def n_best_ids(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, count: int
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, best first, at least one.

        Each source ends with EOS; the lists are in the order of the sources. Fewer than `count`
        come back where the search has found no more: beam search has as many as its beam at most,
        greedy search has one.
        """

    def translate_ids(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig
    ) -> list[Hypothesis]:
        """Return the best hypothesis of each source."""
        return [hypotheses[0] for hypotheses in self.n_best_ids(sources, decoding, 1)]
