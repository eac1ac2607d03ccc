"""What a training run works with, built fresh or from its newest checkpoint."""

from dataclasses import dataclass

import torch

from mt.config import Config, TrainingConfig
from mt.files import write_json
from mt.model.transformer import Transformer
from mt.training.corpus import Corpus, describe, first_plan
from mt.training.environment import environment
from mt.training.optimizer import build_optimizer
from mt.training.precision import choose_precision
from mt.training.progress import Progress, append
from mt.training.run_folder import RunFolder
from mt.training.state import TrainState
from mt.training.update import Learner


@dataclass(frozen=True)
class Session:
    """All that the loop works with; `learner` and `state` change, the rest does not."""

    config: Config
    folder: RunFolder
    corpus: Corpus
    learner: Learner
    state: TrainState
    progress: Progress


def most_updates(training: TrainingConfig, updates_per_epoch: int) -> int | None:
    """Return how many updates the config allows; None where only patience ends the run."""
    ends = [training.max_updates] if training.max_updates else []
    if training.max_epochs:
        ends.append(training.max_epochs * updates_per_epoch)
    return min(ends, default=None)


def start(
    config: Config, folder: RunFolder, corpus: Corpus, device: torch.device, changes: list[str]
) -> Session:
    """Build the model and its optimiser, and load the newest checkpoint if there is one."""
    torch.manual_seed(config.seed)
    tokenizer = corpus.tokenizer
    model = Transformer(
        config.model,
        source_vocabulary=tokenizer.source_size,
        target_vocabulary=tokenizer.target_size,
    ).to(device)
    training = config.training
    learner = Learner(
        model=model,
        optimizer=build_optimizer(model, device),
        precision=choose_precision(training.precision, device),
        label_smoothing=training.label_smoothing,
        gradient_clip=training.gradient_clip,
    )
    resumed = folder.checkpoints.resume(learner)
    state = resumed or TrainState()
    surroundings = environment(device, learner.precision.name)
    write_json(folder.environment, surroundings)
    append(folder.metrics, "resume" if resumed else "start", update=state.update, **surroundings)
    for change in changes:
        append(folder.metrics, "config", update=state.update, change=change)
    plan = first_plan(corpus, config)
    progress = Progress(
        folder.metrics, done_updates=state.update, max_updates=most_updates(training, len(plan))
    )
    progress.say(describe(corpus, config, plan))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    progress.say(f"{parameters:,} parameters, {learner.precision.name} on {device.type}")
    if resumed:
        progress.say(f"going on after update {state.update:,}")
    for change in changes:
        progress.say(f"changed since this run began: {change}")
    return Session(config, folder, corpus, learner, state, progress)
