"""Scores of slices of a test set: by length, rare words, numbers and punctuation."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from mt.compare.systems import EvaluationSet, System
from mt.config.data import CleaningConfig, DataConfig
from mt.data.filters import Cleaning
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora
from mt.errors import UserError
from mt.evaluation.run_info import read_config
from mt.evaluation.scores import choose_metrics
from mt.languages import script_share, written_without_spaces

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


MIN_SENTENCES = 30
"""Size below which a slice gets no verdict."""
LENGTH = "length"
"""Group of slices that the report draws."""
RARE_IN_TRAINING, RARE_IN_TEST = 5, 1
"""Maximal count of a rare word."""
_MAX_PAIRS = 1_000_000
"""Number of training pairs whose words are counted."""
_WORD_EDGES, _CHARACTER_EDGES = (10, 20, 30, 50), (15, 30, 50, 80)
_FINAL = ((".。．｡।۔", "full stop"), ("?？؟", "question mark"), ("!！", "exclamation mark"))
_CLOSING = "\"'”“’»)]）」』】》 \u3000"
_INNER = re.compile(r"""[,;:()\[\]"“”„«»—–，；：、（）「」『』《》]""")
_Part = tuple[int, str]
"""Position of a slice in its group, and its name."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Scores of each system on some sentences of a test set."""

    group: str
    """Property by which sentences are grouped."""
    name: str
    sentences: int
    bleu: tuple[float, ...]
    chrf: tuple[float, ...]

    @property
    def too_small(self) -> bool:
        """True if the slice has too few sentences for a verdict."""
        return self.sentences < MIN_SENTENCES


class Counts:
    """Counts of a metric for each sentence of a system, to score any subset."""

    def __init__(self, metric: "Metric", system: System, common: EvaluationSet) -> None:
        """Count every sentence once."""
        self._metric: Any = metric
        self._rows = self._metric._extract_corpus_statistics(system.translations, common.references)

    def score(self, members: Iterable[int]) -> float:
        """Return the corpus score of the sentences with these indices."""
        rows = [self._rows[number] for number in members]
        return float(self._metric._aggregate_and_compute(rows).score)


@dataclass(frozen=True, slots=True)
class AllCounts:
    """Counts of BLEU and chrF2 for each system."""

    bleu: tuple[Counts, ...]
    chrf: tuple[Counts, ...]

    def slice(self, group: str, name: str, members: Sequence[int]) -> Slice:
        """Score the sentences with these indices."""
        return Slice(
            group,
            name,
            len(members),
            bleu=tuple(counts.score(members) for counts in self.bleu),
            chrf=tuple(counts.score(members) for counts in self.chrf),
        )


def count_all(common: EvaluationSet, systems: Sequence[System]) -> AllCounts:
    """Return the counts of BLEU and chrF2 for each system."""
    bleu, chrf = choose_metrics(common.target_language, common.tokenizer)
    return AllCounts(
        bleu=tuple(Counts(bleu, system, common) for system in systems),
        chrf=tuple(Counts(chrf, system, common) for system in systems),
    )


@dataclass(frozen=True, slots=True)
class SlicedSide:
    """Side whose lines are grouped: the sources, or the references if there are no sources."""

    name: str
    lines: tuple[str, ...]
    unspaced: bool
    """True for a language without spaces between words: characters count as words."""

    def words(self, line: str) -> list[str]:
        """Return the lower-cased words of a line; the characters of unspaced text."""
        found = re.findall(r"\w+", line.lower())
        return list("".join(found)) if self.unspaced else found


@dataclass(frozen=True, slots=True)
class RareWords:
    """Word counts; a word with at most `most` occurrences is rare."""

    counts: Counter[str]
    most: int
    where: str


def sliced_side(common: EvaluationSet) -> SlicedSide:
    """Return the side whose lines are grouped."""
    name, lines, language = "source", common.sources, common.source_language
    if not lines:
        name, lines, language = "reference", common.references[0], common.target_language
    unspaced = written_without_spaces(language) if language else _looks_unspaced(lines)
    return SlicedSide(name, lines, unspaced)


def count_words(systems: Sequence[System], side: SlicedSide) -> RareWords:
    """Count words in the first training corpus that can be read, else in the test set."""
    for system in systems:
        if system.folder is None or side.name != "source":
            continue
        data = read_config(system.folder).data
        try:
            pairs = islice(_training_pairs(data), _MAX_PAIRS)
            counts = _count(side, (pair.source for pair in pairs))
        except UserError:  # the corpus is not on this machine
            continue
        return RareWords(counts, RARE_IN_TRAINING, f"the training data of {system.name}")
    return RareWords(_count(side, side.lines), RARE_IN_TEST, "the test set")


def _training_pairs(data: DataConfig) -> Iterator[SentencePair]:
    """Stream the training pairs, uncleaned but without the held-out pairs."""
    uncleaned = data.model_copy(update={"cleaning": CleaningConfig()})
    for corpus in open_training_corpora(data):
        yield from Cleaning(uncleaned, corpus.cleaning.held_out).clean(corpus.source.pairs())


def make_slices(counts: AllCounts, side: SlicedSide, rare: RareWords) -> list[Slice]:
    """Score all slices that are not empty, group by group."""
    found = []
    for group, part_of in _groups(side, rare):
        parts: dict[_Part, list[int]] = {}
        for number, line in enumerate(side.lines):
            parts.setdefault(part_of(line), []).append(number)
        found += [counts.slice(group, part[1], members) for part, members in sorted(parts.items())]
    return found


def _count(side: SlicedSide, lines: Iterable[str]) -> Counter[str]:
    return Counter(word for line in lines for word in side.words(line))


def _groups(side: SlicedSide, rare: RareWords) -> Iterator[tuple[str, Callable[[str], _Part]]]:
    def either(holds: Callable[[str], object], yes: str, no: str) -> Callable[[str], _Part]:
        return lambda line: (0, yes) if holds(line) else (1, no)

    def has_rare(line: str) -> bool:
        return any(rare.counts[word] <= rare.most for word in side.words(line))

    def has_inner(line: str) -> object:
        return _INNER.search(line.strip()[:-1])

    yield LENGTH, lambda line: _length(line, unspaced=side.unspaced)
    yield "rare words", either(has_rare, "with rare words", "without rare words")
    yield "numbers", either(re.compile(r"\d").search, "digits", "no digits")
    yield "final punctuation", _final
    inner = "commas, colons, brackets, quotes"
    yield "inner punctuation", either(has_inner, inner, "none of these")


def _length(line: str, *, unspaced: bool) -> _Part:
    """Return the range of lengths that includes the line, in words or characters."""
    edges, unit = (_CHARACTER_EDGES, "characters") if unspaced else (_WORD_EDGES, "words")
    count = len("".join(line.split())) if unspaced else len(line.split())
    place = sum(count > edge for edge in edges)
    if place == len(edges):
        return place, f"over {edges[-1]} {unit}"
    return place, f"{edges[place - 1] + 1 if place else 0} to {edges[place]} {unit}"


def _final(line: str) -> _Part:
    last = line.rstrip(_CLOSING)[-1:]
    for place, (marks, name) in enumerate(_FINAL):
        if last and last in marks:
            return place, name
    return (4, "no mark") if not last or last.isalnum() else (3, "another mark")


def _looks_unspaced(lines: Sequence[str]) -> bool:
    """Return True if the lines are mostly in the script of a language without spaces."""
    shares = [
        max(script_share(line, language) or 0.0 for language in ("zh", "ja", "th"))
        for line in lines[:: max(1, len(lines) // 200)]
    ]
    return sum(shares) > len(shares) / 2
