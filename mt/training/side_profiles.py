"""Whether the sides of training pairs are swapped against those of the validation pairs.

By the words of either side alone, so it needs no name of a language; related languages will do.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from mt.data.pairs import SentencePair
from mt.doctor.lexicon import features

_CERTAIN = 0.8
"""Of the judged lines of each side; where both sides are in one language it is about a half."""
_FEWEST = 50


def sides_are_swapped(train: Sequence[SentencePair], valid: Sequence[SentencePair]) -> bool:
    """Say whether validation sources look like training targets, and targets like sources.

    False where too few lines have a word that tells the training sides apart.
    """
    sources = _Profile(pair.source for pair in train)
    targets = _Profile(pair.target for pair in train)
    return _look_like(targets, sources, [pair.source for pair in valid]) and _look_like(
        sources, targets, [pair.target for pair in valid]
    )


class _Profile:
    """How frequent the words of some lines are."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._counts = Counter(word for line in lines for word in features(line))
        self._total = self._counts.total()

    def log_frequency(self, word: str) -> float:
        """Return it with one occurrence added, so that a word that is not there has one too."""
        return math.log((self._counts[word] + 1) / (self._total + 1))


def _look_like(expected: _Profile, other: _Profile, lines: Sequence[str]) -> bool:
    margins = [
        sum(expected.log_frequency(word) - other.log_frequency(word) for word in features(line))
        for line in lines
    ]
    judged = [margin for margin in margins if margin]
    return len(judged) >= _FEWEST and sum(each > 0 for each in judged) >= _CERTAIN * len(judged)
