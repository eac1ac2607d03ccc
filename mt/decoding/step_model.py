"""All that a search knows of a model.

Axes: B sentences, K rows (beginnings) a sentence, R = B * K rows, V vocabulary.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor


class StepModel(Protocol):
    """What the search knows of a model: rows that read one piece after the other.

    Row r belongs to sentence r // K. Each method's tensor is on the device of the `limits` that
    the search was given.
    """

    def step(self, last_ids: Tensor) -> Tensor:
        """Return the logits [R V] of the piece after `last_ids` [R].

        The first step gets BOS, once a sentence: `last_ids` [B], logits [B V].
        """
        ...

    def reorder(self, parents: Tensor) -> None:
        """Let row k of sentence b go on from what was its row `parents[b, k]` [B K]."""
        ...

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but those numbered in `sentences`, with all of their rows."""
        ...


@runtime_checkable
class AttentiveStepModel(StepModel, Protocol):
    """A model that also tells where it looks, for a search with a coverage penalty."""

    def attention(self) -> Tensor:
        """Return how much the last step's rows look at each source piece [R S], 1 at padding.

        It is asked between `step` and `keep`.
        """
        ...
