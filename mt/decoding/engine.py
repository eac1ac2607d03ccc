"""Interface of decoding engines: token ids in, hypotheses out. Imports no torch."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mt.config import DecodingConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Ids = Sequence[int]
"""Tokens of a text."""
IdLists = Sequence[Ids]
"""Tokens of each of some texts."""
Prefixes = IdLists
"""Forced beginning of the translation of each source, in text tokens.

Either empty or one prefix per source; an empty prefix forces nothing.
"""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation found by a search."""

    ids: tuple[int, ...]
    """Tokens without BOS and EOS."""
    log_prob: float
    """Sum of the natural log-probabilities of the tokens, including EOS if it was reached."""
    score: float
    """Ranking key. Greedy search and sampling: `log_prob` without a forced prefix. Beam search: the
    same divided by the length penalty.
    """
    finished: bool
    """False if the length limit cut the hypothesis off before EOS."""


@dataclass(frozen=True, slots=True)
class TermUse:
    """Term of a line and what became of it."""

    source: str
    """The term as the line has it."""
    target: str
    """The target term as the translation has it; the preferred one if it has none."""
    fate: str
    """`used` or `missed` in the translation."""
    way: str
    """Written by the `model`, or `placed` instead of other words; empty if missed."""
    places: tuple[tuple[int, int], tuple[int, int]] | None = None
    """Start and end in the line and in its translation, unless missed."""

    def as_text(self) -> str:
        """Return the use as part of a report."""
        way = f" ({self.way})" if self.way else ""
        return f"{self.source} → {self.target}: {self.fate}{way}"

    def as_record(self) -> dict[str, str]:
        """Return the use as plain data."""
        return {key: getattr(self, key) for key in ("source", "target", "fate", "way")}


@dataclass(frozen=True, slots=True)
class TranslatedPart:
    """Input and output of an engine for a sentence, or for a part of a long sentence."""

    source: Sequence[int]
    """Source tokens, EOS last."""
    hypothesis: Hypothesis
    source_text: str
    """Text of `source`."""
    text: str
    """Translation, one line."""
    terms: tuple[TermUse, ...] = ()
    """Terms of a glossary in the source text, in order."""


class Engine:
    """Translation of ids to ids; an engine has one of the first two methods, or both."""

    def n_best_ids(
        self, sources: IdLists, decoding: DecodingConfig, count: int, *, prefixes: Prefixes = ()
    ) -> list[list[Hypothesis]]:
        """Return 1 to `count` hypotheses of each source, best first, in the order of `sources`.

        Each source ends with EOS. Beam search returns at most `decoding.beam` hypotheses, greedy
        search one. Each hypothesis begins with the prefix of its source. The tokens of a prefix
        count in the log-probability and the length; the length limit also cuts prefixes.
        """
        by_source = dict(self.iterate_n_best(sources, decoding, count, prefixes=prefixes))
        return [by_source[index] for index in range(len(sources))]

    def iterate_n_best(
        self, sources: IdLists, decoding: DecodingConfig, count: int, *, prefixes: Prefixes = ()
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield each source's number and the hypotheses of `n_best_ids`, in any order.

        An engine yields the first ones while it searches for the others, if it can.
        """
        yield from enumerate(self.n_best_ids(sources, decoding, count, prefixes=prefixes))

    def translate_ids(
        self, sources: IdLists, decoding: DecodingConfig, *, prefixes: Prefixes = ()
    ) -> list[Hypothesis]:
        """Return the best hypothesis of each source."""
        lists = self.n_best_ids(sources, decoding, 1, prefixes=prefixes)
        return [hypotheses[0] for hypotheses in lists]


@dataclass(frozen=True, slots=True)
class TokenDetails:
    """Log-probabilities, alignment and attention of a hypothesis, per token."""

    log_probs: tuple[float, ...]
    """Natural log-probability of each token, given the source and the tokens before it."""
    alignment: tuple[tuple[int, int], ...]
    """Pairs (source token, target token), from 0; unaligned tokens have no pair."""
    attention: "NDArray[np.float32] | None" = field(default=None, compare=False)
    """Attention of each target token to each source token, including EOS [T S], from 0 to 1."""


class ExplainingEngine(Engine, ABC):
    """Engine with access to the model: attention, and the probabilities of given translations."""

    @abstractmethod
    def explain(self, sources: IdLists, hypotheses: Sequence[Hypothesis]) -> list[TokenDetails]:
        """Return the details of one hypothesis per source; sources end with EOS."""

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """Largest number of tokens of a source or a target, including EOS; None: unlimited."""

    @abstractmethod
    def score(self, sources: IdLists, targets: IdLists) -> list[list[float]]:
        """Return the natural log-probability of each target token; both sides end with EOS."""


Normalization = Literal["gnmt", "average", "none"]
LENGTH_NORMALIZATIONS: dict[Normalization, Callable[[int, float], float]] = {
    # Wu et al. 2016, equation 14.
    "gnmt": lambda length, alpha: float(((5 + length) / 6) ** alpha),
    "average": lambda length, _: float(length),
    "none": lambda _, __: 1.0,
}
"""Divisor of the log-probability as a function of length and alpha.

No divisor may fall with the length: the early stop of beam search depends on it.
"""


def length_limit(source_tokens: int, decoding: DecodingConfig) -> int:
    """Return the largest number of tokens of a translation, including EOS."""
    return max(1, math.ceil(decoding.max_length_ratio * source_tokens + decoding.max_length_extra))


def plan_batches(lengths: Mapping[int, int], size: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield the keys of `lengths` in batches, longest first.

    `size` maps the longest length of a batch to its number of sentences, of which it has at least
    one.
    """
    order = sorted(lengths, key=lambda key: -lengths[key])
    while order:
        count = max(1, size(lengths[order[0]]))
        yield order[:count]
        order = order[count:]


def choose_rank_device(count: int) -> int | None:
    """Return the index of this rank's device among the `count` of its host; None: no torchrun."""
    rank = os.environ.get("LOCAL_RANK")
    return None if rank is None else int(rank) % count
