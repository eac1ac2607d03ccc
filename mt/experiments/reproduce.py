"""Reproduction of a recipe: training, evaluation of all test splits, verdict on the scores."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mt.config import Config, DataConfig
from mt.data.filters import TrainingCorpus, cleaned_pairs, open_training_corpora
from mt.data.lines import LineReader
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.evaluation.checks import FORMS
from mt.evaluation.evaluate import EvaluationJob, evaluate_run
from mt.evaluation.scores import Score, evaluate
from mt.experiments.verdict import MAX_EXAMPLES, Example, Verdict, VerdictRow, verdict
from mt.languages import written_without_spaces
from mt.training.trainer import train

MAX_TRAINING_PAIRS = 200_000
"""Number of training pairs that `nearest_targets` searches, to bound memory and time."""
Feature = tuple[str, ...]


def nearest_targets(
    pairs: Iterable[SentencePair], sources: Sequence[str], *, source_language: str
) -> list[str]:
    """Return for each source the target of the pair with the nearest source.

    Nearness is F1 between bags of word unigrams and bigrams; the first of equally near pairs wins.
    At most the first 200,000 pairs are read.
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
    """Inverted index of training rows, restricted to the features of the queries.

    Numbering repetitions turns a bag into a set: ("the", second time) is a feature of its own. The
    overlap of two bags is then the size of the intersection.
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
        """Return the nearest row for each bag."""
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
    if written_without_spaces(language):  # characters count as words
        words = list("".join(words))
    return Counter([*((word,) for word in words), *pairwise(words)])


def _numbered(bag: "Counter[Feature]") -> Iterable[tuple[Feature, int]]:
    return ((feature, number) for feature, count in bag.items() for number in range(count))


def reproduce(config: Config, run: Path) -> Verdict:
    """Train a recipe unless it is trained, score every test split and return the verdict."""
    sys.stderr.write(f"{train(config, run)}\n")
    rows, examples = [], []
    corpora, published = open_training_corpora(config.data), config.evaluation.published
    for split, source in config.data.tests.items():
        pairs = tuple(open_source(source, config.data).pairs())
        evaluation = evaluate_run(
            run, split=split, device=config.training.device, job=EvaluationJob(allow=FORMS)
        )
        rows.append(
            VerdictRow(
                split=split,
                evaluation=evaluation,
                band=config.evaluation.expected.get(split),
                nearest=_nearest_copy(corpora, pairs, config, data=config.data.of(source)),
                published=tuple(each for each in published if each.split == split),
                seed_band=config.evaluation.seed_band,
            )
        )
        examples += _examples(pairs, Path(evaluation.hypotheses))
    return verdict(rows, run=run, examples=examples[:MAX_EXAMPLES])


def _nearest_copy(
    corpora: tuple[TrainingCorpus, ...],
    pairs: tuple[SentencePair, ...],
    config: Config,
    *,
    data: DataConfig,
) -> Score:
    """Return the BLEU of copying the translation of the nearest training sentence."""
    copies = nearest_targets(
        cleaned_pairs(corpora),
        [pair.source for pair in pairs],
        source_language=data.source_language,
    )
    return evaluate(
        copies,
        [[pair.target for pair in pairs]],
        target_language=data.target_language,
        tokenizer=config.evaluation.bleu_tokenizer,
    ).bleu


def _examples(pairs: tuple[SentencePair, ...], hypotheses: Path) -> list[Example]:
    """Return translations at equal distances in the split."""
    translations = list(LineReader(hypotheses))
    step = max(1, len(pairs) // MAX_EXAMPLES)
    return [
        Example(pair.source, pair.target, translation)
        for pair, translation in zip(pairs[::step], translations[::step], strict=True)
    ]
