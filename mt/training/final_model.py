"""The final model: the mean of checkpoints, at the end of a run and for `mt average`."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from mt.config import Config
from mt.config.loading import load_config
from mt.data.tokenizer import copy_tokenizer
from mt.errors import RunError
from mt.evaluation.model_card import render_card, update_card
from mt.files import aside, file_sha256, read_json, replacing
from mt.model.device import select_device
from mt.model.weights import load_parameters, merge_low_rank, parameter_tensors
from mt.runs import ADAPTER_FILE, Provenance, check_run_folder, write_description
from mt.training.checkpoint import STATE, Written, is_valid, save_tensors
from mt.training.data import TrainingData, prepare
from mt.training.device_settings import for_device
from mt.training.divergence import shown_rollbacks
from mt.training.run_folder import RunFolder, peak_memory_mib
from mt.training.setup import Session, build_learner, build_model
from mt.training.state import TrainState
from mt.training.validation import Validation, validate

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Final:
    """The part of model.json that depends on the end of the run."""

    ends: dict[str, int | None]
    weights: str
    score: str


def final_score(folder: RunFolder, config: Config) -> str | None:
    """Return the validation score of a run that has ended as `config` sets; None before that.

    A missing or damaged final model does not count: it can be made from the checkpoints again.
    """
    if not folder.model.exists():
        return None
    try:
        described = read_json(folder.model, _Final)
    except RunError as error:
        raise RunError(f"{error}; delete it to write it again") from None
    if described.ends != _ends(config) or not folder.weights.exists():
        return None
    intact = file_sha256(folder.weights) == described.weights
    return described.score if intact else None


def write_final_model(session: Session) -> Validation:
    """Write the mean of the checkpoints of `training.average`, or the best one if it scores better.

    They are compared on the pairs that ranked the checkpoints (`training.validation_pairs`); the
    model that is written is validated on all. Raises RunError where all checkpoints are damaged.
    """
    training, state = session.config.training, session.state
    _drop_damaged(session)
    best = state.best[0].update
    kept = {"best": [each.update for each in state.best], "last": state.last, "off": [best]}
    averaged = sorted(kept[training.average])
    _load_mean(session, averaged)
    validation = session.validations.get(best)
    if averaged != [best]:
        count = training.validation_pairs
        mean = validate(session.learner, session.corpus, session.config, count=count)
        if mean.metric(training.best_metric) < state.best[0].score:
            session.progress.say(
                f"the mean of updates {averaged} is worse ({mean.as_text(signatures=False)}) than "
                f"update {best} alone, which becomes the final model"
            )
            averaged = [best]
            _load_mean(session, averaged)
        else:
            validation = mean
    if validation is None or validation.evaluation.sentences < len(session.corpus.valid):
        validation = validate(session.learner, session.corpus, session.config)
    session.progress.record(
        "final",
        averaged_updates=averaged,
        rollbacks=state.rollbacks,
        elapsed_seconds=state.elapsed_seconds,
        peak_memory_mib=peak_memory_mib(),
        **validation.as_record(),
    )
    provenance = _provenance(
        session.config,
        session.corpus,
        score=validation.as_text() + shown_rollbacks(state),
        updates=state.update,
        averaged_updates=averaged,
    )
    base = session.folder.initial_weights()
    _write_model(
        session.folder, session.config, session.learner.model, session.corpus, provenance, base
    )
    return validation


def _drop_damaged(session: Session) -> None:
    """Remove missing and damaged checkpoints from the state, and print them."""
    state, checkpoints = session.state, session.folder.checkpoints
    kept = {each.update for each in state.best} | set(state.last)
    damaged = {update for update in kept if not is_valid(checkpoints.path(update))}
    for update in sorted(damaged):
        session.progress.say(f"{checkpoints.path(update)}: damaged or missing, not used")
    state.best = [each for each in state.best if each.update not in damaged]
    state.last = [update for update in state.last if update not in damaged]
    if not state.best or not state.last:
        raise RunError(f"{checkpoints.folder}: no valid checkpoint is left for the final model")


def _load_mean(session: Session, updates: list[int]) -> None:
    weights = session.folder.checkpoints.average(updates)
    load_parameters(session.learner.model, weights, str(session.folder.path))


def _provenance(
    config: Config, corpus: TrainingData, *, score: str, updates: int, averaged_updates: list[int]
) -> Provenance:
    left_out = corpus.store.left_out
    pairs = {
        "train": len(corpus.store),
        **{key: len(store) for key, store in corpus.parts.items()},
        "too_long": left_out.too_long,
        "empty": left_out.empty,
        "valid": len(corpus.valid),
    }
    return Provenance(score, updates, averaged_updates, pairs, _ends(config))


def _write_model(
    folder: RunFolder,
    config: Config,
    model: nn.Module,
    corpus: TrainingData,
    provenance: Provenance,
    base: str,
) -> None:
    """Write a model in fp32; one with low-rank matrices is merged, and these are also kept apart.

    `base` is the SHA-256 of the initial weights.
    """
    card = render_card(folder.path)
    weights = {name: each.float() for name, each in parameter_tensors(model).items()}
    if lora := config.training.lora:
        learnt = {name for name, each in model.named_parameters() if each.requires_grad}
        facts = {
            "base": base,
            "tokenizer": corpus.tokenizer.fingerprint,
            "scale": lora.scale,
        }
        with replacing(folder.path / ADAPTER_FILE) as temporary:
            save_tensors({name: weights[name] for name in learnt}, temporary, facts)
        weights = merge_low_rank(weights, lora.scale)
    with replacing(folder.weights) as temporary:
        save_tensors(weights, temporary)
    # Written last: it marks a finished run.
    write_description(
        folder.path,
        corpus.tokenizer,
        longest_source=corpus.store.longest_source,
        line_shape=corpus.line_shape,
        provenance=provenance,
    )
    update_card(folder.path, card)


def _ends(config: Config) -> dict[str, int | None]:
    return {key: getattr(config.training, key) for key in ("max_updates", "max_epochs", "patience")}


@dataclass(frozen=True)
class Choice:
    """Checkpoints to average: some of the best, of the newest, or those after given updates.

    By default all of the best that are kept.
    """

    best: int | None = None
    last: int | None = None
    updates: tuple[int, ...] = ()


def average_run(run: Path, output: Path, *, choice: Choice, device: str = "auto") -> str:
    """Write the mean of some checkpoints' weights as the model folder `output`; return its score.

    The run may be finished, stopped or in training, and is not changed. The mean is validated as in
    training (averaging: Vaswani et al. 2017, section 6.1).

    Raises RunError for a missing or damaged run, update or checkpoint, and for an existing
    `output`; UserError for a missing device.
    """
    check_run_folder(run)
    if output.exists():
        raise RunError(f"{output}: exists already; name a new folder")
    folder, where = RunFolder(run), select_device(device)
    config = for_device(load_config(folder.config), where)
    updates = choose_updates(run, choice)
    weights = folder.checkpoints.average(updates)
    _logger.info("%s: averaging updates %s", run, _listed(updates))
    corpus = prepare(config, folder)
    # For validation only.
    plain = config.training.model_copy(update={"compile": "off", "ema_decay": None})
    model = build_model(config, corpus.tokenizer, where)
    learner = build_learner(config.model_copy(update={"training": plain}), model, where)
    load_parameters(learner.model, weights, str(folder.checkpoints.folder))
    score = validate(learner, corpus, config).as_text()
    provenance = _provenance(
        config, corpus, score=score, updates=updates[-1], averaged_updates=updates
    )
    with aside(output) as temporary:
        copy = RunFolder(temporary)
        shutil.copyfile(folder.config, copy.config)
        copy_tokenizer(folder.tokenizer, copy.tokenizer)
        base = folder.initial_weights()
        _write_model(copy, config, learner.model, corpus, provenance, base)
        temporary.rename(output)
    return f"{output}: {score}"


def choose_updates(run: Path, choice: Choice) -> list[int]:
    """Return the updates of the chosen checkpoints, oldest first; raise RunError for a missing one.

    The best are those that the newest valid checkpoint ranks.
    """
    checkpoints = RunFolder(run).checkpoints
    existing = checkpoints.updates()
    if not existing:
        raise RunError(f"{run}: there is no checkpoint to average")
    if choice.updates:
        for update in choice.updates:
            if update not in existing:
                before = [other for other in existing if other < update][-1:]
                after = [other for other in existing if other > update][:1]
                near = _listed([*before, *after])
                raise RunError(f"{run}: no checkpoint after update {update}; the nearest: {near}")
        return sorted(set(choice.updates))
    if choice.last is not None:
        count, kept, kind = choice.last, existing[::-1], "checkpoints"
    else:
        valid = next(
            (path for path in map(checkpoints.path, existing[::-1]) if is_valid(path)), None
        )
        if valid is None:
            raise RunError(f"{checkpoints.path(existing[-1])}: damaged, like all other checkpoints")
        written = read_json(valid / STATE, Written)
        kept = [each.update for each in TrainState.from_json(written.state, valid / STATE).best]
        if not kept:
            raise RunError(f"{run}: no checkpoint has been validated yet; name some with --updates")
        count, kind = choice.best or len(kept), "best checkpoints"
    if count > len(kept):
        raise RunError(
            f"{run}: {count} {kind} are not kept, only {len(kept)}: those after update "
            f"{_listed(sorted(kept))}"
        )
    return sorted(kept[:count])


def _listed(updates: Sequence[int]) -> str:
    return ", ".join(map(str, updates))
