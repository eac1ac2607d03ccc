"""The parts of a test set where one system may be better: long sentences, rare words, numbers."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from mt.compare.systems import EvaluationSet, System
from mt.data.sources import open_source
from mt.errors import UserError
from mt.evaluation.evaluate import read_config
from mt.evaluation.scores import choose_metrics
from mt.languages import script_share, written_without_spaces

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


MIN_SENTENCES = 30
"""Fewer say nothing of a system."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Some sentences of a test set, and what each system makes of them."""

    group: str
    """By what the sentences were told apart."""
    name: str
    sentences: int
    bleu: tuple[float, ...]
    """Of each system."""
    chrf: tuple[float, ...]

    @property
    def too_small(self) -> bool:
        """Whether nothing can be concluded from so few sentences."""
        return self.sentences < MIN_SENTENCES


class Counts:
    """What a metric has counted in each sentence of a system, so that any part can be scored."""

    def __init__(self, metric: "Metric", system: System, common: EvaluationSet) -> None:
        """Count once; scoring adds up."""
        self._metric: Any = metric
        self._rows = self._metric._extract_corpus_statistics(system.translations, common.references)

    def score(self, members: Iterable[int]) -> float:
        """Return the corpus score of the sentences of these numbers, from 0."""
        rows = [self._rows[number] for number in members]
        return float(self._metric._aggregate_and_compute(rows).score)


@dataclass(frozen=True, slots=True)
class AllCounts:
    """BLEU's and chrF2's counts of each system."""

    bleu: tuple[Counts, ...]
    chrf: tuple[Counts, ...]

    def slice(self, group: str, name: str, members: Sequence[int]) -> Slice:
        """Score some sentences."""
        return Slice(
            group,
            name,
            len(members),
            bleu=tuple(counts.score(members) for counts in self.bleu),
            chrf=tuple(counts.score(members) for counts in self.chrf),
        )


def count_all(common: EvaluationSet, systems: Sequence[System]) -> AllCounts:
    """Count what BLEU and chrF2 count, once for each system."""
    bleu, chrf = choose_metrics(common.target_language, common.tokenizer)
    return AllCounts(
        bleu=tuple(Counts(bleu, system, common) for system in systems),
        chrf=tuple(Counts(chrf, system, common) for system in systems),
    )


RARE_IN_TRAINING, RARE_IN_TEST = 5, 1
"""A word is rare that is seen at most so often."""
_MOST_PAIRS = 1_000_000
"""Of the training data, to count words in."""
_WORD_EDGES, _CHARACTER_EDGES = (10, 20, 30, 50), (15, 30, 50, 80)
_FINAL = ((".。．｡।۔", "full stop"), ("?？؟", "question mark"), ("!！", "exclamation mark"))
_CLOSING = "\"'”“’»)]）」』】》 \u3000"
_INNER = re.compile(r"""[,;:()\[\]"“”„«»—–，；：、（）「」『』《》]""")
_Part = tuple[int, str]
"""The place of a part in its group, and its name."""
_Teller = Callable[[str], _Part]


@dataclass(frozen=True, slots=True)
class SlicedSide:
    """The side by which sentences are told apart: the sources, or the references without them."""

    name: str
    lines: tuple[str, ...]
    unspaced: bool
    """Whether words stand without spaces between them, so that characters count."""

    def words(self, line: str) -> list[str]:
        """Return the words of a line, in lower case; of unspaced text its characters."""
        found = re.findall(r"\w+", line.lower())
        return list("".join(found)) if self.unspaced else found


@dataclass(frozen=True, slots=True)
class RareWords:
    """Which words are rare: those that were counted at most `most` times."""

    counts: Counter[str]
    most: int
    where: str


def sliced_side(common: EvaluationSet) -> SlicedSide:
    """Return the side that the slices of a test set go by."""
    if not common.sources:
        unspaced = written_without_spaces(common.target_language)
        return SlicedSide("reference", common.references[0], unspaced)
    if common.source_language:
        unspaced = written_without_spaces(common.source_language)
    else:
        unspaced = _looks_unspaced(common.sources)
    return SlicedSide("source", common.sources, unspaced)


def count_words(systems: Sequence[System], side: SlicedSide) -> RareWords:
    """Count words in the training data of the first run that has it, else in the test set."""
    for system in systems:
        if system.folder is None or side.name != "source":
            continue
        data = read_config(system.folder).data
        try:
            pairs = islice(open_source(data.train, data).pairs(), _MOST_PAIRS)
            counts = _count(side, (pair.source for pair in pairs))
        except UserError:  # the data did not come along with the run
            continue
        return RareWords(counts, RARE_IN_TRAINING, f"the training data of {system.name}")
    return RareWords(_count(side, side.lines), RARE_IN_TEST, "the test set")


def make_slices(counts: AllCounts, side: SlicedSide, rare: RareWords) -> list[Slice]:
    """Score every part that holds a sentence, group by group."""
    found = []
    for group, teller in _tellers(side, rare):
        parts: dict[_Part, list[int]] = {}
        for number, line in enumerate(side.lines):
            parts.setdefault(teller(line), []).append(number)
        found += [counts.slice(group, part[1], members) for part, members in sorted(parts.items())]
    return found


def _count(side: SlicedSide, lines: Iterable[str]) -> Counter[str]:
    return Counter(word for line in lines for word in side.words(line))


def _tellers(side: SlicedSide, rare: RareWords) -> Iterator[tuple[str, _Teller]]:
    def rareness(line: str) -> _Part:
        found = any(rare.counts[word] <= rare.most for word in side.words(line))
        return (0, "with rare words") if found else (1, "without rare words")

    yield LENGTH, lambda line: _length(line, unspaced=side.unspaced)
    yield "rare words", rareness
    yield "numbers", lambda line: (0, "digits") if re.search(r"\d", line) else (1, "no digits")
    yield "final punctuation", _final
    yield "inner punctuation", _inner


LENGTH = "length"
"""The group that is drawn."""


def _length(line: str, *, unspaced: bool) -> _Part:
    """Return the range of lengths that a line falls into, in words or in characters."""
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


def _inner(line: str) -> _Part:
    """Tell whether there is a mark before the end of the line."""
    found = _INNER.search(line.strip()[:-1])
    return (0, "commas, colons, brackets, quotes") if found else (1, "none of these")


def _looks_unspaced(lines: Sequence[str]) -> bool:
    """Tell whether some lines are mostly in the script of a language without spaces."""
    sample = lines[:: max(1, len(lines) // 200)]
    shares = [
        max(script_share(line, language) or 0.0 for language in ("zh", "ja", "th"))
        for line in sample
    ]
    return sum(shares) > len(shares) / 2
