"""Ablation: training and evaluation of variants over seeds, and a table of the results."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from safetensors.torch import load_file

from mt.config import Config
from mt.config.ablation import BASE, Ablation
from mt.errors import DivergedError, RunError, listed
from mt.evaluation.checks import FORMS
from mt.evaluation.evaluate import EvaluationJob, evaluate_run
from mt.evaluation.run_info import read_events, weights_sha256
from mt.evaluation.scores import Score
from mt.files import read_json
from mt.training.interruption import interruptible
from mt.training.run_folder import RunFolder, open_run
from mt.training.trainer import train


@dataclass(frozen=True, slots=True)
class RunResult:
    """Results of one run."""

    parameters: int
    updates_per_second: float
    """Rate of training, without validation and start-up."""
    valid_loss: float
    """Nats per target token."""
    valid_bleu: Score
    test_bleu: Score | None
    """Test score; None if the ablation names no split."""


@dataclass(frozen=True, slots=True)
class VariantResults:
    """Finished runs of a variant."""

    name: str
    changes: tuple[str, ...]
    outcomes: dict[int, RunResult | None] = field(default_factory=dict)
    """Results by seed; None for a diverged run."""

    @property
    def runs(self) -> dict[int, RunResult]:
        """Runs with a model, by seed."""
        return {seed: run for seed, run in self.outcomes.items() if run}

    @property
    def diverged(self) -> list[int]:
        """Seeds of diverged runs."""
        return [seed for seed, run in self.outcomes.items() if not run]

    @property
    def parameters(self) -> int:
        """Number of parameters of the first run; vocabularies may differ between seeds."""
        return next(iter(self.runs.values())).parameters

    @property
    def signatures(self) -> list[str]:
        """Signatures of all scores, without repetition."""
        scores = [score for run in self.runs.values() for score in (run.valid_bleu, run.test_bleu)]
        return list(dict.fromkeys(score.signature for score in scores if score))


@dataclass(frozen=True, slots=True)
class Measure:
    """Number to report for every run."""

    key: str
    """Attribute of `RunResult`."""
    heading: str
    digits: int
    is_ratio: bool = False
    """True if a variant relates to the base by a ratio instead of a difference."""

    def of(self, run: RunResult) -> float:
        """Return the number of a run."""
        found = getattr(run, self.key)
        return float(found.value if isinstance(found, Score) else found)


@dataclass(frozen=True, slots=True)
class Compared:
    """Measure over the seeds of a variant."""

    mean: float
    deviation: float | None
    """Sample standard deviation (n - 1); None for one seed."""
    to_base: float | None
    """Ratio to or difference from the base over common seeds, if any; None for the base."""


@dataclass(frozen=True)
class AblationResults:
    """Results of the variants with a finished run, the base first."""

    variants: tuple[VariantResults, ...]
    split: str | None
    """Test split, if any."""
    exit_status: int = 0
    """Exit status; not 0 if a signal stopped the ablation."""

    def as_text(self) -> str:
        """Return a Markdown table, with signatures and notes below it."""
        if not self.variants:
            return "no run has ended"
        measures = _measures(self.split)
        heads = [head for measure in measures for head in (measure.heading, "vs base")]
        rows = [self._row(variant, measures) for variant in self.variants]
        table = _markdown([["variant", "parameters", *heads, "seeds"], *rows])
        return "\n".join([table, "", *(f"- {note}" for note in self._notes())])

    def as_json(self) -> str:
        """Return the results of variants and runs in full precision, as indented JSON."""
        return json.dumps(self.as_record(), indent=2, ensure_ascii=False)

    def as_record(self) -> dict[str, Any]:
        """Return the results as plain data."""
        return {"split": self.split, "variants": [self._record(each) for each in self.variants]}

    def compared(self, measure: Measure, variant: VariantResults) -> Compared | None:
        """Compare a measure of a variant with the base; return None if all runs diverged."""
        values = {seed: measure.of(run) for seed, run in variant.runs.items()}
        if not values:
            return None
        base = {seed: measure.of(run) for seed, run in self.variants[0].runs.items()}
        both = [seed for seed in values if seed in base and variant.name != BASE]
        to_base = None
        if both:
            own, other = (fmean(each[seed] for seed in both) for each in (values, base))
            to_base = own / other if measure.is_ratio else own - other
        deviation = stdev(values.values()) if len(values) > 1 else None
        return Compared(fmean(values.values()), deviation, to_base)

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
            "updates/s: rate of training without validation and start-up; other load on the "
            "machine lowers it"
        )
        yield (
            "each number is the mean over the seeds, ± the sample standard deviation; `vs base` is "
            "over the seeds in common"
        )
        single = [variant.name for variant in self.variants if len(variant.runs) == 1]
        if single:
            yield f"only one seed, so that a difference may be chance: {listed(single)}"
        if self.exit_status:
            yield "stopped early: these are the finished runs"


def _measures(split: str | None) -> list[Measure]:
    measures = [
        Measure("updates_per_second", "updates/s", 2, is_ratio=True),
        Measure("valid_loss", "valid loss", 3),
        Measure("valid_bleu", "valid BLEU", 2),
    ]
    if split is not None:
        measures.append(Measure("test_bleu", f"{split} BLEU", 2))
    return measures


def _cells(measure: Measure, compared: Compared | None) -> tuple[str, str]:
    if compared is None:
        return "-", "-"
    digits, to_base = measure.digits, compared.to_base
    mean = f"{compared.mean:.{digits}f}"
    if compared.deviation is not None:
        mean += f" ± {compared.deviation:.{digits}f}"
    if to_base is None:
        return mean, "-"
    return mean, f"{to_base:.{digits}f}x" if measure.is_ratio else f"{to_base:+.{digits}f}"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns; the first row is the header."""
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

    The run folders are `runs`/NAME-seedN; a finished run is not trained again. A diverged run is
    logged and does not stop the ablation. A signal stops it at the same point as `mt train`; the
    results are then those of the finished runs, with the exit status of the signal.
    """
    rows = [VariantResults(each.name, each.changes) for each in ablation.variants]
    planned = [
        (row, variant.seeded(seed), runs / f"{variant.name}-seed{seed}")
        for seed in ablation.seeds
        for row, variant in zip(rows, ablation.variants, strict=True)
    ]
    for _, config, run in planned:
        if run.exists():
            open_run(run, config)  # raises RunError if another config trained there
    with interruptible() as interruption:
        for number, (row, config, run) in enumerate(planned, 1):
            _log(f"run {number} of {len(planned)}: {run.name}")
            try:
                row.outcomes[config.seed] = _train_and_score(config, run, ablation.split)
            except SystemExit:  # ends a training run that a signal stopped
                if not interruption.signal:
                    raise
            if interruption.signal:
                break
    ended = tuple(row for row in rows if row.outcomes)
    status = interruption.exit_status if interruption.signal else 0
    return AblationResults(ended, split=ablation.split, exit_status=status)


def updates_per_second(events: Iterable[Mapping[str, Any]]) -> float:
    """Return the median rate of updates between `train` events of a journal.

    The median excludes the intervals that start-up, checkpoints or other load slow down.

    Raises DivergedError if no update had a finite loss and gradient.
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
        raise DivergedError("no update had a finite loss and gradient")
    return median(rates)


def _train_and_score(config: Config, run: Path, split: str | None) -> RunResult | None:
    """Train and score one run; return None if it diverges."""
    folder = RunFolder(run)
    try:
        _log(train(config, run))
        events = list(read_events(folder.metrics))
        final = [event for event in events if event["event"] == "final"]
        rate = updates_per_second(events) if final else 0.0
    except DivergedError as error:
        _log(f"diverged: {error}")
        return None
    if not final:
        raise RunError(f"{folder.metrics}: ends before the run that {folder.model.name} describes")
    return RunResult(
        parameters=sum(tensor.numel() for tensor in load_file(folder.weights).values()),
        updates_per_second=rate,
        valid_loss=final[-1]["loss"],
        valid_bleu=Score("BLEU", final[-1]["bleu"], final[-1]["bleu_signature"]),
        test_bleu=None if split is None else _score_split(config, folder, split),
    )


def _score_split(config: Config, folder: RunFolder, split: str) -> Score:
    """Score the split, unless it was scored with these weights and decoding settings."""
    path = folder.path / "evaluations" / f"{split}.json"
    with suppress(FileNotFoundError, RunError, KeyError, TypeError):
        written = read_json(path, dict[str, Any])
        scored = weights_sha256(folder.path), config.decoding.model_dump(mode="json")
        if (written["weights"], written["decoding"]) == scored:
            return Score("BLEU", written["bleu"]["score"], written["bleu"]["signature"])
    device, job = config.training.device, EvaluationJob(allow=FORMS)
    return evaluate_run(folder.path, split=split, device=device, job=job).bleu


def _log(message: str) -> None:
    sys.stderr.write(f"{message}\n")
