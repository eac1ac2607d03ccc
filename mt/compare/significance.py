"""Significance of score differences by sacreBLEU's paired tests, made two-sided.

Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation" (bootstrap); Riezler
and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation and Significance Testing for MT"
(approximate randomisation).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, _bootstrap_resample, _compute_p_value, estimate_ci

from mt.compare.systems import EvaluationSet, System
from mt.errors import UserError
from mt.evaluation.scores import ConfidenceInterval, choose_metrics, label_form

SIGNIFICANT = 0.05
_INTERVAL_SAMPLES = 1000

Resampling = Literal["bootstrap", "randomization"]
SAMPLES: dict[Resampling, int] = {"bootstrap": 1000, "randomization": 10_000}
_MAX_DRAWN: dict[Resampling, int] = {"bootstrap": 50_000_000, "randomization": 200_000_000}
"""Maximum of samples times sentences; sacreBLEU holds them in memory, about 4 GB."""

Outcome = Literal["baseline", "better", "worse", "no significant difference"]


@dataclass(frozen=True, slots=True)
class PairedScore:
    """Score of one system, and its difference from the baseline."""

    metric: str
    """`BLEU`, `chrF2`, `chrF2++` or `TER`, of which lower is better."""
    value: float
    interval: ConfidenceInterval
    signature: str
    difference: float | None = None
    """Score minus the baseline's score; None for the baseline."""
    difference_interval: ConfidenceInterval | None = None
    p_value: float | None = None

    @property
    def outcome(self) -> Outcome:
        """Result of the comparison at p < 0.05."""
        if self.difference is None or self.p_value is None:
            return "baseline"
        if self.p_value >= SIGNIFICANT:
            return "no significant difference"
        return "better" if (self.difference > 0) == (self.metric != "TER") else "worse"


def score_systems(
    test_set: EvaluationSet,
    systems: Sequence[System],
    *,
    test: Resampling = "bootstrap",
    samples: int | None = None,
    metrics: Sequence[str] = (),
) -> list[tuple[PairedScore, ...]]:
    """Score the systems and test each against the first one; return a tuple for each metric.

    The default number of samples is in `SAMPLES`. sacreBLEU's seed is fixed and part of each
    signature. Raises UserError if the samples do not fit into memory.
    """
    samples = samples or SAMPLES[test]
    sentences = len(test_set.references[0])
    if samples * sentences > _MAX_DRAWN[test]:
        raise UserError(
            f"{samples:,} samples of {sentences:,} sentences do not fit into memory: take up to "
            f"{_MAX_DRAWN[test] // sentences:,} with --samples"
        )
    return [
        _score_metric(metric, test_set, systems, test=test, samples=samples)
        for metric in choose_metrics(test_set.target_language, test_set.tokenizer, metrics)
    ]


def _score_metric(
    metric: Metric,
    test_set: EvaluationSet,
    systems: Sequence[System],
    *,
    test: Resampling,
    samples: int,
) -> tuple[PairedScore, ...]:
    counts = [
        metric._extract_corpus_statistics(system.translations, test_set.references)
        for system in systems
    ]
    name = metric._aggregate_and_compute(counts[0]).name
    values = [float(metric._aggregate_and_compute(rows).score) for rows in counts]
    drawn = samples if test == "bootstrap" else _INTERVAL_SAMPLES
    # The same seed draws the same sentences for all systems, so that the samples are paired.
    resampled = [_bootstrap_resample(rows, metric, drawn) for rows in counts]
    sampled = [np.array([score.score for score in scores]) for _, scores in resampled]
    signature = metric.get_signature()
    signature.update("seed", resampled[0][0])
    signature.update("bs", drawn)
    if test == "randomization":
        signature.update("ar", samples)
        p_values = _compute_randomization_p_values(metric, test_set, systems, samples=samples)
    else:
        p_values = [
            _compute_bootstrap_p_value(scores - sampled[0], abs(value - values[0]))
            for scores, value in zip(sampled, values, strict=True)
        ]
    form = label_form(test_set.references, test_set.target_language)
    signed = f"{signature}|text:{form}" if form else str(signature)
    paired = []
    for index, system in enumerate(systems):
        full = f"{signed}|forced:{system.forced}" if system.forced else signed
        score = PairedScore(name, values[index], _estimate_interval(sampled[index]), signature=full)
        if index:
            difference = values[index] - values[0]
            # Without a difference of counts there is nothing to test.
            least = _compute_least_p_value(counts[0], counts[index]) if difference else 1.0
            score = replace(
                score,
                difference=difference,
                difference_interval=_estimate_interval(sampled[index] - sampled[0]),
                p_value=min(1.0, max(p_values[index], least)),
            )
        paired.append(score)
    return tuple(paired)


def _estimate_interval(samples: npt.NDArray[np.float64]) -> ConfidenceInterval:
    mean, half_width = estimate_ci(samples)
    return ConfidenceInterval(float(mean), float(half_width))


def _compute_bootstrap_p_value(differences: npt.NDArray[np.float64], difference: float) -> float:
    """Return sacreBLEU's p-value, doubled.

    sacreBLEU subtracts the mean of the absolute differences, so that it counts one tail: without a
    real difference, 9 % of its p-values are below 0.05.
    """
    absolute = np.abs(differences)
    return 2 * float(_compute_p_value(absolute - absolute.mean(), difference))


def _compute_randomization_p_values(
    metric: Metric, test_set: EvaluationSet, systems: Sequence[System], *, samples: int
) -> list[float]:
    test = PairedTest(
        [(system.name, system.translations) for system in systems],
        {"metric": metric},
        test_set.references,
        test_type="ar",
        n_samples=samples,
    )
    results: Sequence[Any] = [*test()[1].values()][1]  # after the names of the systems
    return [1.0, *(float(result.p_value) for result in results[1:])]


def _compute_least_p_value(
    counts: Sequence[Sequence[float]], other_counts: Sequence[Sequence[float]]
) -> float:
    """Return the least p-value of an exact two-sided test: k sentences differ, 2^k exchanges.

    sacreBLEU ignores samples whose difference equals the real one, so that systems with few
    differing sentences would seem to differ for certain.
    """
    pairs = zip(counts, other_counts, strict=True)
    differing = sum(list(one) != list(other) for one, other in pairs)
    return min(1.0, 2.0 ** (1 - differing))
