"""The exponential moving average of a model's weights, which is validated and kept if it is on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """An average of some weights; of none, it does nothing."""

    def __init__(self, weights: Mapping[str, Tensor] | None = None, decay: float = 0.0) -> None:
        self.decay = decay
        self._weights = {**(weights or {})}
        self._averages = {name: each.detach().clone() for name, each in self._weights.items()}

    @torch.no_grad()
    def update(self, number: int, gradient_norm: Tensor) -> None:
        """Take in the weights after update t, `number`; after one that was skipped, do nothing.

        An average becomes d x average + (1 - d) x weight with d = min(decay, (1 + t) / (10 + t)),
        which soon forgets the first weights (as TensorFlow's `tf.train.ExponentialMovingAverage`
        has it). The host does not wait for the norm, by which a skipped update is known.
        """
        share = 1.0 - min(self.decay, (1 + number) / (10 + number))
        weight = gradient_norm.isfinite() * share
        for name, average in self._averages.items():
            average.lerp_(self._weights[name], weight)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Let the model have the averages, and them its weights, while the block lasts."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def averages(self) -> dict[str, Tensor]:
        """Return the averages by the names of their parameters."""
        return self._averages

    def weights(self) -> dict[str, Tensor]:
        """Return the weights, as training goes on with them, of which there is an average."""
        return {name: weight.detach() for name, weight in self._weights.items()}

    @torch.no_grad()
    def restore(self, weights: dict[str, Tensor]) -> None:
        """Take the model's weights, as they are now, as the averages; give it these instead."""
        for name, average in self._averages.items():
            average.copy_(self._weights[name])
            self._weights[name].copy_(weights[name])

    @torch.no_grad()
    def _swap(self) -> None:
        # By value: what was compiled or captured for a GPU knows the weights by their addresses.
        for name, average in self._averages.items():
            weight = self._weights[name]
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def choose_average(model: nn.Module, decay: float | None) -> MovingAverage:
    """Return an average of the weights that learn; without a decay, of none."""
    if decay is None:
        return MovingAverage()
    learning = {name: each for name, each in model.named_parameters() if each.requires_grad}
    return MovingAverage(learning, decay)
