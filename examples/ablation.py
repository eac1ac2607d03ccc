"""Ablation: a base config, trained and scored with one change at a time over some seeds.

    python examples/ablation.py configs/ablation/multi30k.yaml

The run folders are runs/ablation-NAME-OF-FILE/VARIANT-seedN.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Annotated, Any

from pydantic import Field
from safetensors.torch import load_file

from mt.config import Config, DecodingConfig
from mt.config.base import LocalPath, Section
from mt.config.loading import load_config, read_document, validate_document
from mt.errors import (
    ConfigError,
    DivergedError,
    RunError,
    did_you_mean,
    listed,
    run_reporting_errors,
)
from mt.evaluation.checks import FORMS
from mt.evaluation.evaluate import EvaluationJob, evaluate_run
from mt.evaluation.run_info import read_events
from mt.evaluation.scores import Score
from mt.files import read_json
from mt.runs import EVALUATIONS_FOLDER, MODEL_FILE, read_description
from mt.training.run_folder import RunFolder
from mt.training.trainer import train

BASE = "base"
ChangeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Overrides = Annotated[tuple[str, ...], Field(strict=False)]
"""`KEY=VALUE` overrides, as for `--set`."""


class AblationFile(Section):
    """Content of an ablation file."""

    config: LocalPath
    set_: Annotated[Overrides, Field(alias="set")] = ()
    """`KEY=VALUE` overrides of every variant, the base included."""
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(strict=False, min_length=1)
    ]
    split: str | None = None
    """Split to score besides validation; null: none."""
    changes: dict[ChangeName, Overrides] = Field(default_factory=dict)
    """`KEY=VALUE` overrides by name of the variant."""

    def _broken_rules(self) -> Iterator[str]:
        if len(set(self.seeds)) < len(self.seeds):
            yield "`seeds` has a duplicate: it would train the same run again"
        if BASE in self.changes:
            yield f"`changes.{BASE}`: this name is reserved for the variant without a change"
        for overrides in (self.set_, *self.changes.values()):
            if any(override.startswith("seed=") for override in overrides):
                yield "`set` and `changes` cannot set the seed, which comes from `seeds`"


@dataclass(frozen=True, slots=True)
class Ablation:
    """Configs to train with each seed."""

    configs: Mapping[str, Config]
    seeds: tuple[int, ...]
    split: str | None


def load_ablation(path: Path) -> Ablation:
    """Read an ablation file and check the config of every variant.

    Raises ConfigError for an invalid file or variant, and for a change that changes nothing.
    """
    file = validate_document(AblationFile, read_document(path), file=str(path))
    configs: dict[str, Config] = {}
    for name, changes in {BASE: (), **file.changes}.items():
        try:
            config = load_config(file.config, overrides=[*file.set_, *changes])
            splits = config.data.split_names()
            if file.split is not None and file.split not in splits:
                near = did_you_mean(file.split, splits) or f"; there are {listed(splits)}"
                raise ConfigError(f"the config has no split `{file.split}`{near}")
            if config == configs.get(BASE):
                raise ConfigError(f"changes nothing; it is the same as `{BASE}`")
        except ConfigError as error:
            key = BASE if name == BASE else f"changes.{name}"
            raise ConfigError(f"{path}: `{key}`: {error}") from None
        configs[name] = config
    return Ablation(configs, file.seeds, file.split)


@dataclass(frozen=True, slots=True)
class RunScores:
    """Numbers of one run."""

    parameters: int
    tokens_per_second: float
    """Median rate of target tokens, without validation and start-up."""
    valid_loss: float
    """Nats per target token."""
    valid_bleu: Score
    test_bleu: Score | None = None
    """None if the ablation names no split."""

    def values(self) -> list[float]:
        """Return the numbers in the order of the table."""
        test = [self.test_bleu.value] if self.test_bleu else []
        return [self.tokens_per_second, self.valid_loss, self.valid_bleu.value, *test]


AblationScores = dict[str, dict[int, RunScores | None]]
"""Scores by variant and seed; None for a diverged run."""


def run_ablation(ablation: Ablation, runs: Path) -> AblationScores:
    """Train and score every variant with the first seed, then with the next, and so on.

    The run folders are `runs`/NAME-seedN; a finished run is not trained again. A diverged run is
    logged and does not stop the ablation. A signal ends it as it ends `mt train`.
    """
    planned = [
        (name, config.changed(seed=seed), runs / f"{name}-seed{seed}")
        for seed in ablation.seeds
        for name, config in ablation.configs.items()
    ]
    for _, config, run in planned:
        if RunFolder(run).has_trained():
            RunFolder(run).resume_config(config)  # raises RunError if it had another config
    scores: AblationScores = {name: {} for name in ablation.configs}
    for position, (name, config, run) in enumerate(planned, 1):
        _log(f"run {position} of {len(planned)}: {run.name}")
        try:
            _log(train(config, run))
            folder = RunFolder(run)
            decoding = load_config(folder.config).decoding  # the training may have chosen a search
            device = config.training.device
            scores[name][config.seed] = _score_run(folder, ablation.split, decoding, device)
        except DivergedError as error:
            _log(f"diverged: {error}")
            scores[name][config.seed] = None
    return scores


def _score_run(
    folder: RunFolder, split: str | None, decoding: DecodingConfig, device: str
) -> RunScores:
    """Score a finished run; raise DivergedError if no update of it was finite."""
    events = list(read_events(folder.metrics))
    final = [event for event in events if event["event"] == "final"]
    trained = [event for event in events if event["event"] == "train" and event["target_tokens"]]
    if not final:
        raise RunError(f"{folder.metrics}: ends before the run that {folder.model.name} describes")
    if not trained:
        raise DivergedError(f"{folder.path}: no update had a finite loss and gradient")
    return RunScores(
        parameters=sum(tensor.numel() for tensor in load_file(folder.weights).values()),
        tokens_per_second=median(event["target_tokens_per_second"] for event in trained),
        valid_loss=final[-1]["loss"],
        valid_bleu=Score("BLEU", final[-1]["bleu"], final[-1]["bleu_signature"]),
        test_bleu=_score_split(folder.path, split, decoding, device) if split else None,
    )


def _score_split(run: Path, split: str, decoding: DecodingConfig, device: str) -> Score:
    """Score the split, unless it was scored with these weights and decoding settings."""
    with suppress(FileNotFoundError, RunError, KeyError, TypeError):
        record = read_json(run / EVALUATIONS_FOLDER / f"{split}.json", dict[str, Any])
        settings = decoding.model_dump(mode="json")
        if (record["weights"], record["decoding"]) == (
            read_description(run / MODEL_FILE).weights,
            settings,
        ):
            return Score("BLEU", record["bleu"]["score"], record["bleu"]["signature"])
    return evaluate_run(run, split=split, device=device, job=EvaluationJob(allow=FORMS)).bleu


def format_scores(scores: AblationScores, split: str | None) -> str:
    """Return a Markdown table of means and deviations, with signatures and notes below it."""
    headings = ["tokens/s", "valid loss", "valid BLEU", *([f"{split} BLEU"] if split else [])]
    head = [cell for heading in headings for cell in (heading, "vs base")]
    rows = [["variant", "parameters", *head, "seeds"]]
    signatures: dict[str, dict[str, None]] = {}
    base = {seed: run.values() for seed, run in scores[BASE].items() if run}
    for name, runs in scores.items():
        finished = {seed: run for seed, run in runs.items() if run}
        row = [name, "-"]
        for run in finished.values():
            row[1] = f"{run.parameters:,}"
            for score in filter(None, (run.valid_bleu, run.test_bleu)):
                signatures.setdefault(score.signature, {})[name] = None
        for column, heading in enumerate(headings):
            values = {seed: run.values()[column] for seed, run in finished.items()}
            others = {seed: numbers[column] for seed, numbers in base.items() if name != BASE}
            digits = {"tokens/s": 0, "valid loss": 3}.get(heading, 2)
            row += _format_cells(values, others, digits=digits)
        diverged = len(runs) - len(finished)
        rows.append([*row, f"{len(finished)}{f', {diverged} diverged' if diverged else ''}"])
    notes = [
        f"BLEU{f' of {listed(names)}' if len(signatures) > 1 else ''}: {signature}"
        for signature, names in signatures.items()
    ]
    notes.append("mean over the seeds, ± sample standard deviation; `vs base`: over common seeds")
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def _format_cells(
    values: Mapping[int, float], base: Mapping[int, float], *, digits: int
) -> tuple[str, str]:
    """Return the mean with its deviation, and the difference from the base over common seeds."""
    if not values:
        return "-", "-"
    mean = f"{fmean(values.values()):.{digits}f}"
    if len(values) > 1:
        mean += f" ± {stdev(values.values()):.{digits}f}"
    common = values.keys() & base.keys()
    if not common:
        return mean, "-"
    return mean, f"{fmean(values[seed] - base[seed] for seed in common):+z.{digits}f}"


def _log(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def main() -> int:
    """Run the ablation of a file and print its table."""
    file = Path(sys.argv[1])
    ablation = load_ablation(file)
    scores = run_ablation(ablation, Path("runs") / f"ablation-{file.stem}")
    print(format_scores(scores, ablation.split))
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("mt").setLevel(logging.INFO)
    sys.exit(run_reporting_errors(main))
