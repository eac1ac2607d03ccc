"""Norms of translation pairs, learned from a sample of a file that may have many bad pairs.

A pair is compared with the usual ratio of lengths, with a lexicon learned from the sample, and with
the scores of a run. Limits of scores come from unrelated pairs: the same texts beside other lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mt.augment.judge import Judge
from mt.data.filters import weighted_length
from mt.doctor.misalignment import BilingualLexicon, learn_lexicon
from mt.doctor.tally import LineBlock

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

LENGTH, UNRELATED, JUDGE, CUT_OFF = FAULTS = ("length", "unrelated", "judge", "cut-off")
"""Names of the faults of pairs."""
_FEWEST_LINES, _FEWEST_FOR_LEXICON, _MOST_FOR_JUDGE = 50, 1000, 2000
"""Lines of a sample from which norms, and a lexicon, are learned; lines that the judge scores."""
_PLANTED_STEP = 10
"""Every tenth pair is replaced by an unrelated one where the lexicon is learned."""
_ALLOWANCE = 10
"""Added to both lengths of a ratio, since short texts may differ more."""
_LEAST_SPREAD = 0.1
"""Least standard deviation of log ratios; translations of a grammar may have nearly none."""
_BY_LEXICON, _BY_JUDGE = 90, 95
"""Percentiles of the scores of unrelated pairs that a pair must reach."""
# In standard deviations from the median:
_MOST_LENGTHS = 3.0
_SHORT_BY_JUDGE, _SHORT_BY_LEXICON = -1.0, -1.5
_LEAST_SUM = -4.5
"""Least sum of length and similarity of a short translation."""
_SUDDEN_END = -5.0
"""Natural log-probability of the end under which a short translation is cut off."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Median, and standard deviation from the median absolute deviation."""

    median: float
    deviation: float

    @classmethod
    def of(cls, values: Floats, *, least: float = 1e-6) -> "Scale":
        """Measure values; outliers have little effect."""
        median = float(np.median(values))
        return cls(median, max(least, 1.4826 * float(np.median(np.abs(values - median)))))

    def place(self, values: Floats) -> Floats:
        """Return the distances of values from the median, in standard deviations."""
        return (values - self.median) / self.deviation


@dataclass(frozen=True, slots=True)
class Limit:
    """Scores that separate related from unrelated pairs."""

    least: float
    """Percentile of unrelated pairs, or the middle of both medians if that is lower."""
    related: Scale

    @classmethod
    def between(cls, related: Floats, unrelated: Floats, percentile: int) -> "Limit":
        """Learn from the scores of pairs, and of the same texts beside other lines."""
        scale = Scale.of(related)
        # Where scores separate poorly, the percentile alone would reject too much.
        middle = (scale.median + float(np.median(unrelated))) / 2
        return cls(min(float(np.percentile(unrelated, percentile)), middle), scale)

    @property
    def sure(self) -> float:
        """Score from which a pair is certainly related."""
        return (self.least + self.related.median) / 2


@dataclass(frozen=True, slots=True)
class Norms:
    """Properties of usual pairs; None for those that need a larger sample."""

    lengths: Scale | None = None
    """Log ratios of the lengths, translation to source."""
    lexicon: BilingualLexicon | None = None
    similarity: Limit | None = None
    """Cosines of both sides in the lexicon."""
    log_prob: Limit | None = None
    """Mean log-probabilities of a token under the judge."""

    @classmethod
    def learn(cls, sources: list[str], translations: list[str], judge: Judge | None) -> "Norms":
        """Learn from a sample of pairs, whose order is that of their corpus."""
        if len(sources) < _FEWEST_LINES:
            return cls()
        lengths = Scale.of(_log_ratios(sources, translations), least=_LEAST_SPREAD)
        lexicon = similarity = log_prob = None
        if len(sources) >= _FEWEST_FOR_LEXICON:
            # The lexicon fits bad pairs of the sample, too. Planted pairs show how much.
            planted = translations.copy()
            planted[::_PLANTED_STEP] = _rolled(translations)[::_PLANTED_STEP]
            lexicon = learn_lexicon([LineBlock(0, sources, planted)])
            scores, known = _similarities(lexicon, sources, planted)
            is_planted = np.arange(len(scores)) % _PLANTED_STEP == 0
            related, unrelated = scores[known & ~is_planted], scores[known & is_planted]
            if len(related) and len(unrelated):
                similarity = Limit.between(related, unrelated, _BY_LEXICON)
        if judge is not None:
            step = -(-len(sources) // _MOST_FOR_JUDGE)
            few, their = sources[::step], translations[::step]
            related, unrelated = (
                np.array([score.mean for score in judge.scores(few, texts)])
                for texts in (their, _rolled(their))
            )
            known = ~(np.isnan(related) | np.isnan(unrelated))
            if known.any():
                log_prob = Limit.between(related[known], unrelated[known], _BY_JUDGE)
        return cls(lengths, lexicon, similarity, log_prob)

    def faults(
        self, sources: list[str], translations: list[str], judge: Judge | None
    ) -> tuple[list[list[str]], list[float]]:
        """Return the faults of each pair, and the mean log-probabilities if there is a judge."""
        none = np.zeros(len(sources), dtype=np.bool_)
        found: dict[str, Booleans] = dict.fromkeys(FAULTS, none)
        lengths = np.zeros(len(sources))
        if self.lengths is not None:
            lengths = self.lengths.place(_log_ratios(sources, translations))
            found[LENGTH] = np.abs(lengths) > _MOST_LENGTHS
        means: list[float] = []
        unsure = ~none
        if judge is not None:
            scores = judge.scores(sources, translations)
            means = [score.mean for score in scores]
            found[CUT_OFF] = lengths < _SHORT_BY_JUDGE
            found[CUT_OFF] &= np.array([score.end for score in scores]) < _SUDDEN_END
            if self.log_prob is not None:
                found[JUDGE] = np.array(means) < self.log_prob.least
                unsure = np.array(means) < self.log_prob.sure
        if self.lexicon is not None and self.similarity is not None:
            similarities, known = _similarities(self.lexicon, sources, translations)
            found[UNRELATED] = unsure & known & (similarities < self.similarity.least)
            places = self.similarity.related.place(similarities)
            is_short = (lengths < _SHORT_BY_LEXICON) & (places < 0)
            found[CUT_OFF] = found[CUT_OFF] | (
                unsure & known & is_short & (lengths + places < _LEAST_SUM)
            )
        rows = zip(*found.values(), strict=True)
        names = [
            [name for name, applies in zip(found, row, strict=True) if applies] for row in rows
        ]
        return names, means


def _log_ratios(sources: Sequence[str], translations: Sequence[str]) -> Floats:
    """Return the log ratios of translation to source in `weighted_length`."""
    left, right = (
        np.array([weighted_length(text) for text in side], dtype=np.float64) + _ALLOWANCE
        for side in (sources, translations)
    )
    return np.log(right / left)


def _similarities(
    lexicon: BilingualLexicon, sources: list[str], translations: list[str]
) -> tuple[Floats, Booleans]:
    """Return the cosines of pairs, and True where both sides have words of the lexicon."""
    left, right = lexicon.embed(LineBlock(0, sources, translations))
    known = np.logical_and(left.any(1), right.any(1))
    return np.einsum("id,id->i", left, right).astype(np.float64), known


def _rolled(texts: list[str]) -> list[str]:
    """Return the texts beside other lines, far from their own."""
    half = len(texts) // 2
    return texts[half:] + texts[:half]
