"""Selection of training pairs from candidates: filters with a reason each, and the best of n.

Filters of one candidate look at its text and its source. The other filters compare candidates with
each other, with a sample of the file, and with the scores of a run.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mt.augment.candidates import JSON_LINES, Candidates, read_candidates
from mt.augment.collection import SUFFIX
from mt.augment.commentary import is_commentary, is_refusal
from mt.augment.distill import SIMILARITIES, Similarity
from mt.augment.judge import Judge
from mt.augment.teacher import base_name, existing_text
from mt.data import language_id
from mt.data.copied import not_copied
from mt.data.lines import scan
from mt.data.pair_checks import in_wrong_script, normalized, weighted_length
from mt.decoding.mbr import UTILITIES, expected_utilities
from mt.decoding.second_search import repeats_itself
from mt.decoding.shards import Extent, Job, Window
from mt.doctor.alignment import Lexicon, learn_lexicon, spread_stretches
from mt.doctor.tally import BLOCK_LINES, Block
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.tables import printable

Floats = npt.NDArray[np.float64]
Choice = Literal["agreement", "judge"]
Check = Callable[[str, str, tuple[str, str]], bool]

WRITTEN, LEFT_OUT = "pairs written", "lines without a translation left"
SEVERAL_LINES, NO_ANSWER = "several lines", "no translation"
_WINDOW_LINES = 2048
_COPY_LENGTH = 16
"""Letters of a text that is no name and therefore no translation of itself."""
_ALLOWANCE = 10
"""Added to both lengths of a ratio, since short texts may differ more."""
_SPREADS = 3.0
"""Distance of a log ratio of lengths from the median, in standard deviations, that is too large."""
_LEAST_SPREAD = 0.1
"""Least standard deviation of log ratios; translations of a grammar may have nearly none."""
_LINES_OF_LENGTHS, _LINES_OF_LEXICON, _LINES_OF_JUDGE = 50, 1000, 2000
"""Fewest lines for a norm of lengths or scores, and for a lexicon; lines that the judge samples."""
_UNRELATED_SHARE = 95
"""Percentile of the scores of unrelated lines that a pair must reach."""
_AGREEING = 0.5
"""Share of the best mean similarity to the other candidates that a candidate must reach."""
_FEWEST_TO_AGREE = 3
_SHORT = -1.0
"""Log ratio of lengths, in standard deviations, under which a translation may be cut off."""
_SUDDEN_END = -5.0
"""Natural log-probability of the end under which a short translation is cut off."""


def _is_copy(source: str, translation: str, _: tuple[str, str]) -> bool:
    if weighted_length(source) < _COPY_LENGTH or not any(map(str.isalpha, source)):
        return False
    return normalized(source) == normalized(translation)


def _repeats(source: str, translation: str, _: tuple[str, str]) -> bool:
    return repeats_itself([*map(ord, translation)], [*map(ord, source)])


CHECKS: dict[str, Check] = {
    "empty": lambda _source, text, _languages: not text,
    "refusal": lambda source, text, _languages: is_refusal(source, text),
    "commentary": lambda source, text, languages: is_commentary(source, text, languages[1]),
    "copy": _is_copy,
    "script": lambda _source, text, languages: in_wrong_script(text, languages[1]),
    "language": lambda _source, text, languages: language_id.in_other_language(text, languages[1]),
    "repetition": _repeats,
    "numbers": lambda source, text, _languages: bool(not_copied(source, text)),
}
"""Filters of one candidate by name, in order of application; True rejects."""
REASONS = (*CHECKS, "agreement", "length", "unrelated", "judge", "cut-off")
"""Names of all filters, for `--allow`."""


@dataclass(frozen=True)
class Norms:
    """Properties of the pairs of a sample, with which each pair is compared."""

    length: float
    """Median log ratio of the lengths."""
    spread: float
    """Standard deviation of the log ratio, from its median absolute deviation."""
    lexicon: Lexicon | None
    least_similarity: float
    least_log_prob: float
    """Least mean log-probability of a token under the judge."""

    @classmethod
    def learn(cls, sources: list[str], translations: list[str], judge: Judge | None) -> "Norms":
        """Learn from a sample; a norm that needs more lines rejects nothing."""
        length, spread = 0.0, float("inf")
        lexicon, least_similarity, least_log_prob = None, -float("inf"), -float("inf")
        if len(sources) >= _LINES_OF_LENGTHS:
            ratios = _log_ratios(sources, translations)
            length = float(np.median(ratios))
            deviation = 1.4826 * float(np.median(np.abs(ratios - length)))
            spread = max(deviation, _LEAST_SPREAD)
        if len(sources) >= _LINES_OF_LEXICON:
            lexicon = learn_lexicon([Block(0, sources, translations)])
            related, known = _similarities(lexicon, sources, translations)
            unrelated, both = _similarities(lexicon, sources, _rolled(translations))
            least_similarity = _least(related[known], unrelated[both])
        if judge is not None and len(sources) >= _LINES_OF_LENGTHS:
            step = -(-len(sources) // _LINES_OF_JUDGE)
            few, their = sources[::step], translations[::step]
            scores, others = judge.scores(few, their), judge.scores(few, _rolled(their))
            least_log_prob = _least(
                *(np.array([e.mean for e in each]) for each in (scores, others))
            )
        return cls(length, spread, lexicon, least_similarity, least_log_prob)

    def faults(
        self, sources: list[str], translations: list[str], judge: Judge | None
    ) -> tuple[list[tuple[str, ...]], list[float]]:
        """Return the names of the filters that reject each pair, and the mean log-probabilities."""
        lengths = (_log_ratios(sources, translations) - self.length) / self.spread
        faults = {"length": np.abs(lengths) > _SPREADS}
        if self.lexicon is not None:
            similarities, known = _similarities(self.lexicon, sources, translations)
            faults["unrelated"] = known & (similarities < self.least_similarity)
        means: list[float] = []
        if judge is not None:
            scores = judge.scores(sources, translations)
            means = [score.mean for score in scores]
            ends = np.array([score.end for score in scores])
            faults["judge"] = np.array(means) < self.least_log_prob
            faults["cut-off"] = (lengths < _SHORT) & (ends < _SUDDEN_END)
        rows = zip(*faults.values(), strict=True)
        names = [
            tuple(name for name, applies in zip(faults, row, strict=True) if applies)
            for row in rows
        ]
        return names, means


def _log_ratios(sources: Sequence[str], translations: Sequence[str]) -> Floats:
    """Return the log ratios of translation to source in `weighted_length`."""
    left, right = (
        np.array([weighted_length(text) for text in side], dtype=np.float64) + _ALLOWANCE
        for side in (sources, translations)
    )
    return np.log(right / left)


def _similarities(
    lexicon: Lexicon, sources: list[str], translations: list[str]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the cosines of pairs, and True where both sides have words of the lexicon."""
    left, right = lexicon.embed(Block(0, sources, translations))
    known = np.logical_and(left.any(1), right.any(1))
    return np.einsum("id,id->i", left, right).astype(np.float64), known


def _rolled(texts: list[str]) -> list[str]:
    """Return the texts beside other lines, far from their own."""
    half = len(texts) // 2
    return texts[half:] + texts[:half]


def _least(related: Floats, unrelated: Floats) -> float:
    """Return the least score of a pair that is not rejected.

    It is the 95th percentile of unrelated pairs, or the middle between both medians if that is
    lower, as where the scores separate the two poorly.
    """
    if not len(related) or not len(unrelated):
        return -float("inf")
    middle = (np.median(related) + np.median(unrelated)) / 2
    return float(min(np.percentile(unrelated, _UNRELATED_SHARE), middle))


@dataclass(frozen=True)
class Selection:
    """File of candidates, and the rules by which pairs are selected from it."""

    candidates: Path
    config: Path
    languages: tuple[str, str]
    judge: Judge | None = None
    choice: Choice = "agreement"
    similarity: Similarity = "bleu"
    allow: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UserError or DataError for unsuitable settings, before candidates are made."""
        for name in self.allow:
            if name not in REASONS:
                near = did_you_mean(name, REASONS) or f"; known: {listed(REASONS)}"
                raise UserError(f"--allow {name}: unknown{near}")
        source, target = self.languages
        if source == target:
            raise UserError(f"{self.config}: source and target language are both {source}")
        if self.choice == "judge" and self.judge is None:
            raise UserError("--choose judge: needs --judge RUN")
        if self.judge is not None:
            self.judge.check(self.languages)
        if "language" not in self.allow:
            try:
                language_id.known_languages()
            except DataError as error:
                raise DataError(f"{error}, or add `--allow language`") from error

    def job(self, folder: Path) -> Job:
        """Return the job; raise UserError or DataError if the file is unsuitable."""
        self.check()
        settings: dict[str, Any] = {
            "command": "select candidates",
            "input": scan(existing_text(self.candidates)).sha256,
            "source_language": self.languages[0],
            "target_language": self.languages[1],
            "choose": self.choice,
            "similarity": self.similarity,
            "allow": sorted(self.allow),
            "judge": self.judge and self.judge.settings["model"],
        }
        source, target = self.languages
        name = base_name(self.candidates, source).removesuffix(JSON_LINES).removesuffix(".tsv")
        name = name.removesuffix(SUFFIX)
        places = [f"{name}.{end}" for end in (source, target, "rejected.tsv", "json")]
        *files, record = (folder / place for place in places)
        extent = Extent.of((each.source for each in read_candidates(self.candidates)), 1)
        if not extent.lines:
            raise UserError(f"{self.candidates}: is empty")
        return Job(tuple(files), record, self.config, settings, extent)

    @cached_property
    def norms(self) -> Norms:
        """Norms of the first usable translations of up to 20,000 lines, spread over the file."""
        sources, translations = [], []
        for block in spread_stretches(self._blocks(), at_least=100):
            for _, source, translation in block.numbered():
                if not self._fault(source, translation):
                    sources.append(source)
                    translations.append(translation)
        return Norms.learn(sources, translations, self.judge)

    def windows(self, lines: range) -> Iterator[Window]:
        """Yield the pairs and the rejected candidates of some lines."""
        read = islice(read_candidates(self.candidates), lines.start, lines.stop)
        number = lines.start
        while window := list(islice(read, _WINDOW_LINES)):
            yield self._window(number + 1, window)
            number += len(window)

    def _blocks(self) -> Iterator[Block]:
        read = read_candidates(self.candidates)
        first = 0
        while window := list(islice(read, BLOCK_LINES)):
            targets = [next(iter(each.translations), "") for each in window]
            yield Block(first, [each.source for each in window], targets)
            first += len(window)

    def _fault(self, source: str, translation: str) -> str:
        """Return the reason to reject a candidate by its text, "" without one."""
        if "\n" in translation and "commentary" in self.allow:
            return SEVERAL_LINES  # a line of the output is one text
        if "\n" in translation:
            return "refusal" if is_refusal(source, translation) else "commentary"
        applying = (
            name
            for name, check in CHECKS.items()
            if name not in self.allow and check(source, translation, self.languages)
        )
        return next(applying, "") or ("" if translation else "empty")

    def _window(self, first: int, window: list[Candidates]) -> Window:
        """Return the output for consecutive lines, of which `first` is the number of the first."""
        lines = [self._judged(each) for each in window]
        left, right, rejected = [], [], []
        counts = Counter[str]()
        self._compare([each for line in lines for each in line if not each.fault])
        for number, (given, line) in enumerate(zip(window, lines, strict=True), first):
            kept = [each for each in line if not each.fault]
            counts[WRITTEN if kept else LEFT_OUT] += 1
            if kept:
                left.append(given.source)
                right.append(self._best(kept))
            elif not line:
                line = [_Judged(given.source, given.problem, NO_ANSWER)]
            for place, each in enumerate(line, 1):
                if each.fault:
                    counts[f"rejected: {each.fault}"] += 1
                    columns = (str(number), str(place), each.fault, each.source, each.text)
                    rejected.append("\t".join(map(printable, columns)))
        sides = (left, right, rejected)
        texts = tuple("".join(f"{text}\n" for text in side).encode() for side in sides)
        return Window(len(window), texts, counts)

    def _judged(self, given: Candidates) -> list["_Judged"]:
        """Return the candidates of a source after the filters that need no norm."""
        source = given.source
        judged = [_Judged(source, text, self._fault(source, text)) for text in given.translations]
        kept = [each for each in judged if not each.fault]
        if len(kept) >= _FEWEST_TO_AGREE and "agreement" not in self.allow:
            texts = [each.text for each in kept]
            # Without the similarity of a text to itself, which is 100.
            others = [
                utility * len(kept) - 100
                for utility in expected_utilities(texts, UTILITIES["chrf"]())
            ]
            for each, similarity in zip(kept, others, strict=True):
                if similarity < _AGREEING * max(others):
                    each.fault = "agreement"
        return judged

    def _compare(self, judged: list["_Judged"]) -> None:
        """Apply the norms to candidates."""
        if not judged:
            return
        sources, texts = [each.source for each in judged], [each.text for each in judged]
        faults, means = self.norms.faults(sources, texts, self.judge)
        for each, found in zip(judged, faults, strict=True):
            each.fault = next((name for name in found if name not in self.allow), "")
        for each, mean in zip(judged, means, strict=False):  # no means without a judge
            each.log_prob = mean

    def _best(self, kept: list["_Judged"]) -> str:
        """Return the best of several candidates; among equals the first."""
        if len(kept) == 1:
            return kept[0].text
        texts = [each.text for each in kept]
        scores = [each.log_prob for each in kept]
        if self.choice == "agreement":
            metric = SIMILARITIES[self.similarity](self.languages[1])
            scores = expected_utilities(
                texts, lambda text, other: metric.sentence_score(text, [other]).score
            )
        return texts[scores.index(max(scores))]


@dataclass
class _Judged:
    """A candidate, and the filter that rejects it."""

    source: str
    text: str
    fault: str
    log_prob: float = 0.0
