"""Selection of training pairs from candidates: filters with a reason each, and the best of n.

Filters of one candidate look at its text and its source. The others compare candidates with each
other, and with norms: the usual ratio of lengths, a lexicon, and the scores of a run (the judge),
learned from a sample of the file, which may have many bad pairs. Limits of scores come from
unrelated pairs: the same texts beside other lines.

A refusal to translate has another language or length than a translation, or no words in common
with the source.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mt.augment.collection import JSON_LINES, SUFFIX, SourceCandidates, read_candidates
from mt.augment.distill import Teacher, build_sentence_bleu, require_text, strip_suffixes
from mt.data.corpus_files import scan
from mt.data.filters import (
    has_markup,
    in_other_language,
    in_wrong_script,
    known_languages,
    normalized,
    weighted_length,
)
from mt.data.numbers import missing_numbers
from mt.data.verbatim import missing_verbatim
from mt.decoding.retries import repeats_itself
from mt.decoding.sampling import UTILITIES, compute_expected_utilities
from mt.decoding.scoring import Scorer
from mt.decoding.shards import Extent, Job, Window
from mt.doctor.misalignment import WordVectors, learn_word_vectors, spread_stretches
from mt.doctor.tally import BLOCK_LINES, LineBlock
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.tables import make_printable

_logger = logging.getLogger(__name__)
Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]
Check = Callable[[str, str, tuple[str, str]], bool]

PAIRS, LEFT_OUT = "pairs written", "lines without a translation left"
SEVERAL_LINES, NO_ANSWER = "several lines", "no translation"
LENGTH, UNRELATED, JUDGE, CUT_OFF = FAULTS = ("length", "unrelated", "judge", "cut-off")
_WINDOW_LINES = 2048
_COPY_LENGTH = 16
"""Letters of a text that is no name and therefore no translation of itself."""
_AGREEING = 0.5
"""Share of the best mean similarity to the other candidates that a candidate must reach."""
_FEWEST_TO_AGREE = 3
_QUOTED = re.compile(r"[\"'“”„«»‘’‚‹›「『《].*[\"'“”„«»‘’‚‹›」』》][.!?。]?", re.DOTALL)
_QUOTE_AT_END = re.compile(r"^\s*[\"'“”„«»‘’‚‹›「『《`–—-]|[\"'“”„«»‘’‚‹›」』》`][.!?。]?\s*$")
_MARKDOWN = ("```", "**")
_COLON = re.compile(r"[:：](?!\d)")
_DIVIDING = re.compile(r"[:：;；\"“”„«»‘‹›「『《—–]|\s-\s|(?<!\w)'")
"""Marks of a source that a translation may replace by a colon."""
_JUDGE_SETTINGS = ("decoding.mbr=null",)
_FEWEST_LINES, _FEWEST_FOR_LEXICON, _MOST_FOR_JUDGE = 50, 1000, 2000
"""Lines of a sample from which norms, and a lexicon, are learned; lines that the judge scores."""
_PLANTED_STEP = 10
"""Every tenth pair is replaced by an unrelated one where the lexicon is learned."""
_ALLOWANCE = 10
"""Added to both lengths of a ratio, since short texts may differ more."""
_LEAST_SPREAD = 0.1
"""Least standard deviation of log ratios; translations of a grammar may have nearly none."""
_BY_LEXICON, _BY_JUDGE = 90, 95
"""Percentiles of the scores of unrelated pairs that a pair must reach."""
# In standard deviations from the median:
_MOST_LENGTHS = 3.0
_SHORT_BY_JUDGE, _SHORT_BY_LEXICON = -1.0, -1.5
_LEAST_SUM = -4.5
"""Least sum of length and similarity of a short translation."""
_SUDDEN_END = -5.0
"""Natural log-probability of the end under which a short translation is cut off."""


def _has_commentary(source: str, translation: str, _: tuple[str, str]) -> bool:
    """Return True for several lines, Markdown, markup, enclosing quotation marks, or a colon.

    Each counts only if the source has nothing of the kind. A colon may follow a label or note.
    """
    if "\n" in translation or (has_markup(translation) and not has_markup(source)):
        return True
    if any(mark in translation and mark not in source for mark in _MARKDOWN):
        return True
    if _QUOTED.fullmatch(translation) and not _QUOTE_AT_END.search(source):
        return True
    return bool(_COLON.search(translation)) and not _DIVIDING.search(source)


def _is_copy(source: str, translation: str, _: tuple[str, str]) -> bool:
    if weighted_length(source) < _COPY_LENGTH or not any(map(str.isalpha, source)):
        return False
    return normalized(source) == normalized(translation)


CHECKS: dict[str, Check] = {
    "empty": lambda _source, text, _languages: not text,
    "commentary": _has_commentary,
    "copy": _is_copy,
    "script": lambda _source, text, languages: in_wrong_script(text, languages[1]),
    "language": lambda _source, text, languages: in_other_language(text, languages[1]),
    "repetition": lambda source, text, _: repeats_itself([*map(ord, text)], [*map(ord, source)]),
    "numbers": lambda ours, text, _: bool(
        missing_verbatim(ours, text) + missing_numbers(ours, text)
    ),
}
"""Filters of one candidate by name, in order of application; True rejects."""
REASONS = (*CHECKS, "agreement", *FAULTS)
"""Names of all filters, for `--allow`."""


@dataclass(frozen=True)
class Judge:
    """Run or export that scores translations; the model is loaded on first use."""

    run: Path
    device: str = "auto"

    def check(self, languages: tuple[str, str]) -> None:
        """Raise RunError or UserError unless the run is finished and has this direction."""
        self._teacher.require_direction(*languages, of="the config's corpora are")

    @property
    def model(self) -> str:
        """Checksum of the weights."""
        return str(self._teacher.settings["model"])

    def score(self, sources: Sequence[str], translations: Sequence[str]) -> tuple[Floats, Floats]:
        """Return natural log-probabilities of each translation; NaN if too long for the model.

        The first are means per token, the second of the end mark with the punctuation before it.
        """
        tokenizer, engine = self._scorer.tokenizer, self._scorer.engine
        left = tokenizer.encode_source(list(sources))
        right = tokenizer.encode_target(list(translations))
        longest = engine.longest
        fitting = [
            index
            for index, pair in enumerate(zip(left, right, strict=True))
            if longest is None or max(map(len, pair)) <= longest
        ]
        log_probs = engine.score(
            [left[index] for index in fitting], [right[index] for index in fitting]
        )
        means, ends = np.full((2, len(left)), np.nan)
        for index, of_tokens in zip(fitting, log_probs, strict=True):
            start = len(of_tokens) - 1
            tokens = tokenizer.target.processor.id_to_piece(list(right[index]))
            while start and not any(map(str.isalnum, tokens[start - 1])):
                start -= 1
            means[index], ends[index] = fsum(of_tokens) / len(of_tokens), fsum(of_tokens[start:])
        return means, ends

    @cached_property
    def _teacher(self) -> Teacher:
        return Teacher.read(self.run, overrides=_JUDGE_SETTINGS, device=self.device)

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer.load(self.run, _JUDGE_SETTINGS, self.device)


@dataclass(frozen=True, slots=True)
class Scale:
    """Median, and standard deviation from the median absolute deviation."""

    median: float
    deviation: float

    @classmethod
    def measure(cls, values: Floats, *, least: float = 1e-6) -> "Scale":
        """Measure values; outliers have little effect."""
        median = float(np.median(values))
        return cls(median, max(least, 1.4826 * float(np.median(np.abs(values - median)))))

    def standardize(self, values: Floats) -> Floats:
        """Return the distances of values from the median, in standard deviations."""
        return (values - self.median) / self.deviation


@dataclass(frozen=True, slots=True)
class Limit:
    """Scores that separate related from unrelated pairs."""

    least: float
    """Percentile of unrelated pairs, or the middle of both medians if that is lower."""
    related: Scale

    @classmethod
    def learn(cls, related: Floats, unrelated: Floats, percentile: int) -> "Limit":
        """Learn from the scores of pairs, and of the same texts beside other lines."""
        scale = Scale.measure(related)
        # Where scores separate poorly, the percentile alone would reject too much.
        middle = (scale.median + float(np.median(unrelated))) / 2
        return cls(min(float(np.percentile(unrelated, percentile)), middle), scale)

    @property
    def sure(self) -> float:
        """Score from which a pair is certainly related."""
        return (self.least + self.related.median) / 2


@dataclass(frozen=True, slots=True)
class Norms:
    """Properties of usual pairs; None for those that need a larger sample."""

    lengths: Scale | None = None
    """Log ratios of the lengths, translation to source."""
    lexicon: WordVectors | None = None
    similarity: Limit | None = None
    """Cosines of both sides in the lexicon."""
    log_prob: Limit | None = None
    """Mean log-probabilities of a token under the judge."""

    @classmethod
    def learn(cls, sources: list[str], translations: list[str], judge: Judge | None) -> "Norms":
        """Learn from a sample of pairs, whose order is that of their corpus."""
        if len(sources) < _FEWEST_LINES:
            return cls()
        lengths = Scale.measure(_compute_log_ratios(sources, translations), least=_LEAST_SPREAD)
        lexicon = similarity = log_prob = None
        if len(sources) >= _FEWEST_FOR_LEXICON:
            # The lexicon fits bad pairs of the sample, too. Planted pairs show how much.
            planted = translations.copy()
            planted[::_PLANTED_STEP] = _rotate(translations)[::_PLANTED_STEP]
            lexicon = learn_word_vectors([LineBlock(0, sources, planted)])
            scores, known = _compute_similarities(lexicon, sources, planted)
            is_planted = np.arange(len(scores)) % _PLANTED_STEP == 0
            related, unrelated = scores[known & ~is_planted], scores[known & is_planted]
            if len(related) and len(unrelated):
                similarity = Limit.learn(related, unrelated, _BY_LEXICON)
        if judge is not None:
            step = -(-len(sources) // _MOST_FOR_JUDGE)
            few_sources, few_translations = sources[::step], translations[::step]
            related, unrelated = (
                judge.score(few_sources, texts)[0]
                for texts in (few_translations, _rotate(few_translations))
            )
            known = ~(np.isnan(related) | np.isnan(unrelated))
            if known.any():
                log_prob = Limit.learn(related[known], unrelated[known], _BY_JUDGE)
        return cls(lengths, lexicon, similarity, log_prob)

    def find_faults(
        self, sources: list[str], translations: list[str], judge: Judge | None
    ) -> list[list[str]]:
        """Return the faults of each pair."""
        applies: dict[str, Booleans] = dict.fromkeys(FAULTS, np.zeros(len(sources), dtype=np.bool_))
        lengths = np.zeros(len(sources))
        if self.lengths is not None:
            lengths = self.lengths.standardize(_compute_log_ratios(sources, translations))
            applies[LENGTH] = np.abs(lengths) > _MOST_LENGTHS
        unsure = np.ones(len(sources), dtype=np.bool_)
        if judge is not None:
            means, ends = judge.score(sources, translations)
            applies[CUT_OFF] = (lengths < _SHORT_BY_JUDGE) & (ends < _SUDDEN_END)
            if self.log_prob is not None:
                applies[JUDGE] = means < self.log_prob.least
                unsure = means < self.log_prob.sure
        if self.lexicon is not None and self.similarity is not None:
            similarities, known = _compute_similarities(self.lexicon, sources, translations)
            applies[UNRELATED] = unsure & known & (similarities < self.similarity.least)
            distances = self.similarity.related.standardize(similarities)
            is_short = (lengths < _SHORT_BY_LEXICON) & (distances < 0)
            is_cut = unsure & known & is_short & (lengths + distances < _LEAST_SUM)
            applies[CUT_OFF] = applies[CUT_OFF] | is_cut
        rows = zip(*applies.values(), strict=True)
        return [
            [name for name, is_fault in zip(FAULTS, row, strict=True) if is_fault] for row in rows
        ]


def _compute_log_ratios(sources: Sequence[str], translations: Sequence[str]) -> Floats:
    """Return the log ratios of translation to source in `weighted_length`."""
    left, right = (
        np.array([weighted_length(text) for text in side], dtype=np.float64) + _ALLOWANCE
        for side in (sources, translations)
    )
    return np.log(right / left)


def _compute_similarities(
    lexicon: WordVectors, sources: list[str], translations: list[str]
) -> tuple[Floats, Booleans]:
    """Return the cosines of pairs, and True where both sides have words of the lexicon."""
    left, right = lexicon.embed(LineBlock(0, sources, translations))
    known = np.logical_and(left.any(1), right.any(1))
    return np.einsum("id,id->i", left, right).astype(np.float64), known


def _rotate(texts: list[str]) -> list[str]:
    half = len(texts) // 2
    return texts[half:] + texts[:half]


@dataclass(frozen=True)
class Selection:
    """File of candidates, and the rules by which pairs are selected from it."""

    candidates: Path
    languages: tuple[str, str]
    judge: Judge | None = None
    allow: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UserError or DataError for unsuitable settings, before candidates are made."""
        for name in self.allow:
            if name not in REASONS:
                near = did_you_mean(name, REASONS) or f"; known: {listed(REASONS)}"
                raise UserError(f"--allow {name}: unknown{near}")
        source, target = self.languages
        if source == target:
            raise UserError(f"`data.source_language` and `data.target_language`: both are {source}")
        if self.judge is not None:
            self.judge.check(self.languages)
        if "language" not in self.allow:
            try:
                known_languages()
            except DataError as error:
                raise DataError(f"{error}, or add `--allow language`") from error

    def plan_job(self, folder: Path) -> Job:
        """Return the job; raise UserError or DataError if the file is unsuitable."""
        self.check()
        settings: dict[str, Any] = {
            "command": "select candidates",
            "input": scan(require_text(self.candidates)).sha256,
            "source_language": self.languages[0],
            "target_language": self.languages[1],
            "allow": sorted(self.allow),
            "judge": self.judge and self.judge.model,
        }
        *files, record = self.list_files(folder)
        lines = (candidates.source for candidates in read_candidates(self.candidates))
        extent = Extent.of(lines, _WINDOW_LINES)
        if not extent.lines:
            raise UserError(f"{self.candidates}: is empty")
        return Job(tuple(files), record, settings, extent)

    def list_files(self, folder: Path) -> list[Path]:
        """Return the paths of the output, the record last."""
        source, target = self.languages
        name = strip_suffixes(self.candidates, source).removesuffix(JSON_LINES)
        name = name.removesuffix(".tsv").removesuffix(SUFFIX)
        return [folder / f"{name}.{end}" for end in (source, target, "rejected.tsv", "json")]

    @cached_property
    def norms(self) -> "Norms":
        """Norms of the first usable translations of up to 20,000 lines, spread over the file."""
        sources, translations = [], []
        for block in spread_stretches(self._blocks(), at_least=100):
            for _, source, translation in block.numbered():
                if not self._find_fault(source, translation):
                    sources.append(source)
                    translations.append(translation)
        norms = Norms.learn(sources, translations, self.judge)
        if sources and norms.similarity is None and norms.log_prob is None:
            _logger.warning(
                "warning: %d translations are too few for a lexicon, so translations of another "
                "source are not found; a --judge finds them",
                len(sources),
            )
        return norms

    def make_windows(self, lines: range) -> Iterator[Window]:
        """Yield the pairs and the rejected candidates of some lines."""
        rows = islice(read_candidates(self.candidates), lines.start, lines.stop)
        first = lines.start
        while window := list(islice(rows, _WINDOW_LINES)):
            yield self._select(first + 1, window)
            first += len(window)

    def _blocks(self) -> Iterator[LineBlock]:
        rows = read_candidates(self.candidates)
        first = 0
        while window := list(islice(rows, BLOCK_LINES)):
            targets = [next(iter(row.translations), "") for row in window]
            yield LineBlock(first, [row.source for row in window], targets)
            first += len(window)

    def _find_fault(self, source: str, translation: str) -> str:
        """Return the reason to reject a candidate by its text, "" without one."""
        if "\n" in source or ("\n" in translation and "commentary" in self.allow):
            return SEVERAL_LINES  # a line of the output is one text
        for name, check in CHECKS.items():
            if name not in self.allow and check(source, translation, self.languages):
                return name
        return "" if translation else "empty"

    def _select(self, first: int, window: list[SourceCandidates]) -> Window:
        """Return the output for consecutive lines, of which `first` is the number of the first."""
        lines = [self._apply_checks(row) for row in window]
        left, right, rejected = [], [], []
        counts = Counter[str]()
        if good := [candidate for line in lines for candidate in line if candidate.is_good]:
            sources, usable = [one.source for one in good], [one.text for one in good]
            faults = self.norms.find_faults(sources, usable, self.judge)
            for candidate, found in zip(good, faults, strict=True):
                candidate.fault = next((name for name in found if name not in self.allow), "")
        for number, (row, line) in enumerate(zip(window, lines, strict=True), first):
            texts = [candidate.text for candidate in line if candidate.is_good]
            counts[PAIRS if texts else LEFT_OUT] += 1
            if texts:
                left.append(row.source)
                right.append(self._choose(texts))
            elif not line:
                line = [_Candidate(row.source, row.problem, NO_ANSWER)]
            for position, candidate in enumerate(line, 1):
                if not candidate.is_good:
                    fault = candidate.fault
                    counts[f"rejected: {fault}"] += 1
                    columns = (str(number), str(position), fault, row.source, candidate.text)
                    rejected.append("\t".join(map(make_printable, columns)))
        sides = (left, right, rejected)
        output = tuple("".join(f"{text}\n" for text in side).encode() for side in sides)
        return Window(len(window), output, counts)

    def _apply_checks(self, row: SourceCandidates) -> list["_Candidate"]:
        source = row.source
        line = [
            _Candidate(source, text, self._find_fault(source, text)) for text in row.translations
        ]
        good = [candidate for candidate in line if candidate.is_good]
        if len(good) >= _FEWEST_TO_AGREE and "agreement" not in self.allow:
            texts = [candidate.text for candidate in good]
            # Without the similarity of a text to itself, which is 100.
            similarities = [
                utility * len(good) - 100
                for utility in compute_expected_utilities(texts, UTILITIES["chrf"]())
            ]
            for candidate, similarity in zip(good, similarities, strict=True):
                if similarity < _AGREEING * max(similarities):
                    candidate.fault = "agreement"
        return line

    def _choose(self, texts: list[str]) -> str:
        """Return the text most similar to the others; among equals the first."""
        if len(texts) == 1:
            return texts[0]
        metric = build_sentence_bleu(self.languages[1])
        scores = compute_expected_utilities(
            texts, lambda text, other: metric.sentence_score(text, [other]).score
        )
        return texts[scores.index(max(scores))]


@dataclass
class _Candidate:
    """A candidate, and the filter that rejects it."""

    source: str
    text: str
    fault: str

    @property
    def is_good(self) -> bool:
        return not self.fault
