"""What an evaluation computes besides BLEU and chrF, what it lets pass, and what it writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.evaluation.comet import check_new_folder
from mt.evaluation.given_texts import GivenTexts
from mt.evaluation.guard import Guard
from mt.evaluation.passport import check_place
from mt.evaluation.scores import check_metrics


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """The wishes of whoever asks for an evaluation."""

    metrics: tuple[str, ...] = ()
    """Of `mt.evaluation.scores.METRICS`."""
    resamples: int = 0
    """Bootstrap samples for the intervals; 0 for none."""
    allow: tuple[str, ...] = ()
    """Of `mt.evaluation.guard.REASONS`."""
    comet: Path | None = None
    """A new folder for the files that COMET reads."""
    texts: GivenTexts | None = None
    """Of a run: what to score it on, which its config does not know."""
    passport: Path | None = None
    """Where the passport of a score of files lies; that of a run lies in the run."""

    def begin(self) -> Guard:
        """Return the guard of the texts, once it is sure that all the rest can be done.

        Raises UserError for an unknown metric or reason, and for what would be written over.
        """
        check_metrics(self.metrics)
        if self.comet:
            check_new_folder(self.comet)
        if self.passport:
            check_place(self.passport)
        return Guard(self.allow)

    def settings(self, tokenizer: str, forced: str) -> dict[str, Any]:
        """Return what a passport says of how the scores were computed."""
        return {
            "bleu_tokenizer": tokenizer,
            "metrics": list(self.metrics),
            "resamples": self.resamples,
            "forced": forced,
        }


PLAIN_JOB = EvaluationJob()
