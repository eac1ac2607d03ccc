"""What an ablation has come to: each variant's numbers over its seeds, beside the base's."""

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

from mt.config.ablation import BASE
from mt.errors import listed
from mt.evaluation.scores import Score


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of a variant."""

    parameters: int
    updates_per_second: float
    """Of training alone, without validation and start-up."""
    valid_loss: float
    """Nats per target piece."""
    valid_bleu: Score
    test_bleu: Score | None
    """None where the ablation names no split."""


@dataclass(frozen=True, slots=True)
class VariantResults:
    """The runs of a variant that have ended."""

    name: str
    changes: tuple[str, ...]
    outcomes: dict[int, RunResult | None] = field(default_factory=dict)
    """By seed; None where the run has diverged."""

    @property
    def runs(self) -> dict[int, RunResult]:
        """The runs that came to a model, by seed."""
        return {seed: run for seed, run in self.outcomes.items() if run}

    @property
    def diverged(self) -> list[int]:
        """The seeds with which it has diverged."""
        return [seed for seed, run in self.outcomes.items() if not run]

    @property
    def parameters(self) -> int:
        """The parameters of a run; where the seeds gave other vocabularies, of the first."""
        return next(iter(self.runs.values())).parameters

    @property
    def signatures(self) -> list[str]:
        """The signatures of all scores, each once."""
        scores = [score for run in self.runs.values() for score in (run.valid_bleu, run.test_bleu)]
        return list(dict.fromkeys(score.signature for score in scores if score))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a number of a variant is held against that of the base."""

    of: Callable[[float, float], float]
    written: str
    """A format, in which {0} is what `of` returns and {1} how many digits it is worth."""


DIFFERENCE = Comparison(operator.sub, "{0:+.{1}f}")
RATIO = Comparison(operator.truediv, "{0:.{1}f}x")


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that every run has."""

    key: str
    heading: str
    of: Callable[[RunResult], float]
    digits: int
    comparison: Comparison = DIFFERENCE


@dataclass(frozen=True, slots=True)
class Compared:
    """A measure over the seeds of a variant."""

    mean: float
    deviation: float | None
    """Of the sample, with n - 1 below; None for one seed, which has no spread."""
    to_base: float | None
    """Over the seeds that both have; None where there is none, and for the base itself."""


@dataclass(frozen=True)
class AblationResults:
    """The variants of which a run has ended, the base first, and what to print of them."""

    variants: tuple[VariantResults, ...]
    split: str | None
    """The split that is scored besides the validation."""
    exit_status: int = 0
    """Not 0 where a signal has ended the ablation early."""

    def as_text(self) -> str:
        """Return a Markdown table; under it sacreBLEU's signature and what the numbers are."""
        if not self.variants:
            return "no run has ended"
        measures = _measures(self.split)
        heads = [head for measure in measures for head in (measure.heading, "vs base")]
        rows = [self._row(variant, measures) for variant in self.variants]
        table = _markdown([["variant", "parameters", *heads, "seeds"], *rows])
        return "\n".join([table, "", *(f"- {note}" for note in self._notes())])

    def as_json(self) -> str:
        """Return the same in full precision, and the numbers of each run, as indented JSON."""
        return json.dumps(self.as_record(), indent=2, ensure_ascii=False)

    def as_record(self) -> dict[str, Any]:
        """Return what `as_json` writes, before it is text."""
        return {"split": self.split, "variants": [self._record(each) for each in self.variants]}

    def compared(self, measure: Measure, variant: VariantResults) -> Compared | None:
        """Return a measure of a variant; None where all its runs have diverged."""
        values = {seed: measure.of(run) for seed, run in variant.runs.items()}
        if not values:
            return None
        base = {seed: measure.of(run) for seed, run in self.variants[0].runs.items()}
        both = [seed for seed in values if seed in base and variant.name != BASE]
        means = [fmean(each[seed] for seed in both) for each in (values, base)] if both else []
        return Compared(
            mean=fmean(values.values()),
            deviation=stdev(values.values()) if len(values) > 1 else None,
            to_base=measure.comparison.of(*means) if both else None,
        )

    def _row(self, variant: VariantResults, measures: Sequence[Measure]) -> list[str]:
        row = [variant.name, f"{variant.parameters:,}" if variant.runs else "-"]
        for measure in measures:
            row += _cells(measure, self.compared(measure, variant))
        diverged = [f"{len(variant.diverged)} diverged"] if variant.diverged else []
        return [*row, ", ".join([str(len(variant.runs)), *diverged])]

    def _record(self, variant: VariantResults) -> dict[str, Any]:
        compared = {each.key: self.compared(each, variant) for each in _measures(self.split)}
        return {
            "name": variant.name,
            "changes": list(variant.changes),
            "parameters": variant.parameters if variant.runs else None,
            **{key: asdict(value) if value else None for key, value in compared.items()},
            "bleu_signatures": variant.signatures,
            "seeds": list(variant.runs),
            "diverged_seeds": variant.diverged,
            "runs": [{"seed": seed, **asdict(run)} for seed, run in variant.runs.items()],
        }

    def _notes(self) -> Iterator[str]:
        named = {
            signature: [each.name for each in self.variants if signature in each.signatures]
            for variant in self.variants
            for signature in variant.signatures
        }
        for signature, names in named.items():
            yield f"BLEU{f' of {listed(names)}' if len(named) > 1 else ''}: {signature}"
        yield (
            "updates/s: in training alone, without validation and start-up; other work on the "
            "machine lowers it"
        )
        yield (
            "each number is the mean over the seeds, ± the standard deviation of the sample; "
            "`vs base` is over the seeds that both have"
        )
        single = [variant.name for variant in self.variants if len(variant.runs) == 1]
        if single:
            yield f"one seed alone has no spread, a difference may be chance: {listed(single)}"
        if self.exit_status:
            yield "stopped early: these are the runs that had ended"


def _measures(split: str | None) -> list[Measure]:
    measures = [
        Measure("updates_per_second", "updates/s", lambda run: run.updates_per_second, 2, RATIO),
        Measure("valid_loss", "valid loss", lambda run: run.valid_loss, 3),
        Measure("valid_bleu", "valid BLEU", lambda run: run.valid_bleu.value, 2),
    ]
    if split is not None:
        measures.append(Measure("test_bleu", f"{split} BLEU", _test_bleu, 2))
    return measures


def _test_bleu(run: RunResult) -> float:
    assert run.test_bleu is not None, "asked for only where a split is scored"
    return run.test_bleu.value


def _cells(measure: Measure, compared: Compared | None) -> tuple[str, str]:
    if compared is None:
        return "-", "-"
    mean = f"{compared.mean:.{measure.digits}f}"
    if compared.deviation is not None:
        mean += f" ± {compared.deviation:.{measure.digits}f}"
    if compared.to_base is None:
        return mean, "-"
    return mean, measure.comparison.written.format(compared.to_base, measure.digits)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of them the heads, as a table that also reads well as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = [f"{'-' * (width - 1)}{':' if place else '-'}" for place, width in enumerate(widths)]
    lines = [
        [
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (rows[0], rule, *rows[1:])
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
