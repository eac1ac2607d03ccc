"""What an engine can tell of a translation piece by piece; without torch."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mt.decoding.engine import Engine, Hypothesis


@dataclass(frozen=True, slots=True)
class PieceDetails:
    """A hypothesis, piece by piece."""

    log_probs: tuple[float, ...]
    """The natural log-probability of each piece, given the source and the pieces before it."""
    alignment: tuple[tuple[int, int], ...]
    """Pairs (source piece, target piece), from 0; a piece that looks at none has no pair."""


class ExplainingEngine(Engine):
    """An engine that knows what its model thought of each piece."""

    @abstractmethod
    def explain(
        self, sources: Sequence[Sequence[int]], hypotheses: Sequence[Hypothesis]
    ) -> list[PieceDetails]:
        """Return the details of a hypothesis for each source; sources end with EOS."""
