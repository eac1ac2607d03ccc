"""What a training run works with, built fresh or from its newest checkpoint."""

import hashlib
import os
import platform
import shutil
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

import torch
from torch import Tensor

from mt import __version__
from mt.config import Config, TrainingConfig
from mt.config.loading import load_config
from mt.data.batches import collate
from mt.data.tokenizer import Tokenizer
from mt.errors import RunError, UserError
from mt.files import write_json
from mt.model.transformer import Transformer
from mt.model.weights import parameter_tensors
from mt.training.data import Corpus, describe, first_plan
from mt.training.distributed import ALONE, World, settle
from mt.training.initial_weights import describe_parameters, freeze, load_initial_weights
from mt.training.optimizer import build_optimizer, choose_average, choose_precision
from mt.training.progress import Progress, SilentProgress, append, open_board
from mt.training.r_drop import choose_training_pass
from mt.training.run_folder import RunFolder, environment, flat
from mt.training.state import TrainState
from mt.training.step import Learner, UpdateResult


def agree_on_config(world: World, config: Config) -> None:
    """Make sure that all ranks were started with one config and one version of the programs."""
    if world.size == 1:
        return
    keys = flat(config.model_dump(mode="json"))
    world.agree({"mt": __version__, "torch": torch.__version__})
    world.agree({f"`{key}`": str(value) for key, value in keys.items()})


def agree_on_folder(world: World, config: Config, folder: RunFolder) -> None:
    """Make sure that all ranks see the run folder in which rank 0 has just begun."""
    if world.size == 1:
        return
    if not folder.config.exists() or load_config(folder.config) != config:
        raise RunError(
            f"{folder.path}: rank {world.rank} on host {platform.node()} does not find the run of "
            "rank 0 there; the run folder has to be on a disk that all hosts share"
        )


def agree_on_start(world: World, corpus: Corpus, learner: Learner, state: TrainState) -> None:
    """Make sure that all ranks begin with the same data, weights and update."""
    if world.size == 1:
        return
    world.agree(
        {
            "the tokenizer": corpus.tokenizer.fingerprint,
            "the number of training pairs": str(len(corpus.store)),
            "the update to go on from": str(state.update),
            "the hash of the weights": weights_sha256(learner),
        }
    )


def weights_sha256(learner: Learner) -> str:
    """Return the SHA-256 of all weights, in hexadecimal."""
    digest = hashlib.sha256()
    for name, tensor in parameter_tensors(learner.model).items():
        digest.update(name.encode())
        digest.update(memoryview(tensor.contiguous().numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()


def compile_stacks(model: Transformer, switch: Literal["on", "off"]) -> None:
    """Have encoder and decoder compiled at their first use in training, if the switch is on.

    Lengths are dynamic: one compilation serves all batches of a precision. Output layer and loss
    have kernels of their own making. Raises UserError where there is no C++ compiler.
    """
    if switch == "off":
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"`training.compile: on` needs a C++ compiler, and there is no `{compiler}`; install "
            "one, name it in the variable CXX, or leave `training.compile` off"
        )
    model.states = torch.compile(model.states, dynamic=True)  # type: ignore[method-assign]


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
    resumed = world.rank0_first(lambda: folder.checkpoints.resume(learner))
    state = resumed or TrainState()
    agree_on_start(world, corpus, learner, state)
    if world.is_main:
        surroundings = _surroundings(learner, world)
        write_json(folder.environment, surroundings)
        append(folder.metrics, _event(resumed), update=state.update, **surroundings)
        _journal_changes(folder, state.update, changes)
    plan = first_plan(corpus, config, epoch=state.epoch)
    progress = (Progress if world.is_main else SilentProgress)(
        folder.metrics,
        done_updates=state.update,
        max_updates=most_updates(training, len(plan)),
        board=open_board(folder.tensorboard, training, state.update) if world.is_main else None,
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
