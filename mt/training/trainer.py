"""Training, from the config to a finished run folder."""

import logging
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from mt.config import Config
from mt.config.loading import with_values
from mt.errors import DivergedError, UserError, install_hint
from mt.evaluation.scores import choose_tokenizer
from mt.model.device import keep_freed_memory
from mt.training.automatic import measure_corpora
from mt.training.data import TrainingData, open_prepared, prepare, read_corpora
from mt.training.distributed import ALONE, World, connect_ranks
from mt.training.final_model import write_final_model
from mt.training.interruption import Interruption, interruptible
from mt.training.loader import BatchFitter, PlannedUpdate, Prefetcher, planned_updates
from mt.training.optimizer import learning_rate
from mt.training.progress import Progress, append_event
from mt.training.resolve import choose_length, choose_settings, describe_settings, with_settings
from mt.training.resources import join_measurements, measure_speed, warn_of_low_memory
from mt.training.run_folder import RunFolder, open_run
from mt.training.setup import (
    agree_on_config,
    agree_on_folder,
    begin_or_resume,
    open_progress,
    resolve_for_device,
)
from mt.training.state import Ranked, TrainState, describe_divergence
from mt.training.step import Learner, UpdateResult, fetch_metrics, train_step
from mt.training.validation import METRIC_NAMES, Validation, Validator, validation_warnings

_UPDATES_PER_SIGNAL_CHECK = 10
_logger = logging.getLogger(__name__)


def train(config: Config, run: Path, *, began_at: float | None = None) -> str:
    """Train the model of a run, or resume its training, and return its final score.

    A budget counts from `began_at`, a time of `time.perf_counter`, by default from now. On a CPU,
    an interrupted run gives the same result bit for bit. Each process of torchrun calls this
    function; ranks other than 0 return an empty string. Raises SystemExit after a signal, and
    DivergedError after a divergence.
    """
    keep_freed_memory()
    began_at = time.perf_counter() if began_at is None else began_at
    with connect_ranks(config.training.device) as world:
        agree_on_config(world, config.flat())
        if config.training.tensorboard == "on" and find_spec("tensorboard") is None:
            hint = install_hint("tensorboard")
            raise UserError(f"`training.tensorboard: on` needs tensorboard: {hint}")
        language = config.data.direction_of(config.data.valid).target
        choose_tokenizer(language, config.evaluation.bleu_tokenizer)
        with open_run(run) if world.is_main else nullcontext(RunFolder(run)) as folder:
            begun, prepared, score = config, None, None
            if world.is_main:
                begun, prepared, score = resolve_run(config, folder, world, began_at)
            join_measurements(world)
            resolved, score = world.broadcast((begun, score))
            if score is not None:
                return f"{run}: finished already; {score}" if world.is_main else ""
            agree_on_folder(world, resolved.flat(), folder)
            data = world.rank0_first(lambda: prepared or open_prepared(resolved, folder))
            with interruptible() as interruption:
                trainer = Trainer(resolved, folder, data, world, interruption)
                result = trainer.run()
                data.close()
                if trainer.stop_requested():  # while the final model was made
                    if world.is_main:
                        _logger.info("stopped after the final model; run the same command again")
                    raise SystemExit(interruption.exit_status)
    return f"{run}: {result}" if world.is_main else ""


def resolve_run(
    config: Config, folder: RunFolder, world: World, began_at: float
) -> tuple[Config, TrainingData | None, str | None]:
    """Resolve the config of a run on rank 0, write it, and prepare the data.

    Returns the config, the data, and None; for a run that has ended, its score and no data. Budgets
    count from `began_at`. A run that is resumed has the settings that were chosen for it.
    """
    corpora, is_new = None, not folder.has_trained()
    measure = partial(measure_speed, world=world)
    if is_new:
        corpora = read_corpora(config)
        assert corpora.scan is not None, "the corpora of a new run are scanned"
        statistics = measure_corpora(corpora.scan, config.data.max_tokens)
        sizes, _ = choose_settings(config, statistics, world.device, measure)
        sized = with_settings(config, sizes)
        for line in describe_settings(sized, sizes):
            _logger.info("%s", line)
    else:
        sized = folder.resume_config(config)
    folder.begin(sized)
    if not is_new and (score := folder.final_score(sized.training)) is not None:
        for change in folder.changes:
            _logger.info("changed since this run ended: %s", change)
            append_event(folder.metrics, "config", change=change)
        return sized, None, score
    data = prepare(sized, folder, corpora)
    if not is_new:
        return sized, data, None
    ends_at = began_at + (config.training.budget_seconds or 0.0)
    length = choose_length(sized, data, world.device, measure, ends_at=ends_at)
    resolved = with_values(sized, length)
    folder.write_config(resolved)
    return resolved, data, None


class Trainer:
    """Training of one run on this rank: model, data and state, new or from the newest checkpoint.

    Keys of the run's config that depend on the device alone may be open, because a run may go on on
    another device; `begin` resolves them for this session.
    """

    learner: Learner
    """Model, objective (label smoothing, R-Drop or guided alignment), optimizer and average."""
    state: TrainState
    """Progress, ranked checkpoints, and `health`, which detects divergence."""
    progress: Progress
    """Bar, journal and TensorBoard."""
    validator: Validator
    fitter: BatchFitter
    """Splits batches that the device lacks memory for."""
    pending: list[UpdateResult]
    """Updates whose metrics have not been fetched from the device."""
    validations: dict[int, Validation]
    """Validations of this process, by update."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        data: TrainingData,
        world: World = ALONE,
        interruption: Interruption | None = None,
    ) -> None:
        self.has_open_batches = config.training.is_open("max_tokens_per_batch")
        self.config = config
        self.folder = folder
        self.data = data
        self.world = world
        self.device = world.device
        self.interruption = interruption or Interruption()
        self.pending, self.validations = [], {}

    def begin(self) -> None:
        """Build the model or load the newest checkpoint, and print and journal the start."""
        self.config = config = resolve_for_device(self.config, self.device)
        self.training = config.training
        start = begin_or_resume(config, self.folder, self.data, self.world)
        self.learner, self.state = start.learner, start.state
        if self.device.type == "cpu" and self.world.is_main:
            warn_of_low_memory(self.learner.model, config.model, config.training, self.data)
        self.progress = open_progress(start, config.training, self.folder, self.data, self.world)
        self.validator = Validator.build(config, self.learner, self.data, self.folder.metrics)
        if self.world.is_main:
            self.progress.print_line(self.validator.describe(self.training.validation_pairs))
        self.fitter = BatchFitter(
            self.learner,
            self.data,
            self.progress,
            self.world,
            tokens=self.training.max_tokens_per_batch,
            longest=config.data.max_tokens,
            is_automatic=self.has_open_batches,
            seed=config.seed,
        )

    def run(self) -> str:
        """Train to the config's end, write the final model and return its score.

        Raises SystemExit after a signal, DivergedError after a divergence.
        """
        self.begin()
        with self.progress:
            self.fit_batches()
            try:
                if self.training.init_from is not None and self.state == TrainState():
                    self.validate_and_save()  # the start is a candidate for the final model
                self.run_updates()
                if self.state.update != self.state.validated_update and not self.stop_requested():
                    self.validate_and_save()
            except DivergedError as error:
                self.progress.record("diverged", update=self.state.update, reason=str(error))
                advice = describe_divergence(self.state, self.folder.path, str(error))
                raise DivergedError(advice) from None
            if self.stop_requested():
                self.stop_early()
            return self.finish()

    def fit_batches(self) -> None:
        """Try the heaviest batch on a GPU; an automatic size of batches is halved until it fits."""
        self.fitter.try_heaviest(self.state.epoch)
        self.validator = replace(self.validator, max_tokens_per_batch=self.fitter.tokens)

    def run_updates(self) -> None:
        """Train until the config's end or a signal; log, validate and save when due."""
        if self.has_ended():
            return
        training, state, progress = self.training, self.state, self.progress
        started_at = time.perf_counter() - state.elapsed_seconds
        self.learner.model.train()
        is_cheap = self.world.size == 1 or self.device.type == "cpu"
        fitting = training.changed(max_tokens_per_batch=self.fitter.tokens)
        planned = planned_updates(fitting, self.data, state, self.device, self.world)
        with Prefetcher(planned) as updates:
            for update in updates:
                self.run_update(update)
                progress.waited_seconds = updates.waited_seconds
                state.elapsed_seconds = time.perf_counter() - started_at
                # Ranks exchange signals after each update on a CPU, after each tenth on GPUs.
                syncs = is_cheap or self.is_due(_UPDATES_PER_SIGNAL_CHECK)
                is_last = self.has_ended() or (syncs and self.stop_requested())
                if is_last or self.should_fetch_metrics():
                    self.log_metrics()
                if self.is_due(training.validate_every):
                    self.validate_and_save()
                elif self.is_due(training.checkpoint_every):
                    self.save()
                if is_last or self.has_ended():  # a validation may have used up the patience
                    break
        self.log_metrics()
        progress.log(state)
        if self.is_out_of_patience():
            name = METRIC_NAMES[training.best_metric]
            progress.print_line(
                f"update {state.update:,}: `training.patience` ends the training, after "
                f"{state.validations_without_gain} validations without a better {name}, or a "
                f"clearly better chrF2 or loss; best: {state.best[0].as_text(name)}"
            )

    def run_update(self, planned: PlannedUpdate) -> None:
        """Take one training step, in smaller batches if the device lacks memory, and count it."""
        state = self.state
        rate = learning_rate(state.update + 1, self.training, self.config.model.d_model)
        step = partial(train_step, self.learner, learning_rate=rate, tokens=planned.tokens)
        result = self.fitter.run(step, planned.batches, update=state.update)
        state.update += 1
        state.epoch, state.update_in_epoch = planned.epoch, planned.index + 1
        state.target_tokens += planned.tokens.target
        self.learner.average.include(state.update, result.gradient_norm)
        self.pending.append(result)
        self.progress.advance(rate)

    def is_due(self, period: int | None) -> bool:
        """Return True after each `period` updates; False for None."""
        return period is not None and self.state.update % period == 0

    def should_fetch_metrics(self) -> bool:
        """Return True if a log, validation or checkpoint is due; always on a CPU."""
        training = self.training
        periods = (training.log_every, training.validate_every, training.checkpoint_every)
        return self.device.type == "cpu" or any(self.is_due(period) for period in periods)

    def log_metrics(self) -> None:
        """Fetch and log the metrics since the last call; raise DivergedError if they show it."""
        state, progress = self.state, self.progress
        first = state.update - len(self.pending) + 1
        for update, metrics in enumerate(fetch_metrics(self.pending, self.world), start=first):
            progress.add(metrics)
            state.skipped_updates += metrics.skipped
            is_warm = update > (self.training.warmup_updates or 0)
            guess = math.log(self.data.tokenizer.target_size) if is_warm else math.inf
            state.health.add(metrics, update, guess)
            if reason := state.health.divergence():
                progress.log(state)
                raise DivergedError(reason)
        self.pending.clear()
        progress.show(state)
        if self.is_due(self.training.log_every):
            progress.log(state)

    def stop_requested(self) -> bool:
        """Return True if any rank has received a signal, which all ranks then record."""
        if signal := self.world.all_reduce_max(self.interruption.signal or 0):
            self.interruption.signal = signal
        return bool(signal)

    def has_ended(self) -> bool:
        """Return True if `max_updates` or `patience` is used up; `max_epochs` ends the loader."""
        most = self.training.max_updates
        return (most is not None and self.state.update >= most) or self.is_out_of_patience()

    def is_out_of_patience(self) -> bool:
        """Return True after `patience` validations without a gain."""
        patience = self.training.patience
        return patience is not None and self.state.validations_without_gain >= patience

    def validate_and_save(self) -> None:
        """Validate, rank the checkpoint and save it; raise DivergedError on all ranks alike."""
        ranked, reason = None, ""
        if self.world.is_main:
            try:
                ranked = self.validate()
            except DivergedError as error:
                reason = str(error)
        ranked, reason = self.world.broadcast((ranked, reason))
        if ranked is None:
            raise DivergedError(reason)
        self.state.add_validated(ranked)
        self.save()
        kept = {*self.state.last, *(ranked.update for ranked in self.state.best)}
        self.validations = {u: result for u, result in self.validations.items() if u in kept}

    def validate(self) -> Ranked:
        """Validate, log and journal the result, and return the rank of the checkpoint.

        Raises DivergedError if the model's output is not finite.
        """
        state, progress, metric = self.state, self.progress, self.training.best_metric
        with progress.paused(), self.learner.average.swapped():
            validation = self.validator.run(self.training.validation_pairs)
        self.validations[state.update] = validation
        ranked, standing = validation.ranked(state.update, metric), "new best"
        if state.best and state.best[0].rank < ranked.rank:
            standing = f"best: {state.best[0].as_text(METRIC_NAMES[metric])}"
        elif not state.update:
            standing = f"the start, {self.training.init_from}"
        clauses = [
            f"{progress.position(state)}: {validation.as_text(signatures=False)}",
            standing,
            progress.time_left(state),
            ", ".join(validation.statistics.faults()),
        ]
        progress.print_line("; ".join(filter(None, clauses)))
        progress.print_line(validation.sample)
        progress.record(
            "validation",
            update=state.update,
            epoch=state.epoch_number,
            target_tokens=state.target_tokens,
            elapsed_seconds=state.elapsed_seconds,
            **validation.as_record(),
        )
        for kind, message in validation_warnings(validation, self.data.valid_examples):
            progress.warn_once(kind, message, update=state.update)
        return ranked

    def save(self) -> None:
        """Write a checkpoint, and delete those that the config does not keep."""
        self.state.keep(best=self.training.keep_best, last=self.training.keep_last)
        if self.world.is_main:
            self.folder.checkpoints.save(self.learner, self.state)
            self.folder.checkpoints.prune(self.state)
        self.world.barrier()  # it is more patient than the collectives of an update

    def stop_early(self) -> None:
        """Save a checkpoint and exit with the signal's status.

        The checkpoint does not count among the `last` ones, so the run ends as if uninterrupted.
        """
        state = self.state
        if self.world.is_main and state.update not in state.last:
            self.folder.checkpoints.save(self.learner, state)
        self.progress.print_line(
            f"stopped after update {state.update:,}; run the same command again to resume, or "
            f"with --set training.max_updates={max(state.update, 1)} to end here with a model"
        )
        # torchrun stops all processes when one ends, so the checkpoint must be complete.
        self.world.barrier()
        raise SystemExit(self.interruption.exit_status)

    def finish(self) -> str:
        """Write the final model and return its score; empty on ranks other than 0."""
        result = ""
        if self.world.is_main:
            # The run may have been killed between its last checkpoint and the deletion of others.
            self.folder.checkpoints.prune(self.state)
            result = write_final_model(
                self.folder,
                self.training,
                self.validator,
                self.state,
                self.progress,
                self.validations,
            )
        self.world.barrier()
        return result
