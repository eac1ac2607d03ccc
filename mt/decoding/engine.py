"""What an engine is, and what it finds; without torch, for the engines that need none."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mt.config import DecodingConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


TargetPrefixes = Sequence[Sequence[int]]
"""What the translation of each source begins with, tokens of text alone; empty: nothing is forced.

Either there are none at all, or one for each source.
"""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation that the search found."""

    ids: tuple[int, ...]
    """The tokens, without BOS and EOS."""
    log_prob: float
    """Sum of the tokens' natural log-probabilities, that of EOS included where it was reached."""
    score: float
    """`log_prob`, that of a forced prefix left out, divided by the length penalty of the whole.

    It is what hypotheses are ranked by.
    """
    finished: bool
    """False where the length limit cut it off before EOS."""


class Engine(ABC):
    """Translates ids to ids."""

    @abstractmethod
    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, best first, at least one.

        Each source ends with EOS; the lists are in the order of the sources. Fewer than `count`
        come back where the search has found no more: beam search has as many as its beam at most,
        greedy search has one. Each begins with the prefix of its source, whose tokens count in its
        log-probability and its length; a prefix longer than the length limit is cut there.
        """

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[Hypothesis]:
        """Return the best hypothesis of each source, which begins with its prefix."""
        found = self.n_best_ids(sources, decoding, 1, prefixes=prefixes)
        return [hypotheses[0] for hypotheses in found]


@dataclass(frozen=True, slots=True)
class TokenDetails:
    """A hypothesis, token by token."""

    log_probs: tuple[float, ...]
    """The natural log-probability of each token, given the source and the tokens before it."""
    alignment: tuple[tuple[int, int], ...]
    """Pairs (source token, target token), from 0; a token that looks at none has no pair."""
    attention: "NDArray[np.float32] | None" = field(default=None, compare=False)
    """How much each target token looks at each source token, EOS among them [T S], from 0 to 1."""


class ExplainingEngine(Engine):
    """An engine that knows what its model thought of each token."""

    @abstractmethod
    def explain(
        self, sources: Sequence[Sequence[int]], hypotheses: Sequence[Hypothesis]
    ) -> list[TokenDetails]:
        """Return the details of a hypothesis for each source; sources end with EOS."""


class ScoringEngine(Engine):
    """An engine that knows what its model thinks of translations that somebody else made."""

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """The most tokens of a source or a target, end mark included; None without such a limit."""

    @abstractmethod
    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the natural log-probability of each token of each target; all end with EOS."""


Normalization = Literal["gnmt", "average", "none"]
LENGTH_NORMALIZATIONS: dict[Normalization, Callable[[int, float], float]] = {
    # Wu et al. 2016, equation 14.
    "gnmt": lambda length, alpha: float(((5 + length) / 6) ** alpha),
    "average": lambda length, _: float(length),
    "none": lambda _, __: 1.0,
}
"""What a log-probability is divided by to be a score, by length and alpha.

None of them falls as a hypothesis grows: the early stop of beam search rests on that.
"""


def length_limit(source_tokens: int, decoding: DecodingConfig) -> int:
    """Return the most tokens a translation may have."""
    return math.ceil(decoding.max_length_ratio * source_tokens + decoding.max_length_extra)


def fewest_tokens(source_tokens: int, decoding: DecodingConfig) -> int:
    """Return the fewest tokens a translation may have; one is the end mark alone."""
    return max(1, math.ceil(decoding.min_length_ratio * source_tokens))


def length_batches(lengths: Mapping[int, int], *, positions: int) -> Iterator[list[int]]:
    """Yield the numbers that `lengths` has a length for, in batches, the longest first.

    A batch holds at most `positions` tokens, sentences times the longest; a longer one is alone.
    """
    order = sorted(lengths, key=lambda number: -lengths[number])
    while order:
        rows = max(1, positions // lengths[order[0]])
        yield order[:rows]
        order = order[rows:]


def why_not_decoded(decoding: DecodingConfig) -> str | None:
    """Return which key of `decoding` CTranslate2 cannot follow, in one line, or None."""
    if decoding.ensemble:
        return "`decoding.ensemble`: an exported model translates alone; translate with the run"
    if decoding.mbr is not None:
        return "`decoding.mbr`: an exported model chooses by its score; translate with the run"
    if decoding.search == "sample":
        return (
            "`decoding.search: sample`: an exported model does not sample; translate with the run"
        )
    if decoding.coverage_penalty:
        return (
            "`decoding.coverage_penalty`: an exported model would follow another formula; "
            "translate with the run"
        )
    if decoding.repetition_penalty != 1.0:
        return (
            "`decoding.repetition_penalty`: an exported model would follow another formula; "
            "translate with the run, or use `decoding.no_repeat_ngram`"
        )
    return None
