"""The end of a run: average the checkpoints, choose the final model, write it."""

import json
from dataclasses import dataclass

from torch import nn

from mt.config import Config
from mt.decoding.run_files import Provenance, write_description
from mt.errors import RunError
from mt.evaluation.model_card import refresh_card
from mt.files import file_sha256, replacing
from mt.model.parameters import load_parameters, parameter_tensors
from mt.training.checkpoint import is_whole, save_tensors
from mt.training.corpus import Corpus
from mt.training.divergence import shown_rollbacks
from mt.training.environment import peak_memory_mib
from mt.training.run_folder import RunFolder
from mt.training.session import Session
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
