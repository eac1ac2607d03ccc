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
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from mt.languages import in_letters, written_without_spaces
from mt.model.transformer import Transformer
from mt.training.data import TrainingData
from mt.training.objectives import should_compile
from mt.training.optimizer import choose_precision
from mt.training.resources import training_speed
from mt.training.setup import build_learner, most_updates, new_model

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
    began_at: float = field(default_factory=time.perf_counter)
    statistics: CorpusStatistics | None = None
    """None if no key is open."""
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

        Only what depends on the device stays open. A budget includes the time since the settings
        began. Logs what was chosen.
        """
        config = self.config
        training, per_epoch = config.training, len(data.plan_epoch())
        updates, seconds = most_updates(training, per_epoch), 0.0
        if updates is None or "model.d_model" in self.chosen:
            speed = measure_speed(config, data.store.lengths, data.vocabularies, device)
            seconds = training.target_tokens_per_update / speed
        if updates is None and training.budget_seconds is not None:
            spent = time.perf_counter() - self.began_at
            updates = _updates_in(self, data, seconds, left=training.budget_seconds - spent)
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
) -> float:
    """Return the target tokens per second of a training, not compiled, on this device."""
    config = resolve_for_device(config, device)
    plain = config.changed(training=config.training.changed(compile="off"))
    return training_speed(
        build_learner(plain, new_model(plain.model, vocabularies, device), device),
        plain.training,
        lengths,
        longest=plain.data.max_tokens,
        vocabularies=vocabularies,
        seconds=seconds,
    )


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


def resolve(config: Config, device: torch.device, scan: CorpusScan | None) -> AutoSettings:
    """Choose all settings of a new run but the length of the training.

    `scan` is that of the training corpora; None if the config has no open key. Raises RunError for
    a run named by the config that cannot be read.
    """
    settings = AutoSettings(config)
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
        candidate = AutoSettings(settings.given, dict(settings.chosen))
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
    """Return how many target tokens the config's end, or else its time, allows."""
    candidate = AutoSettings(settings.given, dict(settings.chosen))
    candidate.choose("training.target_tokens_per_update", UPDATE_TOKENS, "to measure the speed")
    config = candidate.config
    training = config.training
    if training.max_updates is not None:
        return training.max_updates * float(training.target_tokens_per_update)
    if training.max_epochs is not None:
        return training.max_epochs * float(corpus.target_tokens)
    sizes = (config.tokenizer.vocabulary_size,) * 2
    speed = measure_speed(config, corpus.lengths, sizes, device, seconds=1.5)
    if training.budget_seconds is None:
        return min(speed * LONGEST_TRAINING, _MOST_PASSES * corpus.target_tokens)
    return speed * training.budget_seconds


def _choose_updates(settings: AutoSettings, corpus: CorpusStatistics, device: torch.device) -> None:
    if "training.target_tokens_per_update" in settings.open_keys:
        settings.tokens = settings.tokens or _affordable(settings, corpus, device)
        size = int(np.clip(UPDATE_TOKENS * (settings.tokens / 1e6) ** 0.5, UPDATE_TOKENS, 25_000))
        reason = f"grows with the square root of {settings.tokens / 1e6:.2g} million tokens"
        settings.choose("training.target_tokens_per_update", size, reason)
        if settings.given.training.budget is not None:
            _require_updates(settings.given.training, settings.tokens / size)
    if device.type != "cuda":  # on CUDA each session chooses it
        given = settings.given
        size = _batch_tokens(given.training, given.data.max_tokens, device)
        settings.choose(_BATCH_TOKENS, size, "fits a small memory")
    rate = float(f"{LEARNING_RATE / settings.value('model.d_model'):.2g}")
    settings.choose("training.learning_rate", rate, "falls with the width of the model")


def _updates_in(settings: AutoSettings, data: TrainingData, seconds: float, *, left: float) -> int:
    """Choose the number of updates, and the extent of validation, for the seconds left."""
    training = settings.config.training
    pairs, tokens = len(data.valid), float(data.valid_lengths[:, TARGET].sum())
    of_all = _VALIDATION_COST * tokens * seconds / training.target_tokens_per_update
    left -= of_all  # the last validation
    affordable = int(pairs * _VALIDATION_SHARE * left / (_VALIDATIONS * of_all))
    if affordable < pairs:
        count = min(pairs, max(affordable, _FEWEST_VALIDATED))
        reason = "validation takes a twentieth of the budget"
        settings.choose("training.validation_pairs", count, reason)
        of_all *= count / pairs
    updates = int((left - _VALIDATIONS * of_all) / seconds)
    _require_updates(training, updates)
    reason = f"as many as fit into {training.budget}"
    return int(settings.choose("training.max_updates", updates, reason))


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
