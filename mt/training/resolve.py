"""Resolution of a config: a value for each key that is open, with its reason.

The rules are in `mt.training.automatic`, the experiments behind them in docs/lab/settings.md. The rules
see the size and the scripts of the corpus, the speed of the device and `training.budget`.

- `resolve` chooses all settings of a new run from its corpora, before the data are prepared.
- `AutoSettings.resolve_length` adds what only the encoded corpus and the time left can decide: the
  number of updates and what follows from it.
- `resolve_for_device` completes the config for one session; a run may go on on another device.
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from tqdm import tqdm

from mt.config import Config, TrainingConfig
from mt.config.loading import open_keys, with_values
from mt.data.batches import TARGET, Lengths
from mt.data.splits import CorpusScan
from mt.data.tokenizer_training import copied_layout
from mt.decoding.load import read_run
from mt.errors import ConfigError, UserError
from mt.evaluation.scores import why_unable_to_rank
from mt.languages import written_without_spaces
from mt.training.automatic import (
    GUIDED_ALIGNMENT,
    SIZES,
    UPDATE_TOKENS,
    Bounds,
    CorpusStatistics,
    Forecast,
    Size,
    UpdateTime,
    choose_coverage,
    choose_learning_rate,
    choose_regularization,
    choose_warmup,
    expect_end,
    explain_update,
    like_width,
    limit_training,
    make_forecast,
    measure_corpora,
    most_passes,
    most_warmup,
    share_script,
    source_of_width,
)
from mt.training.data import TrainingData
from mt.training.distributed import ALONE, World
from mt.training.objectives import should_compile
from mt.training.optimizer import choose_precision
from mt.training.resources import MEASURED_PAIRS, training_speed
from mt.training.setup import build_learner, count_parameters, most_updates, new_model
from mt.training.validation import spread

_logger = logging.getLogger(__name__)
_BATCH_TOKENS = "training.max_tokens_per_batch"
_CUDA_BATCH_TOKENS = 32_768
"""Padded tokens of a batch on CUDA, halved where they do not fit."""
_MEASUREMENTS = 3
"""Largest number of sizes of an update at which the speed of a model is measured."""
_TOO_LARGE = UserError, torch.OutOfMemoryError
"""Errors of a measurement where the device has too little memory for the model."""
_FIRST_ON_GPU = 4
"""Tokens of the first such update on a GPU, in times of the smallest update."""
_VALIDATIONS = 20
"""Validations in a run, so that the first comes after 5 % of it."""
_VALIDATION_SHARE = 0.05
"""Share of a budget for validations, without the last."""
_VALIDATION_COST = 5.0
"""Time to score and translate a pair, in times of training on it; more for smaller models."""
_CERTAIN = 0.9
"""Share of the updates of a config that a budget has to allow; its measurement is uncertain."""
_MOST_REFERENCES = 2000
"""References from which the ranking metric is chosen."""
_FEWEST_LETTERS = 2
"""Mean length of references from which chrF ranks checkpoints."""
_FEWEST_VALIDATED = 50
"""Minimum number of pairs for a meaningful BLEU."""


@dataclass(frozen=True)
class Setting:
    """Value chosen for an open key."""

    value: Any
    reason: str


@dataclass
class AutoSettings:
    """Settings chosen for the keys that a config leaves open; a given key wins."""

    given: Config
    """Config before the settings."""
    chosen: dict[str, Setting] = field(default_factory=dict)
    began_at: float = 0.0
    """Time from which a budget counts."""
    statistics: CorpusStatistics | None = None
    """None if no key is open."""
    world: World = ALONE
    """Ranks that measure the speed."""
    forecast: Forecast | None = None
    """Expected tokens and time of the training, if the model or the updates are chosen."""

    @cached_property
    def open_keys(self) -> frozenset[str]:
        """Keys that the config leaves open."""
        return frozenset(open_keys(self.given))

    def choose(self, key: str, value: Any, reason: str) -> Any:
        """Choose the value of an open key; return it, or the value that is given."""
        if key not in self.open_keys:
            return self.value(key)
        self.chosen[key] = Setting(value, reason)
        return value

    def value(self, key: str) -> Any:
        """Return the value of a key that is given or chosen."""
        if key in self.chosen:
            return self.chosen[key].value
        section, name = key.split(".")
        return getattr(getattr(self.given, section), name)

    @property
    def passes(self) -> float:
        """Expected passes over the corpus; 0 without a forecast."""
        if self.statistics is None or self.forecast is None:
            return 0.0
        return self.forecast.tokens / self.statistics.target_tokens

    @property
    def config(self) -> Config:
        """The config with the settings, which then count as given."""
        values = {key: setting.value for key, setting in self.chosen.items()}
        return with_values(self.given, values)

    def resolve_length(self, data: TrainingData, device: torch.device) -> Config:
        """Choose the end of the training and what follows from it; return the config.

        Only what depends on the device stays open. Logs what was chosen.
        """
        config = self.config
        training, per_epoch = config.training, len(data.plan_epoch())
        updates, seconds, budget = most_updates(training, per_epoch), 0.0, training.budget_seconds
        _choose_metric(self, [pair.target for pair in data.valid])
        _choose_start(self, data, device)
        if updates is None or budget is not None or "model.d_model" in self.chosen:
            lengths, sizes, world = data.store.lengths, data.vocabularies, self.world
            measured = _compiled(config, device) if budget is None else config
            speed = measure_speed(measured, lengths, sizes, device, world=world)
            seconds = training.target_tokens_per_update / speed
            if budget is not None:
                last = most_passes(len(lengths)) * per_epoch
                updates, seconds = _choose_end(self, data, device, seconds, (updates, last))
        expected = updates
        if expected is None:
            numbers = count_parameters(config.model, max(data.vocabularies))
            tokens = training.target_tokens_per_update
            end = expect_end(per_epoch * tokens, numbers, device.type)
            expected = math.ceil(min(end.tokens / tokens, end.seconds / seconds))
        _choose_schedule(self, updates, expected)
        every = max(1, expected // _VALIDATIONS)
        self.choose("training.validate_every", every, f"{_VALIDATIONS} validations in the run")
        for line in _summarize(self, seconds, expected):
            _logger.info("%s", line)
        for key in open_keys(self.config):
            if key != _BATCH_TOKENS:
                self.choose(key, self.value(key), "the default")
        return self.config


def _compiled(config: Config, device: torch.device, updates: int | None = None) -> Config:
    """Return the config with compilation on if `auto` compiles; `updates` as of the budget."""
    training = config.training
    if training.compile == "auto" and should_compile(training, device, updates):
        return config.changed(training=training.changed(compile="on"))
    return config


def resolve_for_device(config: Config, device: torch.device) -> Config:
    """Return the config with the settings that depend on the device, which are then given."""
    training = config.training
    is_compiled = _compiled(config, device).training.compile == "on"
    resolved = training.changed(
        max_tokens_per_batch=_batch_tokens(training, config.data.max_tokens, device),
        compile="on" if is_compiled else "off",
        precision=choose_precision(training.precision, device, config.model.d_model).name,
    )
    return config.changed(training=resolved)


def _batch_tokens(training: TrainingConfig, longest: int, device: torch.device) -> int:
    """Return the size of batches, or the largest that a device may take where it is open."""
    tokens = training.max_tokens_per_batch
    if not training.is_open("max_tokens_per_batch"):
        return tokens
    return max(_CUDA_BATCH_TOKENS if device.type == "cuda" else tokens, longest)


def measure_speed(
    config: Config,
    lengths: Lengths,
    vocabularies: tuple[int, int],
    device: torch.device,
    seconds: float = 3.0,
    world: World = ALONE,
) -> float:
    """Return the target tokens per second of a training, on this device and with all ranks.

    It is compiled for `training.compile: on` alone. Other ranks than 0 wait in
    `join_measurements`, and measure at the same time.
    """
    if world.is_main:
        lengths = lengths[:: max(1, len(lengths) // (2 * MEASURED_PAIRS))]
        request: Any = config, lengths, vocabularies, seconds
        world.broadcast(request)
    plain = config.training.changed(compile="on" if config.training.compile == "on" else "off")
    config = resolve_for_device(config.changed(training=plain), device)
    learner = build_learner(config, new_model(config.model, vocabularies, device), device)
    keys: dict[str, Any] = {"longest": config.data.max_tokens, "seconds": seconds, "world": world}
    speed = training_speed(learner, config.training, lengths, **keys)
    if config.training.compile == "on":  # the graphs of this model count against a limit
        torch.compiler.reset()
    return speed


def join_measurements(world: World) -> None:
    """Take part in the measurements of rank 0, until it calls this function too."""
    while (request := world.broadcast(None)) is not None:
        config, lengths, vocabularies, seconds = request
        with suppress(*_TOO_LARGE):  # raised on rank 0 too, which decides
            measure_speed(config, lengths, vocabularies, world.device, seconds, world)


def resolve(
    config: Config,
    device: torch.device,
    scan: CorpusScan | None,
    *,
    world: World = ALONE,
    began_at: float | None = None,
) -> AutoSettings:
    """Choose all settings of a new run but the length of the training.

    `scan` is that of the training corpora; None if the config has no open key. `began_at` is the
    time from which a budget counts, by default now. Raises RunError for a run named by the config
    that cannot be read.
    """
    began_at = time.perf_counter() if began_at is None else began_at
    settings = AutoSettings(config, began_at=began_at, world=world)
    if not settings.open_keys:
        return settings
    initial = config.training.init_from
    shape = None if initial is None else read_run(initial).config.model
    assert scan is not None, "open keys are chosen from a scan"
    statistics = settings.statistics = measure_corpora(scan, config.data.max_tokens)
    _choose_tokenizer(settings, statistics)
    if shape is None:
        _choose_model(settings, statistics, device)
    else:
        for key in settings.open_keys:
            section, _, name = key.partition(".")
            if section == "model":
                settings.choose(key, getattr(shape, name), "as in `training.init_from`")
    size, (source, target) = settings.value("tokenizer.vocabulary_size"), statistics.characters
    is_joint = settings.value("tokenizer.vocabulary") == "joint"
    sides = [source + target] if is_joint else [source, target]
    coverage, needed = choose_coverage(sides, size)
    reason = f"{needed:,} characters are tokens, rarer ones are spelled in bytes"
    settings.choose("tokenizer.character_coverage", coverage, reason)
    _choose_updates(settings, statistics, device)
    return settings


def _choose_tokenizer(settings: AutoSettings, corpus: CorpusStatistics) -> None:
    is_tied = settings.value("model.tie_embeddings") == "all"
    if origin := settings.given.tokenizer_origin:
        layout, reason = copied_layout(origin[1]), f"as in `{origin[0]}`"
    elif is_tied and "model.tie_embeddings" not in settings.open_keys:
        layout, reason = "joint", "for `model.tie_embeddings: all`"
    elif share_script(corpus.characters):
        layout, reason = "joint", "one script, which shares names and stems"
    elif settings.given.data.terms:
        layout, reason = "joint", "sources show target words"
    else:
        layout, reason = "separate", "two scripts share few tokens"
    settings.choose("tokenizer.vocabulary", layout, reason)
    languages = settings.given.data.source_language, settings.given.data.target_language
    if any(settings.given.tokenizer.subword_dropout):
        algorithm, reason = "bpe", "for `tokenizer.subword_dropout`"
    elif any(map(written_without_spaces, languages)):
        algorithm, reason = "bpe", "unigram training is slow without spaces"
    else:
        algorithm, reason = "unigram", "a little better than BPE"
    settings.choose("tokenizer.algorithm", algorithm, reason)


def _choose_model(settings: AutoSettings, corpus: CorpusStatistics, device: torch.device) -> None:
    """Choose the shape of the model, as a whole: with `model.d_model` given, it is the paper's."""
    tied, reason = "decoder", "only the target side has one vocabulary"
    if settings.value("tokenizer.vocabulary") == "joint":
        tied, reason = "all", "one vocabulary, one matrix"
    settings.choose("model.tie_embeddings", tied, reason)
    if "model.d_model" not in settings.open_keys:
        like = like_width(settings.value("model.d_model"), corpus.pairs)
        settings.choose("tokenizer.vocabulary_size", like.vocabulary, "for a model of this width")
        return
    best, chosen, gain = None, SIZES[0], None
    for size in SIZES:
        if corpus.pairs < size.pairs:
            break
        candidate = replace(settings, chosen=dict(settings.chosen))
        _choose_shape(candidate, size, "")
        try:
            model = _MeasuredModel.measure(candidate, corpus, device)
        except _TOO_LARGE:
            if best is None:
                raise
            break
        least = size.tokens_per_parameter * model.parameters if best else 0.0
        if best and gain is None and model.forecast().tokens < least:
            gain = best.measure_gain(corpus, device)
        if model.forecast(gain or 1.0).tokens < least:
            break
        best, chosen = model, size
    assert best is not None, "the first size needs no pairs"
    settings.forecast = best.forecast(gain or best.measure_gain(corpus, device))
    sizes = best.parameters / 1e6, settings.forecast.tokens / 1e6
    reason = "{:.2g} million parameters for {:.2g} million tokens, ".format(*sizes)
    _choose_shape(settings, chosen, reason + source_of_width(chosen.d_model))
    regularization = choose_regularization(settings.given.training, corpus.pairs, settings.passes)
    for key, (value, reason) in regularization.items():
        settings.choose(key, value, reason)


def _choose_shape(settings: AutoSettings, size: Size, reason: str) -> None:
    settings.choose("tokenizer.vocabulary_size", size.vocabulary, "for a model of this width")
    heads = settings.choose("model.heads", size.heads, "32 or 64 numbers a head")
    width = settings.choose("model.d_model", size.d_model - size.d_model % (2 * heads), reason)
    settings.choose("model.encoder_layers", size.layers, "the depth for this width")
    settings.choose("model.decoder_layers", size.layers, "the depth for this width")
    better = "better at the same number of tokens"
    settings.choose("model.positional", "rotary", better)
    settings.choose("model.feed_forward", "swiglu", better)
    # Three matrices of two thirds of the usual width have as many parameters as two.
    inner = width * 8 // 3 // 8 * 8
    settings.choose("model.d_ff", inner, "as many parameters as ReLU of four widths")


@dataclass(frozen=True)
class _MeasuredModel:
    """Settings with a model, and the measured time of its updates."""

    settings: AutoSettings
    limits: Bounds
    parameters: int
    time: UpdateTime | None
    """None if the config's end alone limits the training."""

    @classmethod
    def measure(
        cls, settings: AutoSettings, corpus: CorpusStatistics, device: torch.device
    ) -> "_MeasuredModel":
        """Return the settings with their limits, after a measurement of the speed.

        It is measured with updates of the size that follows from it, because small ones leave a
        GPU idle: at most at `_MEASUREMENTS` sizes, on a CPU mostly at one.
        """
        config = settings.config
        parameters = count_parameters(config.model, config.tokenizer.vocabulary_size)
        limits = limit_training(settings.given.training, corpus, parameters, device.type)
        candidate = cls(settings, limits, parameters, None)
        if limits.seconds == math.inf:
            return candidate
        measured: dict[int, float] = {}
        on_cpu, size = device.type == "cpu", limits.update_tokens or UPDATE_TOKENS
        if limits.update_tokens is None and not on_cpu:
            size *= _FIRST_ON_GPU
        while True:
            measured[size] = size / candidate.speed(size, corpus, device)
            time = UpdateTime.fit(measured)
            wanted = make_forecast(limits, time).update_tokens
            if not on_cpu and len(measured) == 1:
                wanted = max(wanted, _FIRST_ON_GPU * size)
            is_near = limits.update_tokens is not None or wanted <= 2 * max(measured)
            if is_near or len(measured) == _MEASUREMENTS:
                return replace(candidate, time=time)
            size = wanted

    def speed(
        self, update_tokens: int, corpus: CorpusStatistics, device: torch.device, **keys: Any
    ) -> float:
        """Return the target tokens per second with updates of a size; `keys` are of training."""
        config, world = self.settings.config, self.settings.world
        keys["target_tokens_per_update"] = update_tokens
        config = config.changed(training=config.training.changed(**keys))
        sizes = (config.tokenizer.vocabulary_size,) * 2
        return measure_speed(config, corpus.lengths, sizes, device, seconds=1.5, world=world)

    def forecast(self, gain: float = 1.0) -> Forecast:
        """Return the forecast of the training, on a device that is faster by a factor."""
        return make_forecast(self.limits, self.time and self.time.faster(gain))

    def measure_gain(self, corpus: CorpusStatistics, device: torch.device) -> float:
        """Return the factor by which compilation makes the training faster; 1 if it is not."""
        training = self.settings.given.training
        if self.time is None or training.compile != "auto" or not should_compile(training, device):
            return 1.0
        size = self.forecast().update_tokens
        return max(1.0, self.speed(size, corpus, device, compile="on") * self.time.of(size) / size)


def _choose_updates(settings: AutoSettings, corpus: CorpusStatistics, device: torch.device) -> None:
    width = settings.value("model.d_model")
    if "training.target_tokens_per_update" in settings.open_keys:
        if settings.forecast is None:
            candidate = _MeasuredModel.measure(settings, corpus, device)
            settings.forecast = candidate.forecast(candidate.measure_gain(corpus, device))
        size, reason = settings.forecast.update_tokens, explain_update(settings.forecast)
        settings.choose("training.target_tokens_per_update", size, reason)
        training = settings.given.training
        if training.budget is not None and training.max_updates is None is training.max_epochs:
            _require_updates(training, settings.forecast.updates)
    if device.type != "cuda":  # on CUDA each session chooses it
        given = settings.given
        size = _batch_tokens(given.training, given.data.max_tokens, device)
        settings.choose(_BATCH_TOKENS, size, "fits a small memory")
    reason = f"falls with the width of the model, {source_of_width(width)}"
    settings.choose("training.learning_rate", choose_learning_rate(width), reason)


def _choose_end(
    settings: AutoSettings,
    data: TrainingData,
    device: torch.device,
    seconds: float,
    limits: tuple[int | None, int],
) -> tuple[int, float]:
    """Choose the last update and the extent of validation, for a budget.

    `limits` are the end of the config, and the updates that the corpus is worth without it. An
    update takes `seconds`, or less if a session will compile the model. Logs which end comes first.
    Returns the number of updates and the seconds of each.
    """
    config, training, (most, useful) = settings.config, settings.config.training, limits
    if training.schedule in {"linear", "cosine"} and training.decay_updates is not None:
        most = min(training.decay_updates, most or training.decay_updates)
    ends_at = settings.began_at + (training.budget_seconds or 0.0)
    updates, pairs = _updates_in(settings, data, seconds, ends_at - time.perf_counter())
    count = min(updates, most or useful)
    if (compiled := _compiled(config, device, count)) is not config:
        began_at = time.perf_counter()
        lengths, sizes = data.store.lengths, data.vocabularies
        speed = measure_speed(compiled, lengths, sizes, device, world=settings.world)
        seconds = training.target_tokens_per_update / speed
        now = time.perf_counter()
        ends_at -= now - began_at  # a session compiles again
        updates, pairs = _updates_in(settings, data, seconds, ends_at - now)
    settings.choose("training.validation_pairs", pairs, "a twentieth of the budget at most")
    if most is not None:
        keys = [key for key in ("max_updates", "decay_updates") if getattr(training, key) == most]
        key = next(iter(keys), "max_epochs")
        end, budget = f"`training.{key}: {getattr(training, key)}`", f"budget {training.budget}"
        if most * _CERTAIN <= updates:
            _logger.info("%s ends the training, before its %s", end, budget)
            return most, seconds
        text = "%s ends the training, after %s updates instead of the %s of %s"
        _logger.info(text, budget, f"{updates:,}", f"{most:,}", end)
    _require_updates(training, updates)
    reason = f"as many as fit into {training.budget}"
    if most is None and useful < updates:
        updates, reason = useful, f"{most_passes(len(data.store.lengths))} passes over the corpus"
        _logger.info("%s end the training, before its budget %s", reason, training.budget)
    settings.chosen["training.max_updates"] = Setting(updates, reason)
    return updates, seconds


def _updates_in(
    settings: AutoSettings, data: TrainingData, seconds: float, left: float
) -> tuple[int, int | None]:
    """Return how many updates of some `seconds` fit into the time left, beside all validations.

    The second number is that of pairs to validate on; None for all.
    """
    training = settings.config.training
    pairs, tokens = len(data.valid), float(data.valid_lengths[:, TARGET].sum())
    of_all = _VALIDATION_COST * tokens * seconds / training.target_tokens_per_update
    left = max(left - of_all, 1e-6)  # the last validation
    is_given = "training.validate_every" not in settings.open_keys
    validations = left / seconds / training.validate_every if is_given else float(_VALIDATIONS)
    count = training.validation_pairs
    if "training.validation_pairs" in settings.open_keys:
        affordable = int(pairs * _VALIDATION_SHARE * left / (validations * of_all))
        count = None if affordable >= pairs else min(pairs, max(affordable, _FEWEST_VALIDATED))
    of_some = of_all * min(count or pairs, pairs) / pairs
    if is_given:
        return int(left / (seconds + of_some / training.validate_every)), count
    return int((left - validations * of_some) / seconds), count


def _choose_metric(settings: AutoSettings, references: Sequence[str]) -> None:
    """Choose the metric that ranks checkpoints: BLEU, unless it cannot for these references."""
    config, key = settings.given, "training.best_metric"
    metric, reason = "bleu", "the usual metric"
    language = config.data.direction_of(config.data.valid).target
    tokenizer, sample = config.evaluation.bleu_tokenizer, spread(references, _MOST_REFERENCES)
    if problem := why_unable_to_rank(sample, target_language=language, tokenizer=tokenizer):
        letters = sum(len("".join(text.split())) for text in sample) / len(sample)
        metric, reason = "chrf" if letters >= _FEWEST_LETTERS else "loss", problem
    if settings.choose(key, metric, reason) == "bleu" != metric:
        text = "warning: `%s: bleu` cannot rank checkpoints, `%s` can: %s"
        _logger.warning(text, key, metric, reason)


def _choose_start(settings: AutoSettings, data: TrainingData, device: torch.device) -> None:
    """Choose what helps in the first updates, and learn the table of translations for it."""
    training, reason = settings.given.training, "words are translated sooner"
    if "training.schedule" in settings.open_keys and training.init_from is None:
        settings.choose("training.init_embeddings", "translations", reason)
        settings.choose("training.init_sublayers", "zero", "words come before their context")
        # Measured on CPUs alone; a compiled model cannot have it.
        excludes_it = training.r_drop > 0 or "on" in {training.compile, training.recompute}
        if device.type == "cpu" and not excludes_it:
            settings.choose("training.guided_alignment", GUIDED_ALIGNMENT, reason)
    chosen = settings.config.training
    if chosen.guided_alignment or chosen.init_embeddings == "translations":
        _ = data.translation_table  # before the time left is measured


def _require_updates(training: TrainingConfig, updates: float) -> None:
    """Raise ConfigError if a budget allows fewer updates than there are validations."""
    if updates < _VALIDATIONS:
        raise ConfigError(
            f"budget {training.budget}: too short; on this machine it allows "
            f"{max(int(updates), 0)} updates, and at least {_VALIDATIONS} are needed"
        )


def _choose_schedule(settings: AutoSettings, updates: int | None, expected: int) -> None:
    if "training.guided_alignment" in settings.chosen:
        half, reason = max(1, expected // 2), "half of the expected updates"
        settings.choose("training.guided_alignment_updates", half, reason)
    width = settings.value("model.d_model")
    reason = f"a tenth, at most {most_warmup(width):,}"
    warmup = settings.choose("training.warmup_updates", choose_warmup(expected, width), reason)
    if updates is None or warmup >= updates:
        if "training.schedule" in settings.open_keys:
            settings.choose("training.schedule", "inverse_sqrt", "the end is not known")
            if settings.given.training.precision != "pure_bf16":
                reason = "a rate that does not fall to 0 needs a mean"
                settings.choose("training.ema_decay", 0.999, reason)
        return
    schedule = settings.choose("training.schedule", "linear", "it gave the best scores")
    if schedule in {"linear", "cosine"}:
        settings.choose("training.decay_updates", updates, "the last update")
        if "training.max_updates" not in settings.chosen:  # a budget may have chosen it
            settings.choose("training.max_updates", updates, "the rate is 0 then")
        settings.choose("training.patience", None, "the rate falls to the end")
        settings.choose("training.average", "off", "the last checkpoints are the best")


def _summarize(settings: AutoSettings, seconds: float, expected: int) -> Iterator[str]:
    """Yield a line for tokenizer, model and training if their main setting was chosen."""
    chosen, config = settings.chosen, settings.config
    model, training = config.model, config.training
    if size := chosen.get("tokenizer.vocabulary_size"):
        layout = config.tokenizer.vocabulary
        yield f"tokenizer: {size.value:,} tokens ({size.reason}), {layout}"
    if width := chosen.get("model.d_model"):
        layers = f"{model.encoder_layers} + {model.decoder_layers} layers"
        yield (
            f"model: {layers} of width {model.d_model} ({width.reason}), dropout "
            f"{model.dropout} ({chosen['model.dropout'].reason})"
        )
    if (metric := chosen.get("training.best_metric")) and metric.value != "bleu":
        yield f"validation: `training.best_metric: {metric.value}`, because {metric.reason}"
    if "training.validate_every" in chosen:
        tokens = training.target_tokens_per_update
        extent = f"{expected:,} updates of {tokens:,} target tokens"
        text = f"training: {extent}"
        if training.max_updates is None and training.max_epochs is None:
            text = f"training: about {extent}, until {training.patience} validations bring no "
            text += "improvement, which may be earlier or later"
        if seconds:
            first, last = seconds * training.validate_every, seconds * expected
            text += f"; the first validation in about {tqdm.format_interval(first)}, "
            text += f"the end in about {tqdm.format_interval(last)}"
        yield text
