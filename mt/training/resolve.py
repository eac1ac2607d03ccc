"""Resolution of a config: a value for each key that is open, with its reason.

Every rule is here; the experiments behind them are in docs/recipes.md. The rules see the size and
the scripts of the corpus, the speed of the device and `training.budget`.

- `resolve` chooses all settings of a new run from its corpora, before the data are prepared.
- `AutoSettings.resolve_length` adds what only the encoded corpus and the time left can decide: the
  number of updates and what follows from it.
- `resolve_for_device` completes the config for one session; a run may go on on another device.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from mt.config import Config, ModelConfig, TrainingConfig
from mt.config.loading import open_keys, with_values
from mt.data.batches import TARGET, Lengths
from mt.data.splits import CorpusScan
from mt.data.tokenizer_training import copied_layout
from mt.decoding.load import read_run
from mt.errors import ConfigError
from mt.evaluation.scores import why_unable_to_rank
from mt.languages import in_letters, written_without_spaces
from mt.model.transformer import Transformer
from mt.training.data import TrainingData
from mt.training.distributed import ALONE, World
from mt.training.objectives import should_compile
from mt.training.optimizer import choose_precision
from mt.training.resources import MEASURED_PAIRS, training_speed
from mt.training.setup import build_learner, most_updates, new_model
from mt.training.validation import spread

LETTERS_PER_TOKEN = 3.5
"""Approximate letters per token for vocabularies of 4,000 to 16,000 tokens."""
_logger = logging.getLogger(__name__)
_BATCH_TOKENS = "training.max_tokens_per_batch"
_CUDA_BATCH_TOKENS = 32_768
"""Padded tokens of a batch on CUDA, halved where they do not fit."""
_SHARED_LETTERS = 0.5
LONGEST_TRAINING = 3600.0
"""Seconds that a training without a budget is expected to take at most."""
_MOST_PASSES = 40
"""Passes over the corpus after which a training without a budget is expected to have ended."""
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
class CorpusStatistics:
    """Properties of a training corpus that the rules depend on."""

    pairs: int
    letters: tuple[int, int]
    """Length of each side in letters of an alphabet, as `mt.languages.in_letters` counts."""
    characters: tuple[Counter[str], Counter[str]]
    """Characters of each side in a sample of the pairs, without spaces."""
    lengths: Lengths
    """Estimated lengths of the sample in tokens."""

    @property
    def target_tokens(self) -> int:
        """Estimated target tokens of the corpus, with end marks."""
        return round(self.letters[TARGET] / LETTERS_PER_TOKEN) + self.pairs


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
    tokens: float = 0.0
    """Expected target tokens of the training, if the model or the updates are chosen."""

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
        """Expected passes over the corpus; 0 if no key is open."""
        return self.tokens / self.statistics.target_tokens if self.statistics else 0.0

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
        if updates is None or budget is not None or "model.d_model" in self.chosen:
            lengths, sizes, world = data.store.lengths, data.vocabularies, self.world
            speed = measure_speed(config, lengths, sizes, device, world=world)
            seconds = training.target_tokens_per_update / speed
            if budget is not None:
                updates, seconds = _choose_end(self, data, device, seconds, updates)
        expected = updates
        if expected is None:
            expected = min(_MOST_PASSES * per_epoch, math.ceil(LONGEST_TRAINING / seconds))
        _choose_schedule(self, updates, expected)
        every = max(1, expected // _VALIDATIONS)
        self.choose("training.validate_every", every, f"{_VALIDATIONS} validations in the run")
        for line in _summarize(self, seconds, expected):
            _logger.info("%s", line)
        for key in open_keys(self.config):
            if key != _BATCH_TOKENS:
                self.choose(key, self.value(key), "the default")
        return self.config


def resolve_for_device(config: Config, device: torch.device) -> Config:
    """Return the config with the settings that depend on the device, which are then given."""
    training = config.training
    is_compiled = training.compile == "on"
    if training.compile == "auto":
        is_compiled = should_compile(training, device)
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
        measure_speed(config, lengths, vocabularies, world.device, seconds, world)


def measure_corpora(scan: CorpusScan, max_tokens: int) -> CorpusStatistics:
    """Estimate the statistics of training corpora from their scan."""
    sample = scan.sample
    sizes = np.array([[in_letters(pair.source), in_letters(pair.target)] for pair in sample])
    written = np.array([[len(pair.source), len(pair.target)] for pair in sample])
    weights = sizes.sum(axis=0) / np.maximum(written.sum(axis=0), 1)
    source, target = (np.array(scan.characters) * weights).round().astype(int).tolist()
    lengths = np.clip(np.ceil(sizes / LETTERS_PER_TOKEN) + 1, 2, max_tokens).astype(np.int32)
    characters = Counter[str](), Counter[str]()
    for pair in sample:
        characters[0].update(pair.source.replace(" ", ""))
        characters[1].update(pair.target.replace(" ", ""))
    return CorpusStatistics(scan.pairs, (source, target), characters, lengths)


def share_script(characters: tuple[Counter[str], Counter[str]]) -> bool:
    """Return whether the sides share more than half of their letters, by frequency.

    A few Latin names in Chinese text do not count as a shared script.
    """
    source, target = ({c: n for c, n in side.items() if c.isalpha()} for side in characters)
    totals = max(sum(source.values()), 1), max(sum(target.values()), 1)
    shared = (min(source[c] / totals[0], target.get(c, 0) / totals[1]) for c in source)
    return sum(shared) > _SHARED_LETTERS


def characters_needed(characters: Counter[str], coverage: float) -> int:
    """Return how many of the most frequent characters make up a share of a text."""
    counts = np.sort(np.array([*characters.values(), 1]))[::-1]
    return int(np.searchsorted(np.cumsum(counts), coverage * characters.total())) + 1


@dataclass(frozen=True)
class Size:
    """Shape of a model."""

    d_model: int
    heads: int
    layers: int
    vocabulary: int
    """Tokens; an embedding as large as the layers is learned too slowly."""
    pairs: int = 0
    """Least number of pairs in the corpus; fewer are memorised."""


SIZES = (
    Size(96, 3, 3, 4000),
    Size(128, 4, 3, 4000),
    Size(192, 6, 3, 4000),
    Size(256, 4, 3, 8000),
    Size(384, 6, 4, 12_000, pairs=50_000),
    Size(512, 8, 6, 16_000, pairs=300_000),
)
"""Shapes in order of size; the rule chooses the largest that is trained on enough tokens."""
TOKENS_PER_PARAMETER = 2.0
"""Least number of target tokens to train on for each parameter: a smaller model learns more from
fewer."""
COVERAGES = (0.9999, 0.9995, 0.999, 0.998, 0.995, 0.99, 0.98, 0.96, 0.93)
CHARACTER_SHARE = 0.8
"""Largest share of a vocabulary for single characters; a larger one leaves too few words."""
UPDATE_TOKENS = 500
"""Target tokens of an update for a training on a million tokens."""
LEARNING_RATE = 0.36
"""Peak learning rate times the width of the model."""
DROPOUT = ((100, 0.3), (25, 0.2), (0, 0.1))
"""Least number of passes over the corpus, and dropout."""


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
    _choose_coverage(settings, statistics)
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


def _choose_coverage(settings: AutoSettings, corpus: CorpusStatistics) -> None:
    size, (source, target) = settings.value("tokenizer.vocabulary_size"), corpus.characters
    is_joint = settings.value("tokenizer.vocabulary") == "joint"
    sides = [source + target] if is_joint else [source, target]
    for coverage in COVERAGES:
        needed = max(characters_needed(side, coverage) for side in sides)
        if needed <= CHARACTER_SHARE * size:
            break
    reason = f"{needed:,} characters are tokens, rarer ones are spelled in bytes"
    settings.choose("tokenizer.character_coverage", coverage, reason)


def _choose_model(settings: AutoSettings, corpus: CorpusStatistics, device: torch.device) -> None:
    """Choose the shape of the model, as a whole: with `model.d_model` given, it is the paper's."""
    tied, reason = "decoder", "only the target side has one vocabulary"
    if settings.value("tokenizer.vocabulary") == "joint":
        tied, reason = "all", "one vocabulary, one matrix"
    settings.choose("model.tie_embeddings", tied, reason)
    if "model.d_model" not in settings.open_keys:
        width = settings.value("model.d_model")
        like = next((size for size in SIZES if size.d_model >= width), SIZES[-1])
        settings.choose("tokenizer.vocabulary_size", like.vocabulary, "for a model of this width")
        return
    best, reason = SIZES[0], ""
    for size in SIZES:
        if corpus.pairs < size.pairs:
            break
        candidate = replace(settings, chosen=dict(settings.chosen))
        _choose_shape(candidate, size, reason)
        tokens, config = _affordable(candidate, corpus, device), candidate.config
        numbers = count_parameters(config.model, config.tokenizer.vocabulary_size)
        if size is not SIZES[0] and tokens < TOKENS_PER_PARAMETER * numbers:
            break
        reason = f"{numbers / 1e6:.2g} million parameters for {tokens / 1e6:.2g} million tokens"
        best, settings.tokens = size, tokens
    _choose_shape(settings, best, reason)
    dropout = next(rate for least, rate in DROPOUT if settings.passes >= least)
    settings.choose("model.dropout", dropout, f"about {settings.passes:.2g} passes over the corpus")


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


def count_parameters(model: ModelConfig, vocabulary_size: int) -> int:
    """Return the number of parameters of a model with two vocabularies of this size."""
    with torch.device("meta"):  # moving a model there would untie its matrices
        built = Transformer(
            model, source_vocabulary=vocabulary_size, target_vocabulary=vocabulary_size
        )
    return sum(parameter.numel() for parameter in built.parameters())


def _affordable(settings: AutoSettings, corpus: CorpusStatistics, device: torch.device) -> float:
    """Return how many target tokens the config's end and its budget, or else its time, allow.

    The speed is that of updates of the size that follows from it: small ones leave a GPU idle.
    """
    training, most = settings.given.training, math.inf
    key, seconds = "training.target_tokens_per_update", training.budget_seconds
    is_open = key in settings.open_keys
    if training.max_updates is not None:
        most = training.max_updates * float(UPDATE_TOKENS if is_open else settings.value(key))
    elif training.max_epochs is not None:
        most = training.max_epochs * float(corpus.target_tokens)
    elif seconds is None:
        most, seconds = float(_MOST_PASSES * corpus.target_tokens), LONGEST_TRAINING
    if seconds is None:
        return most

    def measure(update_tokens: int) -> float:
        candidate = replace(settings, chosen=dict(settings.chosen))
        candidate.choose(key, update_tokens, "to measure the speed")
        config, world = candidate.config, settings.world
        sizes = (config.tokenizer.vocabulary_size,) * 2
        speed = measure_speed(config, corpus.lengths, sizes, device, seconds=1.5, world=world)
        return min(speed * seconds, most)

    tokens = measure(UPDATE_TOKENS)
    size = _update_size(tokens)
    return measure(size) if is_open and size > 2 * UPDATE_TOKENS else tokens


def _update_size(tokens: float) -> int:
    """Return the target tokens of an update for a training on this number of tokens."""
    return int(np.clip(UPDATE_TOKENS * (tokens / 1e6) ** 0.5, UPDATE_TOKENS, 25_000))


def _choose_updates(settings: AutoSettings, corpus: CorpusStatistics, device: torch.device) -> None:
    if "training.target_tokens_per_update" in settings.open_keys:
        settings.tokens = settings.tokens or _affordable(settings, corpus, device)
        size = _update_size(settings.tokens)
        reason = f"grows with the square root of {settings.tokens / 1e6:.2g} million tokens"
        settings.choose("training.target_tokens_per_update", size, reason)
        training = settings.given.training
        if training.budget is not None and training.max_updates is None is training.max_epochs:
            _require_updates(training, settings.tokens / size)
    if device.type != "cuda":  # on CUDA each session chooses it
        given = settings.given
        size = _batch_tokens(given.training, given.data.max_tokens, device)
        settings.choose(_BATCH_TOKENS, size, "fits a small memory")
    rate = float(f"{LEARNING_RATE / settings.value('model.d_model'):.2g}")
    settings.choose("training.learning_rate", rate, "falls with the width of the model")


def _choose_end(
    settings: AutoSettings,
    data: TrainingData,
    device: torch.device,
    seconds: float,
    most: int | None,
) -> tuple[int, float]:
    """Choose the last update, at most `most`, and the extent of validation, for a budget.

    An update takes `seconds`, or less if a session will compile the model. Logs which end comes
    first. Returns the number of updates and the seconds of each.
    """
    config, training = settings.config, settings.config.training
    if training.schedule in {"linear", "cosine"} and training.decay_updates is not None:
        most = min(training.decay_updates, most or training.decay_updates)
    ends_at = settings.began_at + (training.budget_seconds or 0.0)
    updates, pairs = _updates_in(settings, data, seconds, ends_at - time.perf_counter())
    count = min(updates, most or updates)
    if training.compile == "auto" and should_compile(training, device, count):
        began_at = time.perf_counter()
        config = config.changed(training=training.changed(compile="on"))
        lengths, sizes = data.store.lengths, data.vocabularies
        speed = measure_speed(config, lengths, sizes, device, world=settings.world)
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
    last = Setting(updates, f"as many as fit into {training.budget}")
    settings.chosen["training.max_updates"] = last
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
    language = config.data.for_source(config.data.valid).target_language
    tokenizer, sample = config.evaluation.bleu_tokenizer, spread(references, _MOST_REFERENCES)
    if problem := why_unable_to_rank(sample, target_language=language, tokenizer=tokenizer):
        letters = sum(len("".join(text.split())) for text in sample) / len(sample)
        metric, reason = "chrf" if letters >= _FEWEST_LETTERS else "loss", problem
    if settings.choose(key, metric, reason) == "bleu" != metric:
        text = "warning: `%s: bleu` cannot rank checkpoints, `%s` can: %s"
        _logger.warning(text, key, metric, reason)


def _require_updates(training: TrainingConfig, updates: float) -> None:
    """Raise ConfigError if a budget allows fewer updates than there are validations."""
    if updates < _VALIDATIONS:
        raise ConfigError(
            f"budget {training.budget}: too short; on this machine it allows "
            f"{max(int(updates), 0)} updates, and at least {_VALIDATIONS} are needed"
        )


def _choose_schedule(settings: AutoSettings, updates: int | None, expected: int) -> None:
    warmup = min(max(1, expected // 10), 1000)
    warmup = settings.choose("training.warmup_updates", warmup, "a tenth")
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
        text = f"training: {expected:,} updates of {tokens:,} target tokens"
        if training.max_updates is None:
            text = f"training: stops after {training.patience} validations without improvement"
        if seconds:
            first, last = seconds * training.validate_every, seconds * expected
            text += f"; the first validation in about {tqdm.format_interval(first)}, "
            text += f"the end in about {tqdm.format_interval(last)}"
        yield text
