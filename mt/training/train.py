"""Training, from the config to a finished run folder."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from mt.config import Config
from mt.data.batches import Indices, collate, plan_updates, split_update
from mt.errors import DivergedError, UserError
from mt.evaluation.scores import choose_tokenizer
from mt.model.device import select_device
from mt.training.allocator import keep_freed_memory
from mt.training.corpus import prepare
from mt.training.final_model import final_score, write_final_model
from mt.training.interruption import Interruption, interruptible
from mt.training.optimizer import learning_rate
from mt.training.progress import append
from mt.training.run_folder import RunFolder, begin, only_training, open_run
from mt.training.session import Session, start
from mt.training.state import Ranked
from mt.training.update import update
from mt.training.validation import Validation, validate

LOG_EVERY = 50
MOST_SKIPPED_IN_A_ROW = 25

_logger = logging.getLogger(__name__)


def train(config: Config, run: Path) -> str:
    """Train the run's model, or go on where an earlier call was stopped; return its final score.

    A run is the same, bit for bit on a CPU, whether or not it was interrupted.
    """
    keep_freed_memory()
    device = select_device(config.training.device)
    choose_tokenizer(config.data.target_language, config.evaluation.bleu_tokenizer)
    folder, changes = open_run(run, config)
    with only_training(folder):
        begin(folder, config)
        if score := final_score(folder, config):
            for change in changes:
                _logger.info("changed since this run ended: %s", change)
                append(folder.metrics, "config", change=change)
            return f"{run}: finished already; {score}"
        validation = _train(config, folder, device=device, changes=changes)
    return f"{run}: {validation.as_text()}"


def _train(
    config: Config, folder: RunFolder, *, device: torch.device, changes: list[str]
) -> Validation:
    corpus = prepare(config, folder)
    with interruptible() as interruption:
        session = start(config, folder, corpus, device, changes)
        with session.progress:
            run_updates(session, interruption)
            if interruption.signal:
                stop_early(session, interruption)
            return finish(session)


def run_updates(session: Session, interruption: Interruption) -> None:
    """Take updates until the config's end or a signal, validating and saving when due."""
    config, state, progress = session.config, session.state, session.progress
    training = config.training
    started_at = time.perf_counter() - state.elapsed_seconds
    session.learner.model.train()
    for indices in planned_updates(session):
        rate = learning_rate(state.update + 1, training, config.model.d_model)
        one_update(session, indices, rate)
        state.elapsed_seconds = time.perf_counter() - started_at
        if state.update % LOG_EVERY == 0:
            progress.log(state.update, state.epoch_number, rate)
        if state.update % training.validate_every == 0:
            validate_and_save(session)
        elif training.checkpoint_every and state.update % training.checkpoint_every == 0:
            save(session)
        if interruption.signal or has_ended(session):
            break
    if progress.interval.tokens:
        progress.log(state.update, state.epoch_number, rate)


def planned_updates(session: Session) -> Iterator[Indices]:
    """Yield the sentences of each update from where the state stands to the last epoch's end."""
    config, state = session.config, session.state
    training = config.training
    while (training.max_epochs is None or state.epoch < training.max_epochs) and not has_ended(
        session
    ):
        plan = plan_updates(
            session.corpus.store.lengths,
            training.target_tokens_per_update,
            seed=config.seed,
            epoch=state.epoch,
        )
        yield from plan[state.update_in_epoch :]
        state.epoch, state.update_in_epoch = state.epoch + 1, 0


def one_update(session: Session, indices: Indices, rate: float) -> None:
    """Take one optimiser step on the sentences `indices`, and count it."""
    store, state = session.corpus.store, session.state
    micro_batches = split_update(
        indices,
        store.lengths,
        max_tokens_per_batch=session.config.training.max_tokens_per_batch,
        ranks=1,
    )[0]
    device = session.learner.precision.device
    batches = [collate(store.examples(batch)).to(device) for batch in micro_batches]
    try:
        result = update(session.learner, batches, rate)
    except torch.OutOfMemoryError:
        raise UserError(
            "the device has too little memory: lower `training.max_tokens_per_batch`, now "
            f"{session.config.training.max_tokens_per_batch}; the updates stay the same"
        ) from None
    state.update += 1
    state.update_in_epoch += 1
    state.target_tokens += result.tokens
    state.skipped_updates += result.skipped
    state.skipped_in_a_row = state.skipped_in_a_row + 1 if result.skipped else 0
    session.progress.updated(result)
    if state.skipped_in_a_row > MOST_SKIPPED_IN_A_ROW:
        raise DivergedError(
            f"{session.folder.path}: {state.skipped_in_a_row} updates in a row had a loss or "
            "gradient that is not finite; lower `training.learning_rate`, or use bf16 or fp32"
        )


def has_ended(session: Session) -> bool:
    """Tell whether the run has had its updates or its patience; epochs end by themselves."""
    training, state = session.config.training, session.state
    updates_done = training.max_updates is not None and state.update >= training.max_updates
    patience_gone = (
        training.patience is not None and state.validations_without_gain >= training.patience
    )
    return updates_done or patience_gone


def validate_and_save(session: Session) -> None:
    """Validate, rank the checkpoint, and save it."""
    config, state, progress = session.config, session.state, session.progress
    with progress.paused():
        validation = validate(session.learner, session.corpus, config)
    score = validation.metric(config.training.best_metric)
    gained = not state.best or score > state.best[0].score
    state.validations_without_gain = 0 if gained else state.validations_without_gain + 1
    # The sort is stable, so of equal scores the earlier checkpoint stays ahead.
    state.best.append(Ranked(state.update, score))
    state.best.sort(key=lambda ranked: -ranked.score)
    state.validated_update = state.update
    progress.say(f"update {state.update:,}, epoch {state.epoch_number}: {validation.as_text()}")
    progress.record(
        "validation",
        update=state.update,
        epoch=state.epoch_number,
        target_tokens=state.target_tokens,
        elapsed_seconds=state.elapsed_seconds,
        **validation.as_record(),
    )
    save(session)


def save(session: Session) -> None:
    """Write a checkpoint, and delete those that the config does not keep."""
    training, state = session.config.training, session.state
    state.last.append(state.update)
    checkpoints = session.folder.checkpoints
    state.best, state.last = state.best[: training.keep_best], state.last[-training.keep_last :]
    checkpoints.save(session.learner, state)
    checkpoints.prune(state)


def stop_early(session: Session, interruption: Interruption) -> None:
    """Save what the run has reached and leave.

    This checkpoint is none of the `last` ones: a run that nobody stops does not have it.
    """
    if session.state.update not in session.state.last:
        session.folder.checkpoints.save(session.learner, session.state)
    session.progress.say(
        f"stopped after update {session.state.update:,}; the same command goes on from here, and "
        f"with --set training.max_updates={max(session.state.update, 1)} it ends here with a model"
    )
    raise SystemExit(interruption.exit_status)


def finish(session: Session) -> Validation:
    """Validate where the run has ended, if that was not done, and write the final model."""
    if session.state.update != session.state.validated_update:
        validate_and_save(session)
    return write_final_model(session)
