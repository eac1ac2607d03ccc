"""The final model: the mean of checkpoints, at the end of a run and for `mt average`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from mt.config import TrainingConfig
from mt.config.loading import load_config
from mt.config.training import LORA_SCALE
from mt.data.pairs import spread
from mt.data.splits import open_split
from mt.data.tokenizer import Tokenizer, copy_tokenizer
from mt.decoding.translator import Translator
from mt.errors import DataError, RunError, UserError
from mt.evaluation.checks import ScoredText
from mt.evaluation.compare import System, compare_systems
from mt.evaluation.evaluate import EvaluationSet, translate_pairs
from mt.evaluation.run_info import render_card, update_card
from mt.evaluation.scores import LEVELS, choose_tokenizer, label_scores, why_unable_to_rank
from mt.files import open_aside, put_in_place, read_json, replace_file
from mt.model.device import select_device
from mt.model.weights import load_average, merge_low_rank, parameter_tensors
from mt.runs import (
    ADAPTER_FILE,
    CONFIG_FILE,
    LineStatistics,
    ModelRecord,
    Provenance,
    check_run_folder,
    is_finished,
    write_description,
)
from mt.tables import align_columns
from mt.training.checkpoint import STATE, Written, is_valid, save_tensors
from mt.training.data import TrainingData, prepare
from mt.training.progress import Progress
from mt.training.run_folder import RunFolder, ends_of, peak_memory_mib
from mt.training.setup import build_learner, new_model, resolve_for_device
from mt.training.state import Ranked, TrainState
from mt.training.validation import METRIC_NAMES, Validation, Validator

_MAX_GREEDY_COST = 0.2
"""BLEU that greedy search may cost, rounded to two decimals, to become the search of a run."""
_MOST_COMPARED = 1000
"""Pairs of a test split that a run and its start translate to be compared, at most."""
_logger = logging.getLogger(__name__)


def write_final_model(
    folder: RunFolder,
    training: TrainingConfig,
    validator: Validator,
    state: TrainState,
    progress: Progress,
    validations: dict[int, Validation],
) -> str:
    """Write the mean of the checkpoints of `training.average`, or a single one if it is better.

    They are compared on the pairs that ranked the checkpoints; the model that is written is
    validated on all. `validations` has those of this process by update. Returns the scores.
    """
    _drop_damaged(folder, state, progress)
    model, data = validator.learner.model, validator.data

    def validated(update: int) -> Validation:
        """Return the validation of a checkpoint, repeated after an interruption."""
        if update not in validations:
            _load_mean(folder, model, [update])
            validations[update] = validator.run(training.validation_pairs)
        return validations[update]

    single, reason = _choose_single(validator, training, state, validated)
    averaged = [single.update]
    if training.average == "best":
        averaged = sorted(ranked.update for ranked in state.best[: training.keep_best])
    elif training.average == "last":
        averaged = sorted(state.last)
    _load_mean(folder, model, averaged)
    validation = validations.get(single.update)
    if averaged != [single.update]:
        mean = validator.run(training.validation_pairs)
        if mean.ranked(state.update, training.best_metric).rank > single.rank:
            reason = f"the mean of updates {averaged} is worse ({mean.as_text(signatures=False)})"
            averaged = [single.update]
            _load_mean(folder, model, averaged)
        else:
            validation = mean
            reason = f"at least as good as update {single.update:,} alone"
    name = f"the mean of updates {averaged}" if averaged[1:] else f"that of update {averaged[0]:,}"
    progress.print_line(f"the final model is {name}: {reason}")
    most = min(training.final_pairs or len(data.valid), len(data.valid))
    if validation is None or validation.evaluation.sentences < most:
        validation = validator.run(most)
    progress.record(
        "final",
        averaged_updates=averaged,
        elapsed_seconds=state.elapsed_seconds,
        peak_memory_mib=peak_memory_mib(),
        **validation.as_record(),
    )
    _choose_search(folder, validator, validation, progress)
    score, ends = validation.as_text(), ends_of(training)
    provenance = Provenance(score, state.update, averaged, data.pair_counts, ends)
    described = _Described.of(data)
    _write_model(folder, training.lora, model, described, provenance, folder.initial_weights())
    return score if averaged != [0] else f"the final model is that of {training.init_from}; {score}"


def compare_with_start(run: Path) -> str:
    """Return a table of the test scores of a finished run, and of the run that it continues.

    Both translate some pairs of each test split, or else of `valid`, by greedy search. A split
    that cannot be compared is logged. Returns "" if no split can be compared.
    """
    config = load_config(run / CONFIG_FILE)
    training = config.training
    assert training.init_from is not None, "the run continues another"
    rows = [["split", "metric", "before", "after", "difference", "p", "after is"]]
    signatures = dict[str, None]()
    for name in config.data.tests or ("valid",):
        systems = list[System]()
        try:
            split = open_split(config.data, name)
            pairs, language = [*split.pairs()], split.direction.target
            chosen = spread(pairs, min(training.final_pairs or _MOST_COMPARED, _MOST_COMPARED))
            tokenizer = choose_tokenizer(language, config.evaluation.bleu_tokenizer)
            overrides = [*config.tag_overrides(name), "decoding.search=greedy"]
            for model in (training.init_from, run):
                translator = Translator.load(model, overrides=overrides, device=training.device)
                lines = [line.text for line in translate_pairs(translator, chosen)]
                systems.append(System(str(model), lines))
        except UserError as error:
            _logger.warning("warning: `%s` is not compared: %s", name, error)
            continue
        sources, references = zip(*((pair.source, pair.target) for pair in chosen), strict=True)
        texts = ScoredText(name, sources), (ScoredText(name, references),)
        test_set = EvaluationSet(name, *texts, language, tokenizer)
        label = label_scores(name, len(chosen), "greedy", total=len(pairs))
        for before, after in compare_systems(test_set, systems).scores:
            values = [f"{before.value:.2f}", f"{after.value:.2f}", f"{after.difference or 0:+z.2f}"]
            p_value = "" if after.p_value is None else f"{after.p_value:.4f}"
            rows.append([label, after.metric, *values, p_value, after.outcome])
            signatures[f"{after.metric}: {after.signature}"] = None
    notes = [
        f"before: {training.init_from}; after: {run}",
        f"p: paired bootstrap, one tail; a difference is significant below {LEVELS['bootstrap']}",
    ]
    table = "\n".join([align_columns(rows, right=(2, 3, 4, 5)), *notes, *signatures])
    return table if signatures else ""


def _choose_single(
    validator: Validator,
    training: TrainingConfig,
    state: TrainState,
    validated: Callable[[int], Validation],
) -> tuple[Ranked, str]:
    """Return the best checkpoint, and the reason for it.

    After a schedule that ends at 0, it is the last one unless the best is better by more than the
    standard error of the difference: of similar checkpoints, one has the highest score by chance.
    """
    best, last, metric = state.best[0], state.last[-1], training.best_metric
    name = METRIC_NAMES[metric]
    is_at_zero = training.schedule in {"linear", "cosine"} and last == training.decay_updates
    if best.update == last or not is_at_zero:
        total = len(validator.data.valid)
        label = validator.label(min(training.validation_pairs or total, total))
        return best, f"the best of all validations ({best.as_text(name)}; {label})"
    one, other = validated(best.update), validated(last)
    final = chosen = other.ranked(last, metric)
    verdict = "not better"
    if validator.is_clearly_better(one, other, metric):
        chosen, verdict = best, "better"
    return chosen, (
        f"the best, {best.as_text(name)}, is {verdict} than the last, {final.as_text(name)}, by "
        f"more than the standard error of the difference ({one.evaluation.label})"
    )


def _choose_search(
    folder: RunFolder, validator: Validator, greedy: Validation, progress: Progress
) -> None:
    """Write the search of a run with `decoding.search: auto` into its config.

    It is greedy if that costs at most `_MAX_GREEDY_COST` on the validation split. Beam search stays
    where BLEU cannot rank, and for `decoding.mbr`, which needs several translations.
    """
    config = load_config(folder.config, as_recorded=True)
    if config.decoding.search != "auto":
        return
    references = [pair.target for pair in validator.data.valid]
    language, tokenizer = validator.direction.target, validator.bleu_tokenizer
    reason = "`decoding.mbr` needs several translations" if config.decoding.mbr else ""
    reason = reason or why_unable_to_rank(references, target_language=language, tokenizer=tokenizer)
    if not reason and not greedy.evaluation.bleu.ranks:
        reason = f"a BLEU of {greedy.evaluation.bleu.value:.2f} does not rank"
    search, values = "beam", dict[str, float]()
    if not reason:
        beam = replace(validator, decoding=validator.decoding.changed(search="beam"))
        scored = greedy.evaluation, beam.run(greedy.evaluation.sentences).evaluation
        values = {"greedy": scored[0].bleu.value, "beam": scored[1].bleu.value}
        if round(values["beam"] - values["greedy"], 2) <= _MAX_GREEDY_COST:
            search = "greedy"
        reason = "; ".join(f"{each.label}: BLEU {each.bleu.value:.2f}" for each in scored)
    progress.print_line(f"`decoding.search: {search}`: {reason}")
    progress.record("search", search=search, **values)
    chosen = config.changed(decoding=config.decoding.changed(search=search))
    folder.write_config(chosen)


def _drop_damaged(folder: RunFolder, state: TrainState, progress: Progress) -> None:
    """Remove missing and damaged checkpoints from the state, and print them."""
    checkpoints = folder.checkpoints
    listed = {ranked.update for ranked in state.best} | set(state.last)
    damaged = {update for update in listed if not is_valid(checkpoints.path(update))}
    for update in sorted(damaged):
        progress.print_line(f"{checkpoints.path(update)}: damaged or missing, not used")
    state.best = [ranked for ranked in state.best if ranked.update not in damaged]
    state.last = [update for update in state.last if update not in damaged]
    if not state.best or not state.last:
        raise RunError(f"{checkpoints.folder}: no valid checkpoint is left for the final model")


def _load_mean(folder: RunFolder, model: nn.Module, updates: list[int]) -> None:
    load_average(model, folder.checkpoints.average(updates), str(folder.path))


@dataclass(frozen=True)
class _Described:
    """The part of the training data that the description of a model has."""

    tokenizer: Tokenizer
    longest_source: int
    line_shape: LineStatistics | None
    pairs: Mapping[str, int]

    @classmethod
    def of(cls, data: TrainingData) -> "_Described":
        """Return the description of prepared data."""
        return cls(data.tokenizer, data.store.longest_source, data.line_shape, data.pair_counts)


def _write_model(
    folder: RunFolder,
    lora: int | None,
    model: nn.Module,
    data: "_Described",
    provenance: Provenance,
    base: str,
) -> None:
    """Write a model in fp32; one with low-rank matrices is merged, and these are also kept apart.

    `base` is the SHA-256 of the initial weights.
    """
    card = render_card(folder.path)
    weights = {name: tensor.float() for name, tensor in parameter_tensors(model).items()}
    if lora is not None:
        learnt = {name for name, weight in model.named_parameters() if weight.requires_grad}
        facts = {"base": base, "tokenizer": data.tokenizer.fingerprint, "scale": LORA_SCALE}
        with replace_file(folder.path / ADAPTER_FILE) as temporary:
            save_tensors({name: weights[name] for name in learnt}, temporary, facts)
        weights = merge_low_rank(weights, LORA_SCALE)
    with replace_file(folder.weights) as temporary:
        save_tensors(weights, temporary)
    # Written last: it marks a finished run.
    write_description(
        folder.path,
        vocabularies=(data.tokenizer.source_size, data.tokenizer.target_size),
        tokenizer=data.tokenizer.fingerprint,
        longest_source=data.longest_source,
        line_shape=data.line_shape,
        provenance=provenance,
    )
    update_card(folder.path, card)


def average_run(run: Path, output: Path, *, checkpoints: str, device: str = "auto") -> str:
    """Write the mean of some checkpoints' weights as the model folder `output`; return its score.

    `checkpoints` names them as `choose_updates` reads it. The run may be finished, stopped or in
    training, and is not changed. The mean (Vaswani et al. 2017, section 6.1) is validated as in
    training; without the corpora it is not.

    Raises RunError for a missing or damaged run, update or checkpoint, and for an existing
    `output`; UserError for a missing device.
    """
    check_run_folder(run)
    if output.exists():
        raise RunError(f"{output}: exists already; name a new folder")
    folder, where = RunFolder(run), select_device(device)
    config = resolve_for_device(load_config(folder.config), where)
    updates = choose_updates(run, checkpoints)
    weights = folder.checkpoints.average(updates)
    _logger.info("%s: averaging updates %s", run, _listed(updates))
    data = None
    try:
        data = prepare(config, folder)
        described = _Described.of(data)
    except DataError as error:
        _logger.warning("%s; so the mean is not validated", error)
        record, pairs = ModelRecord.read(run), dict[str, int]()
        if is_finished(run):
            pairs = dict(read_json(folder.model, Provenance).pairs)
        tokenizer = Tokenizer.load(folder.tokenizer, record.tokenizer)
        longest = record.longest_source or config.data.max_tokens  # before the end of the run
        described = _Described(tokenizer, longest, record.line_shape, pairs)
    plain = config.training.changed(compile="off", ema_decay=None)  # for validation only
    sizes = described.tokenizer.source_size, described.tokenizer.target_size
    model = new_model(config.model, sizes, where)
    learner = build_learner(config.changed(training=plain), model, where)
    load_average(learner.model, weights, str(folder.checkpoints.folder))
    score = Validator.build(config, learner, data).run().as_text() if data else "not validated"
    provenance = Provenance(score, updates[-1], updates, described.pairs, ends_of(plain))
    with open_aside(output) as temporary:
        copy = RunFolder(temporary)
        copy.write_config(load_config(folder.config))
        copy_tokenizer(folder.tokenizer, copy.tokenizer)
        base = folder.initial_weights()
        _write_model(copy, plain.lora, learner.model, described, provenance, base)
        put_in_place(temporary, output, is_new=True)
    return f"{output}: {score}"


def choose_updates(run: Path, chosen: str) -> list[int]:
    """Return the updates of `best`, `best:K`, `last:K` or `N,N` checkpoints, oldest first.

    The best are those that the newest valid checkpoint ranks. Raises RunError for a missing one.
    """
    checkpoints = RunFolder(run).checkpoints
    existing = checkpoints.updates()
    if not existing:
        raise RunError(f"{run}: there is no checkpoint to average")
    kind, _, count = chosen.partition(":")
    if kind not in {"best", "last"}:
        updates = sorted({int(update) for update in chosen.split(",")})
        for update in updates:
            if update not in existing:
                there = _listed(existing)
                raise RunError(f"{run}: no checkpoint after update {update}; there are {there}")
        return updates
    kept = existing[::-1]
    if kind == "best":
        paths = map(checkpoints.path, existing[::-1])
        valid = next((path for path in paths if is_valid(path)), None)
        if valid is None:
            raise RunError(f"{checkpoints.path(existing[-1])}: damaged, like all other checkpoints")
        written = read_json(valid / STATE, Written)
        state = TrainState.from_json(written.state, valid / STATE)
        kept = [ranked.update for ranked in state.best]
        if not kept:
            raise RunError(
                f"{run}: no checkpoint has been validated yet; name updates with --checkpoints"
            )
    if count and int(count) > len(kept):
        raise RunError(
            f"{run}: --checkpoints {chosen}: only {len(kept)} are kept, those after update "
            f"{_listed(sorted(kept))}"
        )
    return sorted(kept[: int(count or len(kept))])


def _listed(updates: Sequence[int]) -> str:
    return ", ".join(map(str, updates))
