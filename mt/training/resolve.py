"""Resolution of a config: a value for each key that is open, with its reason.

The rules are in `mt.training.automatic`, the experiments behind them in docs/lab/settings.md. They
see the size and the scripts of the corpus, the speed of the device and `training.budget`.

- `choose_settings` chooses all settings of a new run but its length, before the data are prepared,
  each with a reason for the comments of a written config.
- `choose_length` adds what only the encoded corpus and the time left can decide.
- `mt.training.setup.resolve_for_device` completes the config for the device of one session.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mt.config import Config, ModelConfig, TokenizerConfig, TrainingConfig
from mt.config.loading import load_config, open_keys, with_values
from mt.config.training import FINAL_TIMES
from mt.data.batches import Lengths
from mt.data.tokenizer_training import copied_layout
from mt.errors import ConfigError, UserError
from mt.evaluation.scores import why_unable_to_rank
from mt.languages import written_without_spaces
from mt.runs import CONFIG_FILE
from mt.training.automatic import (
    CONTINUED_RATE,
    GUIDED_ALIGNMENT,
    SIZES,
    CorpusStatistics,
    Forecast,
    Size,
    choose_coverage,
    choose_learning_rate,
    choose_regularization,
    choose_warmup,
    estimate_parameters,
    expect_end,
    like_width,
    limit_training,
    make_forecast,
    most_passes,
    share_script,
    warn_of_weakness,
)
from mt.training.data import TrainingData
from mt.training.resources import measure_validation
from mt.training.setup import batch_tokens, most_updates

_logger = logging.getLogger(__name__)
_BATCH_TOKENS = "training.max_tokens_per_batch"
_OF_TOKENIZER = {f"tokenizer.{key}" for key in TokenizerConfig.automatic_keys() - {"vocabulary"}}
_MEASURED = {"cpu": (256, 1000)}
_MEASURED_ELSEWHERE = (512, 65_536)
"""Width of the model whose speed is measured, and target tokens of an update."""
_TOO_LARGE = UserError, torch.OutOfMemoryError
"""Errors of a measurement where the device has too little memory for the model."""
_VALIDATIONS = 20
"""Validations in a run, so that the first comes after 5 % of it."""
_FEWEST_VALIDATIONS, _INTERVAL = 4, 50
"""Validations in a run where as many as usual would be fewer updates apart than these."""
_VALIDATION_SHARE, _EXPECTED_SHARE = 0.05, 0.85
"""Largest share of the time for validations but the last, and share that updates will have."""
_PASSES_AFTER, _SECONDS_AFTER = 3.0, 6.0
"""Time after the last update (validation, choice of the search, export, calibration), in times of
a translation of the validated pairs by the search of the config, and in seconds to load models."""
_LEAST_UPDATES, _LEAST_WARMUP = 20, 100
"""Updates that a budget has to allow, and of the warm-up of a training of unknown length."""
_START, _PREPARED_PAIRS = 10.0, 4000
"""Seconds in which a training starts, and pairs that it reads, learns from and encodes in one."""
_CERTAIN = 0.9
"""Share of the updates of a config that a budget has to allow; its measurement is uncertain."""
_MOST_REFERENCES = 2000
"""References from which the ranking metric is chosen, at most."""
_FEWEST_LETTERS = 2
"""Mean length of references from which chrF ranks checkpoints."""
_FEWEST_VALIDATED, _LEAST_VALIDATED = 200, 50
"""Pairs of a validation at least: for a BLEU that ranks checkpoints, and where
`_FEWEST_VALIDATIONS` of those take too much of the time."""


@dataclass(frozen=True)
class Setting:
    """Value chosen for an open key."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Timing:
    """Seconds of an update and, as `measure_validation` returns them, of each of some pairs."""

    update: float
    new: float
    trained: float
    pairs: int
    compared: int = 0
    """Splits on which a run is compared with its start."""

    def after(self, training: TrainingConfig, count: int) -> float:
        """Return the seconds after the last update, for validations on `count` pairs."""
        pairs = self.pairs if training.budget is None else min(FINAL_TIMES * count, self.pairs)
        passes = _PASSES_AFTER + 2 * self.compared
        return _SECONDS_AFTER + passes * self.trained * pairs


Settings = dict[str, Setting]
"""Settings by dotted key."""
MeasureSpeed = Callable[[Config, Lengths, tuple[int, int]], float]
"""Returns the target tokens per second of a training, as `measure_speed` does."""


def with_settings(config: Config, settings: Settings) -> Config:
    """Return a config with settings, which then count as given."""
    return with_values(config, {key: setting.value for key, setting in settings.items()})


def _of_keys(settings: Settings, keys: Collection[str]) -> Settings:
    """Return the settings of keys that are open: a given key wins."""
    return {key: setting for key, setting in settings.items() if key in keys}


def choose_settings(
    config: Config,
    corpus: CorpusStatistics,
    device: torch.device,
    measure: MeasureSpeed,
    width: int | None = None,
) -> tuple[Settings, Forecast | None]:
    """Choose all settings of a new run but the length of the training.

    The model has the size of a `width`, else the best one for corpus and time. Returns them with
    the expected tokens and time of the training, if the model or the updates are chosen. Raises
    ConfigError for `training.init_from` without a config.
    """
    keys, copied, forecast = frozenset(open_keys(config)), Settings(), None
    if not keys:
        return {}, None
    if config.training.init_from is not None:
        copied = _copy_settings(config, config.training.init_from)
    settings = _of_keys(_choose_tokenizer(config, corpus), keys) | copied
    if not copied:
        tokenized = with_settings(config, settings)
        step = 64 if config.model.positional == "marian" else 1  # for the int8 matrices of Bergamot
        sizes = [s for s in SIZES if s.pairs <= corpus.pairs and s.d_model % step == 0]
        sizes = [like_width(width, corpus.pairs)] if width else sizes
        model, forecast = _choose_model(tokenized, keys, corpus, device, measure, sizes)
        settings |= model
    sized = with_settings(config, settings)
    vocabulary, (source, target) = sized.tokenizer.vocabulary_size, corpus.characters
    sides = [source + target] if sized.tokenizer.vocabulary == "joint" else [source, target]
    coverage, needed = choose_coverage(sides, vocabulary)
    reason = f"{needed:,} characters are tokens, rarer ones are spelled in bytes"
    chosen = {"tokenizer.character_coverage": Setting(coverage, reason)}
    training = sized.training
    if "training.target_tokens_per_update" in keys:
        if forecast is None:
            rate = _measure(sized, corpus, device, measure)
            forecast = _forecast(sized, corpus, device, rate)
        reason = f"grows with the square root of {forecast.tokens / 1e6:.2g} million tokens"
        chosen["training.target_tokens_per_update"] = Setting(forecast.update_tokens, reason)
        is_timed = training.budget is not None and not copied  # few new pairs need few updates
        if is_timed and training.max_updates is None is training.max_epochs:
            seconds = forecast.seconds / forecast.updates
            _require_updates(training, forecast.updates, f"an update takes {seconds:.2g} s")
    if device.type != "cuda":  # on CUDA each session chooses it
        tokens = batch_tokens(training, config.data.max_tokens, device)
        chosen[_BATCH_TOKENS] = Setting(tokens, "fits a small memory")
    rate = choose_learning_rate(sized.model.d_model, CONTINUED_RATE if copied else 1.0)
    chosen["training.learning_rate"] = Setting(rate, "falls with the width of the model")
    return _of_keys(chosen, keys) | settings, forecast


def _copy_settings(config: Config, run: Path) -> Settings:
    """Return what a config leaves open as in the run that it continues: model, smoothing, decay.

    Names the keys of a new tokenizer that are given: the tokenizer of the run is copied.
    """
    start, given, keys = load_config(run / CONFIG_FILE).flat(), config.flat(), {*open_keys(config)}
    unused = [f"{key} {given[key]}" for key in _OF_TOKENIZER - keys if given[key] != start[key]]
    if unused:
        _logger.info("not used, since the tokenizer is copied: %s", ", ".join(unused))
    copied = keys & {*_OF_TOKENIZER, "training.label_smoothing", "training.weight_decay"}
    copied |= {
        f"model.{key}" for key in {*ModelConfig.model_fields} - config.model.model_fields_set
    }
    if config.training.precision == "pure_bf16":  # its steps are too small for a decay
        copied.discard("training.weight_decay")
    return {key: Setting(start[key], "as in `training.init_from`") for key in sorted(copied)}


def _choose_tokenizer(config: Config, corpus: CorpusStatistics) -> Settings:
    """Choose the layout of the vocabularies and the algorithm of the tokenizer."""
    model, data = config.model, config.data
    if origin := config.tokenizer_origin:
        layout, reason = copied_layout(origin[1]), f"as in `{origin[0]}`"
    elif model.tie_embeddings == "all" and not model.is_open("tie_embeddings"):
        layout, reason = "joint", "for `model.tie_embeddings: all`"
    elif share_script(corpus.characters):
        layout, reason = "joint", "one script, which shares names and stems"
    elif data.terms:
        layout, reason = "joint", "sources show target words"
    else:
        layout, reason = "separate", "two scripts share few tokens"
    settings = {"tokenizer.vocabulary": Setting(layout, reason)}
    if any(config.tokenizer.subword_dropout):
        algorithm, reason = "bpe", "for `tokenizer.subword_dropout`"
    elif any(map(written_without_spaces, (data.source_language, data.target_language))):
        algorithm, reason = "bpe", "unigram training is slow without spaces"
    else:
        algorithm, reason = "unigram", "a little better than BPE"
    settings["tokenizer.algorithm"] = Setting(algorithm, reason)
    return settings


def _measure(
    config: Config, corpus: CorpusStatistics, device: torch.device, measure: MeasureSpeed
) -> float | None:
    """Return the operations per second of training a config, 6 a parameter and target token.

    None if the config's end alone limits the training.
    """
    training, vocabulary = config.training, config.tokenizer.vocabulary_size
    parameters = estimate_parameters(config.model, vocabulary)
    if limit_training(config, corpus, device.type).seconds == math.inf:
        return None
    if training.is_open("target_tokens_per_update"):
        _, size = _MEASURED.get(device.type, _MEASURED_ELSEWHERE)
        training = training.changed(target_tokens_per_update=size)
    measured = config.changed(training=training)
    return 6 * parameters * measure(measured, corpus.lengths, (vocabulary, vocabulary))


def _forecast(
    config: Config, corpus: CorpusStatistics, device: torch.device, rate: float | None
) -> Forecast:
    """Forecast a training on a device with a rate of operations."""
    parameters = estimate_parameters(config.model, config.tokenizer.vocabulary_size)
    bounds = limit_training(config, corpus, device.type)
    return make_forecast(bounds, rate and rate / (6 * parameters), device.type)


def _choose_model(
    config: Config,
    keys: Collection[str],
    corpus: CorpusStatistics,
    device: torch.device,
    measure: MeasureSpeed,
    allowed: Sequence[Size],
) -> tuple[Settings, Forecast | None]:
    """Choose the shape of the model, as a whole: with `model.d_model` given, it is the paper's.

    It is the largest of those `allowed` that is trained on enough tokens, or the first. The speed
    of one model suggests it. Its own, with updates of its size, is measured before it is chosen:
    the smaller both are, the more an operation costs, and a larger model may not fit.
    """
    tied = Setting("decoder", "only the target side has one vocabulary")
    if config.tokenizer.vocabulary == "joint":
        tied = Setting("all", "one vocabulary, one matrix")
    settings = {"model.tie_embeddings": tied}
    if "model.d_model" not in keys:
        vocabulary = like_width(config.model.d_model, corpus.pairs).vocabulary
        settings["tokenizer.vocabulary_size"] = Setting(vocabulary, "for a model of this width")
        return _of_keys(settings, keys), None
    shapes = {size: _of_keys(settings | _shape(config, size), keys) for size in allowed}
    candidates = {size: with_settings(config, shape) for size, shape in shapes.items()}
    widest, _ = _MEASURED.get(device.type, _MEASURED_ELSEWHERE)
    for reference in reversed([size for size in allowed if size.d_model <= widest] or allowed):
        try:
            rate = _measure(candidates[reference], corpus, device, measure)
            break
        except _TOO_LARGE:
            if reference is allowed[0]:
                raise
    for size in reversed(allowed):
        candidate = candidates[size]
        forecast = _forecast(candidate, corpus, device, rate)
        parameters = estimate_parameters(candidate.model, candidate.tokenizer.vocabulary_size)
        least = 0.0 if size is allowed[0] else size.tokens_per_parameter * parameters
        try:
            is_known = size is reference and "training.target_tokens_per_update" not in keys
            if forecast.tokens >= least and rate and not is_known:
                update = {"target_tokens_per_update": forecast.update_tokens}
                trained = candidate.changed(training=config.training.changed(**update))
                measured = _measure(trained, corpus, device, measure)
                forecast = _forecast(candidate, corpus, device, measured)
        except _TOO_LARGE:
            if size is allowed[0]:
                raise
            continue
        if forecast.tokens >= least:
            break
    passes = forecast.tokens / corpus.target_tokens
    millions = parameters / 1e6, forecast.tokens / 1e6
    bound = "up to " if len(allowed) > 1 else ""
    reason = f"{bound}{millions[0]:.2g} million parameters for {millions[1]:.2g} million tokens"
    chosen = shapes[size]
    chosen["model.d_model"] = Setting(chosen["model.d_model"].value, reason)
    rules = choose_regularization(config.training, corpus.pairs, passes)
    regularization = {key: Setting(value, reason) for key, (value, reason) in rules.items()}
    return chosen | _of_keys(regularization, keys), forecast


def _shape(config: Config, size: Size) -> Settings:
    """Return the settings of a model of some size, which fit a given number of heads."""
    heads = size.heads if config.model.is_open("heads") else config.model.heads
    width = size.d_model - size.d_model % (2 * heads)
    better, depth = "better at the same number of tokens", "the depth for this width"
    inner, words = 4 * width, "four widths"
    if config.model.is_open("feed_forward") or config.model.feed_forward.endswith("glu"):
        # Three matrices of two thirds of the usual width have as many parameters as two.
        inner, words = width * 8 // 3 // 8 * 8, "as many parameters as ReLU of four widths"
    return {
        "tokenizer.vocabulary_size": Setting(size.vocabulary, "for a model of this width"),
        "model.heads": Setting(heads, "32 or 64 numbers a head"),
        "model.d_model": Setting(width, ""),
        "model.encoder_layers": Setting(size.layers, depth),
        "model.decoder_layers": Setting(size.layers, depth),
        "model.positional": Setting("rotary", better),
        "model.feed_forward": Setting("swiglu", better),
        "model.d_ff": Setting(inner, words),
    }


def choose_length(
    config: Config,
    data: TrainingData,
    device: torch.device,
    measure: MeasureSpeed,
    *,
    ends_at: float = math.inf,
) -> dict[str, Any]:
    """Choose the end of a training and what follows from it, for its encoded corpus.

    `ends_at` is the time of `time.perf_counter` at which a budget ends. Returns the values of all
    open keys but the one that depends on the device. Logs what was chosen.
    """
    given, values = config, _choose_metric(config, data) | _choose_start(config, device)
    config, keys = with_values(given, values), frozenset(open_keys(given))
    training, per_epoch = config.training, len(data.plan_epoch())
    if training.guided_alignment or training.init_embeddings == "translations":
        _ = data.translation_table  # before the time left is measured
    updates, timing = most_updates(training, per_epoch), None
    if updates is None or training.budget is not None or training.is_open("validate_every"):
        speed = measure(config, data.store.lengths, data.vocabularies)
        seconds = training.target_tokens_per_update / speed
        compared = 0 if training.init_from is None else len(config.data.tests) or 1
        validated = measure_validation(config, data, device)
        timing = Timing(seconds, *validated, len(data.valid), compared)
        if training.budget is not None:
            left = ends_at - time.perf_counter()
            passes = most_passes(len(data.store.lengths), continues=config.continues)
            end = _choose_end(training, passes, per_epoch, timing, left)
            if updates is None or end < updates:
                values["training.max_updates"] = end
            updates = end
    expected = updates
    if expected is None:
        assert timing is not None, "the end is not given"
        parameters = estimate_parameters(config.model, max(data.vocabularies))
        tokens = training.target_tokens_per_update
        limits = expect_end(per_epoch * tokens, parameters, device.type, continues=config.continues)
        expected = math.ceil(min(limits.tokens / tokens, limits.seconds / timing.update))
        if config.continues and {"training.max_updates", "training.schedule"} <= keys:
            updates = values["training.max_updates"] = expected
    if training.init_from is None:
        warn_of_weakness(len(data.store.lengths), expected / per_epoch)
    if "training.guided_alignment" in values and training.is_open("guided_alignment_updates"):
        values["training.guided_alignment_updates"] = max(1, expected // 2)
    schedule = _choose_schedule(config, updates, expected)
    values = {key: value for key, value in schedule.items() if key in keys} | values
    if timing is not None and (training.budget is not None or training.is_open("validate_every")):
        every, count = _plan_validations(training, updates, expected, timing)
        plan = {"training.validate_every": every, "training.validation_pairs": count}
        values |= {key: value for key, value in plan.items() if key in keys}
        if updates is None:
            expected = max(expected, ((training.patience or 0) + 1) * every)
        seconds = timing.update + count * timing.new / every
        last = expected * seconds + timing.after(training, count)
        training = with_values(given, values).training
        extent = f"{expected:,} updates of {training.target_tokens_per_update:,} target tokens"
        if training.max_updates is None and training.max_epochs is None:
            extent = f"about {extent}, until {training.patience} validations bring no improvement, "
            extent += "which may be earlier or later"
        times = map(tqdm.format_interval, (every * timing.update, last))
        text = "training: %s; the first validation in about %s, the end in about %s"
        _logger.info(text, extent, *times)
    resolved = with_values(given, values).flat()
    return {key: resolved[key] for key in (keys | values.keys()) - {_BATCH_TOKENS}}


def _choose_end(
    training: TrainingConfig, passes: int, per_epoch: int, timing: Timing, left: float
) -> int:
    """Choose the last update for the time left of a budget, after at most some passes.

    An epoch has `per_epoch` updates. The end of the config stays where it comes first. Logs which
    does.
    """
    most, useful = most_updates(training, per_epoch), passes * per_epoch
    if training.schedule in {"linear", "cosine"} and training.decay_updates is not None:
        most = min(training.decay_updates, most or training.decay_updates)
    updates, after = max(int(left / timing.update), 0), 0.0
    for _ in range(3):  # the validations depend on the updates, and the other way round
        every, count = _plan_validations(training, updates, updates, timing)
        after = timing.after(training, count)
        updates = max(int((left - after) / (timing.update + count * timing.new / every)), 0)
    if most is not None:
        keys = [key for key in ("max_updates", "decay_updates") if getattr(training, key) == most]
        key = next(iter(keys), "max_epochs")
        end, budget = f"`training.{key}: {getattr(training, key)}`", f"budget {training.budget}"
        if most * _CERTAIN <= updates:
            _logger.info("%s ends the training, before its %s", end, budget)
            return most
        text = "%s ends the training, after %s updates instead of the %s of %s"
        _logger.info(text, budget, f"{updates:,}", f"{most:,}", end)
    spent = (training.budget_seconds or 0.0) - left
    reason = f"preparation took {spent:.0f} s, an update takes {timing.update:.2g} s, and the end "
    reason += f"(validation, choice of the search, export, calibration) takes {after:.0f} s"
    _require_updates(training, updates, reason)
    if most is None and useful < updates:
        text = "%s passes over the corpus end the training, before its budget %s"
        _logger.info(text, passes, training.budget)
        return useful
    return updates


def expect_updates(training: TrainingConfig, forecast: Forecast, corpus: CorpusStatistics) -> float:
    """Return the updates that a training of chosen sizes will make.

    A budget also pays for the preparation of the corpus, validations and the export.
    """
    if training.budget_seconds is None:
        return forecast.updates
    seconds = forecast.seconds / forecast.updates
    left = training.budget_seconds - _START - corpus.pairs / _PREPARED_PAIRS
    left -= corpus.cleaning_seconds
    return min(forecast.updates, max(_EXPECTED_SHARE * left / seconds, 0.0))


def _plan_validations(
    training: TrainingConfig, updates: int | None, expected: int, timing: Timing
) -> tuple[int, int]:
    """Return the updates between validations, and the pairs of each.

    What is open is chosen so that they take `_VALIDATION_SHARE` of the time. An end at some
    `updates` is known, else about as many are expected.
    """
    every, count = training.validate_every, training.validation_pairs or timing.pairs
    affordable = _VALIDATION_SHARE * timing.update / timing.new  # pairs for each update
    if training.is_open("validate_every"):
        least = _INTERVAL if updates is None else min(_INTERVAL, updates // _FEWEST_VALIDATIONS)
        every = max(expected // _VALIDATIONS, least, 1)
    if training.is_open("validation_pairs"):
        count = max(int(affordable * every), _LEAST_VALIDATED)
        if training.is_open("validate_every"):  # fewer validations, on more pairs
            most = int(affordable * expected / _FEWEST_VALIDATIONS)
            count = max(count, min(_FEWEST_VALIDATED, most))
    count = min(count, timing.pairs)
    if training.is_open("validate_every"):
        every = max(every, math.ceil(count / affordable))
        every = min(every, updates or every)  # the last update is always validated
    return every, count


def _choose_metric(config: Config, data: TrainingData) -> dict[str, Any]:
    """Choose the metric that ranks checkpoints: BLEU, unless it cannot for these references."""
    key, metric = "training.best_metric", "bleu"
    language = config.data.direction_of(config.data.valid).target
    sample = [pair.target for pair in data.valid[:: len(data.valid) // _MOST_REFERENCES + 1]]
    tokenizer = config.evaluation.bleu_tokenizer
    if problem := why_unable_to_rank(sample, target_language=language, tokenizer=tokenizer):
        letters = sum(len("".join(text.split())) for text in sample) / len(sample)
        metric = "chrf" if letters >= _FEWEST_LETTERS else "loss"
    if not config.training.is_open("best_metric"):
        if config.training.best_metric == "bleu" != metric:
            text = "warning: `%s: bleu` cannot rank checkpoints, `%s` can: %s"
            _logger.warning(text, key, metric, problem)
        return {}
    if metric != "bleu":
        _logger.info("validation: `%s: %s`, because %s", key, metric, problem)
    return {key: metric}


def _choose_start(config: Config, device: torch.device) -> dict[str, Any]:
    """Choose what helps in the first updates of a new model: words are translated sooner."""
    training = config.training
    if not training.is_open("schedule") or training.init_from is not None:
        return {}
    values: dict[str, Any] = {"init_embeddings": "translations", "init_sublayers": "zero"}
    # Measured on CPUs alone; a compiled model cannot have it.
    excludes_it = training.r_drop > 0 or "on" in {training.compile, training.recompute}
    if device.type == "cpu" and not excludes_it:
        values["guided_alignment"] = GUIDED_ALIGNMENT
    return {f"training.{key}": value for key, value in values.items() if training.is_open(key)}


def _require_updates(training: TrainingConfig, updates: float, reason: str) -> None:
    """Raise ConfigError if a budget allows too few updates, for a reason."""
    if updates < _LEAST_UPDATES:
        raise ConfigError(
            f"budget {training.budget}: too short; on this machine it allows {int(updates)} "
            f"updates, and at least {_LEAST_UPDATES} are needed: {reason}"
        )


def _choose_schedule(config: Config, updates: int | None, expected: int) -> dict[str, Any]:
    """Choose warm-up and schedule for a last update, or for those that are expected."""
    training = config.training
    warmup = choose_warmup(updates or max(expected, 10 * _LEAST_WARMUP), config.model.d_model)
    values: dict[str, Any] = {"training.warmup_updates": warmup}
    if not training.is_open("warmup_updates"):
        warmup = training.warmup_updates
    has_schedule = not training.is_open("schedule")
    if updates is None or warmup >= updates:
        values["training.schedule"] = "inverse_sqrt"
        if not has_schedule and training.precision != "pure_bf16":
            values["training.ema_decay"] = 0.999  # a rate that does not fall to 0 needs a mean
    elif not has_schedule or training.schedule in {"linear", "cosine"}:
        values |= {
            "training.schedule": "linear",  # it gave the best scores
            "training.decay_updates": updates,
            "training.max_updates": updates,
            "training.patience": None,
            "training.average": "off",  # the last checkpoints are the best
        }
    return values


def describe_settings(config: Config, settings: Settings) -> Iterator[str]:
    """Yield a line for tokenizer, model and continued training if their main setting was chosen."""
    model = config.model
    if size := settings.get("tokenizer.vocabulary_size"):
        layout = config.tokenizer.vocabulary
        yield f"tokenizer: up to {size.value:,} tokens ({size.reason}), {layout}"
    if width := settings.get("model.d_model"):
        layers = f"{model.encoder_layers} + {model.decoder_layers} layers"
        dropout = settings.get("model.dropout")
        reason = f" ({dropout.reason})" if dropout else ""
        yield (
            f"model: {layers} of width {model.d_model} ({width.reason}), dropout "
            f"{model.dropout}{reason}"
        )
    rate = settings.get("training.learning_rate")
    if rate and config.training.init_from is not None:
        start = config.training.init_from
        yield f"training: continues {start}, learning rate {rate.value} ({rate.reason})"
