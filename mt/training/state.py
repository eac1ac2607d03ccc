"""Progress of a training run beside its tensors, and the detection of divergence."""

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean

from mt.errors import RunError, listed
from mt.files import validate_values
from mt.training.step import StepMetrics

STATE_FORMAT = 2
MOST_SKIPPED_IN_A_ROW = 25
WINDOW = 50
"""Number of updates in the mean loss; sentences of one length can be 0.5 nats from the mean."""
_FIRST = 8
"""Number of updates whose highest loss stands for the mean: the first may be of known pairs."""
MARGIN = 1.5
"""Nats above the lowest mean at which a run has diverged; healthy runs stay within some tenths."""


@dataclass
class Health:
    """Losses of the last updates, and the best mean so far."""

    losses: list[float] = field(default_factory=list)
    """Smoothed loss of the last updates that were not skipped, in nats per target token."""
    lowest: float | None = None
    """Lowest mean over WINDOW losses; the highest of the first losses until there is a mean."""
    well_at: int = 0
    """Newest update whose own loss and mean loss were near the lowest.

    Its loss was computed before its optimizer step, so that step may still be the cause.
    """
    skipped_in_a_row: int = 0
    lowest_validated: float | None = None
    """Lowest validation loss at a gain, from which `patience` judges the next ones."""
    highest_chrf: float = 0.0
    """Highest chrF2 at a gain."""

    def add(self, metrics: StepMetrics, update: int, guess: float = math.inf) -> None:
        """Add the metrics of one update; `guess` is a loss that a healthy run is not far above."""
        if metrics.skipped:
            self.skipped_in_a_row += 1
            return
        self.skipped_in_a_row = 0
        loss = metrics.smoothed / metrics.tokens.target
        self.losses = [*self.losses, loss][-WINDOW:]
        mean = fmean(self.losses)
        if self.lowest is None or len(self.losses) <= _FIRST:
            self.lowest = max(self.losses)  # a model that learns falls below it
        elif len(self.losses) == WINDOW:
            self.lowest = min(mean, self.lowest)
        self.lowest = min(self.lowest, guess)
        if max(loss, mean) < self.lowest + MARGIN / 2:
            self.well_at = update

    def divergence(self) -> str | None:
        """Return how the training has diverged; None if it has not."""
        if self.skipped_in_a_row > MOST_SKIPPED_IN_A_ROW:
            count = self.skipped_in_a_row
            return f"{count} updates in a row had a loss or gradient that is not finite"
        if self.lowest is None or len(self.losses) < WINDOW:
            return None
        mean = fmean(self.losses)
        text = f"the loss has exploded: its mean over {WINDOW} updates is {mean:.2f}, far above "
        text += f"{self.lowest:.2f}, its lowest or that of a guess among all tokens"
        return text if mean > self.lowest + MARGIN else None


_CLEARLY_LOWER = 0.99
"""Share of a loss or chrF2 below which another is lower by more than chance."""


@dataclass(frozen=True)
class Ranked:
    """A checkpoint and its validation: the best has the highest `score`, or else the best chrF2."""

    update: int
    score: float
    """Value of `training.best_metric`, the loss negated; 0 for a BLEU that does not rank."""
    loss: float
    chrf: float = 0.0
    """chrF2; 0 in checkpoints of earlier versions."""

    @property
    def rank(self) -> tuple[float, float, float, int]:
        """Key of the order, best first: of equal checkpoints, the later one."""
        return -self.score, -self.chrf, self.loss, -self.update

    def as_text(self, metric: str) -> str:
        """Return the update, with the value of the metric where that ranks."""
        value = f", {metric} {abs(self.score):.2f}" if self.score else ""
        return f"update {self.update:,}{value}"


@dataclass
class TrainState:
    """State of a run besides its tensors; a resumed run continues from it."""

    update: int = 0
    epoch: int = 0
    update_in_epoch: int = 0
    target_tokens: int = 0
    skipped_updates: int = 0
    validated_update: int = 0
    validations_without_gain: int = 0
    elapsed_seconds: float = 0.0
    best: list[Ranked] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    health: Health = field(default_factory=Health)

    def add_validated(self, ranked: Ranked) -> None:
        """Rank the checkpoint of a validation, and count validations without gain.

        A validation is a gain if the score is better, or the loss or chrF2 clearly better than at
        the gains before: the score of an early model may be 0, or chance.
        """
        health, best = self.health, self.best[0].score if self.best else -math.inf
        lowest, highest = health.lowest_validated or ranked.loss, health.highest_chrf
        is_lower = ranked.loss < _CLEARLY_LOWER * lowest
        if ranked.score > best or is_lower or highest < _CLEARLY_LOWER * ranked.chrf:
            lowest, highest = min(ranked.loss, lowest), max(ranked.chrf, highest)
            self.validations_without_gain = 0
        else:
            self.validations_without_gain += 1
        health.lowest_validated, health.highest_chrf = lowest, highest
        self.best = sorted([*self.best, ranked], key=lambda other: other.rank)
        self.validated_update = ranked.update

    @property
    def epoch_number(self) -> int:
        """Epoch of the newest update, counted from 1."""
        return self.epoch + (self.update_in_epoch > 0)

    @property
    def last_healthy_checkpoint(self) -> int | None:
        """Newest checkpoint whose weights a later update has found healthy; None without one."""
        updates = [*self.last, *(ranked.update for ranked in self.best)]
        return max((update for update in updates if update < self.health.well_at), default=None)

    def keep(self, *, best: int, last: int) -> None:
        """Add the current update to the last checkpoints, and drop those that are not kept.

        While the run is not healthy, the newest checkpoint from before is kept too. So is update 0,
        the start of a continued training, to the end.
        """
        if self.update not in self.last:
            self.last.append(self.update)
        healthy = self.last_healthy_checkpoint
        start = [ranked for ranked in self.best[best:] if ranked.update == 0]
        self.best, self.last = self.best[:best] + start, self.last[-last:]
        kept = {*self.last, *(ranked.update for ranked in self.best)}
        if healthy is not None and self.health.well_at < self.update and healthy not in kept:
            self.last.insert(0, healthy)

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return {"format": STATE_FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, object], path: Path) -> "TrainState":
        """Return the state of the plain data of a file; raise RunError where it is damaged."""
        if data.get("format") != STATE_FORMAT:
            raise RunError(
                f"{path}: written by another version of mt; resume the run with that version"
            )
        missing = {declared.name for declared in fields(cls)} - data.keys()
        if missing:
            raise RunError(f"{path}: damaged (lacks {listed(sorted(missing))})")
        return validate_values(data, cls, path)


def describe_divergence(state: TrainState, run: Path, reason: str) -> str:
    """Return the message of a divergence, with the checkpoint from which to go on."""
    safe = state.last_healthy_checkpoint
    remedy = "train a new run (--run) with a lower `training.learning_rate` or more warm-up"
    if safe is not None:
        remedy = (
            f"`mt average {run} --checkpoints {safe} --output FOLDER` makes a model of its "
            f"checkpoint after update {safe:,}; go on from there with `training.init_from: FOLDER` "
            f"and a lower `training.learning_rate`, or {remedy}"
        )
    healthy = f"training was stable until update {state.health.well_at:,}"
    return f"{run}: {reason}; {healthy}; {remedy}"
