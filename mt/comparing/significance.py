"""Whether a difference of scores is more than chance, by sacreBLEU's own tests.

Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation" (bootstrap); Riezler
and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation and Significance Testing for MT"
(approximate randomisation).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from mt.comparing.systems import EvaluationSet, System
from mt.evaluation.forms import label
from mt.evaluation.scores import Interval, choose_metrics

if TYPE_CHECKING:
    from sacrebleu.significance import Result

SIGNIFICANT = 0.05
_INTERVAL_SAMPLES = 1000

Resampling = Literal["bootstrap", "randomization"]
_SACREBLEU_TESTS: dict[Resampling, str] = {"bootstrap": "bs", "randomization": "ar"}
SAMPLES: dict[Resampling, int] = {"bootstrap": 1000, "randomization": 10_000}
"""How often is drawn where nothing else is asked for."""

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
    each signature.
    """
    from sacrebleu.significance import PairedTest

    chosen = choose_metrics(common.target_language, common.tokenizer, metrics)
    paired = PairedTest(
        [(system.name, system.translations) for system in systems],
        {str(number): metric for number, metric in enumerate(chosen)},
        common.references,
        test_type=_SACREBLEU_TESTS[test],
        n_samples=samples or SAMPLES[test],
        n_ar_confidence=_INTERVAL_SAMPLES if test == "randomization" else -1,
    )
    signatures, columns = paired()
    form = label(common.references, common.target_language)
    return [
        tuple(
            _scores(
                name,
                cast("Sequence[Result]", columns[name]),
                systems,
                signature=_marked(str(signature), form),
            )
        )
        for name, signature in signatures.items()
    ]


def _marked(signature: str, form: str) -> str:
    return f"{signature}|text:{form}" if form else signature


def _scores(
    metric: str, results: "Sequence[Result]", systems: Sequence[System], *, signature: str
) -> Iterator[PairedScore]:
    baseline = systems[0]
    for result, system in zip(results, systems, strict=True):
        difference = p_value = None
        if result.p_value is not None:
            difference = result.score - results[0].score
            p_value = _p_value(result.p_value, difference, smallest=_smallest(baseline, system))
        forced = f"|forced:{system.forced}" if system.forced else ""
        assert result.mean is not None and result.ci is not None, "intervals were asked for"
        yield PairedScore(
            metric,
            float(result.score),
            interval=Interval(float(result.mean), float(result.ci)),
            difference=difference,
            p_value=p_value,
            signature=f"{signature}{forced}",
        )


def _p_value(p_value: float, difference: float, *, smallest: float) -> float:
    """Return a p-value that a difference can have; 1 where there is none.

    sacreBLEU counts the samples whose difference is larger than the real one, but not those that
    equal it: systems that are the same in all or nearly all sentences would seem to differ for
    sure.
    """
    return 1.0 if difference == 0 else max(p_value, smallest)


def _smallest(one: System, other: System) -> float:
    """Return the least p-value of an exact two-sided test: k differing sentences, 2^k ways."""
    differing = sum(map(str.__ne__, one.translations, other.translations))
    return min(1.0, 2.0 ** (1 - differing))
