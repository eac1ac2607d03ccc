"""One training step, and the loss values and gradient norm that it returns."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mt.data.batches import Batch
from mt.model.device import is_out_of_memory
from mt.model.transformer import Transformer
from mt.training.distributed import ALONE, World
from mt.training.loss import ChunkLoss, LossSums, chunk_loss, label_smoothed_loss
from mt.training.optimizer import MovingAverage, Precision


class TrainingPass(nn.Module):
    """Teacher-forced forward pass from a batch to its loss; the part that DDP wraps."""

    def __init__(
        self, model: Transformer, label_smoothing: float, loss_of: ChunkLoss = chunk_loss
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.loss_of = loss_of

    def forward(self, batch: Batch) -> LossSums:
        """Return the loss, summed over the batch's real target tokens."""
        states = self.model.states(
            batch.source, batch.target_in, batch.real, source_tokens=batch.source_tokens
        )
        targets = batch.target_out.flatten().index_select(0, batch.real)
        return label_smoothed_loss(
            states, self.model.output.weight, targets, self.label_smoothing, self.loss_of
        )


@dataclass(frozen=True)
class Learner:
    """Model, loss, optimizer and precision: the objects that a training step changes."""

    model: Transformer
    training_pass: nn.Module
    """Module from a batch to its `LossSums`, of `choose_training_pass`, or DDP around one."""
    optimizer: torch.optim.Optimizer
    precision: Precision
    gradient_clip: float
    """Largest norm of the gradient; 0 disables clipping."""
    average: MovingAverage = field(default_factory=MovingAverage)
    """Moving average of the weights; no-op unless `ema_decay` is set."""


@dataclass(frozen=True)
class TokenCounts:
    """Real tokens of each side, end marks included."""

    source: int
    target: int


@dataclass(frozen=True)
class UpdateResult:
    """Outcome of one update as 0-d tensors on the device, not yet computed.

    The losses are this rank's sums; the norm is that of the gradient over all ranks.
    """

    smoothed: Tensor
    nll: Tensor
    gradient_norm: Tensor
    tokens: TokenCounts


def train_step(
    learner: Learner,
    batches: Sequence[Batch],
    learning_rate: float,
    *,
    tokens: TokenCounts | None = None,
) -> UpdateResult:
    """Take one optimizer step on the micro-batches together, without waiting for the device.

    Their summed losses are divided by the update's target tokens, so the gradient does not depend
    on how the update is cut. `tokens` counts the whole update where other ranks have a share of it.
    Raises BatchTooLarge, before the step.
    """
    model, precision, optimizer = learner.model, learner.precision, learner.optimizer
    tokens, training_pass = tokens or count_tokens(batches), learner.training_pass
    smoothed, nll = [], []

    optimizer.zero_grad(set_to_none=True)
    # Gradients accumulate on each rank; the last backward pass all-reduces their sum over ranks.
    for index, batch in enumerate(batches):
        local: AbstractContextManager[None] = nullcontext()
        if index < len(batches) - 1 and isinstance(training_pass, DistributedDataParallel):
            local = training_pass.no_sync()
        with report_large_batch(index), local, precision.tf32():
            with precision.autocast():
                loss: LossSums = training_pass(batch)
            precision.backward(loss.objective / tokens.target)
        smoothed.append(loss.smoothed.detach())
        nll.append(loss.nll)

    precision.scaler.unscale_(optimizer)  # before the gradients are clipped
    norm = nn.utils.clip_grad_norm_(model.parameters(), learner.gradient_clip or math.inf)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    precision.step(optimizer, norm)
    return UpdateResult(torch.stack(smoothed).sum(), torch.stack(nll).sum(), norm, tokens)


def count_tokens(batches: Sequence[Batch]) -> TokenCounts:
    """Return the number of tokens in some batches."""
    return TokenCounts(
        sum(batch.source_tokens for batch in batches), sum(batch.target_tokens for batch in batches)
    )


class BatchTooLarge(Exception):  # noqa: N818 - the caller splits the batch and tries again
    """A micro-batch that does not fit the device's memory, by its index in the update."""

    def __init__(self, index: int) -> None:
        super().__init__(f"micro-batch {index} does not fit the device's memory")
        self.index = index


@contextmanager
def report_large_batch(index: int) -> Iterator[None]:
    """Turn a lack of device memory inside the block into BatchTooLarge for this micro-batch."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise BatchTooLarge(index) from None


@dataclass(frozen=True)
class StepMetrics:
    """Outcome of one update on all ranks; losses are sums over its target tokens, in nats."""

    smoothed: float
    nll: float
    gradient_norm: float
    tokens: TokenCounts

    @property
    def skipped(self) -> bool:
        """Return True if the gradient was not finite, so that the weights did not change."""
        return not math.isfinite(self.gradient_norm)


def fetch_metrics(results: Sequence[UpdateResult], world: World = ALONE) -> list[StepMetrics]:
    """Wait for the device to finish these updates and return their metrics over all ranks.

    Between validations and checkpoints, only this makes the host wait for the device.
    """
    if not results:
        return []
    columns = torch.stack(
        [torch.stack((result.smoothed, result.nll, result.gradient_norm)) for result in results]
    )
    columns[:, :2] = world.all_reduce_sum(columns[:, :2].clone())
    return [
        StepMetrics(smoothed, nll, norm, result.tokens)
        for (smoothed, nll, norm), result in zip(columns.tolist(), results, strict=True)
    ]
