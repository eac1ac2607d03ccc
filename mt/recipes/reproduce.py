"""Reproduction of a recipe: training, evaluation of all test splits, verdict on the scores."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from mt.config import Config
from mt.config.decoding import Band, Published
from mt.data.pairs import SentencePair
from mt.data.splits import open_splits, open_training_corpora, read_cleaned_pairs
from mt.evaluation.checks import FORMS
from mt.evaluation.evaluate import EvaluationJob, evaluate_run
from mt.evaluation.scores import Evaluation, Score, evaluate
from mt.languages import written_without_spaces
from mt.tables import align_columns
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
    total = np.asarray(sizes)
    nearest = []
    for query in queries:
        matches = [row for feature in query for row in rows[feature]]
        overlap = np.bincount(np.array(matches, dtype=np.int32), minlength=len(targets))
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
    return [(feature, copy) for feature, count in bag.items() for copy in range(count)]


@dataclass(frozen=True, slots=True)
class SplitResult:
    """Measured and expected scores of one split."""

    split: str
    evaluation: Evaluation
    band: Band | None = None
    nearest: Score | None = None
    """BLEU of the translations of the nearest training sentences."""
    published: tuple[Published, ...] = ()

    @property
    def passed(self) -> bool:
        """True if BLEU, rounded to two decimals, is in the band."""
        bleu = round(self.evaluation.bleu.value, 2)
        return self.band is None or self.band.low <= bleu <= self.band.high

    def cells(self) -> tuple[str, ...]:
        """Return the row of the verdict's table."""
        expected, result = "-", "no band set"
        if self.band:
            expected = f"{self.band.low:.2f} to {self.band.high:.2f}"
            result = "pass" if self.passed else "FAIL"
        bleu, chrf = f"{self.evaluation.bleu.value:.2f}", f"{self.evaluation.chrf.value:.2f}"
        nearest = f"{self.nearest.value:.2f}" if self.nearest else "-"
        return self.evaluation.label, expected, bleu, result, nearest, chrf


@dataclass(frozen=True, slots=True)
class Verdict:
    """Text to print; `passed` is False if a split is outside its band."""

    text: str
    passed: bool


def reproduce(config: Config, run: Path) -> Verdict:
    """Train a recipe unless it is trained, score every test split and return the verdict."""
    sys.stderr.write(f"{train(config, run)}\n")
    results = []
    corpora = open_training_corpora(config.data)
    for split, opened in open_splits(config.data, config.data.tests).items():
        pairs = tuple(opened.pairs())
        evaluation = evaluate_run(
            run, split=split, device=config.training.device, job=EvaluationJob(allow=FORMS)
        )
        copies = nearest_targets(
            read_cleaned_pairs(corpora),
            [pair.source for pair in pairs],
            source_language=opened.direction.source,
        )
        nearest = evaluate(
            copies,
            [[pair.target for pair in pairs]],
            target_language=opened.direction.target,
            tokenizer=config.evaluation.bleu_tokenizer,
        )
        published = tuple(score for score in config.evaluation.published if score.split == split)
        band = config.evaluation.expected.get(split)
        results.append(SplitResult(split, evaluation, band, nearest.bleu, published))
    return judge_results(results)


def judge_results(results: Sequence[SplitResult]) -> Verdict:
    """Return the verdict on a finished run, on which published scores have no influence."""
    head = ("split", "expected BLEU", "BLEU", "result", "nearest copy", "chrF2")
    table = align_columns([head, *(result.cells() for result in results)], right=[2, 4, 5])
    splits: dict[tuple[str, str], list[str]] = {}
    for result in results:
        bleu, chrf = result.evaluation.bleu, result.evaluation.chrf
        for name, score in (("BLEU", bleu), ("chrF2", chrf), ("nearest copy", result.nearest)):
            if score:
                splits.setdefault((name, score.signature), []).append(result.split)
    signatures = [(*key, ", ".join(names)) for key, names in splits.items()]
    parts = [table, align_columns(signatures)]
    if any(result.nearest for result in results):
        parts.append(
            "nearest copy: BLEU of copying the translation of the most similar training sentence; "
            "a model\nthat has learned to translate is far above."
        )
    failed = [result.split for result in results if not result.passed]
    if failed:
        parts.append(f"FAIL: BLEU outside the expected band on {', '.join(failed)}")
    elif any(result.band for result in results):
        parts.append("pass: BLEU is in the expected band of every split that has one")
    else:
        parts.append("no band set: the recipe has no expected scores")
    comparisons = [
        f"{result.split}: {compare_with_published(published, result.evaluation.bleu)}"
        for result in results
        for published in result.published
    ]
    return Verdict("\n\n".join([*parts, "\n".join(comparisons)]).rstrip(), passed=not failed)


def compare_with_published(published: Published, measured: Score) -> str:
    """Return a published and a measured BLEU with their difference.

    If the protocols differ, or the source does not state a setting, the first such setting takes
    the place of the difference.
    """
    outcome = f"{round(measured.value - published.score, 2):+z.2f}"
    stated, here = (
        dict(part.split(":", 1) for part in text.split("|") if part)
        for text in (published.protocol, f"text:plain|{measured.signature}")
    )
    if forced := here.get("forced"):
        outcome = f"not comparable: the score here is forced (`{forced}`)"
    for name in ("text", "tok", "case", "nrefs"):  # the last one is shown
        if name not in stated:
            outcome = f"not comparable: its source does not state `{name}`"
        # The signature of MeCab's tokenizers has a version at the end.
        elif not f"{here[name]}-".startswith(f"{stated[name]}-"):
            values = f"`{stated[name]}` there and `{here[name]}` here"
            outcome = f"not comparable: `{name}` is {values}"
    return (
        f"{published.system} {published.score:.2f}, here {measured.value:.2f} "
        f"({outcome}) [{published.source}]"
    )
