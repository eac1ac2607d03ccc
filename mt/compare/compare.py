"""Comparison of systems on one test set: scores, slices, differences of runs, sentences."""

import difflib
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.compare.differences import Curve, Difference, find_differences, read_curves
from mt.compare.significance import SAMPLES, PairedScore, Resampling, score_systems
from mt.compare.systems import (
    NO_TEXTS,
    EvaluationSet,
    System,
    Texts,
    corpora_of,
    is_folder,
    read_systems,
)
from mt.config.data import CleaningConfig, DataConfig
from mt.data.filters import Cleaning
from mt.data.held_out import open_training_corpora
from mt.data.pairs import SentencePair
from mt.errors import UserError
from mt.evaluation.run_info import choose_split, read_config
from mt.evaluation.scores import check_metrics, choose_metrics, label
from mt.files import resolved
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


MAX_SYSTEMS = 8
"""Number of columns that fit on a terminal."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of a comparison."""

    splits: tuple[str, ...] = ()
    """Splits of runs; all but the first are compared by their scores only."""
    texts: Texts = NO_TEXTS
    metrics: tuple[str, ...] = ()
    """Names in `mt.evaluation.scores.METRICS`."""
    allow: tuple[str, ...] = ()
    """Reasons in `mt.evaluation.checks.REASONS`."""
    test: Resampling = "bootstrap"
    samples: int | None = None
    """Number of samples; None for the default in `SAMPLES`."""
    examples: int = 5
    """Number of sentences to show for each system, of gains and of losses."""
    device: str = "auto"


DEFAULT_OPTIONS = CompareOptions()


@dataclass(frozen=True, slots=True)
class Changed:
    """Sentence with the translations of the baseline and of another system."""

    system: int
    """Index of the other system."""
    line: int
    """Line number, from 1."""
    source: str
    """Source line; empty if unknown."""
    references: tuple[str, ...]
    baseline: str
    translation: str
    """Translation of the other system."""
    chrf: tuple[float, float]
    """Sentence chrF2 of the baseline and of the other system."""

    @property
    def gain(self) -> float:
        """ChrF2 of the other system minus that of the baseline."""
        return self.chrf[1] - self.chrf[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison."""

    systems: tuple[str, ...]
    """Names of the systems, the baseline first."""
    test_set: str
    sentences: int
    target_language: str
    test: Resampling
    samples: int
    scores: tuple[tuple[PairedScore, ...], ...]
    """Scores of all systems for each metric."""
    slices: tuple[Slice, ...]
    sliced_by: str
    """Description of the slices."""
    differences: tuple[Difference, ...]
    curves: tuple[Curve, ...]
    changed: tuple[Changed, ...]

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
        record["slices"] = [{**asdict(each), "too_small": each.too_small} for each in self.slices]
        return record


def compare(places: Sequence[Path], options: CompareOptions = DEFAULT_OPTIONS) -> Comparison:
    """Compare runs, exports or files of translations with the first of them.

    A run without kept translations is translated. Raises UserError before translation if the
    systems do not compare.
    """
    _check_places(places)
    _check_splits(places, options)
    check_metrics(options.metrics)
    read = partial(read_systems, places, options.texts, allow=options.allow, device=options.device)
    sets = [read(split=split) for split in options.splits or (None,)]
    common, systems = sets[0]
    side = sliced_side(common)
    rare = count_words(systems, side)
    counts = count_all(common, systems)
    directions = sets if len(sets) > 1 else []
    scores = score_systems(
        common, systems, test=options.test, samples=options.samples, metrics=options.metrics
    )
    return Comparison(
        tuple(system.name for system in systems),
        common.name,
        sentences=len(common.references[0]),
        target_language=common.target_language,
        test=options.test,
        samples=options.samples or SAMPLES[options.test],
        scores=tuple(scores),
        slices=(*make_slices(counts, side, rare), *(_direction(*each) for each in directions)),
        sliced_by="; ".join([_sliced_by(side, rare), *(_signed(*each) for each in directions)]),
        differences=tuple(find_differences(systems)),
        curves=tuple(read_curves(systems)),
        changed=tuple(changed_most(common, systems, counts, most=options.examples)),
    )


def changed_most(
    common: EvaluationSet, systems: Sequence[System], counts: AllCounts, *, most: int
) -> list[Changed]:
    """Return for each system the `most` sentences with the largest gains, then losses."""
    found = []
    numbers = range(len(common.references[0]))
    for place in range(1, len(systems)):
        changed = [
            Changed(
                place,
                number + 1,
                source=common.sources[number] if common.sources else "",
                references=tuple(lines[number] for lines in common.references),
                baseline=systems[0].translations[number],
                translation=systems[place].translations[number],
                chrf=(counts.chrf[0].score([number]), counts.chrf[place].score([number])),
            )
            for number in numbers
        ]
        changed.sort(key=lambda each: -each.gain)
        found += [each for each in changed[:most] if each.gain > 0]
        found += [each for each in changed[::-1][:most] if each.gain < 0]
    return found


def differing_parts(text: str, other: str, *, language: str) -> Iterator[tuple[str, bool]]:
    """Yield `text` in parts, each with True if it is not in `other`.

    Parts are runs of words, or of characters in a language without spaces.
    """
    cut = r"\s+|\w|[^\w\s]" if written_without_spaces(language) else r"\s+|\w+|[^\w\s]"
    words, other_words = re.findall(cut, text), re.findall(cut, other)
    matcher = difflib.SequenceMatcher(None, words, other_words, autojunk=False)
    for kind, start, end, _, _ in matcher.get_opcodes():
        if start < end:
            yield "".join(words[start:end]), kind != "equal"


def _check_places(places: Sequence[Path]) -> None:
    if len(places) < 2:
        raise UserError(
            "there is nothing to compare with: name two or more runs, exported models or files"
        )
    if len(places) > MAX_SYSTEMS:
        raise UserError(f"{len(places)} systems: up to {MAX_SYSTEMS} can be compared at once")
    real = [resolved(place) for place in places]
    for number, place in enumerate(places):
        if real[number] in real[:number]:
            raise UserError(f"{place}: is named twice; a system does not compare with itself")


def _check_splits(places: Sequence[Path], options: CompareOptions) -> None:
    splits = options.splits
    folders = [place for place in places if is_folder(place)]
    if splits and not folders:
        raise UserError("--split is of runs, whose config has splits; files have --references")
    if len(splits) > 1 and len(folders) < len(places):
        raise UserError("a file of translations is of one split: give --split once")
    if len(set(splits)) < len(splits):
        raise UserError("--split names a split twice")
    if options.texts.references and folders:
        if len(splits) > 1:
            raise UserError("--references are of one test set: give --split, its name, once")
        return
    given = corpora_of(folders)
    for folder in folders:
        data = read_config(folder, given).data
        for split in splits:
            choose_split(data, split)


def _sliced_by(side: SlicedSide, rare: RareWords) -> str:
    unit = "character" if side.unspaced else "word"
    often = "once" if rare.most == 1 else f"{rare.most} times"
    return f"by the {side.name}; a {unit} is rare if seen at most {often} in {rare.where}"


def _direction(common: EvaluationSet, systems: Sequence[System]) -> Slice:
    """Return the scores of a whole split as a slice."""
    name = f"{common.source_language}-{common.target_language} ({common.name})"
    members = range(len(common.references[0]))
    return count_all(common, systems).slice("direction", name, members)


def _signed(common: EvaluationSet, systems: Sequence[System]) -> str:
    """Return the parts of a signature that may differ between splits."""
    form = label(common.references, common.target_language)
    forced = ",".join(dict.fromkeys(system.forced for system in systems if system.forced))
    fields = {"tok": common.tokenizer, "text": form, "forced": forced}
    signed = "|".join(f"{key}:{value}" for key, value in fields.items() if value)
    return f"{common.name} by {signed}"
