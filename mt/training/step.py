"""One optimiser step."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mt.data.batches import Batch
from mt.model.transformer import Transformer
from mt.training.distributed import ALONE, World, accumulate
from mt.training.loss import LossSums, label_smoothed_loss
from mt.training.optimizer import MovingAverage, Precision


class TrainingPass(nn.Module):
    """From a batch to its loss by teacher forcing: what is compiled and distributed."""

    def __init__(self, model: Transformer, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> LossSums:
        """Return the summed loss of a batch."""
        states = self.model.states(batch.source, batch.target_in, batch.real)
        targets = batch.target_out.flatten().index_select(0, batch.real)
        return label_smoothed_loss(states, self.model.output.weight, targets, self.label_smoothing)


@dataclass(frozen=True)
class Learner:
    """What an update acts on."""

    model: Transformer
    training_pass: nn.Module
    """From a batch to its `LossSums`."""
    optimizer: torch.optim.Optimizer
    precision: Precision
    gradient_clip: float
    average: MovingAverage = field(default_factory=MovingAverage)
    """Of the weights; unless the config asks for one, of none."""


@dataclass(frozen=True)
class TokenCounts:
    """Real tokens, end marks included."""

    source: int
    target: int


@dataclass(frozen=True)
class UpdateResult:
    """What one update did, as 0-d tensors that nobody has waited for yet.

    The losses are those of this rank's share, the norm is that of the gradient of all.
    """

    smoothed: Tensor
    nll: Tensor
    gradient_norm: Tensor
    tokens: TokenCounts


@dataclass(frozen=True)
class StepMetrics:
    """What one update did; sums over its target tokens, in nats."""

    smoothed: float
    nll: float
    gradient_norm: float
    tokens: TokenCounts

    @property
    def skipped(self) -> bool:
        """Tell whether a loss or gradient that is not finite left the weights as they were."""
        return not math.isfinite(self.gradient_norm)


class BatchTooLarge(Exception):  # noqa: N818 - whoever splits it has no error
    """The device has too little memory for the micro-batch of this number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"micro-batch {number} does not fit the device's memory")
        self.number = number


def update(
    learner: Learner,
    micro_batches: Sequence[Batch],
    learning_rate: float,
    *,
    tokens: TokenCounts | None = None,
) -> UpdateResult:
    """Take one optimiser step on the micro-batches together; the host does not wait for it.

    Their summed losses are divided by the target tokens of the whole update, so the gradient is
    the same however an update is cut. `tokens` is given where other ranks have a share in it.
    Raises BatchTooLarge, before the step.
    """
    for group in learner.optimizer.param_groups:
        group["lr"] = learning_rate
    tokens = tokens or count_tokens(micro_batches)
    sums = gather_gradients(learner, micro_batches, tokens.target)
    norm = learner.precision.step(learner.model, learner.optimizer, learner.gradient_clip)
    smoothed = torch.stack([each.smoothed for each in sums]).sum()
    nll = torch.stack([each.nll for each in sums]).sum()
    return UpdateResult(smoothed, nll, norm, tokens)


def gather_gradients(learner: Learner, batches: Sequence[Batch], tokens: int) -> list[LossSums]:
    """Add the gradients of some batches' summed losses / `tokens`; return the sums of each.

    Raises BatchTooLarge where the device has too little memory for one.
    """
    gathered: list[LossSums] = []
    for number, batch in enumerate(accumulate(learner.training_pass, batches)):
        with suppress(torch.OutOfMemoryError):
            gathered.append(add_gradients(learner, batch, tokens))
        if len(gathered) == number:
            # Raised out here, where nothing holds on to what the failed pass had in memory.
            raise BatchTooLarge(number)
    return gathered


def add_gradients(learner: Learner, batch: Batch, tokens: int) -> LossSums:
    """Add the gradients of a batch's summed loss / `tokens`; return the sums."""
    with learner.precision.autocast():
        sums: LossSums = learner.training_pass(batch)
    learner.precision.backward(sums.objective / tokens)
    return LossSums(sums.smoothed.detach(), sums.nll, sums.tokens)


def count_tokens(batches: Sequence[Batch]) -> TokenCounts:
    """Return the tokens of some batches."""
    return TokenCounts(
        sum(batch.source_tokens for batch in batches), sum(batch.target_tokens for batch in batches)
    )


def fetch_metrics(results: Sequence[UpdateResult], world: World = ALONE) -> list[StepMetrics]:
    """Wait until the devices have done these updates, and return what they did on all ranks."""
    if not results:
        return []
    columns = torch.stack(
        [torch.stack((each.smoothed, each.nll, each.gradient_norm)) for each in results]
    )
    losses, norms = world.all_reduce_sum(columns[:, :2].clone()), columns[:, 2]
    return [
        StepMetrics(smoothed, nll, norm, result.tokens)
        for (smoothed, nll), norm, result in zip(
            losses.tolist(), norms.tolist(), results, strict=True
        )
    ]
