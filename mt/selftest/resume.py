"""A proof, on the user's own machine, that a training which is killed is the same afterwards."""

import json
import logging
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mt.config import Config
from mt.errors import RunError
from mt.files import file_sha256
from mt.selftest.killing import Hit, Kill, Moment, TrainingProcess
from mt.selftest.run_differences import run_differences
from mt.training.run_folder import RunFolder

SHOWN_DIFFERENCES = 5

# About what a start, a few updates and a save take.
_LONGEST_DELAY_SECONDS = {"starting": 0.2, "any time": 0.05, "saving": 0.01}
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_PAIRS = {"train": 48, "valid": 16}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proof:
    """What came of killing a training, and in what it then was another one."""

    hits: tuple[Hit, ...]
    updates: int
    weights: str
    """SHA-256 of the final weights of the run that nobody killed."""
    differences: tuple[str, ...]
    folder: Path

    @property
    def passed(self) -> bool:
        """Tell whether the killed run is the same."""
        return not self.differences

    @property
    def text(self) -> str:
        """Return the verdict: a line, and where it failed one for each of the first differences."""
        saving = sum(hit.saving is not None for hit in self.hits)
        kills = f"{len(self.hits)} kills ({saving} while saving)"
        if self.passed:
            return f"resume: ok, {kills} in {self.updates} updates, final weights {self.weights}"
        lines = [f"resume: FAILED, {kills}; the runs are in {self.folder}"]
        lines += [f"  {line}" for line in self.differences[:SHOWN_DIFFERENCES]]
        more = len(self.differences) - SHOWN_DIFFERENCES
        return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)


def selftest_resume(kills: int, seed: int | None) -> Proof:
    """Train a small model twice, the second time killed over and over, and compare the two runs.

    `seed` draws the moments of the kills; where it is None, it is drawn too. The runs are deleted
    unless they differ.
    """
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="mt-selftest-"))
    keep = False
    try:
        _logger.info("the moments of %d kills are drawn with --seed %d", kills, seed)
        proof = prove_resume(folder, selftest_config(folder), kills=kills, seed=seed)
        keep = not proof.passed
        return proof
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def selftest_config(folder: Path) -> Config:
    """Write a corpus into a folder, and return a training in which every kind of state matters.

    The targets have nothing to do with the sources: all there is to learn is soon learned, and
    patience ends the run. Updates are cut into micro-batches, epochs end between checkpoints and
    have other tokens each, every kind of dropout draws, and weights are averaged as they move.
    """
    for split, pairs in _PAIRS.items():
        draw = random.Random(split)
        for language in ("en", "de"):
            lines = [" ".join(draw.choices(_WORDS, k=draw.randint(3, 9))) for _ in range(pairs)]
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    sources = {
        split: {"source": f"{folder / split}.en", "target": f"{folder / split}.de"}
        for split in _PAIRS
    }
    return Config.model_validate(
        {
            "data": {"source_language": "en", "target_language": "de", "max_tokens": 64, **sources},
            **_SETTINGS,
        }
    )


_SETTINGS = {
    "tokenizer": {"vocabulary_size": 300, "sampling": 0.05},
    "model": {
        "d_model": 32,
        "d_ff": 64,
        "heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "feed_forward_dropout": 0.1,
    },
    "training": {
        "max_updates": 300,
        "patience": 3,
        "target_tokens_per_update": 150,
        "max_tokens_per_batch": 100,
        "learning_rate": 1e-2,
        "warmup_updates": 20,
        "ema_decay": 0.8,
        "log_every": 1,
        "checkpoint_every": 5,
        "validate_every": 12,
        "best_metric": "loss",
        "keep_best": 3,
        "device": "cpu",
        "precision": "fp32",
    },
    "decoding": {"max_length_ratio": 1.0, "max_length_extra": 5},
}


def prove_resume(folder: Path, config: Config, *, kills: int, seed: int) -> Proof:
    """Train in `folder`/whole, train with kills in `folder`/killed, and compare."""
    whole, killed = folder / "whole", folder / "killed"
    updates = train_whole(config, whole)
    hits: list[Hit] = []
    try:
        train_killed(config, killed, plan=plan_kills(kills, updates, seed=seed), hits=hits)
        differences = run_differences(killed, whole)
    except RunError as error:
        differences = [str(error)]
    if not hits and not differences:
        differences = ["the training was over before the first kill"]
    weights = file_sha256(RunFolder(whole).weights)
    return Proof(tuple(hits), updates, weights, tuple(differences), folder)


def plan_kills(kills: int, updates: int, *, seed: int) -> list[Kill]:
    """Draw a moment in each of `kills` equal parts of a run; a third of them while saving.

    The first is at the start, before there is any checkpoint or journal.
    """
    draw = random.Random(seed)
    aimed = set(draw.sample(range(1, kills), k=kills // 3))
    plan = [Kill(0, "any time", draw.uniform(0.0, _LONGEST_DELAY_SECONDS["starting"]))]
    for part in range(1, kills):
        update = int((part + draw.random()) * updates / kills)
        moment: Moment = "saving" if part in aimed else "any time"
        plan.append(Kill(update, moment, draw.uniform(0.0, _LONGEST_DELAY_SECONDS[moment])))
    return plan


def train_whole(config: Config, run: Path) -> int:
    """Train without interruption; return the number of updates."""
    started_at = time.perf_counter()
    with TrainingProcess(config, run) as process:
        process.wait()
    updates: int = json.loads(RunFolder(run).model.read_text(encoding="utf-8"))["updates"]
    seconds = time.perf_counter() - started_at
    _logger.info("trained %d updates without interruption in %.1f s", updates, seconds)
    return updates


def train_killed(config: Config, run: Path, *, plan: list[Kill], hits: list[Hit]) -> None:
    """Train, killed as planned and started again each time; `hits` takes in what was hit.

    A kill that comes after the end is none, and those after it are left out. A training that does
    not go on is a RunError.
    """
    for kill in plan:
        with TrainingProcess(config, run) as process:
            hit = process.kill(kill)
        if hit is None:
            break
        hits.append(hit)
        _logger.info("kill %d of %d: %s", len(hits), len(plan), hit.as_text())
    with TrainingProcess(config, run) as process:
        process.wait()
    _logger.info("came to the end")
