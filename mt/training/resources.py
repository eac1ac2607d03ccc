"""Memory and speed of training: an estimate, and a measured speed."""

import logging
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from mt.config import Config, ModelConfig, TrainingConfig
from mt.data.batches import (
    SOURCE,
    TARGET,
    Batch,
    Indices,
    Lengths,
    Update,
    collate,
    count_tokens,
    plan_updates,
    split_update,
)
from mt.data.store import Example
from mt.errors import UserError
from mt.model.device import DEVICE_TRAITS, available_memory, device_traits
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training.data import TrainingData
from mt.training.distributed import ALONE, World
from mt.training.initial_weights import choose_weights
from mt.training.loader import ADAM_MOMENTS, fit_size, heaviest
from mt.training.setup import build_learner, new_model, resolve_for_device
from mt.training.step import BatchTooLarge, TokenCounts, train_step
from mt.training.translation_table import learning_bytes
from mt.training.validation import Validator

_BYTES_PER_NUMBER = 4
_HEAP_FACTOR = 1.4
"""glibc's heap over the tensors of an update: freed blocks leave gaps. Measured: 1.2 to 1.7."""
_MEASURED_PAIRS = 4096
"""Pairs whose lengths the measured updates have."""
_ROUNDS = 3
"""Times that each of the measured updates is taken."""
_LEAST_SHARE = 0.8
"""Share of the time of a core below which other programs slow the measurement."""
_logger = logging.getLogger(__name__)


def estimate_memory(
    shape: ModelConfig,
    training: TrainingConfig,
    lengths: Lengths,
    *,
    vocabularies: tuple[int, int],
    trains_embeddings: bool = False,
    corpus: Lengths | None = None,
) -> int:
    """Estimate the bytes that training in fp32 on a CPU takes at most, beyond the program itself.

    `lengths` [B 2] are those of the heaviest batch. The tensors alone are counted to about a tenth.
    `corpus` [N 2] are those of all pairs, from which the table of guided alignment is learned.
    """
    source, target = vocabularies
    with torch.device("meta"):
        model = Transformer(shape, source_vocabulary=source, target_vocabulary=target)
    choose_weights(model, training, trains_embeddings=trains_embeddings)
    weights = sum(tensor.numel() for tensor in model.parameters())
    learning = sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad)
    averages = 0 if training.ema_decay is None else learning
    moments = ADAM_MOMENTS * learning if training.optimizer == "adam" else 0
    passes = 2 if training.r_drop else 1
    tokens = int(lengths[:, TARGET].sum())
    logits = min(max(DEVICE_TRAITS["cpu"].max_logits, 64 * target), passes**2 * tokens * target)
    activations = _activations(shape, lengths, recompute=training.recompute == "on")
    update = learning + passes * activations + 4 * logits
    # At the end, the mean of the checkpoints takes the place of the weights once more.
    lasting = 2 * weights + moments + averages
    width = 2 if training.precision == "pure_bf16" else _BYTES_PER_NUMBER
    before = 0
    if corpus is not None and training.guided_alignment:
        before = learning_bytes(corpus)  # freed before the first update
    return max(before, width * (lasting + int(_HEAP_FACTOR * update)))


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
    with_dropout = 3 if model.attention_dropout else 0
    in_self_attention = max(with_dropout, 2 if model.positional == "relative" else 0)
    widths = lengths.max(axis=0).tolist()
    pairs = in_self_attention * model.encoder_layers * source * widths[SOURCE]
    pairs += in_self_attention * model.decoder_layers * target * widths[TARGET]
    pairs += with_dropout * model.decoder_layers * target * widths[SOURCE]
    every = int(layers + model.heads * pairs)
    if not recompute:
        return every
    inputs = model.d_model * (model.encoder_layers * source + model.decoder_layers * target)
    return every // (model.encoder_layers + model.decoder_layers) + inputs


def warn_of_low_memory(
    model: Transformer, shape: ModelConfig, training: TrainingConfig, data: TrainingData
) -> None:
    """Log a warning where training on the CPU is likely to take more memory than is available."""
    available = available_memory()
    if available is None:
        return
    store, budget = data.store, training.max_tokens_per_batch
    plan = data.plan_epoch(store=store)
    lengths = store.lengths[heaviest(plan, store.lengths, max_tokens_per_batch=budget)]
    needed = estimate_memory(
        shape,
        training,
        lengths,
        vocabularies=data.vocabularies,
        trains_embeddings=model.source_embedding.weight.requires_grad,
    )
    if needed > available:
        _logger.warning(
            "warning: training will take about %.2f GiB of memory, and %.2f GiB are available: "
            "lower `training.max_tokens_per_batch`, now %d (the updates stay the same), or train a "
            "smaller model",
            needed / 2**30,
            available / 2**30,
            budget,
        )


def measure_speed(
    config: Config,
    lengths: Lengths,
    vocabularies: tuple[int, int],
    *,
    world: World = ALONE,
    seconds: float = 3.0,
) -> float:
    """Measure the target tokens per second of a training, on the device and with all ranks.

    `lengths` [N 2] are those of the corpus or of a sample. Some updates are taken, and repeated: of
    each, the fastest counts. The first, which maps memory and chooses kernels, is left out. Batches
    are halved until they fit the device's memory; raises UserError where none fits. Logs a warning
    on a busy CPU.

    Other ranks than 0 wait in `join_measurements`, and measure at the same time.
    """
    device = world.device
    if world.is_main:
        lengths = lengths[:: max(1, len(lengths) // (2 * _MEASURED_PAIRS))]
        world.broadcast((config, lengths, vocabularies, seconds))
    config = resolve_for_device(config, device)
    training = config.training
    learner = build_learner(config, new_model(config.model, vocabularies, device), device)
    learner.model.train()
    wrapped = replace(learner, training_pass=world.wrap(learner.training_pass))
    random = np.random.default_rng(0)
    lengths = lengths[random.permutation(len(lengths))[:_MEASURED_PAIRS]]
    plan = plan_updates(lengths, training.target_tokens_per_update, seed=0, epoch=0)

    def draw_batch(indices: Indices) -> Batch:
        examples = []
        for index in indices.tolist():
            sides = zip(lengths[index].tolist(), vocabularies, strict=True)
            ids = [random.integers(EOS, size, length).astype(np.int32) for length, size in sides]
            examples.append(Example(index, *ids))
        return collate(examples).to(device)

    def time_step(update: Update, batch_tokens: int) -> float:
        """Take one step with the share of this rank; return the seconds of all ranks together."""
        cut = split_update(update, lengths, max_tokens_per_batch=batch_tokens, ranks=world.size)
        batches = [draw_batch(indices) for indices in cut[world.rank]]
        batches = batches or [draw_batch(update[0][:1]).without_targets()]
        began_at = time.perf_counter()
        result = train_step(
            wrapped, batches, 0.0, tokens=TokenCounts(*count_tokens(update, lengths))
        )
        float(result.gradient_norm)  # waits for the device
        return time.perf_counter() - began_at

    def measure(batch_tokens: int) -> float:
        time_step(plan[0], batch_tokens)
        updates, taken = list[Update](), list[float]()
        began_at, worked_at = time.perf_counter(), time.thread_time()
        for update in plan[1:] or plan:
            updates.append(update)
            taken.append(time_step(update, batch_tokens))
            if world.all_reduce_max(int(sum(taken) > seconds / _ROUNDS)):
                break
        for _ in range(_ROUNDS - 1):
            again = [time_step(update, batch_tokens) for update in updates]
            taken = [*map(min, taken, again)]
        share = (time.thread_time() - worked_at) / (time.perf_counter() - began_at)
        if device.type == "cpu" and world.is_main and share < _LEAST_SHARE:
            _logger.warning(
                "warning: this machine is busy: a core gave the measurement of the speed only "
                "%.0f%% of its time; a training beside other programs takes longer than expected",
                100 * share,
            )
        return sum(count_tokens(update, lengths)[1] for update in updates) / sum(taken)

    def heaviest_batch(tokens: int) -> Batch:
        return draw_batch(heaviest(plan, lengths, max_tokens_per_batch=tokens))

    batch_tokens, longest = config.training.max_tokens_per_batch, config.data.max_tokens
    if device_traits(device).runs_out_late:
        batch_tokens = fit_size(learner, heaviest_batch, batch_tokens, longest, world)
    try:
        speed = measure(batch_tokens)
    except BatchTooLarge:
        raise UserError(
            f"the device has too little memory for this model and sentences of {longest} tokens: "
            "make the model smaller, or lower `data.max_tokens`"
        ) from None
    if training.compile == "on":  # the graphs of this model count against a limit
        torch.compiler.reset()
    return speed


def measure_validation(
    config: Config, data: TrainingData, device: torch.device, *, seconds: float = 1.0
) -> tuple[float, float]:
    """Measure the seconds of a pair in a validation of a new model, and of the trained one.

    The translations of a new model reach the length limit. Those of the trained one are searched
    for as the config says, and have the mean length of the references.
    """
    plain = config.training.changed(compile="off", ema_decay=None)
    config = resolve_for_device(config.changed(training=plain), device)
    learner = build_learner(config, new_model(config.model, data.vocabularies, device), device)
    validator = Validator.build(config, learner, data)
    source, target = data.valid_lengths.sum(axis=0, dtype=int).tolist()
    trained = validator.decoding.changed(
        search="greedy" if config.decoding.search == "greedy" else "beam",
        max_length_ratio=target / source,
        max_length_extra=1,
    )

    def time_pair(validator: Validator) -> float:
        pairs, taken, count = 0, 0.0, 64
        while taken < seconds and pairs < len(data.valid):
            began_at = time.perf_counter()
            pairs = validator.run(count).evaluation.sentences
            taken, count = time.perf_counter() - began_at, 2 * count
        return taken / pairs

    def forbid_eos(_module: nn.Module, _inputs: object, logits: Tensor) -> Tensor:
        logits[..., EOS] = float("-inf")
        return logits

    with learner.model.output.register_forward_hook(forbid_eos):
        validator.run(1)  # loads what scoring needs
        return time_pair(validator), time_pair(replace(validator, decoding=trained))


def join_measurements(world: World) -> None:
    """Take part in the measurements of rank 0, until it calls this function too."""
    while (request := world.broadcast(None)) is not None:
        config, lengths, vocabularies, seconds = request
        with suppress(UserError, torch.OutOfMemoryError):  # raised on rank 0 too, which decides
            measure_speed(config, lengths, vocabularies, world=world, seconds=seconds)
