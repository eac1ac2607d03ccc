"""Automatic settings: what training chooses for the config keys that are not given.

Every rule is here, with its reason; the experiments behind them are in docs/recipes.md. The rules
see the size and the scripts of the corpus, the speed of the device and `training.budget`.
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
from mt.config.loading import automatic_keys, value_at, with_values
from mt.data.batches import TARGET, Lengths
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora
from mt.data.tokenizer_training import copied_layout
from mt.decoding.load import read_run
from mt.errors import ConfigError
from mt.languages import in_letters, written_without_spaces
from mt.model.transformer import Transformer
from mt.training.data import TrainingData
from mt.training.device_settings import batch_tokens
from mt.training.setup import most_updates
from mt.training.speed import training_speed

LETTERS_PER_TOKEN = 3.5
"""Letters of an alphabet in a subword token, about, for vocabularies of 4,000 to 16,000 tokens."""
_logger = logging.getLogger(__name__)
_BATCH_TOKENS = "training.max_tokens_per_batch"
_SHARED_LETTERS = 0.5
_SAMPLE = 4096
"""Pairs whose lengths stand for the corpus."""
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
"""Fewest pairs for a BLEU that says something."""


@dataclass(frozen=True)
class Facts:
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
class Choice:
    """Value chosen for an automatic key."""

    value: Any
    reason: str


@dataclass
class Choices:
    """Choices for the automatic keys that a config does not give; a given key wins."""

    config: Config
    made: dict[str, Choice] = field(default_factory=dict)
    began_at: float = field(default_factory=time.perf_counter)
    facts: Facts | None = None
    """None if no key is open."""
    tokens: float = 0.0
    """Expected target tokens of the training, if the model or the updates are chosen."""

    @cached_property
    def open(self) -> frozenset[str]:
        """Automatic keys that the config does not give."""
        return frozenset(automatic_keys(self.config))

    def __call__(self, key: str, value: Any, reason: str) -> Any:
        """Return the given value of a key; without one, note the choice and return its value."""
        if key not in self.open:
            return value_at(self.config, key)
        self.made[key] = Choice(value, reason)
        return value

    def value(self, key: str) -> Any:
        """Return the value of a key that is given or chosen."""
        return self.made[key].value if key in self.made else value_at(self.config, key)

    @property
    def passes(self) -> float:
        """Expected passes over the corpus; 0 if no key is open."""
        return self.tokens / self.facts.target_tokens if self.facts else 0.0

    def applied(self) -> Config:
        """Return the config with the choices, which then count as given."""
        return with_values(self.config, {key: each.value for key, each in self.made.items()})


def survey(config: Config) -> Facts:
    """Read the training corpora once, without cleaning; raises DataError as they do."""
    pairs, letters = 0, np.zeros(2, np.int64)
    sample: list[SentencePair] = []
    step = 1
    for corpus in open_training_corpora(config.data):
        for pair in corpus.source.pairs():
            if pairs % step == 0:
                sample.append(pair)
                if len(sample) == 2 * _SAMPLE:  # an even sample of a stream of unknown length
                    sample, step = sample[::2], 2 * step
            pairs += 1
            letters += len(pair.source), len(pair.target)
    sizes = np.array([[in_letters(pair.source), in_letters(pair.target)] for pair in sample])
    written = np.array([[len(pair.source), len(pair.target)] for pair in sample])
    weights = sizes.sum(axis=0) / np.maximum(written.sum(axis=0), 1)
    source, target = (letters * weights).round().astype(int).tolist()
    longest = config.data.max_tokens
    lengths = np.clip(np.ceil(sizes / LETTERS_PER_TOKEN) + 1, 2, longest).astype(np.int32)
    characters = Counter[str](), Counter[str]()
    for pair in sample:
        characters[0].update(pair.source.replace(" ", ""))
        characters[1].update(pair.target.replace(" ", ""))
    return Facts(pairs, (source, target), characters, lengths)


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


def choose_settings(config: Config, device: torch.device) -> Choices:
    """Choose all automatic settings but the length of the training.

    Raises DataError for a corpus that cannot be read, and RunError for a run named by the config
    that cannot.
    """
    choices = Choices(config)
    if not choices.open:
        return choices
    initial = config.training.init_from
    shape = None if initial is None else read_run(initial).config.model
    facts = choices.facts = survey(config)
    _choose_tokenizer(choices, facts)
    if shape is None:
        _choose_model(choices, facts, device)
    else:
        for name in ModelConfig.automatic_keys():
            choices(f"model.{name}", getattr(shape, name), "as in `training.init_from`")
    _choose_coverage(choices, facts)
    _choose_updates(choices, facts, device)
    return choices


def _choose_tokenizer(choices: Choices, facts: Facts) -> None:
    is_tied = choices.value("model.tie_embeddings") == "all"
    if origin := choices.config.tokenizer_origin:
        choices("tokenizer.vocabulary", copied_layout(origin[1]), f"as in `{origin[0]}`")
    elif is_tied and "model.tie_embeddings" not in choices.open:
        choices("tokenizer.vocabulary", "joint", "for `model.tie_embeddings: all`")
    elif share_script(facts.characters):
        choices("tokenizer.vocabulary", "joint", "one script: names, numbers and stems are shared")
    else:
        choices("tokenizer.vocabulary", "separate", "two scripts: the sides share little")
    data = choices.config.data
    if written_without_spaces(data.source_language) or written_without_spaces(data.target_language):
        choices("tokenizer.algorithm", "bpe", "unigram takes minutes without spaces")
    else:
        choices("tokenizer.algorithm", "unigram", "a little better than BPE")


def _choose_coverage(choices: Choices, facts: Facts) -> None:
    size, (source, target) = choices.value("tokenizer.vocabulary_size"), facts.characters
    is_joint = choices.value("tokenizer.vocabulary") == "joint"
    sides = [source + target] if is_joint else [source, target]
    for coverage in COVERAGES:
        needed = max(characters_needed(side, coverage) for side in sides)
        if needed <= CHARACTER_SHARE * size:
            break
    reason = f"{needed:,} characters are tokens, rarer ones are spelled in bytes"
    choices("tokenizer.character_coverage", coverage, reason)


def _choose_model(choices: Choices, facts: Facts, device: torch.device) -> None:
    """Choose the shape of the model, as a whole: with `model.d_model` given, it is the paper's."""
    if choices.value("tokenizer.vocabulary") == "joint":
        choices("model.tie_embeddings", "all", "one vocabulary, one matrix")
    else:
        choices("model.tie_embeddings", "decoder", "only the target side has one vocabulary")
    if "model.d_model" not in choices.open:
        width = choices.value("model.d_model")
        like = next((size for size in SIZES if size.d_model >= width), SIZES[-1])
        choices("tokenizer.vocabulary_size", like.vocabulary, "for a model of this width")
        return
    best, reason = SIZES[0], ""
    for size in SIZES:
        if facts.pairs < size.pairs:
            break
        candidate = Choices(choices.config, {**choices.made})
        _choose_shape(candidate, size, reason)
        tokens, numbers = _affordable(candidate, facts, device), parameters(candidate.applied())
        if size is not SIZES[0] and tokens < TOKENS_PER_PARAMETER * numbers:
            break
        reason = f"{numbers / 1e6:.2g} million parameters for {tokens / 1e6:.2g} million tokens"
        best, choices.tokens = size, tokens
    _choose_shape(choices, best, reason)
    dropout = next(rate for least, rate in DROPOUT if choices.passes >= least)
    choices("model.dropout", dropout, f"about {choices.passes:.2g} passes over the corpus")


def _choose_shape(choices: Choices, size: Size, reason: str) -> None:
    choices("tokenizer.vocabulary_size", size.vocabulary, "for a model of this width")
    heads = choices("model.heads", size.heads, "32 or 64 numbers a head")
    width = choices("model.d_model", size.d_model - size.d_model % (2 * heads), reason)
    choices("model.encoder_layers", size.layers, "the depth for this width")
    choices("model.decoder_layers", size.layers, "the depth for this width")
    choices("model.positional", "rotary", "learns more than sinusoids from as many tokens")
    choices("model.feed_forward", "swiglu", "learns more than ReLU from as many tokens")
    # Three matrices of two thirds of the usual width have as many parameters as two.
    choices("model.d_ff", width * 8 // 3 // 8 * 8, "as many parameters as ReLU of four widths")


def parameters(config: Config) -> int:
    """Return the number of parameters of a model whose vocabularies have the size in the config."""
    size = config.tokenizer.vocabulary_size
    with torch.device("meta"):  # moving a model there would untie its matrices
        model = Transformer(config.model, source_vocabulary=size, target_vocabulary=size)
    return sum(parameter.numel() for parameter in model.parameters())


def _affordable(choices: Choices, facts: Facts, device: torch.device) -> float:
    """Return how many target tokens the config's end, or else its time, allows."""
    candidate = Choices(choices.config, {**choices.made})
    candidate("training.target_tokens_per_update", UPDATE_TOKENS, "to measure the speed")
    config = candidate.applied()
    training = config.training
    if training.max_updates is not None:
        return training.max_updates * float(training.target_tokens_per_update)
    if training.max_epochs is not None:
        return training.max_epochs * float(facts.target_tokens)
    sizes = (config.tokenizer.vocabulary_size,) * 2
    speed = training_speed(config, facts.lengths, vocabularies=sizes, device=device, seconds=1.5)
    if training.budget_seconds is None:
        return min(speed * LONGEST_TRAINING, _MOST_PASSES * facts.target_tokens)
    return speed * training.budget_seconds


def _choose_updates(choices: Choices, facts: Facts, device: torch.device) -> None:
    if "training.target_tokens_per_update" in choices.open:
        choices.tokens = choices.tokens or _affordable(choices, facts, device)
        size = int(np.clip(UPDATE_TOKENS * (choices.tokens / 1e6) ** 0.5, UPDATE_TOKENS, 25_000))
        reason = f"grows with the square root of {choices.tokens / 1e6:.2g} million tokens"
        choices("training.target_tokens_per_update", size, reason)
        if choices.config.training.budget is not None:
            _require_updates(choices.config.training, choices.tokens / size)
    if device.type != "cuda":  # on CUDA each session chooses it
        size = batch_tokens(choices.config, device)
        choices(_BATCH_TOKENS, size, "fits a small memory")
    rate = float(f"{LEARNING_RATE / choices.value('model.d_model'):.2g}")
    choices("training.learning_rate", rate, "falls with the width of the model")


def choose_length(choices: Choices, corpus: TrainingData, device: torch.device) -> Config:
    """Choose the end of the training and what follows from it; return the config.

    Only the size of a batch on CUDA stays open. A budget includes the time since the choices began.
    Logs what was chosen.
    """
    config = choices.applied()
    training, per_epoch = config.training, len(corpus.plan_epoch())
    updates, seconds = most_updates(training, per_epoch), 0.0
    if updates is None or "model.d_model" in choices.made:
        sizes = corpus.tokenizer.source_size, corpus.tokenizer.target_size
        speed = training_speed(config, corpus.store.lengths, vocabularies=sizes, device=device)
        seconds = training.target_tokens_per_update / speed
    if updates is None and training.budget_seconds is not None:
        spent = time.perf_counter() - choices.began_at
        updates = _updates_in(choices, corpus, seconds, left=training.budget_seconds - spent)
    expected = updates
    if expected is None:
        expected = min(_MOST_PASSES * per_epoch, math.ceil(LONGEST_TRAINING / seconds))
    _choose_schedule(choices, updates, expected)
    every = max(1, expected // _VALIDATIONS)
    choices("training.validate_every", every, f"{_VALIDATIONS} validations in the run")
    for line in _summary(choices, seconds, expected):
        _logger.info("%s", line)
    config = choices.applied()
    left = [key for key in automatic_keys(config) if key != _BATCH_TOKENS]
    return with_values(config, {key: value_at(config, key) for key in left})


def _updates_in(choices: Choices, corpus: TrainingData, seconds: float, *, left: float) -> int:
    """Choose the number of updates, and the extent of validation, for the seconds left."""
    training = choices.applied().training
    pairs, tokens = len(corpus.valid), float(corpus.valid_lengths[:, TARGET].sum())
    of_all = _VALIDATION_COST * tokens * seconds / training.target_tokens_per_update
    left -= of_all  # the last validation
    affordable = int(pairs * _VALIDATION_SHARE * left / (_VALIDATIONS * of_all))
    if affordable < pairs:
        number = min(pairs, max(affordable, _FEWEST_VALIDATED))
        choices("training.validation_pairs", number, "validation takes a twentieth of the budget")
        of_all *= number / pairs
    updates = int((left - _VALIDATIONS * of_all) / seconds)
    _require_updates(training, updates)
    reason = f"as many as fit into {training.budget}"
    return int(choices("training.max_updates", updates, reason))


def _require_updates(training: TrainingConfig, updates: float) -> None:
    """Raise ConfigError if a budget allows fewer updates than there are validations."""
    if updates < _VALIDATIONS:
        raise ConfigError(
            f"budget {training.budget}: too short; on this machine it allows "
            f"{max(int(updates), 0)} updates, and at least {_VALIDATIONS} are needed"
        )


def _choose_schedule(choices: Choices, updates: int | None, expected: int) -> None:
    warmup = choices("training.warmup_updates", min(max(1, expected // 10), 1000), "a tenth")
    if updates is None or warmup >= updates:
        if "training.schedule" in choices.open:
            choices("training.schedule", "inverse_sqrt", "the end of the training is not known")
            if choices.config.training.precision != "pure_bf16":
                choices("training.ema_decay", 0.999, "a rate that does not fall to 0 needs a mean")
        return
    schedule = choices(
        "training.schedule", "linear", "a rate that falls to 0 at the end learns most"
    )
    if schedule in {"linear", "cosine"}:
        choices("training.decay_updates", updates, "the last update")
        choices("training.max_updates", updates, "the rate is 0 then")
        choices("training.patience", None, "the rate falls to the end")
        choices("training.average", "off", "the last checkpoints are the best")


def _summary(choices: Choices, seconds: float, expected: int) -> Iterator[str]:
    """Yield a line for tokenizer, model and training if their main setting was chosen."""
    made, config = choices.made, choices.applied()
    model, training = config.model, config.training
    if "tokenizer.vocabulary_size" in made:
        size, layout = made["tokenizer.vocabulary_size"], config.tokenizer.vocabulary
        reason = made.get("tokenizer.vocabulary", size).reason
        yield f"tokenizer: {size.value:,} tokens ({size.reason}), {layout} ({reason})"
    if "model.d_model" in made:
        layers = f"{model.encoder_layers} + {model.decoder_layers} layers"
        yield (
            f"model: {layers} of width {model.d_model} ({made['model.d_model'].reason}), dropout "
            f"{model.dropout} ({made['model.dropout'].reason})"
        )
    if "training.validate_every" in made:
        tokens = training.target_tokens_per_update
        text = f"training: {expected:,} updates of {tokens:,} target tokens"
        if training.max_updates is None:
            text = f"training: until {training.patience} validations bring no gain"
        if seconds:
            first, last = seconds * training.validate_every, seconds * expected
            text += (
                f"; the first validation in about {tqdm.format_interval(first)}, the end "
                f"{'' if training.max_updates else 'at most '}in about {tqdm.format_interval(last)}"
            )
        yield text
