"""Training, from the config to a finished run folder."""

import logging
import time
from contextlib import nullcontext
from pathlib import Path
from shutil import get_terminal_size

import numpy as np
import torch

from mt.config import Config
from mt.config.loading import dump_config
from mt.data.batches import Batch
from mt.errors import DivergedError
from mt.evaluation.scores import choose_tokenizer
from mt.files import write_text
from mt.model.device import keep_freed_memory, select_device
from mt.training.agreement import agree_on_config, agree_on_folder
from mt.training.automatic import Choices, choose_length, choose_settings
from mt.training.data import open_prepared, prepare
from mt.training.distributed import World, world
from mt.training.divergence import ON_DIVERGENCE, keep_last, shown_rollbacks
from mt.training.final_model import final_score, write_final_model
from mt.training.interruption import Interruption, interruptible
from mt.training.loader import PlannedUpdate, Prefetcher, planned_updates
from mt.training.memory import in_smaller_batches, try_heaviest, warn_of_low_memory
from mt.training.optimizer import learning_rate
from mt.training.progress import append, require_tensorboard
from mt.training.run_folder import RunFolder, begin, only_training, open_run
from mt.training.setup import Session, start
from mt.training.state import Ranked
from mt.training.step import UpdateResult, fetch_metrics, train_step
from mt.training.validation import METRIC_NAMES, validate, validation_warnings

_UPDATES_PER_QUESTION = 10
_logger = logging.getLogger(__name__)


def train(config: Config, run: Path) -> str:
    """Train the model of a run, or resume its training, and return its final score.

    On a CPU, an interrupted run gives the same result bit for bit. Each process of torchrun calls
    this function; ranks other than 0 return an empty string.
    """
    keep_freed_memory()
    with world(config.training.device) as here:
        choose_tokenizer(
            config.data.of(config.data.valid).target_language, config.evaluation.bleu_tokenizer
        )
        require_tensorboard(config.training)
        agree_on_config(here, config)
        folder, changes = RunFolder(run), list[str]()
        choices = None
        if here.is_main:
            folder, config, changes = open_run(run, config)
        with only_training(folder) if here.is_main else nullcontext():
            if here.is_main:
                if not folder.has_trained():
                    choices = choose_settings(config, select_device(config.training.device))
                    config = choices.applied()
                begin(folder, config)
            config = here.broadcast(config)
            score = here.broadcast(final_score(folder, config) if here.is_main else None)
            if score is None:
                result = train_to_end(config, folder, changes, here, choices)
            else:
                result = f"finished already; {score}"
                for change in changes:
                    _logger.info("changed since this run ended: %s", change)
                    append(folder.metrics, "config", change=change)
    return f"{run}: {result}" if here.is_main else ""


def train_to_end(
    config: Config,
    folder: RunFolder,
    changes: list[str],
    world: World,
    choices: Choices | None = None,
) -> str:
    """Prepare the data, run the training loop and write the final model; return its score.

    The number of updates and what depends on it are chosen here, for a new run on rank 0.
    Raises SystemExit after a signal, DivergedError after a divergence that has no remedy.
    """
    device = world.place(select_device(config.training.device))
    agree_on_folder(world, config, folder)
    open_corpus = prepare if world.is_main else open_prepared
    corpus = world.rank0_first(lambda: open_corpus(config, folder))
    if device.type == "cpu" and world.is_main:
        warn_of_low_memory(config, corpus)
    if choices is not None:
        config = choose_length(choices, corpus, device)
        write_text(folder.config, dump_config(config))
    config = world.broadcast(config)
    with interruptible() as interruption:
        session = start(config, folder, corpus, device, changes, world)
        with session.progress:
            is_automatic = config.training.is_open("max_tokens_per_batch")
            session = try_heaviest(session, is_automatic=is_automatic)
            while True:
                try:
                    run_updates(session, interruption)
                    is_validated = session.state.update == session.state.validated_update
                    if not (stop_requested(session, interruption) or is_validated):
                        validate_and_save(session)
                    break
                except DivergedError as error:
                    reason = str(error)
                # Outside the handler, because the traceback keeps tensors in memory.
                session = ON_DIVERGENCE[config.training.on_divergence](session, reason)
            if stop_requested(session, interruption):
                stop_early(session, interruption)
            result = finish(session)
    corpus.close()
    return result


def run_updates(session: Session, interruption: Interruption) -> None:
    """Train until the config's end or a signal, or raise DivergedError; validate and save."""
    training, state, progress = session.config.training, session.state, session.progress
    if has_ended(session):
        return
    started_at = time.perf_counter() - state.elapsed_seconds
    session.learner.model.train()
    planned = planned_updates(training, session.corpus, state, session.device, session.world)
    with Prefetcher(planned) as updates:
        for update in updates:
            take_update(session, update)
            progress.waited_seconds = updates.waited_seconds
            state.elapsed_seconds = time.perf_counter() - started_at
            ended = has_ended(session)
            stopping = ended or (asks_ranks(session) and stop_requested(session, interruption))
            if stopping or metrics_are_due(session):
                log_metrics(session)
            if state.update % training.validate_every == 0:
                validate_and_save(session)
            elif training.checkpoint_every and state.update % training.checkpoint_every == 0:
                save(session)
            if stopping or has_ended(session):  # a validation may have used up the patience
                break
    log_metrics(session)
    progress.log(state)


def take_update(session: Session, planned: PlannedUpdate) -> None:
    """Take one training step, in smaller batches if the device lacks memory, and count it."""
    config, state = session.config, session.state
    rate = learning_rate(state.update + 1, config.training, config.model.d_model)
    rate *= state.rate_factor

    def attempt(batches: list[Batch]) -> UpdateResult:
        seed_dropout(config.seed, state.update, session.world.rank)
        return train_step(session.learner, batches, rate, tokens=planned.tokens)

    result = in_smaller_batches(session, planned.batches, attempt)
    state.update += 1
    state.epoch, state.update_in_epoch = planned.epoch, planned.number + 1
    state.target_tokens += planned.tokens.target
    session.learner.average.update(state.update, result.gradient_norm)
    session.unread.append(result)
    session.progress.advance(rate)


def seed_dropout(seed: int, update: int, rank: int) -> None:
    """Seed the generator of dropout from the run's seed, the update and the rank alone.

    A resumed or repeated update thus draws the same numbers without a saved generator state.
    """
    words = np.random.SeedSequence([seed, update, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(words[0]))


def metrics_are_due(session: Session) -> bool:
    """Return whether to fetch metrics: if a log, validation or checkpoint is due; always on CPU."""
    training, update = session.config.training, session.state.update
    periods = [training.log_every, training.validate_every, training.checkpoint_every]
    due = any(period and update % period == 0 for period in periods)
    return due or session.device.type == "cpu"


def log_metrics(session: Session) -> None:
    """Fetch and log the metrics since the last call; raise DivergedError if they show it."""
    state, progress = session.state, session.progress
    first = state.update - len(session.unread) + 1
    for number, metrics in enumerate(fetch_metrics(session.unread, session.world), start=first):
        progress.add(metrics)
        state.skipped_updates += metrics.skipped
        state.health.add(metrics, number)
        if reason := state.health.divergence():
            progress.log(state)
            raise DivergedError(reason)
    session.unread.clear()
    progress.show(state)
    if state.update % session.config.training.log_every == 0:
        progress.log(state)


def asks_ranks(session: Session) -> bool:
    """Return whether to ask all ranks for a signal: with several GPUs after each tenth update."""
    is_cheap = session.world.size == 1 or session.device.type == "cpu"
    return is_cheap or session.state.update % _UPDATES_PER_QUESTION == 0


def stop_requested(session: Session, interruption: Interruption) -> bool:
    """Return whether any rank has received a signal; all ranks then note it."""
    if number := session.world.all_reduce_max(interruption.signal or 0):
        interruption.signal = number
    return bool(number)


def has_ended(session: Session) -> bool:
    """Return whether `max_updates` or `patience` is used up; `max_epochs` ends the loader."""
    training, state = session.config.training, session.state
    updates_done = training.max_updates is not None and state.update >= training.max_updates
    patience_gone = (
        training.patience is not None and state.validations_without_gain >= training.patience
    )
    return updates_done or patience_gone


def validate_and_save(session: Session) -> None:
    """Validate, rank the checkpoint and save it; raise DivergedError on all ranks alike."""
    state = session.state
    score, reason = 0.0, ""
    if session.world.is_main:
        try:
            score = validation_score(session)
        except DivergedError as error:
            reason = str(error)
    score, reason = session.world.broadcast((score, reason))
    if reason:
        raise DivergedError(reason)
    gained = not state.best or score > state.best[0].score
    state.validations_without_gain = 0 if gained else state.validations_without_gain + 1
    # The sort is stable: among equal scores the earlier checkpoint stays first.
    state.best.append(Ranked(state.update, score))
    state.best.sort(key=lambda ranked: -ranked.score)
    state.validated_update = state.update
    save(session)


def validation_score(session: Session) -> float:
    """Validate, log and journal the result, and return the score that ranks the checkpoint.

    Raises DivergedError if the model's output is not finite.
    """
    config, state, progress = session.config, session.state, session.progress
    count, metric = config.training.validation_pairs, config.training.best_metric
    with progress.paused(), session.learner.average.swapped():
        validation = validate(session.learner, session.corpus, config, count=count)
    session.validations[state.update] = validation
    score, standing = validation.metric(metric), "new best"
    if state.best and score <= (best := state.best[0]).score:
        standing = f"best {METRIC_NAMES[metric]} {abs(best.score):.2f} at update {best.update:,}"
    clauses = [
        f"{progress.position(state)}: {validation.as_text(signatures=False)}",
        standing,
        progress.time_left(state),
        ", ".join(validation.statistics.faults()),
    ]
    progress.say("; ".join(filter(None, clauses)))
    progress.say(validation.sample.as_text(get_terminal_size((100, 24)).columns))
    progress.record(
        "validation",
        update=state.update,
        epoch=state.epoch_number,
        target_tokens=state.target_tokens,
        elapsed_seconds=state.elapsed_seconds,
        **validation.as_record(),
    )
    for kind, message in validation_warnings(validation, session.corpus.valid_examples):
        progress.warn_once(kind, message, update=state.update)
    return score


def save(session: Session) -> None:
    """Write a checkpoint, and delete those that the config does not keep."""
    training, state = session.config.training, session.state
    state.best = state.best[: training.keep_best]
    keep_last(state, training.keep_last)
    if session.world.is_main:
        checkpoints = session.folder.checkpoints
        checkpoints.save(session.learner, state)
        checkpoints.prune(state)
    session.world.barrier()  # it is more patient than the collectives of an update


def stop_early(session: Session, interruption: Interruption) -> None:
    """Save a checkpoint and exit with the signal's status.

    The checkpoint does not count among the `last` ones, so the run ends as if uninterrupted.
    """
    if session.world.is_main and session.state.update not in session.state.last:
        session.folder.checkpoints.save(session.learner, session.state)
    session.progress.say(
        f"stopped after update {session.state.update:,}; run the same command again to resume, or "
        f"with --set training.max_updates={max(session.state.update, 1)} to end here with a model"
    )
    # torchrun stops all processes when one ends, so the checkpoint must be complete.
    session.world.barrier()
    raise SystemExit(interruption.exit_status)


def finish(session: Session) -> str:
    """Write the final model and return its score; empty on ranks other than 0."""
    result = ""
    if session.world.is_main:
        # The run may have been killed between its last checkpoint and the deletion of older ones.
        session.folder.checkpoints.prune(session.state)
        result = write_final_model(session).as_text() + shown_rollbacks(session.state)
    session.world.barrier()
    return result
