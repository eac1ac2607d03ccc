"""Train the variants of an ablation, a seed at a time, and read off what each run has come to."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from safetensors.torch import load_file

from mt.config import Config
from mt.config.ablation import Ablation
from mt.errors import DivergedError, RunError
from mt.evaluation.evaluate import evaluate_run
from mt.evaluation.guard import FORMS
from mt.evaluation.job import EvaluationJob
from mt.evaluation.scores import Score
from mt.training.ablation_results import AblationResults, RunResult, VariantResults
from mt.training.interruption import Interruption, interruptible
from mt.training.run_folder import RunFolder, open_run
from mt.training.train import train


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
        test_bleu=None if split is None else _test_bleu(config, folder, split),
    )


def _test_bleu(config: Config, folder: RunFolder, split: str) -> Score:
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
