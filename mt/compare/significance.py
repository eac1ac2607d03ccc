"""Whether a difference of scores is more than chance, by sacreBLEU's tests, two-sided.

Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation" (bootstrap); Riezler
and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation and Significance Testing for MT"
(approximate randomisation).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, cast

from mt.compare.systems import EvaluationSet, System
from mt.errors import UserError
from mt.evaluation.scores import Interval, choose_metrics, label

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.significance import Result

SIGNIFICANT = 0.05
_INTERVAL_SAMPLES = 1000
_MANY = 20
"""One in 2^19 is less than a p-value of 100,000 samples can be."""

Resampling = Literal["bootstrap", "randomization"]
_SACREBLEU_TESTS: dict[Resampling, str] = {"bootstrap": "bs", "randomization": "ar"}
SAMPLES: dict[Resampling, int] = {"bootstrap": 1000, "randomization": 10_000}
"""How often is drawn where nothing else is asked for."""
_TAILS: dict[Resampling, int] = {"bootstrap": 2, "randomization": 1}
"""What makes sacreBLEU's p-values two-sided."""

_MOST_DRAWN: dict[Resampling, int] = {"bootstrap": 50_000_000, "randomization": 200_000_000}
"""Samples times sentences: sacreBLEU holds them all at once, in some 4 GB."""

Outcome = Literal["baseline", "better", "worse", "no significant difference"]


@dataclass(frozen=True, slots=True)
class PairedScore:
    """A score of one system, and what sets it apart from the baseline's."""

    metric: str
    """`BLEU`, `chrF2`, `chrF2++` or `TER`; of TER alone, lower is better."""
    value: float
    interval: Interval
    """95 % of the bootstrap samples."""
    difference: float | None
    """From the baseline; None of the baseline itself."""
    p_value: float | None
    """How likely so large a difference is where none is."""
    signature: str

    @property
    def outcome(self) -> Outcome:
        """What may be said of the difference, at p < 0.05."""
        if self.difference is None or self.p_value is None:
            return "baseline"
        if self.p_value >= SIGNIFICANT:
            return "no significant difference"
        return "better" if (self.difference > 0) == (self.metric != "TER") else "worse"


def score_systems(
    common: EvaluationSet,
    systems: Sequence[System],
    *,
    test: Resampling = "bootstrap",
    samples: int | None = None,
    metrics: Sequence[str] = (),
) -> list[tuple[PairedScore, ...]]:
    """Score the systems and test each against the first; a tuple for each metric, in their order.

    `samples` are those of `SAMPLES` where None. sacreBLEU draws with its fixed seed, which is in
    each signature. Raises UserError where so many samples do not fit into memory.
    """
    from sacrebleu.significance import PairedTest

    samples = samples or SAMPLES[test]
    _check_memory(samples, len(common.references[0]), test)
    chosen = choose_metrics(common.target_language, common.tokenizer, metrics)
    paired = PairedTest(
        [(system.name, system.translations) for system in systems],
        {str(number): metric for number, metric in enumerate(chosen)},
        common.references,
        test_type=_SACREBLEU_TESTS[test],
        n_samples=samples,
        n_ar_confidence=_INTERVAL_SAMPLES if test == "randomization" else -1,
    )
    signatures, columns = paired()
    form = label(common.references, common.target_language)
    found = []
    for metric, (name, signature) in zip(chosen, signatures.items(), strict=True):
        results = cast("Sequence[Result]", columns[name])
        least = [_smallest(metric, common, one=systems[0], other=system) for system in systems]
        p_values = [
            _p_value(result, results[0], smallest=smallest, test=test)
            for result, smallest in zip(results, least, strict=True)
        ]
        signed = _marked(str(signature), form)
        found.append(tuple(_scores(name, results, systems, p_values=p_values, signature=signed)))
    return found


def _check_memory(samples: int, sentences: int, test: Resampling) -> None:
    if samples * sentences > _MOST_DRAWN[test]:
        raise UserError(
            f"{samples:,} samples of {sentences:,} sentences do not fit into memory: take up to "
            f"{_MOST_DRAWN[test] // sentences:,} with --samples"
        )


def _marked(signature: str, form: str) -> str:
    return f"{signature}|text:{form}" if form else signature


def _scores(
    metric: str,
    results: "Sequence[Result]",
    systems: Sequence[System],
    *,
    p_values: Sequence[float | None],
    signature: str,
) -> Iterator[PairedScore]:
    for result, system, p_value in zip(results, systems, p_values, strict=True):
        forced = f"|forced:{system.forced}" if system.forced else ""
        assert result.mean is not None and result.ci is not None, "intervals were asked for"
        yield PairedScore(
            metric,
            float(result.score),
            interval=Interval(float(result.mean), float(result.ci)),
            difference=None if p_value is None else result.score - results[0].score,
            p_value=p_value,
            signature=f"{signature}{forced}",
        )


def _p_value(
    result: "Result", baseline: "Result", *, smallest: float, test: Resampling
) -> float | None:
    """Return a two-sided p-value that a difference can have; 1 where there is none.

    sacreBLEU's bootstrap takes the mean of the absolute differences off them, so that it counts one
    tail: without any real difference 9 % of its p-values are below 0.05. sacreBLEU also leaves out
    the samples whose difference equals the real one: systems that are the same in all or nearly all
    sentences would seem to differ for sure.
    """
    if result.p_value is None:
        return None
    if result.score == baseline.score:
        return 1.0
    return min(1.0, max(_TAILS[test] * result.p_value, smallest))


def _smallest(metric: "Metric", common: EvaluationSet, *, one: System, other: System) -> float:
    """Return the least p-value of an exact two-sided test: k differing sentences, 2^k ways.

    Sentences differ in which the metric counts something else: a space more is nothing to it.
    """

    def counted(text: str, number: int) -> list[list[float]]:
        right = [[lines[number]] for lines in common.references]
        return [[*row] for row in metric._extract_corpus_statistics([text], right)]

    pairs = enumerate(zip(one.translations, other.translations, strict=True))
    differing = (
        number
        for number, (mine, its) in pairs
        if mine != its and counted(mine, number) != counted(its, number)
    )
    return min(1.0, 2.0 ** (1 - sum(1 for _ in islice(differing, _MANY))))
