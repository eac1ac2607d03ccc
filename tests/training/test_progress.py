"""What the journal says of an interval: means over its tokens, and of its gradients' norms."""

import json
import math
from pathlib import Path
from typing import Any

from mt.training.progress import Progress
from mt.training.state import TrainState
from mt.training.step import StepMetrics, TokenCounts


def measured(loss: float, norm: float, tokens: int) -> StepMetrics:
    """An update with this loss a token; the plain one is half of it."""
    counts = TokenCounts(source=2 * tokens, target=tokens)
    return StepMetrics(loss * tokens, loss * tokens / 2, norm, counts)


def logged(path: Path, *updates: StepMetrics) -> dict[str, Any]:
    progress = Progress(path / "metrics.jsonl", done_updates=0, max_updates=None)
    for each in updates:
        progress.taken(0.25)
        progress.measured(each)
    progress.log(TrainState(update=len(updates)))
    line: dict[str, Any] = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    return line


def test_losses_are_means_over_tokens_and_norms_over_updates(tmp_path: Path) -> None:
    line = logged(tmp_path, measured(4.0, 3.0, 10), measured(2.0, 1.0, 30), measured(2.0, 2.0, 10))
    assert (line["event"], line["update"], line["learning_rate"]) == ("train", 3, 0.25)
    assert (line["loss"], line["nll"]) == (2.4, 1.2)
    assert (line["gradient_norm"], line["largest_gradient_norm"]) == (2.0, 3.0)
    assert (line["target_tokens"], line["skipped_updates"]) == (50, 0)


def test_of_a_skipped_update_only_that_it_was_is_counted(tmp_path: Path) -> None:
    line = logged(tmp_path, measured(4.0, 3.0, 10), measured(math.nan, math.inf, 10))
    assert (line["loss"], line["target_tokens"], line["skipped_updates"]) == (4.0, 10, 1)
    assert (line["gradient_norm"], line["largest_gradient_norm"]) == (3.0, 3.0)
