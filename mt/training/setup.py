"""Training session: model, optimizer, data and state, new or from the newest checkpoint."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import torch
from torch import Tensor

from mt.config import Config, ModelConfig, TrainingConfig
from mt.data.batches import collate
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import length_limit
from mt.files import write_json
from mt.model.transformer import Transformer
from mt.training.agreement import agree_on_start
from mt.training.compilation import compile_stacks
from mt.training.data import TrainingData
from mt.training.device_settings import for_device
from mt.training.distributed import ALONE, World, fix_bucket_order
from mt.training.initial_weights import choose_weights, describe_parameters, load_initial_weights
from mt.training.objectives import GuidedPass, choose_training_pass, learn_table
from mt.training.optimizer import build_optimizer, choose_average, choose_precision, why_slow
from mt.training.progress import Progress, SilentProgress, TensorBoard, append, describe_data
from mt.training.run_folder import RunFolder, environment
from mt.training.state import TrainState
from mt.training.step import Learner, UpdateResult
from mt.training.validation import Validation


@dataclass(frozen=True)
class Session:
    """Objects of the training loop; `learner`, `state`, `progress` and `unread` are mutable."""

    config: Config
    folder: RunFolder
    corpus: TrainingData
    learner: Learner
    state: TrainState
    progress: Progress
    unread: list[UpdateResult] = field(default_factory=list)
    """Updates whose metrics have not been fetched from the device."""
    validations: dict[int, Validation] = field(default_factory=dict)
    """Validations of this process, by update."""
    world: World = ALONE
    """Ranks that train together; only rank 0 writes into the folder."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.learner.precision.device


def start(
    config: Config,
    folder: RunFolder,
    corpus: TrainingData,
    device: torch.device,
    changes: list[str],
    world: World = ALONE,
) -> Session:
    """Build the model and its optimizer, and load the newest checkpoint if there is one."""
    config = for_device(config, device)
    torch.manual_seed(config.seed)
    model, is_new = build_model(config, corpus.tokenizer, device), not folder.checkpoints.updates()
    initial = load_initial_weights(model, config, corpus.tokenizer) if is_new else []
    learner = build_learner(config, model, device)
    if weight := config.training.guided_alignment:
        table = learn_table(corpus.store)
        guided = GuidedPass(model, config.training.label_smoothing, weight, table)
        learner = replace(learner, training_pass=guided)
    # On rank 0 first, because it removes partially written checkpoints.
    resumed = world.rank0_first(lambda: folder.checkpoints.resume(learner))
    state = resumed or TrainState()
    agree_on_start(world, corpus, learner, state)
    board = None
    if world.is_main:
        surroundings = {
            **environment(device, learner.precision.name),
            "ranks": world.size,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(folder.environment, surroundings)
        event = "resume" if resumed else "start"
        append(folder.metrics, event, update=state.update, **surroundings)
        for change in changes:
            append(folder.metrics, "config", update=state.update, change=change)
        if config.training.tensorboard == "on":
            board = TensorBoard(folder.tensorboard, done_updates=state.update)
    plan = corpus.plan_epoch(state.epoch)
    progress = (Progress if world.is_main else SilentProgress)(
        folder.metrics,
        done_updates=state.update,
        max_updates=most_updates(config.training, len(plan)),
        board=board,
    )
    compiled = ", compiled in the first updates" if config.training.compile == "on" else ""
    for line in [
        describe_data(
            corpus,
            plan,
            max_tokens_per_batch=config.training.max_tokens_per_batch,
            epoch=state.epoch,
        ),
        f"{describe_parameters(model)}, {learner.precision.name} on {device.type}{compiled}",
        *initial,
        *([f"going on after update {state.update:,}"] if resumed else []),
        *(f"changed since this run began: {change}" for change in changes),
    ]:
        progress.say(line)
    if slow := why_slow(learner.precision):
        remedy = (
            "a run keeps its precision: resume it on another machine, or begin a new run in fp32 "
            "with the weights of a finished one (--init-from)"
            if resumed
            else "set `training.precision: auto`"
        )
        progress.warn_once("precision", f"{slow}; {remedy}", update=state.update)
    learner = distribute(learner, corpus, world)
    return Session(config, folder, corpus, learner, state, progress, world=world)


def build_model(config: Config, tokenizer: Tokenizer, device: torch.device) -> Transformer:
    """Return a new model for the tokenizer's vocabularies."""
    return new_model(config.model, (tokenizer.source_size, tokenizer.target_size), device)


def new_model(
    shape: ModelConfig, vocabularies: tuple[int, int], device: torch.device
) -> Transformer:
    """Return a new model for vocabularies of these sizes, source and target."""
    source, target = vocabularies
    return Transformer(shape, source_vocabulary=source, target_vocabulary=target).to(device)


def build_learner(config: Config, model: Transformer, device: torch.device) -> Learner:
    """Return a learner for a model, after freezing and compiling it as the config says."""
    training = config.training
    choose_weights(model, config)
    if training.compile == "on":
        longest = config.data.max_tokens
        positions = max(longest, length_limit(longest, config.decoding))
        compile_stacks(model, positions=positions)
    return Learner(
        model=model,
        training_pass=choose_training_pass(model, training),
        optimizer=build_optimizer(model, device, training.optimizer),
        precision=choose_precision(training.precision, device, config.model.d_model),
        gradient_clip=training.gradient_clip,
        average=choose_average(model, training.ema_decay),
    )


def distribute(learner: Learner, corpus: TrainingData, world: World) -> Learner:
    """Return the learner with a training pass whose gradients are summed over all ranks."""
    training_pass = world.wrap(learner.training_pass)

    def loss() -> Tensor:
        batch = collate(corpus.store.examples([0])).to(learner.precision.device)
        with learner.precision.autocast():
            return training_pass(batch).objective  # type: ignore[no-any-return]

    fix_bucket_order(training_pass, loss)
    return replace(learner, training_pass=training_pass)


def most_updates(training: TrainingConfig, updates_per_epoch: int) -> int | None:
    """Return the largest number of updates that the config allows; None if there is no limit."""
    limits = [training.max_updates] if training.max_updates else []
    if training.max_epochs:
        limits.append(training.max_epochs * updates_per_epoch)
    return min(limits, default=None)
