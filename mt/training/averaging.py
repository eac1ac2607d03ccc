"""The mean of some checkpoints of a run, as a model folder of its own: `mt average`."""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mt.config.load import load_config
from mt.decoding.run_files import check_run_folder
from mt.errors import RunError
from mt.evaluation.model_card import refresh_card
from mt.files import aside
from mt.model.device import select_device
from mt.model.parameters import load_parameters
from mt.training.checkpoint import STATE, Checkpoints, is_whole
from mt.training.corpus import prepare
from mt.training.final_model import Origin, write_model
from mt.training.run_folder import RunFolder
from mt.training.session import build_learner, build_model
from mt.training.state import TrainState
from mt.training.update import Learner
from mt.training.validation import validate

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
    _write(output, folder, learner=learner, origin=origin)
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


def _write(output: Path, run: RunFolder, *, learner: Learner, origin: Origin) -> None:
    """Make the folder under a temporary name; it takes its own once it is complete."""
    with aside(output) as folder:
        temporary = RunFolder(folder)
        shutil.copyfile(run.config, temporary.config)
        shutil.copytree(run.tokenizer, temporary.tokenizer)
        write_model(temporary, learner.model, origin)
        refresh_card(folder)
        folder.rename(output)
