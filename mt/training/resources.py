"""Memory and speed of training: estimate, batches that fit the device, measured speed."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mt.config import ModelConfig, TrainingConfig
from mt.data.batches import (
    SOURCE,
    TARGET,
    Batch,
    Indices,
    Lengths,
    collate,
    micro_batches,
    plan_updates,
)
from mt.data.store import Example
from mt.errors import UserError
from mt.model.device import DEVICE_TRAITS, device_traits, is_out_of_memory
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training.data import TrainingData
from mt.training.distributed import World
from mt.training.initial_weights import choose_weights
from mt.training.progress import Progress
from mt.training.step import BatchTooLarge, Learner, count_tokens, report_large_batch, train_step

T = TypeVar("T")
_BYTES_PER_NUMBER = 4
_MOMENTS = 2
"""Tensors that Adam keeps for each parameter, from the first step on."""
_HEAP_FACTOR = 1.4
"""glibc's heap over the tensors of an update: freed blocks leave gaps. Measured: 1.2 to 1.7."""
_PAIRS = 4096
"""Pairs whose lengths the measured updates have."""
_logger = logging.getLogger(__name__)


def available_memory() -> int | None:
    """Return the bytes of memory that the system can still give; None where it is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError, IndexError):
        return None


def estimate_memory(
    shape: ModelConfig,
    training: TrainingConfig,
    lengths: Lengths,
    *,
    vocabularies: tuple[int, int],
    trains_embeddings: bool = False,
) -> int:
    """Estimate the bytes that training in fp32 on a CPU takes at most, beyond the program itself.

    `lengths` [B 2] are those of the heaviest batch. The tensors alone are counted to about a tenth.
    """
    source, target = vocabularies
    with torch.device("meta"):
        model = Transformer(shape, source_vocabulary=source, target_vocabulary=target)
    choose_weights(model, training, trains_embeddings=trains_embeddings)
    return _estimate(model, shape, training, lengths, target)


def _estimate(
    model: nn.Module,
    shape: ModelConfig,
    training: TrainingConfig,
    lengths: Lengths,
    target_vocabulary: int,
) -> int:
    weights = sum(each.numel() for each in model.parameters())
    learning = sum(each.numel() for each in model.parameters() if each.requires_grad)
    averages = 0 if training.ema_decay is None else learning
    moments = _MOMENTS * learning if training.optimizer == "adam" else 0
    passes = 2 if training.r_drop else 1
    tokens = int(lengths[:, TARGET].sum())
    logits = min(
        max(DEVICE_TRAITS["cpu"].max_logits, 64 * target_vocabulary),
        passes**2 * tokens * target_vocabulary,
    )
    activations = _activations(shape, lengths, recompute=training.recompute == "on")
    update = learning + passes * activations + 4 * logits
    # At the end, the mean of the checkpoints takes the place of the weights once more.
    lasting = 2 * weights + moments + averages
    width = 2 if training.precision == "pure_bf16" else _BYTES_PER_NUMBER
    return width * (lasting + int(_HEAP_FACTOR * update))


def _activations(model: ModelConfig, lengths: Lengths, *, recompute: bool) -> int:
    """Return how many numbers a forward pass over a batch [B 2] keeps for the backward pass."""
    source, target = (len(lengths) * int(lengths[:, side].max()) for side in (SOURCE, TARGET))
    # Those of queries and results, or of keys and values, which are repeated for all query heads.
    heads = model.heads * (model.key_width + model.value_width)
    norms = 3 if model.residual == "sandwich" else 2
    residual = model.d_model * (norms + (model.dropout > 0))
    inner = 4 if model.feed_forward.endswith("glu") else 1 if model.feed_forward == "relu" else 2
    feed_forward = model.d_ff * (inner + 2 * (model.feed_forward_dropout > 0)) + residual
    layers = model.encoder_layers * source * (residual + 2 * heads + feed_forward)
    layers += model.decoder_layers * target * (2 * residual + 3 * heads + feed_forward)
    layers += model.decoder_layers * source * heads
    # The weights of all pairs of positions exist only where a kernel cannot do without them.
    kept = 3 if model.attention_dropout else 0
    in_self_attention = max(kept, 2 if model.positional == "relative" else 0)
    widths = lengths.max(axis=0).tolist()
    pairs = in_self_attention * model.encoder_layers * source * widths[SOURCE]
    pairs += in_self_attention * model.decoder_layers * target * widths[TARGET]
    pairs += kept * model.decoder_layers * target * widths[SOURCE]
    every = int(layers + model.heads * pairs)
    if not recompute:
        return every
    inputs = model.d_model * (model.encoder_layers * source + model.decoder_layers * target)
    return every // (model.encoder_layers + model.decoder_layers) + inputs


def warn_of_low_memory(
    model: nn.Module, shape: ModelConfig, training: TrainingConfig, data: TrainingData
) -> None:
    """Log a warning where training on the CPU is likely to take more memory than is available."""
    available = available_memory()
    if available is None:
        return
    store, budget = data.store, training.max_tokens_per_batch
    plan = data.plan_epoch(store=store)
    lengths = store.lengths[heaviest(plan, store.lengths, max_tokens_per_batch=budget)]
    needed = _estimate(model, shape, training, lengths, data.tokenizer.target_size)
    if needed > available:
        source, target = lengths.max(axis=0).tolist()
        _logger.warning(
            "warning: training will take about %.2f GiB of memory, and %.2f GiB are available; the "
            "heaviest batch has %d pairs of up to %d source and %d target tokens: lower "
            "`training.max_tokens_per_batch`, now %d (the updates stay the same), or train a "
            "smaller model",
            needed / 2**30,
            available / 2**30,
            len(lengths),
            source,
            target,
            budget,
        )


def heaviest(plan: Sequence[Indices], lengths: Lengths, *, max_tokens_per_batch: int) -> Indices:
    """Return the micro-batch of a plan with the most positions, source and target together."""
    batches = micro_batches(plan, lengths, max_tokens_per_batch=max_tokens_per_batch)
    return max(batches, key=lambda batch: len(batch) * int(lengths[batch].max(axis=0).sum()))


@dataclass
class BatchFitter:
    """Fits batches into the memory of the device: finds an automatic size, halves others."""

    learner: Learner
    data: TrainingData
    progress: Progress
    world: World
    tokens: int
    """Size of a batch, `training.max_tokens_per_batch`."""
    longest: int
    """Least size: `data.max_tokens`."""
    is_automatic: bool = False
    """True if the size may be halved; a size that is given stays."""
    seed: int = 0
    """Seed of the run, from which dropout is seeded."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.learner.precision.device

    def try_heaviest(self, epoch: int) -> int:
        """Compute the gradients of the heaviest batch on a GPU, and return the size of batches.

        An automatic size is halved on all ranks until that batch fits on each. The gradients are
        dropped and dropout is seeded by each update, so training is not affected. Raises UserError
        as `run` does.
        """
        if not device_traits(self.device).runs_out_late:
            return self.tokens
        most = self.tokens
        if self.is_automatic:
            for size in _halve_sizes(most, self.longest):
                self.tokens = size
                if self.tokens == self.longest:
                    break
                fits = self._heaviest_fits(epoch)
                if not self.world.all_reduce_max(int(not fits)):
                    break
            reason = ""
            if self.tokens < most:
                reason = f"; {most:,} do not fit into the device's memory"
            self.progress.print_line(
                f"batches of at most {self.tokens:,} tokens, padding included{reason}"
            )
        if not self.is_automatic or self.tokens == self.longest:
            self.run(self._add_gradients, [self._heaviest_batch(epoch)], update=0)
            self.learner.optimizer.zero_grad(set_to_none=True)
        return self.tokens

    def run(
        self, attempt: Callable[[list[Batch]], T], batches: Sequence[Batch], *, update: int
    ) -> T:
        """Call `attempt` with the batches on the device; halve one that does not fit, and repeat.

        Dropout is seeded before. `attempt` raises BatchTooLarge; the gradients that it has added
        until then are dropped.

        Raises UserError where a single pair does not fit, and where a batch does not fit on one of
        several ranks: the ranks wait for each other batch by batch.
        """
        batches = list(batches)
        while True:
            seed_dropout(self.seed, update, self.world.rank)
            try:
                return attempt([batch.to(self.device) for batch in batches])
            except BatchTooLarge as error:
                too_large = error.index
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise UserError(
                    "the device has too little memory for the model and its optimizer: make the "
                    "model smaller in a new run (--run), or use a larger device"
                ) from None
            self.learner.optimizer.zero_grad(set_to_none=True)
            batches[too_large : too_large + 1] = self._halves(batches[too_large], update)

    def _halves(self, batch: Batch, update: int) -> tuple[Batch, Batch]:
        rows = len(batch.index)
        key = f"`training.max_tokens_per_batch`, now {self.tokens}"
        if isinstance(self.learner.training_pass, DistributedDataParallel):
            raise UserError(
                f"this rank's device has too little memory for a batch of {rows} pairs: lower "
                f"{key}; the updates stay the same"
            )
        if rows == 1:
            raise UserError(
                f"pair {int(batch.index) + 1:,} of the encoded corpus, with {batch.source_tokens} "
                f"source and {batch.target_tokens} target tokens, does not fit into the device's "
                "memory: in a new run (--run) lower `data.max_tokens`, make the model smaller or "
                "set `training.precision` to bf16"
            )
        self.progress.print_once(
            "the device has too little memory for a batch: such batches are split in halves, "
            f"which is slower, and the updates stay the same; to avoid it, lower {key}"
        )
        self.progress.record(
            "out_of_memory",
            update=update,
            pairs=rows,
            source_positions=batch.source.numel(),
            target_positions=batch.target_out.numel(),
        )
        return batch.halves()

    def _heaviest_fits(self, epoch: int) -> bool:
        """Return whether this rank can compute the gradients of the heaviest batch."""
        try:
            self._add_gradients([self._heaviest_batch(epoch).to(self.device)])
            fits = True
        except (BatchTooLarge, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            fits = False
        self.learner.optimizer.zero_grad(set_to_none=True)
        if not fits and self.device.type == "cuda":
            # The next attempt, and the measured peak, begin without the blocks of this one.
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        return fits

    def _heaviest_batch(self, epoch: int) -> Batch:
        """Return the heaviest batch of an epoch, on the host."""
        store, plan = self.data.epoch_store(epoch), self.data.plan_epoch(epoch)
        batch = heaviest(plan, store.lengths, max_tokens_per_batch=self.tokens)
        return collate(store.examples(batch))

    def _add_gradients(self, batches: Sequence[Batch]) -> None:
        """Add the gradients of some batches on this rank alone, beside memory for Adam's moments.

        Adafactor has only means of rows and columns.
        """
        learner = self.learner
        total = max(sum(batch.target_tokens for batch in batches), 1)
        count = _MOMENTS if isinstance(learner.optimizer, torch.optim.Adam) else 0
        moments = [
            torch.empty_like(parameter)
            for parameter in learner.model.parameters()
            if parameter.requires_grad and parameter not in learner.optimizer.state
            for _ in range(count)
        ]
        training_pass = learner.training_pass
        if isinstance(training_pass, DistributedDataParallel):
            training_pass = training_pass.module  # a rank without memory would let others wait
        for position, batch in enumerate(batches):
            with report_large_batch(position):
                with learner.precision.autocast():
                    sums = training_pass(batch)
                learner.precision.backward(sums.objective / total)
        del moments


def training_speed(
    learner: Learner,
    training: TrainingConfig,
    lengths: Lengths,
    *,
    longest: int,
    vocabularies: tuple[int, int],
    seconds: float = 3.0,
) -> float:
    """Measure the target tokens per second of training steps, for about `seconds`.

    `lengths` [N 2] are those of the corpus or of a sample, at most `longest`; `vocabularies` the
    sizes of both sides.
    The first update, which maps memory and chooses kernels, is left out. Batches are halved until
    they fit the device's memory; raises UserError where none fits.
    """
    random = np.random.default_rng(0)
    lengths = lengths[random.permutation(len(lengths))[:_PAIRS]]
    plan = plan_updates(lengths, training.target_tokens_per_update, seed=0, epoch=0)
    device = learner.precision.device
    learner.model.train()

    def draw(index: int) -> Example:
        sides = zip(lengths[index].tolist(), vocabularies, strict=True)
        ids = [random.integers(EOS, size, length).astype(np.int32) for length, size in sides]
        return Example(index, *ids)

    def measure(batch_tokens: int) -> float:
        tokens, began, taken = 0, time.perf_counter(), 0.0
        for position in range(len(plan) + 1):
            update = plan[position % len(plan)]
            batches = [
                collate([draw(index) for index in indices.tolist()])
                for indices in micro_batches([update], lengths, max_tokens_per_batch=batch_tokens)
            ]
            result = train_step(learner, [batch.to(device) for batch in batches], learning_rate=0.0)
            float(result.gradient_norm)  # waits for the device
            if position == 0:
                began = time.perf_counter()
                continue
            tokens += count_tokens(batches).target
            taken = time.perf_counter() - began
            if taken > seconds:
                break
        return tokens / taken

    for batch_tokens in _halve_sizes(training.max_tokens_per_batch, longest):
        with suppress(BatchTooLarge):
            return measure(batch_tokens)
    raise UserError(
        f"the device has too little memory for this model and sentences of {longest} tokens: make "
        "the model smaller, or lower `data.max_tokens`"
    )


def seed_dropout(seed: int, update: int, rank: int) -> None:
    """Seed the generator of dropout from the run's seed, the update and the rank alone.

    A resumed or repeated update thus draws the same numbers without a saved generator state.
    """
    words = np.random.SeedSequence([seed, update, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(words[0]))


def _halve_sizes(most: int, least: int) -> Iterator[int]:
    """Yield sizes of batches, each half of the one before, down to `least`."""
    yield most
    while most > least:
        most = max(most // 2, least)
        yield most
