"""Training passes: their choice and compilation, R-Drop and guided alignment."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import TrainingConfig
from mt.data.batches import Batch
from mt.errors import UserError
from mt.model.attention import Attention
from mt.model.transformer import Transformer
from mt.training.loss import ChunkLoss, FusedLoss, LossSums, chunk_loss
from mt.training.step import TrainingPass
from mt.training.translation_table import TranslationTable

ProvideTable = Callable[[], TranslationTable]
"""Returns the translation table of the training pairs."""


def choose_training_pass(
    model: Transformer, training: TrainingConfig, table: ProvideTable | None = None
) -> nn.Module:
    """Return the training pass of a config: R-Drop's, guided alignment's, or the plain one.

    `table` returns the one that guided alignment aligns with; without it, the pass is plain.
    """
    smoothing = training.label_smoothing
    if training.r_drop:
        return RDropPass(model, smoothing, training.r_drop)
    if training.guided_alignment and table is not None:
        updates = training.guided_alignment_updates
        return GuidedPass(model, smoothing, training.guided_alignment, table, updates)
    loss_of = choose_loss(training, model.output.weight.device)
    return TrainingPass(model, smoothing, loss_of)


def compile_stacks(model: Transformer, *, positions: int = 0) -> None:
    """Compile encoder and decoder at their first use in training.

    Lengths are dynamic: two compilations serve all batches of a precision with several pairs, with
    and without padding, and sequences of at most `positions` tokens. Raises UserError without a C++
    compiler.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"`training.compile: on` needs a C++ compiler, but `{compiler}` was not found; "
            "install it, set the variable CXX to another one, or set `training.compile: off`"
        )
    # DistributedDataParallel's graph splitter does not support dynamic shapes.
    torch._dynamo.config.optimize_ddp = False
    # With and without padding, of a single pair or several, in training and validation.
    torch._dynamo.config.recompile_limit = 16
    model.reserve_positions(positions)
    compiled = torch.compile(model.states, dynamic=True)

    def states(
        source: Tensor, target_in: Tensor, real: Tensor, *, source_tokens: int | None = None
    ) -> Tensor:
        model.reserve_positions(max(source.shape[1], target_in.shape[1]))
        return compiled(source, target_in, real, source_tokens=source_tokens)

    model.states = states  # type: ignore[method-assign]


def choose_loss(training: TrainingConfig, device: torch.device) -> ChunkLoss:
    """Return `chunk_loss`; if the stacks are compiled on a GPU, compiled for any number of rows."""
    if training.compile != "on" or device.type == "cpu":
        return chunk_loss
    compiled = torch.compile(chunk_loss)

    def loss_of(states: Tensor, matrix: Tensor, labels: Tensor, **keys: Any) -> Any:
        for tensor in (states, labels):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(states, matrix, labels, **keys)

    return loss_of


class RDropPass(nn.Module):
    """Two forward passes with different dropout, and a penalty on their divergence.

    Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2.1. For a target
    token y with the distributions P and Q of the two passes, the loss is

        -log P(y) - log Q(y) + alpha / 2 (KL(P || Q) + KL(Q || P))

    with label smoothing in the first two terms. The objective here is half of it, so that gradient
    clipping keeps its meaning. It takes twice the time and memory.
    """

    def __init__(self, model: Transformer, label_smoothing: float, alpha: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.alpha = alpha

    def forward(self, batch: Batch) -> LossSums:
        """Return the loss, summed over the batch's real target tokens."""
        ids, tokens = (batch.source, batch.target_in, batch.real), batch.source_tokens
        passes = [self.model.states(*ids, source_tokens=tokens) for _ in range(2)]
        return r_drop_loss(
            torch.stack(passes),
            self.model.output.weight,
            targets=batch.target_out.flatten().index_select(0, batch.real),
            smoothing=self.label_smoothing,
            alpha=self.alpha,
        )


def r_drop_loss(
    states: Tensor, weight: Tensor, *, targets: Tensor, smoothing: float, alpha: float
) -> LossSums:
    """Return the summed R-Drop loss of the logits states [2 N D] x weight [V D] and targets [N].

    `smoothed` and `nll` are means of both passes, comparable to those without R-Drop. Softmax and
    sums are fp32 whatever the precision of the logits; the smoothed target is that of
    `label_smoothed_loss`.
    """

    def loss_of(
        states: Tensor,
        matrix: Tensor,
        labels: Tensor,
        *,
        smoothing: float,
        vocabulary: int,
        gradient_dtype: torch.dtype | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return objective, plain and smoothed loss, and the objective's gradient: `chunk_loss`.

        With respect to the logits of P, the gradient of KL(P || Q) is
        P (log P - log Q - KL(P || Q)); with respect to those of Q it is Q - P.
        """
        logits = (states @ matrix.T)[..., :vocabulary]
        log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
        labels = labels.expand(2, -1, 1)
        probs = log_probs.exp()
        log_ratio = log_probs - log_probs.flip(0)
        divergences = (probs * log_ratio).sum(dim=-1, keepdim=True)
        nll = -log_probs.gather(2, labels).sum() / 2
        smoothed = (1.0 - smoothing) * nll - smoothing * log_probs.mean(dim=-1).sum() / 2
        objective = smoothed + alpha / 4 * divergences.sum()
        if gradient_dtype is None:
            return objective, nll, smoothed, None
        gradient = probs - smoothing / vocabulary
        reference = gradient.new_full((1, 1, 1), smoothing - 1.0).expand(labels.shape)
        gradient.scatter_add_(2, labels, reference)
        gradient += alpha / 2 * (probs * (log_ratio - divergences) + probs - probs.flip(0))
        gradient = F.pad(gradient / 2, (0, len(matrix) - vocabulary))
        return objective, nll, smoothed, gradient.to(gradient_dtype)

    objective, nll, smoothed = FusedLoss.apply(states, weight, targets, smoothing, loss_of)  # type: ignore[no-untyped-call]
    return LossSums(objective, smoothed, nll, len(targets))


class GuidedPass(nn.Module):
    """The plain pass, and a loss that trains one cross-attention to align target and source.

    Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models", section
    4.2. The objective gets the term weight * sum over target tokens of -log a, where a is the
    attention to the aligned source token. It is the attention that `explain` reads, the mean over
    the heads of `Transformer.alignment_attention`; the paper trains one head. Each batch is aligned
    when it is trained on, so that nothing has to be stored. With `updates`, the weight falls
    linearly to 0 at that update: attention learns sooner, and is free in the end. From there on,
    the table is not asked for.
    """

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float,
        weight: float,
        table: ProvideTable,
        updates: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.plain = TrainingPass(model, label_smoothing)
        self.weight = self.first_weight = weight
        self.updates = updates
        self.provide_table = table
        self.attention = model.alignment_attention

    @cached_property
    def table(self) -> TranslationTable:
        """Translation table on the device of the model."""
        table, device = self.provide_table(), self.model.output.weight.device
        return replace(
            table, keys=table.keys.to(device), probabilities=table.probabilities.to(device)
        )

    def begin(self, update: int) -> None:
        """Set the weight for an update, counted from 1."""
        if self.updates is not None:
            self.weight = self.first_weight * max(0.0, 1.0 - update / self.updates)

    def forward(self, batch: Batch) -> LossSums:
        """Return the loss, summed over the batch's real target tokens."""
        if not self.weight:
            return self.plain(batch)  # type: ignore[no-any-return]
        with _mean_weights(self.attention) as weights:
            sums: LossSums = self.plain(batch)
        aligned = self.table.align(batch.source, batch.target_out)
        attention = weights[0].gather(2, aligned.clamp(min=0)[:, :, None])[:, :, 0]
        # Without labels, a batch still has targets.
        aligned, attention = (values.flatten()[batch.real] for values in (aligned, attention))
        nll = -attention.clamp(min=torch.finfo(attention.dtype).tiny).log()[aligned >= 0].sum()
        return replace(sums, objective=sums.smoothed + self.weight * nll)


def begin_update(training_pass: nn.Module, update: int) -> None:
    """Prepare a training pass, or DDP around one, for an update, counted from 1."""
    inner = getattr(training_pass, "module", training_pass)
    if isinstance(inner, GuidedPass):
        inner.begin(update)


@contextmanager
def _mean_weights(attention: Attention) -> Iterator[list[Tensor]]:
    """Yield a list that gets the weights [B T S] of each call, in fp32, averaged over the heads."""
    means: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], _: Tensor) -> None:
        assert isinstance(module, Attention)
        q, k, _, mask = inputs
        with torch.autocast(q.device.type, enabled=False):
            weights = module.weights(q.float(), module.for_queries(k).float(), mask)
        means.append(weights.mean(dim=1))

    hook = attention.register_forward_hook(keep)
    try:
        yield means
    finally:
        hook.remove()
