"""Reproduction of a recipe: training, evaluation of all test splits, verdict on the scores."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from mt.config import Config
from mt.data.corpus_files import LineReader
from mt.data.filters import cleaned_pairs
from mt.data.pairs import SentencePair
from mt.data.splits import open_split, open_training_corpora
from mt.evaluation.checks import FORMS
from mt.evaluation.evaluate import EvaluationJob, evaluate_run
from mt.evaluation.scores import evaluate
from mt.languages import written_without_spaces
from mt.recipes.verdict import MAX_EXAMPLES, Example, Verdict, VerdictRow, verdict
from mt.training.trainer import train

MAX_TRAINING_PAIRS = 200_000
"""Number of training pairs that `nearest_targets` searches, to bound memory and time."""
Feature = tuple[tuple[str, ...], int]


def nearest_targets(
    pairs: Iterable[SentencePair], sources: Sequence[str], *, source_language: str
) -> list[str]:
    """Return for each source the target of the pair with the nearest source.

    Nearness is F1 between bags of word unigrams and bigrams; the first of equally near pairs wins.
    At most the first 200,000 pairs are read.
    """
    queries = [_features(line, source_language) for line in sources]
    rows: dict[Feature, list[int]] = {feature: [] for query in queries for feature in query}
    targets, sizes = [], []
    for row, pair in enumerate(islice(pairs, MAX_TRAINING_PAIRS)):
        features = _features(pair.source, source_language)
        for feature in features:
            if feature in rows:
                rows[feature].append(row)
        targets.append(pair.target)
        sizes.append(len(features))
    if not targets:
        return [""] * len(sources)
    postings = {feature: np.asarray(found, dtype=np.int32) for feature, found in rows.items()}
    total, empty = np.asarray(sizes), np.array([], dtype=np.int32)
    nearest = []
    for query in queries:
        found = np.concatenate([empty, *(postings[feature] for feature in query)])
        overlap = np.bincount(found, minlength=len(targets))
        f1 = 2 * overlap / np.maximum(total + len(query), 1)
        nearest.append(targets[int(np.argmax(f1))])
    return nearest


def _features(line: str, language: str) -> list[Feature]:
    """Return word unigrams and bigrams; each repetition of one is a feature of its own.

    The overlap of two bags is then the number of common features.
    """
    words = line.split()
    if written_without_spaces(language):  # characters count as words
        words = list("".join(words))
    bag = Counter([*((word,) for word in words), *pairwise(words)])
    return [(feature, number) for feature, count in bag.items() for number in range(count)]


def reproduce(config: Config, run: Path) -> Verdict:
    """Train a recipe unless it is trained, score every test split and return the verdict."""
    sys.stderr.write(f"{train(config, run)}\n")
    rows, examples = [], []
    corpora, published = open_training_corpora(config.data), config.evaluation.published
    for split, source in config.data.tests.items():
        pairs = tuple(open_split(config.data, split).pairs())
        evaluation = evaluate_run(
            run, split=split, device=config.training.device, job=EvaluationJob(allow=FORMS)
        )
        data = config.data.of(source)
        copies = nearest_targets(
            cleaned_pairs(corpora),
            [pair.source for pair in pairs],
            source_language=data.source_language,
        )
        nearest = evaluate(
            copies,
            [[pair.target for pair in pairs]],
            target_language=data.target_language,
            tokenizer=config.evaluation.bleu_tokenizer,
        )
        rows.append(
            VerdictRow(
                split=split,
                evaluation=evaluation,
                band=config.evaluation.expected.get(split),
                nearest=nearest.bleu,
                published=tuple(each for each in published if each.split == split),
                seed_band=config.evaluation.seed_band,
            )
        )
        translated = list(zip(pairs, LineReader(Path(evaluation.hypotheses)), strict=True))
        examples += [
            Example(pair.source, pair.target, translation)
            for pair, translation in translated[:: max(1, len(pairs) // MAX_EXAMPLES)]
        ]
    return verdict(rows, run=run, examples=examples[:MAX_EXAMPLES])
