"""What a system that only looks up its training set would score.

A high BLEU can mean that the model translates, or that the test set repeats the training set. This
baseline tells the two apart: each test sentence gets the stored translation of the training
sentence most like it, the fuzzy match of a translation memory. A model worth having scores far
above that.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from mt.data.pairs import SentencePair
from mt.languages import written_without_spaces

MAX_TRAINING_PAIRS = 200_000
"""Only so many pairs, the first ones, are searched: it bounds memory and time on large corpora."""

Feature = tuple[str, ...]


def nearest_targets(
    pairs: Iterable[SentencePair], sources: Sequence[str], *, source_language: str
) -> list[str]:
    """Return for each of `sources` the target of the pair whose source is nearest.

    Nearness is F1 between the bags of word unigrams and bigrams; of equally near pairs the first
    counts. At most the first 200,000 of `pairs` are read; their n-grams that no test sentence has
    are not kept, so that memory grows with the matches alone.
    """
    bags = [_bag(line, source_language) for line in sources]
    index = _Index(bags)
    targets = []
    for pair in islice(pairs, MAX_TRAINING_PAIRS):
        index.add(_bag(pair.source, source_language))
        targets.append(pair.target)
    if not targets:
        return [""] * len(sources)
    return [targets[row] for row in index.nearest(bags)]


class _Index:
    """Which training rows hold which feature, for the features that some query has.

    A bag is made a set by numbering repetitions: ("the", 2nd time) is a feature of its own, so the
    overlap of two bags is the size of the common set.
    """

    def __init__(self, queries: Sequence["Counter[Feature]"]) -> None:
        features = {feature for bag in queries for feature in _numbered(bag)}
        self._ids = {feature: number for number, feature in enumerate(features)}
        self._postings: list[list[int]] = [[] for _ in self._ids]
        self._sizes: list[int] = []

    def add(self, bag: "Counter[Feature]") -> None:
        row = len(self._sizes)
        self._sizes.append(bag.total())
        for feature in _numbered(bag):
            if (number := self._ids.get(feature)) is not None:
                self._postings[number].append(row)

    def nearest(self, bags: Sequence["Counter[Feature]"]) -> list[int]:
        """Return the row nearest to each bag."""
        sizes = np.asarray(self._sizes)
        postings = [np.asarray(rows, dtype=np.int32) for rows in self._postings]
        return [self._nearest_row(bag, sizes, postings) for bag in bags]

    def _nearest_row(
        self,
        bag: "Counter[Feature]",
        sizes: npt.NDArray[np.int64],
        postings: Sequence[npt.NDArray[np.int32]],
    ) -> int:
        found = [postings[self._ids[feature]] for feature in _numbered(bag)]
        if not found:
            return 0
        overlap = np.bincount(np.concatenate(found), minlength=len(sizes))
        return int(np.argmax(2 * overlap / (sizes + bag.total())))


def _bag(line: str, language: str) -> "Counter[Feature]":
    words = line.split()
    if written_without_spaces(language):  # there a word is a character
        words = list("".join(words))
    return Counter([*((word,) for word in words), *pairwise(words)])


def _numbered(bag: "Counter[Feature]") -> Iterable[tuple[Feature, int]]:
    return ((feature, number) for feature, count in bag.items() for number in range(count))
