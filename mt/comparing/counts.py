"""What a metric counts in each sentence, once, so that any part of a test set can be scored."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mt.comparing.systems import EvaluationSet, System
from mt.evaluation.scores import choose_metrics

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

MIN_SENTENCES = 30
"""Fewer say nothing of a system."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Some sentences of a test set, and what each system makes of them."""

    group: str
    """By what the sentences were told apart."""
    name: str
    sentences: int
    bleu: tuple[float, ...]
    """Of each system."""
    chrf: tuple[float, ...]

    @property
    def too_small(self) -> bool:
        """Whether nothing can be concluded from so few sentences."""
        return self.sentences < MIN_SENTENCES


class Counts:
    """What a metric has counted in each sentence of a system, so that any part can be scored."""

    def __init__(self, metric: "Metric", system: System, common: EvaluationSet) -> None:
        """Count once; scoring adds up."""
        self._metric: Any = metric
        self._rows = self._metric._extract_corpus_statistics(system.translations, common.references)

    def score(self, members: Iterable[int]) -> float:
        """Return the corpus score of the sentences of these numbers, from 0."""
        rows = [self._rows[number] for number in members]
        return float(self._metric._aggregate_and_compute(rows).score)


@dataclass(frozen=True, slots=True)
class AllCounts:
    """BLEU's and chrF2's counts of each system."""

    bleu: tuple[Counts, ...]
    chrf: tuple[Counts, ...]

    def slice(self, group: str, name: str, members: Sequence[int]) -> Slice:
        """Score some sentences."""
        return Slice(
            group,
            name,
            len(members),
            bleu=tuple(counts.score(members) for counts in self.bleu),
            chrf=tuple(counts.score(members) for counts in self.chrf),
        )


def count_all(common: EvaluationSet, systems: Sequence[System]) -> AllCounts:
    """Count what BLEU and chrF2 count, once for each system."""
    bleu, chrf = choose_metrics(common.target_language, common.tokenizer)
    return AllCounts(
        bleu=tuple(Counts(bleu, system, common) for system in systems),
        chrf=tuple(Counts(chrf, system, common) for system in systems),
    )
