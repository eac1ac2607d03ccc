"""Detection of divergence from the recent losses of a training."""

from dataclasses import dataclass, field
from statistics import fmean

from mt.training.step import StepMetrics

MOST_SKIPPED_IN_A_ROW = 25
WINDOW = 50
"""Number of updates in the mean loss; sentences of one length can be 0.5 nats from the mean."""
_FIRST = 8
"""Number of updates whose highest loss stands for the mean until there is one.

In a mixture that adds a language, the first update alone may be one of known pairs.
"""
MARGIN = 1.5
"""Nats above the lowest mean at which a run has diverged: 4.5 times the best perplexity.

A healthy run stays within some tenths of its lowest mean. A run whose optimizer has destroyed the
model rises to about the unigram entropy of the tokens, or above, and stays there.
"""


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

    def add(self, metrics: StepMetrics, update: int) -> None:
        """Add the metrics of one update."""
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
        if mean > self.lowest + MARGIN:
            return (
                f"the loss has exploded: its mean over {WINDOW} updates rose from "
                f"{self.lowest:.2f} to {mean:.2f}"
            )
        return None
