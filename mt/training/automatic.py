"""Automatic settings: what training chooses for the config keys that are not given.

Every rule is here, with its reason; the experiments behind them are in docs/recipes.md. The rules
see the size and the scripts of the corpus, the speed of the device and `training.budget`.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mt.config import Config, ModelConfig
from mt.config.loading import automatic_keys, value_at, with_values
from mt.data.batches import TARGET, Lengths
from mt.data.held_out import open_training_corpora
from mt.data.pairs import SentencePair
from mt.data.tokenizer import copied_layout
from mt.decoding.load import read_run
from mt.errors import ConfigError
from mt.languages import in_letters
from mt.training.data import Corpus, epoch_plan
from mt.training.setup import most_updates
from mt.training.speed import training_speed

LETTERS_PER_TOKEN = 3.5
"""Letters of an alphabet in a subword token, about, for vocabularies of 4,000 to 16,000 tokens."""
_logger = logging.getLogger(__name__)
_SAMPLE = 4096
"""Pairs whose lengths stand for the corpus."""
_LONGEST_TRAINING = 2 * 3600.0
"""Seconds that a training without a budget is expected to take at most."""
_VALIDATIONS = 20
"""Validations in a run, so that the first comes after 5 % of it."""
_VALIDATION_SHARE = 0.05
"""Share of a budget for validations, without the last."""
_VALIDATION_COST = 2.0
"""Time to score and translate a pair, in times of training on it."""


@dataclass(frozen=True)
class Facts:
    """What the rules know of a training corpus."""

    pairs: int
    letters: tuple[int, int]
    """Length of each side in letters of an alphabet, as `mt.languages.in_letters` counts."""
    same_script: bool
    lengths: Lengths
    """Estimated lengths of a sample of the pairs in tokens."""

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

    def applied(self) -> Config:
        """Return the config with the choices; all of its keys then count as given."""
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
    characters = np.array([[len(pair.source), len(pair.target)] for pair in sample])
    weights = sizes.sum(axis=0) / np.maximum(characters.sum(axis=0), 1)
    source, target = (letters * weights).round().astype(int).tolist()
    longest = config.data.max_tokens
    lengths = np.clip(np.ceil(sizes / LETTERS_PER_TOKEN) + 1, 2, longest).astype(np.int32)
    return Facts(pairs, (source, target), _share_script(sample), lengths)


def _share_script(sample: list[SentencePair]) -> bool:
    """Return whether most letters of the target sides also occur in the source sides."""
    known = {letter for pair in sample for letter in pair.source if letter.isalpha()}
    letters = [letter for pair in sample for letter in pair.target if letter.isalpha()]
    return sum(letter in known for letter in letters) > len(letters) / 2


@dataclass(frozen=True)
class Size:
    """Shape of a model, and what it needs to learn more than the shape before."""

    d_model: int
    heads: int
    layers: int
    tokens: float
    """Least number of target tokens to train on."""
    pairs: int
    """Least number of pairs in the corpus."""


SIZES = (
    Size(128, 4, 3, 0, 0),
    Size(256, 4, 3, 1e6, 0),
    Size(384, 6, 4, 2e7, 50_000),
    Size(512, 8, 6, 1e8, 300_000),
)


def choose_settings(config: Config, device: torch.device) -> Choices:
    """Choose all automatic settings but the length of the training.

    Raises DataError for a corpus that cannot be read, and RunError for a run named by the config
    that cannot.
    """
    choices = Choices(config)
    if not choices.open:
        return choices
    facts = survey(config)
    _choose_tokenizer(choices, facts)
    if config.training.init_from is None:
        tokens = _choose_model(choices, facts, device)
    else:
        _choose_initial_model(choices, config.training.init_from)
        tokens = _affordable(choices.applied(), facts, device)
    _choose_updates(choices, facts, tokens)
    return choices


def _choose_tokenizer(choices: Choices, facts: Facts) -> None:
    if origin := choices.config.tokenizer_origin:
        choices("tokenizer.vocabulary", copied_layout(origin[1]), f"as in `{origin[0]}`")
    elif facts.same_script:
        choices("tokenizer.vocabulary", "joint", "one script: names, numbers and stems are shared")
    else:
        choices("tokenizer.vocabulary", "separate", "two scripts: the sides share little")
    choices("tokenizer.algorithm", "unigram", "...")
    choices("tokenizer.vocabulary_size", 4000, f"for {facts.pairs:,} pairs")
    choices("tokenizer.character_coverage", 0.9999, "rarer characters are spelled in bytes")


def _choose_initial_model(choices: Choices, run: Path) -> None:
    """Take over the shape of the run to fine-tune."""
    model = read_run(run).config.model
    for name in ModelConfig.automatic_keys():
        choices(f"model.{name}", getattr(model, name), "as in `training.init_from`")


def _choose_model(choices: Choices, facts: Facts, device: torch.device) -> float:
    """Choose the shape of the model; return the target tokens that it can be trained on."""
    is_joint = choices.value("tokenizer.vocabulary") == "joint"
    tied = "one vocabulary, one matrix" if is_joint else "two vocabularies: target and output"
    choices("model.tie_embeddings", "all" if is_joint else "decoder", tied)
    best, most = SIZES[0], 0.0
    for size in SIZES if "model.d_model" in choices.open else SIZES[:1]:
        if facts.pairs < size.pairs:
            break
        candidate = Choices(choices.config, {**choices.made})
        _choose_shape(candidate, size)
        tokens = _affordable(candidate.applied(), facts, device)
        if tokens < size.tokens:
            break
        best, most = size, tokens
    _choose_shape(choices, best)
    passes = most / facts.target_tokens
    dropout = 0.1 if passes < 10 else 0.2 if passes < 30 else 0.3
    choices("model.dropout", dropout, f"about {passes:.2g} passes over the corpus")
    return most


def _choose_shape(choices: Choices, size: Size) -> None:
    width = choices("model.d_model", size.d_model, "...")
    choices("model.d_ff", 4 * width, "four times the width, as in the paper")
    choices("model.heads", max(1, width // 64), "64 numbers a head, as in the paper")
    choices("model.encoder_layers", size.layers, "...")
    choices("model.decoder_layers", size.layers, "...")


def _affordable(config: Config, facts: Facts, device: torch.device) -> float:
    """Return how many target tokens the config's end, or else its time, allows."""
    training = config.training
    if training.max_updates is not None:
        return training.max_updates * float(training.target_tokens_per_update)
    if training.max_epochs is not None:
        return training.max_epochs * float(facts.target_tokens)
    sizes = (config.tokenizer.vocabulary_size,) * 2
    speed = training_speed(config, facts.lengths, vocabularies=sizes, device=device)
    return speed * (training.budget_seconds or _LONGEST_TRAINING)


def _choose_updates(choices: Choices, facts: Facts, tokens: float) -> None:
    size = int(np.clip(500 * (tokens / 5e5) ** 0.5, 250, 25_000))
    choices("training.target_tokens_per_update", size, "...")
    longest = choices.config.data.max_tokens
    choices("training.max_tokens_per_batch", max(4096, longest), "...")
    choices("training.learning_rate", 1e-3, "...")


def choose_length(choices: Choices, corpus: Corpus, device: torch.device) -> Config:
    """Choose the end of the training and what follows from it; return the complete config.

    A budget includes the time since the choices began. Logs what was chosen.
    """
    config = choices.applied()
    training, per_epoch = config.training, len(epoch_plan(corpus, config))
    updates, seconds = most_updates(training, per_epoch), None
    if updates is None:
        lengths = corpus.store.lengths
        sizes = corpus.tokenizer.source_size, corpus.tokenizer.target_size
        speed = training_speed(config, lengths, vocabularies=sizes, device=device)
        seconds = training.target_tokens_per_update / speed
    if seconds and training.budget_seconds is not None:
        spent = time.perf_counter() - choices.began_at
        updates = _updates_in(choices, corpus, seconds, left=training.budget_seconds - spent)
    expected = updates or max(per_epoch, round(_LONGEST_TRAINING / (seconds or 1.0)))
    _choose_schedule(choices, updates, expected)
    every = max(1, expected // _VALIDATIONS)
    choices("training.validate_every", every, f"{_VALIDATIONS} validations in the run")
    for line in _summary(choices, seconds):
        _logger.info("%s", line)
    return choices.applied()


def _updates_in(choices: Choices, corpus: Corpus, seconds: float, *, left: float) -> int:
    """Choose the number of updates, and the extent of validation, for the seconds left."""
    training = choices.applied().training
    pairs, tokens = len(corpus.valid), float(corpus.valid_lengths[:, TARGET].sum())
    of_all = _VALIDATION_COST * tokens * seconds / training.target_tokens_per_update
    left -= of_all  # the last validation
    affordable = int(pairs * _VALIDATION_SHARE * left / (_VALIDATIONS * of_all))
    if affordable < pairs:
        number = max(affordable, 50)
        of_all *= number / pairs
    updates = int((left - _VALIDATIONS * of_all) / seconds)
    if updates < _VALIDATIONS:
        raise ConfigError(
            f"`training.budget` {training.budget}: too short; with {seconds:.2g} s an update it "
            f"allows {max(updates, 0)} updates, and at least {_VALIDATIONS} are needed"
        )
    reason = f"as many as fit into {training.budget}"
    return int(choices("training.max_updates", updates, reason))


def _choose_schedule(choices: Choices, updates: int | None, expected: int) -> None:
    warmup = choices("training.warmup_updates", min(max(1, expected // 10), 1000), "...")
    if updates is None or warmup >= updates:
        choices("training.schedule", "inverse_sqrt", "the end of the training is not known")
        choices("training.ema_decay", 0.999, "")
        return
    schedule = choices(
        "training.schedule", "linear", "a rate that falls to 0 at the end learns most"
    )
    if schedule in {"linear", "cosine"}:
        choices("training.decay_updates", updates, "the last update")
        choices("training.max_updates", updates, "")
        choices("training.patience", None, "the rate falls to the end")
        choices("training.average", "off", "")


def _summary(choices: Choices, seconds: float | None) -> Iterator[str]:
    """Yield a line with reasons for each section that has choices."""
    made = choices.made
    if "tokenizer.vocabulary_size" in made:
        layout, size = choices.value("tokenizer.vocabulary"), made["tokenizer.vocabulary_size"]
        yield (
            f"tokenizer: {size.value:,} tokens, {layout} ({size.reason}; "
            f"{made['tokenizer.vocabulary'].reason})"
        )
    if "model.d_model" in made:
        model = choices.applied().model
        yield (
            f"model: {model.encoder_layers} + {model.decoder_layers} layers of width "
            f"{model.d_model} ({made['model.d_model'].reason}), dropout {model.dropout} "
            f"({made['model.dropout'].reason})"
        )
    training = choices.applied().training
    if "training.validate_every" in made and seconds is not None:
        ...


def expected_seconds(config: Config) -> float:
    """Return the time that a training takes at most, about: its budget, or else two hours."""
    return config.training.budget_seconds or _LONGEST_TRAINING
