"""The end of a run: average the checkpoints, choose the final model, write it."""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from mt.config import Config
from mt.config.loading import load_config
from mt.errors import RunError
from mt.evaluation.model_card import refresh_card
from mt.files import aside, file_sha256, replacing
from mt.model.device import select_device
from mt.model.weights import load_parameters, parameter_tensors
from mt.runs import Provenance, check_run_folder, write_description
from mt.training.checkpoint import STATE, Checkpoints, is_whole, save_tensors
from mt.training.data import Corpus, prepare
from mt.training.divergence import shown_rollbacks
from mt.training.run_folder import RunFolder, peak_memory_mib
from mt.training.setup import Session, build_learner, build_model
from mt.training.state import TrainState
from mt.training.step import Learner
from mt.training.validation import Validation, validate


def write_final_model(session: Session) -> Validation:
    """Write the mean of the kept checkpoints, or the best one where that validates better.

    The mean is that of `training.average`: of the best checkpoints or of the last ones.
    """
    training, state = session.config.training, session.state
    _leave_out_damaged(session)
    best = state.best[0].update
    kept = {"best": [each.update for each in state.best], "last": state.last, "off": [best]}
    averaged = sorted(kept[training.average])
    validation = _validate_mean(session, averaged)
    metric = training.best_metric
    if averaged != [best] and validation.metric(metric) < state.best[0].score:
        session.progress.say(
            f"the mean of updates {averaged} is worse ({validation.as_text()}) "
            f"than update {best} alone: keeping that"
        )
        averaged = [best]
        validation = _validate_mean(session, averaged)
    _write(session, averaged, validation)
    return validation


@dataclass(frozen=True)
class Origin:
    """What a model folder says of where its weights come from."""

    config: Config
    corpus: Corpus
    averaged_updates: list[int]
    updates: int
    """How many updates the newest of these checkpoints had."""
    score: str


def write_model(folder: RunFolder, model: nn.Module, origin: Origin) -> None:
    """Write the weights, and then what translating needs to know of them."""
    with replacing(folder.weights) as temporary:
        save_tensors(parameter_tensors(model), temporary)
    # Written last: a run folder with this file is finished.
    write_description(
        folder.path,
        origin.corpus.tokenizer,
        longest_source=origin.corpus.store.longest_source,
        provenance=Provenance(
            origin.score,
            origin.updates,
            origin.averaged_updates,
            pairs=_pairs(origin.corpus),
            ends=_ends(origin.config),
        ),
    )


def _pairs(corpus: Corpus) -> dict[str, int]:
    """Return how many pairs the model has learnt from, and how many were left out or validated."""
    left_out = corpus.store.left_out
    return {
        "train": len(corpus.store),
        **{key: len(store) for key, store in corpus.parts.items()},
        "too_long": left_out.too_long,
        "empty": left_out.empty,
        "valid": len(corpus.valid),
    }


def final_score(folder: RunFolder, config: Config) -> str | None:
    """Return the validation score of a run that has ended as `config` says; None before that.

    A final model that is missing or damaged does not count: the checkpoints give it again.
    """
    if not folder.model.exists():
        return None
    try:
        described = json.loads(folder.model.read_text(encoding="utf-8"))
        if described["ends"] != _ends(config) or not folder.weights.exists():
            return None
        whole = file_sha256(folder.weights) == described["weights"]
        return str(described["score"]) if whole else None
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{folder.model}: is damaged") from None


def _leave_out_damaged(session: Session) -> None:
    """Forget the checkpoints whose files are gone or damaged, and say so."""
    state, checkpoints = session.state, session.folder.checkpoints
    kept = {each.update for each in state.best} | set(state.last)
    damaged = {update for update in kept if not is_whole(checkpoints.path(update))}
    for update in sorted(damaged):
        session.progress.say(f"{checkpoints.path(update)}: is damaged or gone, left out")
    state.best = [each for each in state.best if each.update not in damaged]
    state.last = [update for update in state.last if update not in damaged]
    if not state.best or not state.last:
        raise RunError(f"{checkpoints.folder}: no checkpoint is left to make a model of")


def _validate_mean(session: Session, updates: list[int]) -> Validation:
    weights = session.folder.checkpoints.average(updates)
    load_parameters(session.learner.model, weights, str(session.folder.path))
    return validate(session.learner, session.corpus, session.config)


def _write(session: Session, averaged: list[int], validation: Validation) -> None:
    config, corpus, state = session.config, session.corpus, session.state
    session.progress.record(
        "final",
        averaged_updates=averaged,
        rollbacks=state.rollbacks,
        elapsed_seconds=state.elapsed_seconds,
        peak_memory_mib=peak_memory_mib(),
        **validation.as_record(),
    )
    score = validation.as_text() + shown_rollbacks(state)
    origin = Origin(config, corpus, averaged, updates=state.update, score=score)
    write_model(session.folder, session.learner.model, origin)
    refresh_card(session.folder.path)


def _ends(config: Config) -> dict[str, int | None]:
    training = config.training
    return {
        "max_updates": training.max_updates,
        "max_epochs": training.max_epochs,
        "patience": training.patience,
    }


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """Which checkpoints: so many of the best, or of the newest, or those after some updates.

    Where nothing is set, all of the best that are kept.
    """

    best: int | None = None
    last: int | None = None
    updates: tuple[int, ...] = ()


def average_run(run: Path, output: Path, *, choice: Choice, device: str = "auto") -> str:
    """Write the mean of some checkpoints' weights as the model folder `output`; return its score.

    The run may be finished, stopped or at work, and stays as it is. The mean is validated as
    training validates (averaging: Vaswani et al. 2017, section 6.1).

    Raises RunError for a run, an update or a checkpoint that is not there or damaged, and for an
    `output` that is there already; UserError for a device that is not.
    """
    check_run_folder(run)
    if output.exists():
        raise RunError(f"{output}: exists already; name a folder that is not there yet")
    folder, where = RunFolder(run), select_device(device)
    config = load_config(folder.config)
    updates = choose_updates(run, choice)
    weights = folder.checkpoints.average(updates)
    _logger.info("%s: averaging updates %s", run, _in_words(updates))
    corpus = prepare(config, folder)
    # It validates and does not train.
    plain = config.training.model_copy(update={"compile": "off", "ema_decay": None})
    model = build_model(config, corpus.tokenizer, where)
    learner = build_learner(config.model_copy(update={"training": plain}), model, where)
    load_parameters(learner.model, weights, str(folder.checkpoints.folder))
    score = validate(learner, corpus, config).as_text()
    origin = Origin(config, corpus, updates, updates=updates[-1], score=score)
    _write_averaging(output, folder, learner=learner, origin=origin)
    return f"{output}: {score}"


def choose_updates(run: Path, choice: Choice) -> list[int]:
    """Return the updates whose checkpoints are meant, oldest first; RunError if one is not there.

    The best are those that the newest whole checkpoint ranks; the newest are all on the disk.
    """
    checkpoints = RunFolder(run).checkpoints
    there = checkpoints.updates()
    if not there:
        raise RunError(f"{run}: holds no checkpoint to average")
    if choice.updates:
        for update in choice.updates:
            _require(update, there, run)
        return sorted(set(choice.updates))
    if choice.last is not None:
        return sorted(_first(choice.last, there[::-1], what="checkpoints", run=run))
    ranked = _ranked(checkpoints, there)
    if not ranked:
        raise RunError(f"{run}: no checkpoint has been validated yet; name some with --updates")
    return sorted(_first(choice.best or len(ranked), ranked, what="best checkpoints", run=run))


def _require(update: int, there: list[int], run: Path) -> None:
    if update not in there:
        before = [other for other in there if other < update][-1:]
        after = [other for other in there if other > update][:1]
        near = _in_words([*before, *after])
        raise RunError(f"{run}: no checkpoint after update {update}; the nearest: {near}")


def _first(count: int, updates: list[int], *, what: str, run: Path) -> list[int]:
    if count > len(updates):
        raise RunError(
            f"{run}: {count} {what} were asked for, it keeps {len(updates)}: those after update "
            f"{_in_words(sorted(updates))}"
        )
    return updates[:count]


def _ranked(checkpoints: Checkpoints, there: list[int]) -> list[int]:
    """Return the best updates, the best one first, as the newest whole checkpoint knows them."""
    whole = next((path for path in map(checkpoints.path, there[::-1]) if is_whole(path)), None)
    if whole is None:
        raise RunError(f"{checkpoints.path(there[-1])}: the checkpoint is damaged, like all others")
    written = json.loads((whole / STATE).read_text(encoding="utf-8"))["state"]
    return [each.update for each in TrainState.from_json(written, str(whole / STATE)).best]


def _in_words(updates: Sequence[int]) -> str:
    return ", ".join(map(str, updates))


def _write_averaging(output: Path, run: RunFolder, *, learner: Learner, origin: Origin) -> None:
    """Make the folder under a temporary name; it takes its own once it is complete."""
    with aside(output) as folder:
        temporary = RunFolder(folder)
        shutil.copyfile(run.config, temporary.config)
        shutil.copytree(run.tokenizer, temporary.tokenizer)
        write_model(temporary, learner.model, origin)
        refresh_card(folder)
        folder.rename(output)
