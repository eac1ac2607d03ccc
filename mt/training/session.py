"""What a training run works with, built fresh or from its newest checkpoint."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import torch
from torch import Tensor

from mt.config import Config, TrainingConfig
from mt.data.batches import collate
from mt.data.tokenizer import Tokenizer
from mt.files import write_json
from mt.model.transformer import Transformer
from mt.training.agreement import agree_on_start
from mt.training.compilation import compile_stacks
from mt.training.corpus import Corpus, describe, first_plan
from mt.training.distributed import ALONE, World, settle
from mt.training.ema import choose_average
from mt.training.environment import environment
from mt.training.frozen import describe_parameters, freeze
from mt.training.initial_weights import load_initial_weights
from mt.training.optimizer import build_optimizer
from mt.training.precision import choose_precision
from mt.training.progress import Progress, Unheard, append
from mt.training.r_drop import choose_training_pass
from mt.training.run_folder import RunFolder
from mt.training.state import TrainState
from mt.training.tensorboard import open_board
from mt.training.update import Learner, UpdateResult


@dataclass(frozen=True)
class Session:
    """All that the loop works with; `learner` and `state` change, the rest does not."""

    config: Config
    folder: RunFolder
    corpus: Corpus
    learner: Learner
    state: TrainState
    progress: Progress
    unread: list[UpdateResult] = field(default_factory=list)
    """Updates that nobody has waited for yet."""
    world: World = ALONE
    """Who trains together; only rank 0 writes into the folder."""
    alarmed: set[str] = field(default_factory=set)
    """The kinds of alarms about the model that have been told."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.learner.precision.device


def most_updates(training: TrainingConfig, updates_per_epoch: int) -> int | None:
    """Return how many updates the config allows; None where only patience ends the run."""
    ends = [training.max_updates] if training.max_updates else []
    if training.max_epochs:
        ends.append(training.max_epochs * updates_per_epoch)
    return min(ends, default=None)


def start(
    config: Config,
    folder: RunFolder,
    corpus: Corpus,
    device: torch.device,
    changes: list[str],
    world: World = ALONE,
) -> Session:
    """Build the model and its optimiser, and load the newest checkpoint if there is one."""
    torch.manual_seed(config.seed)
    training = config.training
    model, afresh = build_model(config, corpus.tokenizer, device), not folder.checkpoints.updates()
    initial = load_initial_weights(model, config, corpus.tokenizer) if afresh else []
    learner = build_learner(config, model, device)
    # Rank 0 first: it mends what a killed program has left half done.
    resumed = world.in_turn(lambda: folder.checkpoints.resume(learner))
    state = resumed or TrainState()
    agree_on_start(world, corpus, learner, state)
    if world.leads:
        surroundings = _surroundings(learner, world)
        write_json(folder.environment, surroundings)
        append(folder.metrics, _event(resumed), update=state.update, **surroundings)
        _journal_changes(folder, state.update, changes)
    plan = first_plan(corpus, config, epoch=state.epoch)
    progress = (Progress if world.leads else Unheard)(
        folder.metrics,
        done_updates=state.update,
        max_updates=most_updates(training, len(plan)),
        board=open_board(folder.tensorboard, training, state.update) if world.leads else None,
    )
    for line in [
        describe(corpus, config, plan, epoch=state.epoch),
        f"{describe_parameters(learner.model)}, {learner.precision.name} on {device.type}",
        *initial,
        *([f"going on after update {state.update:,}"] if resumed else []),
        *(f"changed since this run began: {change}" for change in changes),
    ]:
        progress.say(line)
    joined = _joined(learner, corpus, world)
    return Session(config, folder, corpus, joined, state, progress, world=world)


def _surroundings(learner: Learner, world: World) -> dict[str, object]:
    precision = learner.precision
    return {
        **environment(precision.device, precision.name),
        "ranks": world.size,
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _event(resumed: TrainState | None) -> str:
    return "resume" if resumed else "start"


def _journal_changes(folder: RunFolder, update: int, changes: list[str]) -> None:
    for change in changes:
        append(folder.metrics, "config", update=update, change=change)


def _joined(learner: Learner, corpus: Corpus, world: World) -> Learner:
    """Return a learner whose gradients are those of all ranks."""
    training_pass = world.wrap(learner.training_pass)

    def loss() -> Tensor:
        batch = collate(corpus.store.examples([0])).to(learner.precision.device)
        with learner.precision.autocast():
            return training_pass(batch).objective  # type: ignore[no-any-return]

    settle(training_pass, loss)
    return replace(learner, training_pass=training_pass)


def build_model(config: Config, tokenizer: Tokenizer, device: torch.device) -> Transformer:
    """Return a fresh model for the tokenizer's vocabularies."""
    return Transformer(
        config.model,
        source_vocabulary=tokenizer.source_size,
        target_vocabulary=tokenizer.target_size,
    ).to(device)


def build_learner(config: Config, model: Transformer, device: torch.device) -> Learner:
    """Return a model, parts of it frozen as the config says, and what trains it."""
    training = config.training
    freeze(model, training.freeze)
    compile_stacks(model, training.compile)
    return Learner(
        model=model,
        training_pass=choose_training_pass(model, training),
        optimizer=build_optimizer(model, device),
        precision=choose_precision(training.precision, device, config.model.d_model),
        gradient_clip=training.gradient_clip,
        average=choose_average(model, training.ema_decay),
    )
