"""Where a training run stands."""

from dataclasses import asdict, dataclass, field
from statistics import fmean

from mt.errors import RunError
from mt.training.step import StepMetrics

MOST_SKIPPED_IN_A_ROW = 25
WINDOW = 50
"""Updates over which the loss is averaged: sentences of one length can be 0.5 from the mean."""
MARGIN = 1.5
"""Nats above the lowest mean at which the loss has exploded: 4.5 times the best perplexity.

A run that is well stays within some tenths of its lowest mean. One whose optimiser has destroyed
it comes to about the entropy of the tokens without their context, or above, and stays there.
"""


@dataclass
class Health:
    """How the last updates went, and the best there was."""

    losses: list[float] = field(default_factory=list)
    """Smoothed loss, nats per target token, of the last updates that were not skipped."""
    lowest: float | None = None
    """The lowest mean over WINDOW losses so far; before there is one, the first loss."""
    well_at: int = 0
    """The newest update that found the model well: its own loss and the mean are near the lowest.

    It tells of the weights after the update before it; its own step may have been the bad one.
    """
    skipped_in_a_row: int = 0

    def take_in(self, measured: StepMetrics, update: int) -> None:
        """Take in what one update found."""
        if measured.skipped:
            self.skipped_in_a_row += 1
            return
        self.skipped_in_a_row = 0
        loss = measured.smoothed / measured.tokens.target
        self.losses = [*self.losses, loss][-WINDOW:]
        mean = fmean(self.losses)
        if self.lowest is None:
            self.lowest = loss  # about that of chance, which nothing that learns stays above
        elif len(self.losses) == WINDOW:
            self.lowest = min(mean, self.lowest)
        if max(loss, mean) < self.lowest + MARGIN / 2:
            self.well_at = update

    def trouble(self) -> str | None:
        """Say in what the training has diverged; None where it has not."""
        if self.skipped_in_a_row > MOST_SKIPPED_IN_A_ROW:
            count = self.skipped_in_a_row
            return f"{count} updates in a row had a loss or gradient that is not finite"
        if self.lowest is None or len(self.losses) < WINDOW:
            return None
        if fmean(self.losses) > self.lowest + MARGIN:
            return (
                f"the loss has exploded: its mean over {WINDOW} updates is "
                f"{fmean(self.losses):.2f}, and was {self.lowest:.2f}"
            )
        return None


STATE_FORMAT = 2


@dataclass(frozen=True)
class Ranked:
    """A checkpoint and its validation score; a higher `score` is better."""

    update: int
    score: float


@dataclass
class TrainState:
    """Everything besides tensors that a resumed run needs to be the same run."""

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
    refuge: int | None = None
    """The checkpoint to go back to, where none of the `last` is known to be from before trouble."""
    rollbacks: int = 0
    rate_factor: float = 1.0
    """What the schedule's learning rate is multiplied by; a rollback lowers it."""

    @property
    def epoch_number(self) -> int:
        """The epoch, counted from 1, that the newest update belongs to."""
        return self.epoch + (self.update_in_epoch > 0)

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return {"format": STATE_FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, object], name: str) -> "TrainState":
        """Return the state of plain data; `name` says in errors where they come from."""
        fields = dict(data)
        if fields.pop("format", None) != STATE_FORMAT:
            raise RunError(f"{name}: was written by another version of mt")
        try:
            best = [Ranked(**entry) for entry in fields.pop("best")]  # type: ignore[attr-defined]
            health = Health(**fields.pop("health"))  # type: ignore[arg-type]
            return cls(best=best, health=health, **fields)  # type: ignore[arg-type]
        except (TypeError, KeyError) as error:
            raise RunError(f"{name}: is damaged ({error})") from None
