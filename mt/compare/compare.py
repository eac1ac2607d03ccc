"""Comparison of systems on one test set: scores, slices and the most different sentences."""

import difflib
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from mt.compare.significance import SAMPLES, PairedScore, Resampling, score_systems
from mt.compare.systems import (
    NO_TEST_SET,
    EvaluationSet,
    GivenTestSet,
    System,
    find_corpora,
    is_folder,
    read_systems,
)
from mt.config.data import CleaningConfig, DataConfig
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora, read_cleaned_pairs
from mt.errors import UserError
from mt.evaluation.run_info import choose_split, read_config
from mt.evaluation.scores import check_metrics, choose_metrics, label_form
from mt.files import resolved
from mt.languages import written_without_spaces

MAX_SYSTEMS = 8
"""Number of columns that fit on a terminal."""
MIN_SENTENCES = 30
"""Size below which a slice gets no verdict."""
RARE_IN_TRAINING, RARE_IN_TEST = 5, 1
"""Maximal count of a rare word."""
_MAX_CHANGED = 5
_MAX_PAIRS = 1_000_000
_WORD_EDGES, _CHARACTER_EDGES = (10, 20, 30, 50), (15, 30, 50, 80)
_Part = tuple[int, str]
"""Position of a slice in its group, and its name."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of a comparison."""

    splits: tuple[str, ...] = ()
    """Splits of runs; all but the first are compared by their scores only."""
    texts: GivenTestSet = NO_TEST_SET
    metrics: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    test: Resampling = "bootstrap"
    samples: int | None = None
    """Number of samples; None for the default in `SAMPLES`."""
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Slice:
    """Scores of each system on some sentences of a test set."""

    group: str
    name: str
    sentences: int
    bleu: tuple[float, ...]
    chrf: tuple[float, ...]

    @property
    def too_small(self) -> bool:
        """True if the slice has too few sentences for a verdict."""
        return self.sentences < MIN_SENTENCES


@dataclass(frozen=True, slots=True)
class ChangedSentence:
    """Sentence with the translations of the baseline and of another system."""

    system: int
    line: int
    source: str
    references: tuple[str, ...]
    baseline: str
    translation: str
    chrf: tuple[float, float]

    @property
    def gain(self) -> float:
        """ChrF2 of the other system minus that of the baseline."""
        return self.chrf[1] - self.chrf[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison."""

    systems: tuple[str, ...]
    test_set: str
    sentences: int
    target_language: str
    test: Resampling
    samples: int
    scores: tuple[tuple[PairedScore, ...], ...]
    slices: tuple[Slice, ...]
    sliced_by: str
    changed: tuple[ChangedSentence, ...]

    @property
    def letters(self) -> str:
        """Letter for each system; A is the baseline."""
        return string.ascii_uppercase[: len(self.systems)]

    def as_record(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        record = asdict(self)
        record["scores"] = [
            [{**asdict(score), "outcome": score.outcome} for score in row] for row in self.scores
        ]
        record["slices"] = [{**asdict(part), "too_small": part.too_small} for part in self.slices]
        return record


class SubsetScorer:
    """BLEU and chrF2 of all systems on any sentences, from counts taken once."""

    def __init__(self, test_set: EvaluationSet, systems: Sequence[System]) -> None:
        """Count the matches of every sentence."""
        self._metrics: list[Any] = choose_metrics(test_set.target_language, test_set.tokenizer)
        self._counts = [
            [
                metric._extract_corpus_statistics(system.translations, test_set.references)
                for system in systems
            ]
            for metric in self._metrics
        ]

    def score(self, indices: Sequence[int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return BLEU and chrF2 of each system on the sentences with these indices."""
        bleu, chrf = (
            tuple(
                float(metric._aggregate_and_compute([counts[index] for index in indices]).score)
                for counts in counts_of_systems
            )
            for metric, counts_of_systems in zip(self._metrics, self._counts, strict=True)
        )
        return bleu, chrf

    def slice(self, group: str, name: str, indices: Sequence[int]) -> Slice:
        """Score the sentences with these indices."""
        return Slice(group, name, len(indices), *self.score(indices))


@dataclass(frozen=True, slots=True)
class SlicedSide:
    """Side whose lines are grouped: the sources, or the references if their language is unknown."""

    name: str
    lines: tuple[str, ...]
    unspaced: bool
    """True for a language without spaces between words: characters count as words."""

    def words(self, line: str) -> list[str]:
        """Return the lower-cased words of a line; the characters of unspaced text."""
        words = re.findall(r"\w+", line.lower())
        return list("".join(words)) if self.unspaced else words

    def count_words(self, lines: Iterable[str]) -> Counter[str]:
        """Return how often each word is in some lines."""
        return Counter(word for line in lines for word in self.words(line))


@dataclass(frozen=True, slots=True)
class RareWords:
    """Word counts; a word with at most `most` occurrences is rare."""

    counts: Counter[str]
    most: int
    where: str


def compare(paths: Sequence[Path], options: CompareOptions = CompareOptions()) -> Comparison:
    """Compare runs, exports or files of translations with the first of them.

    Runs and exports are translated. Raises UserError before translation if the systems do not
    compare.
    """
    if len(paths) < 2:
        raise UserError("nothing to compare: name two or more runs, exported models or files")
    if len(paths) > MAX_SYSTEMS:
        raise UserError(f"{len(paths)} systems: up to {MAX_SYSTEMS} can be compared at once")
    real = [resolved(path) for path in paths]
    for index, path in enumerate(paths):
        if real[index] in real[:index]:
            raise UserError(f"{path}: is named twice; a system does not compare with itself")
    _check_splits(paths, options)
    check_metrics(options.metrics)
    read = partial(read_systems, paths, options.texts, allow=options.allow, device=options.device)
    directions = [read(split=split) for split in options.splits or (None,)]
    test_set, systems = directions[0]
    side = choose_side(test_set)
    rare = find_rare_words(systems, side)
    scorer = SubsetScorer(test_set, systems)
    scores = score_systems(
        test_set, systems, test=options.test, samples=options.samples, metrics=options.metrics
    )
    slices = make_slices(scorer, side, rare)
    unit = "character" if side.unspaced else "word"
    often = "once" if rare.most == 1 else f"{rare.most} times"
    sliced_by = [f"by the {side.name}; a {unit} is rare if seen at most {often} in {rare.where}"]
    for split, members in directions if len(directions) > 1 else ():
        name = f"{split.source_language}-{split.target_language} ({split.name})"
        lines = range(len(split.references[0]))
        slices.append(SubsetScorer(split, members).slice("direction", name, lines))
        # The parts of a signature that may differ between splits.
        form = label_form(split.references, split.target_language)
        forced = ",".join(dict.fromkeys(system.forced for system in members if system.forced))
        fields = {"tok": split.tokenizer, "text": form, "forced": forced}
        signature = "|".join(f"{key}:{value}" for key, value in fields.items() if value)
        sliced_by.append(f"{split.name} by {signature}")
    return Comparison(
        tuple(system.name for system in systems),
        test_set.name,
        sentences=len(test_set.references[0]),
        target_language=test_set.target_language,
        test=options.test,
        samples=options.samples or SAMPLES[options.test],
        scores=tuple(scores),
        slices=tuple(slices),
        sliced_by="; ".join(sliced_by),
        changed=tuple(find_changed(test_set, systems, scorer, most=_MAX_CHANGED)),
    )


def find_changed(
    test_set: EvaluationSet, systems: Sequence[System], scorer: SubsetScorer, *, most: int
) -> list[ChangedSentence]:
    """Return for each system the `most` sentences with the largest gains, then losses."""
    chrf = [scorer.score([index])[1] for index in range(len(test_set.references[0]))]
    sentences = []
    for system in range(1, len(systems)):
        changed = [
            ChangedSentence(
                system,
                index + 1,
                source=test_set.sources[index] if test_set.sources else "",
                references=tuple(lines[index] for lines in test_set.references),
                baseline=systems[0].translations[index],
                translation=systems[system].translations[index],
                chrf=(scores[0], scores[system]),
            )
            for index, scores in enumerate(chrf)
        ]
        changed.sort(key=lambda sentence: -sentence.gain)
        sentences += [sentence for sentence in changed[:most] if sentence.gain > 0]
        sentences += [sentence for sentence in changed[::-1][:most] if sentence.gain < 0]
    return sentences


def split_by_difference(text: str, other: str, *, language: str) -> Iterator[tuple[str, bool]]:
    """Yield `text` in parts, each with True if it is not in `other`.

    Parts are runs of words, or of characters in a language without spaces.
    """
    cut = r"\s+|\w|[^\w\s]" if written_without_spaces(language) else r"\s+|\w+|[^\w\s]"
    words, other_words = re.findall(cut, text), re.findall(cut, other)
    matcher = difflib.SequenceMatcher(None, words, other_words, autojunk=False)
    for kind, start, end, _, _ in matcher.get_opcodes():
        if start < end:
            yield "".join(words[start:end]), kind != "equal"


def choose_side(test_set: EvaluationSet) -> SlicedSide:
    """Return the side whose lines are grouped."""
    name, lines, language = "reference", test_set.references[0], test_set.target_language
    if test_set.sources and test_set.source_language:
        name, lines, language = "source", test_set.sources, test_set.source_language
    return SlicedSide(name, lines, written_without_spaces(language))


def find_rare_words(systems: Sequence[System], side: SlicedSide) -> RareWords:
    """Count words in the first training corpus that can be read, else in the test set."""
    for system in systems:
        if system.folder is None or side.name != "source":
            continue
        pairs = islice(_read_training_pairs(read_config(system.folder).data), _MAX_PAIRS)
        try:
            counts = side.count_words(pair.source for pair in pairs)
        except UserError:  # the corpus is not on this machine
            continue
        return RareWords(counts, RARE_IN_TRAINING, f"the training data of {system.name}")
    return RareWords(side.count_words(side.lines), RARE_IN_TEST, "the test set")


def make_slices(scorer: SubsetScorer, side: SlicedSide, rare: RareWords) -> list[Slice]:
    """Score all slices that are not empty, group by group."""
    slices = []
    edges, unit = (_CHARACTER_EDGES, "characters") if side.unspaced else (_WORD_EDGES, "words")

    def find_length_range(line: str) -> _Part:
        length = len("".join(line.split())) if side.unspaced else len(line.split())
        position = sum(length > edge for edge in edges)
        if position == len(edges):
            return position, f"over {edges[-1]} {unit}"
        first = edges[position - 1] + 1 if position else 0
        return position, f"{first} to {edges[position]} {unit}"

    def find_rare(line: str) -> _Part:
        has_rare = any(rare.counts[word] <= rare.most for word in side.words(line))
        return (0, "with rare words") if has_rare else (1, "without rare words")

    groups: dict[str, Callable[[str], _Part]] = {
        "length": find_length_range,
        "rare words": find_rare,
        "numbers": lambda line: (0, "digits") if re.search(r"\d", line) else (1, "no digits"),
    }
    for group, part_of in groups.items():
        parts: dict[_Part, list[int]] = {}
        for index, line in enumerate(side.lines):
            parts.setdefault(part_of(line), []).append(index)
        slices += [scorer.slice(group, part[1], parts[part]) for part in sorted(parts)]
    return slices


def _check_splits(paths: Sequence[Path], options: CompareOptions) -> None:
    splits = options.splits
    folders = [path for path in paths if is_folder(path)]
    if splits and not folders:
        raise UserError("--split is of runs, whose config has splits; files have --references")
    if len(splits) > 1 and len(folders) < len(paths):
        raise UserError("a file of translations is of one split: give --split once")
    if len(set(splits)) < len(splits):
        raise UserError("--split names a split twice")
    if options.texts.references and folders:
        if len(splits) > 1:
            raise UserError("--references are of one test set: give --split, its name, once")
        return
    corpora = find_corpora(folders)
    for folder in folders:
        data = read_config(folder, corpora).data
        for split in splits:
            choose_split(data, split)


def _read_training_pairs(data: DataConfig) -> Iterator[SentencePair]:
    """Stream the training pairs, uncleaned but without the held-out pairs."""
    yield from read_cleaned_pairs(open_training_corpora(data.changed(cleaning=CleaningConfig())))
