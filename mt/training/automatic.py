"""Rules of the automatic settings: tables and functions of numbers, without a measurement.

`mt.training.resolve` applies them. The numbers for models up to a width of 256 are from trainings
with this code, those for larger models are published practice.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mt.config import Config, ModelConfig, TrainingConfig
from mt.data.batches import TARGET, Lengths
from mt.data.splits import CorpusScan
from mt.languages import in_letters

_logger = logging.getLogger(__name__)
_Number = TypeVar("_Number", int, float)
LETTERS_PER_TOKEN = 3.5
"""Approximate letters per token for vocabularies of 4,000 to 16,000 tokens."""


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
    cleaning_seconds: float = 0.0
    """Expected time to identify the languages of all pairs, for the cleaning."""

    @property
    def target_tokens(self) -> int:
        """Estimated target tokens of the corpus, with end marks."""
        return round(self.letters[TARGET] / LETTERS_PER_TOKEN) + self.pairs


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

    @property
    def tokens_per_parameter(self) -> float:
        """Least number of target tokens to train on for each parameter."""
        is_large = self.d_model >= _PAPER_WIDTH
        return PAPER_TOKENS_PER_PARAMETER if is_large else TOKENS_PER_PARAMETER


_PAPER_WIDTH = 512
"""Width from which models are those of Vaswani et al. 2017."""
SIZES = (
    Size(96, 3, 3, 4000),
    Size(128, 4, 3, 4000),
    Size(192, 6, 3, 4000, pairs=10_000),
    Size(256, 4, 3, 8000, pairs=20_000),
    Size(384, 6, 4, 12_000, pairs=50_000),
    Size(512, 8, 6, 16_000, pairs=300_000),
    Size(512, 8, 6, 32_000, pairs=2_000_000),
    Size(1024, 16, 6, 37_000, pairs=4_000_000),
)
"""Shapes in order of size; the rule chooses the largest that is trained on enough tokens.

The last two are `transformer-base` and `transformer-big` (Vaswani et al. 2017, table 3).
"""
WIDTHS = {"tiny": 128, "small": 256, "base": 512, "big": 1024}
"""Widths of the sizes that have a name."""
TOKENS_PER_PARAMETER = 2.0
"""Least number of target tokens to train on for each parameter: a smaller model learns more from
fewer."""
PAPER_TOKENS_PER_PARAMETER = 6.0
"""The same from a width of 512 on: the big model overtakes the base model there (Popel and Bojar
2018, figure 3)."""
UPDATE_TOKENS = 500
"""Target tokens of an update for a training on a million tokens."""
LARGEST_UPDATE = 400_000
"""Largest update known to train well (Ott et al. 2018)."""
GPU_GROWTH, BUSY_TOKENS, LEAST_UPDATES = 2.0, 50_000, 20_000
"""Largest factor by which updates grow on a GPU, their largest size, and the least number of them.
"""
LEARNING_RATE = ((256, 0.36), (0, 0.5))
"""Least width of the model, and peak learning rate times the width."""
CONTINUED_RATE = 1 / 16
"""Share of that rate with which the training of a finished model continues."""
CONTINUED_PASSES = 10
"""Passes over the corpus that end such a training: more of them memorise few pairs."""
GUIDED_ALIGNMENT = 0.5
"""Weight of guided alignment at the first update."""
DROPOUT = ((100, 0.3), (10, 0.2), (4, 0.1), (0, 0.0))
"""Least number of passes over the corpus, and dropout."""
R_DROP_DROPOUT = 0.1
"""Least dropout of a training with R-Drop."""
LABEL_SMOOTHING = ((20_000, 0.1), (0, 0.2))
"""Least number of pairs, and label smoothing."""
WEIGHT_DECAY = 0.1
"""Decoupled weight decay of a new model."""
WARMUP = ((1024, 8000), (512, 4000), (0, 1000))
"""Least width of the model, and largest number of updates of the warm-up."""
PASSES = 40
"""Passes over the corpus after which a training without a budget is expected to have ended."""
FINISHED_TOKENS_PER_PARAMETER = 40.0
"""Target tokens for each parameter after which it is expected to have ended: the base and the big
model were trained on 38 and 35 (Vaswani et al. 2017)."""
LONGEST_TRAINING = {"cuda": 12 * 3600.0}
"""Seconds by type of device that a training without a budget is expected to take at most."""
_LONGEST_ELSEWHERE = 3600.0
MOST_PASSES = ((1_000_000, 80), (20_000, 200), (0, 500))
"""Least number of pairs, and passes that end a training before its budget."""
LEAST_PAIRS = 500
"""Pairs from which a translator is possible."""
MANY_PAIRS = 100_000
"""Pairs to train on that are enough for a translator, even in less than a pass."""
COVERAGES = (0.9999, 0.9995, 0.999, 0.998, 0.995, 0.99, 0.98, 0.96, 0.93)
CHARACTER_SHARE = 0.8
"""Largest share of a vocabulary for single characters; a larger one leaves too few words."""
_OTHER_TOKENS = 261
"""Tokens for bytes, special tokens and the space."""
_SHARED_LETTERS = 0.5


@dataclass(frozen=True)
class Bounds:
    """Bounds of a training: its time and its target tokens."""

    tokens: float
    seconds: float = math.inf
    update_tokens: int | None = None
    """Target tokens of an update; None if the rule chooses them."""


@dataclass(frozen=True)
class Forecast:
    """Expected target tokens of a training, of each update, and its seconds; 0 if unknown."""

    tokens: float
    update_tokens: int
    seconds: float = 0.0

    @property
    def updates(self) -> float:
        """Expected number of updates."""
        return self.tokens / self.update_tokens


def make_forecast(bounds: Bounds, speed: float | None, device: str) -> Forecast:
    """Forecast a training within bounds, with the size of update that follows from its tokens.

    `speed` is that of training in target tokens per second. If it is None, the tokens alone limit
    the training.
    """
    tokens = bounds.tokens if speed is None else min(bounds.tokens, bounds.seconds * speed)
    size = bounds.update_tokens or choose_update_tokens(tokens, device)
    return Forecast(tokens, size, tokens / speed if speed else 0.0)


def choose_update_tokens(tokens: float, device: str) -> int:
    """Return the target tokens of an update for a training on a number of tokens.

    Small updates leave a GPU idle: there they are up to twice as large, as long as there are enough
    of them.
    """
    size = float(np.clip(UPDATE_TOKENS * (tokens / 1e6) ** 0.5, UPDATE_TOKENS, LARGEST_UPDATE))
    if device != "cpu":
        size = max(size, min(GPU_GROWTH * size, BUSY_TOKENS, tokens / LEAST_UPDATES))
    return int(size)


def tokens_of_updates(updates: int, device: str) -> float:
    """Return the target tokens of a training with a given number of updates.

    On a GPU, updates are of the size that follows from all their tokens: 25,000 for 100,000. On
    other types of device this would take too long, and they are of the smallest size.
    """
    size = UPDATE_TOKENS**2 * updates / 1e6 if device == "cuda" else 0.0
    return updates * min(max(size, UPDATE_TOKENS), LARGEST_UPDATE)


def choose_learning_rate(width: int, share: float = 1.0) -> float:
    """Return a share of the peak learning rate of a new model of some width, to two digits."""
    return float(f"{share * _look_up(LEARNING_RATE, width) / width:.2g}")


def _look_up(rows: Sequence[tuple[int, _Number]], number: float) -> _Number:
    """Return the value of the first row whose least number is not above a number."""
    return next(value for least, value in rows if number >= least)


def choose_regularization(
    training: TrainingConfig, pairs: int, passes: float
) -> dict[str, tuple[float, str]]:
    """Return values and reasons for a new model that makes some passes over a number of pairs."""
    smoothing = _look_up(LABEL_SMOOTHING, pairs)
    # R-Drop compares two passes with different dropout.
    dropout = max(_look_up(DROPOUT, passes), R_DROP_DROPOUT if training.r_drop else 0.0)
    decay = (WEIGHT_DECAY, "smaller weights learn more from each update")
    if training.precision == "pure_bf16":
        decay = (0.0, "its steps are too small for bf16")
    return {
        "model.dropout": (dropout, f"about {passes:.2g} passes over the corpus"),
        "training.label_smoothing": (smoothing, "more for few pairs"),
        "training.weight_decay": decay,
    }


def choose_warmup(updates: int, width: int) -> int:
    """Return the updates of the warm-up: a tenth, up to a number for the width of the model."""
    return min(max(1, updates // 10), _look_up(WARMUP, width))


def most_passes(pairs: int, *, continues: bool) -> int:
    """Return the passes over a corpus of some pairs that end a training before its budget."""
    return CONTINUED_PASSES if continues else _look_up(MOST_PASSES, pairs)


def expect_end(epoch_tokens: float, parameters: int, device: str, *, continues: bool) -> Bounds:
    """Return the expected limits of a training without a budget, on a type of device."""
    passes = CONTINUED_PASSES if continues else PASSES
    tokens = min(passes * epoch_tokens, FINISHED_TOKENS_PER_PARAMETER * parameters)
    return Bounds(tokens, LONGEST_TRAINING.get(device, _LONGEST_ELSEWHERE))


def estimate_parameters(model: ModelConfig, vocabulary: int) -> int:
    """Return about the number of parameters of a model with two vocabularies of this size."""
    width, inner = model.d_model, 3 if model.feed_forward.endswith("glu") else 2
    matrices = 4 * (model.encoder_layers + 2 * model.decoder_layers) * width
    matrices += inner * (model.encoder_layers + model.decoder_layers) * model.d_ff
    embeddings = {"all": 1, "decoder": 2, "none": 3}[model.tie_embeddings]
    return width * (matrices + embeddings * vocabulary)


def limit_training(config: Config, corpus: CorpusStatistics, device: str) -> Bounds:
    """Return the limits of a training by its end and its budget, or else its expected end."""
    training, continues = config.training, config.continues
    size, updates = training.target_tokens_per_update, training.max_updates
    given = None if training.is_open("target_tokens_per_update") else size
    seconds = training.budget_seconds or math.inf
    if updates is not None:
        tokens = tokens_of_updates(updates, device) if given is None else given * updates
    elif training.max_epochs is not None:
        tokens = training.max_epochs * corpus.target_tokens
    elif training.budget is not None:
        tokens = most_passes(corpus.pairs, continues=continues) * corpus.target_tokens
    else:
        parameters = estimate_parameters(config.model, config.tokenizer.vocabulary_size)
        end = expect_end(corpus.target_tokens, parameters, device, continues=continues)
        tokens, seconds = end.tokens, end.seconds
    return Bounds(float(tokens), seconds, given)


def like_width(width: int, pairs: int) -> Size:
    """Return the size of a model of some width or the next larger one, for a number of pairs."""
    wide = [size for size in SIZES if size.d_model >= width] or [SIZES[-1]]
    same = [size for size in wide if size.d_model == wide[0].d_model and size.pairs <= pairs]
    return (same or wide[:1])[-1]


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


def warn_of_weakness(pairs: int, passes: float) -> None:
    """Log a warning if some passes over a corpus of some pairs cannot give a translator."""
    if pairs < LEAST_PAIRS or passes < min(1.0, MANY_PAIRS / pairs):
        text = "warning: %.2g passes over %s pairs are too little for a translator; it needs "
        _logger.warning(text + "thousands of pairs and several passes", passes, f"{pairs:,}")


def share_script(characters: tuple[Counter[str], Counter[str]]) -> bool:
    """Return whether the sides share more than half of their letters, by frequency.

    A few Latin names in Chinese text do not count as a shared script.
    """
    source, target = ({c: n for c, n in side.items() if c.isalpha()} for side in characters)
    totals = max(sum(source.values()), 1), max(sum(target.values()), 1)
    shared = (min(source[c] / totals[0], target.get(c, 0) / totals[1]) for c in source)
    return sum(shared) > _SHARED_LETTERS


def choose_coverage(texts: Sequence[Counter[str]], vocabulary: int) -> tuple[float, int]:
    """Return a share of the characters of each text, and the number of tokens that they take.

    It is the largest that leaves enough of a vocabulary of some tokens for words.
    """
    room = min(CHARACTER_SHARE * vocabulary, vocabulary - _OTHER_TOKENS)
    # Characters of the texts by number of the most frequent ones.
    sums = [np.cumsum(np.sort(np.array([*text.values(), 1]))[::-1]) for text in texts]
    for coverage in COVERAGES:
        shares = [coverage * text.total() for text in texts]
        counts = [np.searchsorted(*pair) for pair in zip(sums, shares, strict=True)]
        needed = 1 + int(max(counts))
        if needed <= room:
            break
    return coverage, needed
