"""Train the variants of an ablation, a seed at a time, and read off what each run has come to."""

import json
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from safetensors.torch import load_file

from mt.config import Config
from mt.config.ablation import BASE, Ablation
from mt.errors import DivergedError, RunError, listed
from mt.evaluation.checks import FORMS
from mt.evaluation.evaluate import EvaluationJob, evaluate_run
from mt.evaluation.scores import Score
from mt.training.interruption import Interruption, interruptible
from mt.training.run_folder import RunFolder, open_run
from mt.training.trainer import train


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of a variant."""

    parameters: int
    updates_per_second: float
    """Of training alone, without validation and start-up."""
    valid_loss: float
    """Nats per target token."""
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


def run_ablation(ablation: Ablation, runs: Path) -> AblationResults:
    """Train and score every variant with the first seed, then with the next, and so on.

    The runs lie in `runs`/NAME-seedN; one that has come to a model is not trained again. A run
    that diverges is told on stderr and the others go on. A signal ends the ablation where it would
    end `mt train`; the results then are those of the runs before it, with the exit status for it.
    """
    rows = [VariantResults(each.name, each.changes) for each in ablation.variants]
    planned = [
        (row, variant.seeded(seed), runs / f"{variant.name}-seed{seed}")
        for seed, (row, variant) in product(
            ablation.seeds, zip(rows, ablation.variants, strict=True)
        )
    ]
    for _, config, run in planned:
        if run.exists():
            open_run(run, config)  # what another config has trained there is told before any work
    with interruptible() as interruption:
        for number, (row, config, run) in enumerate(planned, 1):
            _tell(f"run {number} of {len(planned)}: {run.name}")
            with _leaving_after(interruption):
                row.outcomes[config.seed] = _outcome(config, run, ablation.split)
            if interruption.signal:
                break
    ended = tuple(row for row in rows if row.outcomes)
    status = interruption.exit_status if interruption.signal else 0
    return AblationResults(ended, split=ablation.split, exit_status=status)


def updates_per_second(events: Iterable[Mapping[str, Any]]) -> float:
    """Return the median rate over the stretches of a journal.

    A stretch lies between two `train` lines, validations left out. Start-up, checkpoints and what
    else the machine had to do slow a few of them, and the median does not see a few.

    Raises DivergedError where no update had a loss and gradient that are finite.
    """
    rates: list[float] = []
    before = 0
    for event in events:
        if event["event"] == "train" and event["target_tokens"]:
            seconds = event["target_tokens"] / event["target_tokens_per_second"]
            rates.append((event["update"] - before) / seconds)
        if event["event"] in ("start", "resume", "train", "rollback"):
            before = event["update"]
    if not rates:
        raise DivergedError("no update had a loss and gradient that are finite")
    return median(rates)


@contextmanager
def _leaving_after(interruption: Interruption) -> Iterator[None]:
    """Let a training that leaves since it was told to stop end here, and no other exit."""
    try:
        yield
    except SystemExit:
        if not interruption.signal:
            raise


def _outcome(config: Config, run: Path, split: str | None) -> RunResult | None:
    """Train and score one run; None where it diverges, which no other error counts as."""
    try:
        _tell(train(config, run))
        return _result(config, RunFolder(run), split)
    except DivergedError as error:
        _tell(f"diverged: {error}")
        return None


def _result(config: Config, folder: RunFolder, split: str | None) -> RunResult:
    events = list(_events(folder.metrics))
    final = [event for event in events if event["event"] == "final"]
    if not final:
        raise RunError(f"{folder.metrics}: lacks the end of the run that {folder.model.name} tells")
    return RunResult(
        parameters=sum(tensor.numel() for tensor in load_file(folder.weights).values()),
        updates_per_second=updates_per_second(events),
        valid_loss=final[-1]["loss"],
        valid_bleu=Score("BLEU", final[-1]["bleu"], final[-1]["bleu_signature"]),
        test_bleu=None if split is None else _test_bleu_ablation(config, folder, split),
    )


def _test_bleu_ablation(config: Config, folder: RunFolder, split: str) -> Score:
    """Score the split, unless the scores of this model with this search are there."""
    path = folder.path / "evaluations" / f"{split}.json"
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        written = json.loads(path.read_text(encoding="utf-8"))
        model = json.loads(folder.model.read_text(encoding="utf-8"))
        scored = {"weights": model["weights"], "decoding": config.decoding.model_dump(mode="json")}
        if all(written[name] == value for name, value in scored.items()):
            return Score("BLEU", written["bleu"]["score"], written["bleu"]["signature"])
    device, job = config.training.device, EvaluationJob(allow=FORMS)
    return evaluate_run(folder.path, split=split, device=device, job=job).bleu


def _events(journal: Path) -> Iterator[Mapping[str, Any]]:
    """Yield what stands in a journal; a line that a full disk cut short is left out."""
    for line in journal.read_text(encoding="utf-8").split("\n"):
        with suppress(ValueError):
            yield json.loads(line)


def _tell(message: str) -> None:
    sys.stderr.write(f"{message}\n")
