"""All that a search knows of a model.

Axes: B sentences, K rows (beginnings) a sentence, R = B * K rows, V vocabulary.
"""

from typing import Protocol

from torch import Tensor


class StepModel(Protocol):
    """What the search knows of a model: rows that read one piece after the other.

    Row r belongs to sentence r // K. Each method's tensor is on the device of the `limits` that
    the search was given.
    """

    def step(self, last_ids: Tensor) -> Tensor:
        """Return the logits [R V] of the piece after `last_ids` [R]; the first step gets BOS."""
        ...

    def reorder(self, rows: Tensor, places: Tensor) -> None:
        """Let row places[i] continue former row rows[i] [M], a row of the same sentence.

        All other rows stay what they are.
        """
        ...

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but those numbered in `sentences`, with all of their rows."""
        ...
