"""What an engine can tell of a translation piece by piece; without torch."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mt.decoding.engine import Engine, Hypothesis

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PieceDetails:
    """A hypothesis, piece by piece."""

    log_probs: tuple[float, ...]
    """The natural log-probability of each piece, given the source and the pieces before it."""
    alignment: tuple[tuple[int, int], ...]
    """Pairs (source piece, target piece), from 0; a piece that looks at none has no pair."""
    attention: "NDArray[np.float32] | None" = field(default=None, compare=False)
    """How much each target piece looks at each source piece, EOS among them [T S], from 0 to 1."""


class ExplainingEngine(Engine):
    """An engine that knows what its model thought of each piece."""

    @abstractmethod
    def explain(
        self, sources: Sequence[Sequence[int]], hypotheses: Sequence[Hypothesis]
    ) -> list[PieceDetails]:
        """Return the details of a hypothesis for each source; sources end with EOS."""


class ScoringEngine(Engine):
    """An engine that knows what its model thinks of translations that somebody else made."""

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """The most pieces of a source or a target, end mark included; None without such a limit."""

    @abstractmethod
    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the natural log-probability of each piece of each target; all end with EOS."""
