"""Training, from the config to a finished run folder."""

import logging
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from mt.config import Config
from mt.data.batches import Batch
from mt.errors import DivergedError
from mt.evaluation.scores import choose_tokenizer
from mt.model.device import keep_freed_memory, select_device
from mt.training.data import join, prepare
from mt.training.diagnosis import compare_sides, diagnose, diagnose_early
from mt.training.distributed import World, world
from mt.training.divergence import ON_DIVERGENCE, keep_last, shown_rollbacks
from mt.training.final_model import final_score, write_final_model
from mt.training.interruption import Interruption, interruptible
from mt.training.loader import PlannedUpdate, planned_updates, prepared_ahead
from mt.training.memory import in_smaller_batches, try_heaviest, warn_of_low_memory
from mt.training.optimizer import learning_rate
from mt.training.progress import append, require_tensorboard
from mt.training.run_folder import RunFolder, begin, only_training, open_run
from mt.training.setup import Session, agree_on_config, agree_on_folder, start
from mt.training.state import Ranked
from mt.training.step import UpdateResult, fetch_metrics, update
from mt.training.validation import validate

_logger = logging.getLogger(__name__)


def train(config: Config, run: Path) -> str:
    """Train the run's model, or go on where an earlier call was stopped; return its final score.

    A run is the same, bit for bit on a CPU, whether or not it was interrupted. Called by each of
    the processes that torchrun starts; what all but rank 0 return is empty.
    """
    keep_freed_memory()
    with world(config.training.device) as here:
        choose_tokenizer(
            config.data.of(config.data.valid).target_language, config.evaluation.bleu_tokenizer
        )
        require_tensorboard(config.training)
        agree_on_config(here, config)
        folder, changes = open_run(run, config) if here.is_main else (RunFolder(run), [])
        with only_training(folder) if here.is_main else nullcontext():
            told = _train_or_tell(config, folder, changes, here)
    return f"{run}: {told}" if here.is_main else ""


def _train_or_tell(config: Config, folder: RunFolder, changes: list[str], world: World) -> str:
    if world.is_main:
        begin(folder, config)
    score = world.broadcast(final_score(folder, config) if world.is_main else None)
    if score is None:
        return _train(config, folder, changes, world)
    if world.is_main:
        for change in changes:
            _logger.info("changed since this run ended: %s", change)
            append(folder.metrics, "config", change=change)
    return f"finished already; {score}"


def _train(config: Config, folder: RunFolder, changes: list[str], world: World) -> str:
    device = world.place(select_device(config.training.device))
    agree_on_folder(world, config, folder)
    make_ready = prepare if world.is_main else join
    corpus = world.rank0_first(lambda: make_ready(config, folder))
    if device.type == "cpu" and world.is_main:
        warn_of_low_memory(config, corpus)
    with interruptible() as interruption:
        session = start(config, folder, corpus, device, changes, world)
        with session.progress:
            try_heaviest(session)
            with session.progress.paused():
                compare_sides(session)
            diagnose(session)
            session = run_to_the_end(session, interruption)
            if asked_to_stop(session, interruption):
                stop_early(session, interruption)
            told = finish(session)
    corpus.close()
    return told


def run_to_the_end(session: Session, interruption: Interruption) -> Session:
    """Take updates until the config's end or a signal, and see to it where they diverge.

    Returns the session as it is then: a rollback makes another one of it.
    """
    while True:
        try:
            run_updates(session, interruption)
            if not asked_to_stop(session, interruption):
                validate_the_end(session)
        except DivergedError as error:
            trouble = str(error)
        else:
            return session
        session = ON_DIVERGENCE[session.config.training.on_divergence](session, trouble)


def run_updates(session: Session, interruption: Interruption) -> None:
    """Take updates, validating and saving when due; raise DivergedError where they go wrong."""
    training, state = session.config.training, session.state
    if has_ended(session):
        return
    started_at = time.perf_counter() - state.elapsed_seconds
    session.learner.model.train()
    planned = planned_updates(session.config, session.corpus, state, session.device, session.world)
    with prepared_ahead(planned) as feed:
        for each in feed:
            take_update(session, each)
            session.progress.waited_seconds = feed.waited_seconds
            state.elapsed_seconds = time.perf_counter() - started_at
            stopping = stops(session, interruption)
            if stopping or reads_now(session):
                read_updates(session)
            diagnose_early(session)
            if state.update % training.validate_every == 0:
                validate_and_save(session)
            elif training.checkpoint_every and state.update % training.checkpoint_every == 0:
                save(session)
            if stopping or has_ended(session):  # a validation may have used up the patience
                break
    read_updates(session)
    session.progress.log(state)


def take_update(session: Session, planned: PlannedUpdate) -> None:
    """Take one optimiser step, and count it."""
    config, state = session.config, session.state
    rate = learning_rate(state.update + 1, config.training, config.model.d_model)
    rate *= state.rate_factor

    def attempt(batches: list[Batch]) -> UpdateResult:
        seed_dropout(config.seed, state.update, session.world.rank)
        return update(session.learner, batches, rate, tokens=planned.tokens)

    result = in_smaller_batches(session, planned.batches, attempt)
    state.update += 1
    state.epoch, state.update_in_epoch = planned.epoch, planned.number + 1
    state.target_tokens += planned.tokens.target
    session.learner.average.update(state.update, result.gradient_norm)
    session.unread.append(result)
    session.progress.taken(rate)


def seed_dropout(seed: int, update: int, rank: int) -> None:
    """Let what dropout draws follow from the run's seed, the update and the rank alone.

    So there is no generator's state to save, and an update that is taken again is the same.
    """
    words = np.random.SeedSequence([seed, update, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(words[0]))


def reads_now(session: Session) -> bool:
    """Tell whether to wait for the device: when something is due, and on a CPU always."""
    training, update = session.config.training, session.state.update
    periods = [training.log_every, training.validate_every, training.checkpoint_every]
    due = any(period and update % period == 0 for period in periods)
    return due or session.device.type == "cpu"


def read_updates(session: Session) -> None:
    """Wait for the updates taken since the last call, show them, and judge them."""
    state, progress = session.state, session.progress
    first = state.update - len(session.unread) + 1
    for number, measured in enumerate(fetch_metrics(session.unread, session.world), start=first):
        progress.measured(measured)
        state.skipped_updates += measured.skipped
        state.health.take_in(measured, number)
        if trouble := state.health.trouble():
            progress.log(state)
            raise DivergedError(trouble)
    session.unread.clear()
    if state.update % session.config.training.log_every == 0:
        progress.log(state)


def stops(session: Session, interruption: Interruption) -> bool:
    """Tell whether this update is the last, because of a signal or by the config."""
    return asked_to_stop(session, interruption) or has_ended(session)


def asked_to_stop(session: Session, interruption: Interruption) -> bool:
    """Tell whether a signal has come to any rank; if so, it has come to all."""
    if number := session.world.all_reduce_max(interruption.signal or 0):
        interruption.signal = number
    return bool(number)


def has_ended(session: Session) -> bool:
    """Tell whether the run has had its updates or its patience; epochs end by themselves."""
    training, state = session.config.training, session.state
    updates_done = training.max_updates is not None and state.update >= training.max_updates
    patience_gone = (
        training.patience is not None and state.validations_without_gain >= training.patience
    )
    return updates_done or patience_gone


def validate_and_save(session: Session) -> None:
    """Validate, rank the checkpoint, and save it; raise DivergedError for a model that is none."""
    state = session.state
    score, trouble = session.world.broadcast(
        validated(session) if session.world.is_main else (0.0, "")
    )
    if trouble:
        raise DivergedError(trouble)
    gained = not state.best or score > state.best[0].score
    state.validations_without_gain = 0 if gained else state.validations_without_gain + 1
    # The sort is stable, so of equal scores the earlier checkpoint stays ahead.
    state.best.append(Ranked(state.update, score))
    state.best.sort(key=lambda ranked: -ranked.score)
    state.validated_update = state.update
    save(session)


def validate_the_end(session: Session) -> None:
    """Validate where the run has ended, if that was not done."""
    if session.state.update != session.state.validated_update:
        validate_and_save(session)


def validated(session: Session) -> tuple[float, str]:
    """Validate, say and journal what was found, and return the score that ranks the checkpoint.

    A model that says nothing but NaN has no score; what is wrong with it comes second, for all
    ranks to know.
    """
    config, state, progress = session.config, session.state, session.progress
    try:
        with progress.paused(), session.learner.average.swapped():
            validation = validate(session.learner, session.corpus, config)
    except DivergedError as error:
        return 0.0, str(error)
    told = f"{validation.as_text()}; {validation.symptoms.as_text()}"
    progress.say(f"update {state.update:,}, epoch {state.epoch_number}: {told}")
    progress.record(
        "validation",
        update=state.update,
        epoch=state.epoch_number,
        target_tokens=state.target_tokens,
        elapsed_seconds=state.elapsed_seconds,
        **validation.as_record(),
    )
    with session.learner.average.swapped():
        diagnose(session, validation)
    return validation.metric(config.training.best_metric), ""


def save(session: Session) -> None:
    """Write a checkpoint, and delete those that the config does not keep."""
    training, state = session.config.training, session.state
    state.best = state.best[: training.keep_best]
    keep_last(state, training.keep_last)
    if session.world.is_main:
        checkpoints = session.folder.checkpoints
        checkpoints.save(session.learner, state)
        checkpoints.prune(state)


def stop_early(session: Session, interruption: Interruption) -> None:
    """Save what the run has reached and leave.

    This checkpoint is none of the `last` ones: a run that nobody stops does not have it.
    """
    if session.world.is_main and session.state.update not in session.state.last:
        session.folder.checkpoints.save(session.learner, session.state)
    session.progress.say(
        f"stopped after update {session.state.update:,}; the same command goes on from here, and "
        f"with --set training.max_updates={max(session.state.update, 1)} it ends here with a model"
    )
    # Where one process ends, torchrun stops those beside it: not before the checkpoint is whole.
    session.world.barrier()
    raise SystemExit(interruption.exit_status)


def finish(session: Session) -> str:
    """Write the final model, and tell of it."""
    told = ""
    if session.world.is_main:
        # One that was killed right after its last checkpoint has not come to it.
        session.folder.checkpoints.prune(session.state)
        told = write_final_model(session).as_text() + shown_rollbacks(session.state)
    session.world.barrier()
    return told
