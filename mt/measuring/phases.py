"""The phases of an update, told from outside: the training has nothing in it for this."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from mt.model.matmul_rate import synchronize
from mt.training.precision import Precision
from mt.training.update import Learner

Phase = Literal["data", "forward", "loss", "backward", "optimiser"]
"""See `PhaseSeconds`."""
Begin = Callable[[Phase], None]


@dataclass(frozen=True)
class PhaseSeconds:
    """Mean seconds of an update in each phase."""

    data: float
    """Until the next batches are on the device: what lies between two updates."""
    forward: float
    """Encoder and decoder."""
    loss: float
    """Output layer and loss, with what they compute of their gradients at once."""
    backward: float
    optimiser: float
    """Clipping and the step."""


@contextmanager
def marked(learner: Learner, begin: Begin) -> Iterator[Learner]:
    """Give a learner that calls `begin` whenever a phase of an update begins.

    Nothing is put inside of what may be compiled.
    """
    model = learner.model
    states = model.states

    def marked_states(*batch: Tensor) -> Tensor:
        begin("forward")
        result = states(*batch)
        begin("loss")
        return result

    model.states = marked_states  # type: ignore[method-assign, assignment]
    handle = learner.training_pass.register_forward_hook(lambda *_: begin("backward"))
    try:
        yield replace(learner, precision=_MarkedPrecision(learner.precision, begin))
    finally:
        model.states = states  # type: ignore[method-assign]
        handle.remove()


class _MarkedPrecision(Precision):
    """A precision that says when a step begins and when it has been given to the device."""

    def __init__(self, precision: Precision, begin: Begin) -> None:
        super().__init__(precision.name, precision.device)
        self.scaler = precision.scaler
        self.begin = begin

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> Tensor:
        """Clip and step."""
        self.begin("optimiser")
        norm = super().step(model, optimizer, clip)
        self.begin("data")
        return norm


class PhaseClock:
    """Adds up the time of each phase, from the end of the first update on.

    It waits for the device at each mark, which a training doesn't: for shares, not for speed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.updates = 0
        self._sums: dict[Phase, float] = dict.fromkeys(PhaseSeconds.__annotations__, 0.0)  # type: ignore[arg-type]
        self._phase: Phase | None = None
        self._since = 0.0

    def begin(self, phase: Phase) -> None:
        """End the phase that is going on, and begin this one."""
        synchronize(self.device)
        now = time.perf_counter()
        if self._phase is not None:
            self._sums[self._phase] += now - self._since
            self.updates += phase == "data"
        elif phase != "data":
            return
        self._phase, self._since = phase, now

    def mean(self) -> PhaseSeconds:
        """Return the mean over the updates since the first."""
        return PhaseSeconds(**{phase: sum_ / self.updates for phase, sum_ in self._sums.items()})
