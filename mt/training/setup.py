"""Start of a training session: the same config, data and weights on all ranks, and the learner."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch
from torch import Tensor

from mt import __version__
from mt.config import Config, ModelConfig, TrainingConfig
from mt.config.loading import load_config
from mt.data.batches import collate
from mt.decoding.engine import length_limit
from mt.errors import RunError
from mt.files import write_json
from mt.model.transformer import Transformer
from mt.model.weights import parameter_tensors
from mt.training.data import TrainingData
from mt.training.distributed import World, fix_bucket_order
from mt.training.initial_weights import (
    choose_weights,
    clear_sublayers,
    describe_parameters,
    load_initial_weights,
    read_initial_run,
    translate_embeddings,
)
from mt.training.optimizer import build_optimizer, choose_average, choose_precision, why_slow
from mt.training.passes import ProvideTable, begin_update, choose_training_pass, compile_stacks
from mt.training.progress import Progress, SilentProgress, TensorBoard, append_event, describe_data
from mt.training.run_folder import RunFolder, environment
from mt.training.state import TrainState
from mt.training.step import Learner

_CUDA_BATCH_TOKENS = 32_768
"""Padded tokens of a batch on CUDA, halved where they do not fit."""


def resolve_for_device(config: Config, device: torch.device) -> Config:
    """Return the config with the settings that depend on the device, which are then given."""
    training, width = config.training, config.model.d_model
    resolved = training.changed(
        max_tokens_per_batch=batch_tokens(training, config.data.max_tokens, device),
        precision=choose_precision(training.precision, device, width).name,
    )
    return config.changed(training=resolved)


def batch_tokens(training: TrainingConfig, longest: int, device: torch.device) -> int:
    """Return the size of batches, or the largest that a device may take where it is open."""
    tokens = training.max_tokens_per_batch
    if not training.is_open("max_tokens_per_batch"):
        return tokens
    return max(_CUDA_BATCH_TOKENS if device.type == "cuda" else tokens, longest)


def agree_on_config(world: World, keys: Mapping[str, object]) -> None:
    """Raise UserError if the ranks have different config keys or versions of mt or torch."""
    versions = {"mt": __version__, "torch": torch.__version__}
    world.agree({**versions, **{f"`{key}`": str(value) for key, value in keys.items()}})


def agree_on_folder(world: World, keys: Mapping[str, object], folder: RunFolder) -> None:
    """Raise RunError if this rank does not see the run folder of rank 0, with these keys."""
    path = folder.config
    if world.size > 1 and not (path.exists() and load_config(path).flat() == keys):
        raise RunError(
            f"{folder.path}: the run of rank 0 is not there; put the run folder on a disk that all "
            "hosts share"
        )


def agree_on_start(world: World, data: TrainingData, learner: Learner, state: TrainState) -> None:
    """Raise UserError if the ranks begin with different data, weights or updates."""
    if world.size > 1:
        world.agree(
            {
                "the tokenizer": data.tokenizer.fingerprint,
                "the number of training pairs": str(len(data.store)),
                "the update to go on from": str(state.update),
                "the hash of the weights": weights_sha256(learner),
            }
        )


def weights_sha256(learner: Learner) -> str:
    """Return the SHA-256 of all weights, in hexadecimal."""
    digest = hashlib.sha256()
    for name, tensor in parameter_tensors(learner.model).items():
        digest.update(name.encode())
        digest.update(memoryview(tensor.contiguous().view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


@dataclass(frozen=True)
class Start:
    """Learner and state with which a session begins."""

    learner: Learner
    state: TrainState
    is_resumed: bool
    notes: list[str]
    """Summary of the initial weights."""


def begin_or_resume(config: Config, folder: RunFolder, data: TrainingData, world: World) -> Start:
    """Build the model and its optimizer, and load the newest checkpoint if there is one."""
    torch.manual_seed(config.seed)
    device = world.device
    model = new_model(config.model, data.vocabularies, device)
    training, tags, notes = config.training, config.reserved_tags, list[str]()
    updates, guided_updates = folder.checkpoints.updates(), training.guided_alignment_updates
    is_new, next_update = not updates, max(updates, default=0) + 1
    is_guided = training.guided_alignment and next_update < (guided_updates or math.inf)
    if is_guided or (is_new and training.init_embeddings == "translations") or config.data.terms:
        table = world.broadcast(data.translation_table if world.is_main else None)
        vars(data)["translation_table"] = table  # as `cached_property` does
    if training.init_from is not None and is_new:
        run = read_initial_run(training.init_from, config.model, tags, training.init_tags)
        notes = load_initial_weights(model, run, training.init_tags, data.tokenizer)
    elif is_new:
        if training.init_embeddings == "translations":
            translate_embeddings(model, data.translation_table)
        if training.init_sublayers == "zero":
            clear_sublayers(model)
    learner = build_learner(config, model, device, lambda: data.translation_table)
    # On rank 0 first, because it removes partially written checkpoints.
    resumed = world.rank0_first(lambda: folder.checkpoints.resume(learner))
    state = resumed or TrainState()
    begin_update(learner.training_pass, state.update + 1)
    agree_on_start(world, data, learner, state)
    learner = distribute(learner, data, world)
    return Start(learner, state, resumed is not None, notes)


def open_progress(
    start: Start, training: TrainingConfig, folder: RunFolder, data: TrainingData, world: World
) -> Progress:
    """Journal the start of a session, and return its progress with the first lines printed."""
    learner, state = start.learner, start.state
    device = learner.precision.device
    board = None
    if world.is_main:
        surroundings = {
            **environment(device, learner.precision.name),
            "ranks": world.size,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(folder.environment, surroundings)
        event = "resume" if start.is_resumed else "start"
        append_event(folder.metrics, event, update=state.update, **surroundings)
        for change in folder.changes:
            append_event(folder.metrics, "config", update=state.update, change=change)
        if training.tensorboard == "on":
            board = TensorBoard(folder.tensorboard, done_updates=state.update)
    plan = data.plan_epoch(state.epoch)
    progress = (Progress if world.is_main else SilentProgress)(
        folder.metrics,
        done_updates=state.update,
        max_updates=most_updates(training, len(plan)),
        board=board,
    )
    batch_tokens = training.max_tokens_per_batch
    lines = [
        describe_data(data, plan, max_tokens_per_batch=batch_tokens, epoch=state.epoch),
        f"{describe_parameters(learner.model)}, {learner.precision.name} on {device.type}",
        *start.notes,
    ]
    if start.is_resumed:
        lines.append(f"going on after update {state.update:,}")
    lines += [f"changed since this run began: {change}" for change in folder.changes]
    for line in lines:
        progress.print_line(line)
    if slow := why_slow(learner.precision):
        advice = "a new run with `training.precision: auto` is faster"
        progress.warn_once("precision", f"{slow}; {advice}", update=state.update)
    return progress


def new_model(
    shape: ModelConfig, vocabularies: tuple[int, int], device: torch.device
) -> Transformer:
    """Return a new model for vocabularies of these sizes, source and target."""
    source, target = vocabularies
    return Transformer(shape, source_vocabulary=source, target_vocabulary=target).to(device)


def build_learner(
    config: Config, model: Transformer, device: torch.device, table: ProvideTable | None = None
) -> Learner:
    """Return a learner for a model, frozen and compiled as configured, guided by a `table`."""
    training = config.training
    choose_weights(model, training, trains_embeddings=config.learns_tokens)
    if training.compile == "on":
        longest = config.data.max_tokens
        positions = max(longest, length_limit(longest, config.decoding))
        compile_stacks(model, positions=positions)
    return Learner(
        model=model,
        training_pass=choose_training_pass(model, training, table),
        optimizer=build_optimizer(
            model, device, training.optimizer, weight_decay=training.weight_decay
        ),
        precision=choose_precision(training.precision, device, config.model.d_model),
        gradient_clip=training.gradient_clip,
        average=choose_average(model, training.ema_decay),
    )


def distribute(learner: Learner, data: TrainingData, world: World) -> Learner:
    """Return the learner with a training pass whose gradients are summed over all ranks."""
    training_pass = world.wrap(learner.training_pass)

    def loss() -> Tensor:
        batch = collate(data.store.examples([0])).to(learner.precision.device)
        with learner.precision.autocast():
            return training_pass(batch).objective  # type: ignore[no-any-return]

    fix_bucket_order(training_pass, loss)
    return replace(learner, training_pass=training_pass)


def most_updates(training: TrainingConfig, updates_per_epoch: int) -> int | None:
    """Return the largest number of updates that the config allows; None if there is no limit."""
    by_epochs = training.max_epochs and training.max_epochs * updates_per_epoch
    return min(filter(None, (training.max_updates, by_epochs)), default=None)
