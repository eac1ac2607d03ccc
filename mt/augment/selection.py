"""Selection of training pairs from candidates: filters with a reason each, and the best of n.

Filters of one candidate look at its text and its source. The other filters compare candidates with
each other, with a sample of the file, and with the scores of a run.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import inf, isnan
from pathlib import Path
from typing import Any, Literal

from mt.augment.candidates import JSON_LINES, Candidates, read_candidates
from mt.augment.collection import SUFFIX
from mt.augment.commentary import is_commentary, is_refusal
from mt.augment.distill import SIMILARITIES, Similarity
from mt.augment.judge import Judge
from mt.augment.norms import FAULTS, Norms
from mt.augment.teacher import base_name, existing_text
from mt.data.corpus_files import scan
from mt.data.filters import (
    in_other_language,
    in_wrong_script,
    known_languages,
    normalized,
    weighted_length,
)
from mt.data.verbatim import missing_verbatim
from mt.decoding.retries import repeats_itself
from mt.decoding.sampling import UTILITIES, compute_expected_utilities
from mt.decoding.shards import Extent, Job, Window
from mt.doctor.misalignment import spread_stretches
from mt.doctor.tally import BLOCK_LINES, LineBlock
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.tables import printable

_logger = logging.getLogger(__name__)
Choice = Literal["agreement", "judge"]
Check = Callable[[str, str, tuple[str, str]], bool]

WRITTEN, LEFT_OUT = "pairs written", "lines without a translation left"
SEVERAL_LINES, NO_ANSWER = "several lines", "no translation"
_WINDOW_LINES = 2048
_COPY_LENGTH = 16
"""Letters of a text that is no name and therefore no translation of itself."""
_AGREEING = 0.5
"""Share of the best mean similarity to the other candidates that a candidate must reach."""
_FEWEST_TO_AGREE = 3


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
    "language": lambda _source, text, languages: in_other_language(text, languages[1]),
    "repetition": _repeats,
    "numbers": lambda source, text, _languages: bool(missing_verbatim(source, text)),
}
"""Filters of one candidate by name, in order of application; True rejects."""
REASONS = (*CHECKS, "agreement", *FAULTS)
"""Names of all filters, for `--allow`."""


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
                known_languages()
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
        *files, record = self.files(folder)
        extent = Extent.of(
            (each.source for each in read_candidates(self.candidates)), _WINDOW_LINES
        )
        if not extent.lines:
            raise UserError(f"{self.candidates}: is empty")
        return Job(tuple(files), record, settings, extent)

    def files(self, folder: Path) -> list[Path]:
        """Return the paths of the output, the record last."""
        source, target = self.languages
        name = base_name(self.candidates, source).removesuffix(JSON_LINES).removesuffix(".tsv")
        name = name.removesuffix(SUFFIX)
        return [folder / f"{name}.{end}" for end in (source, target, "rejected.tsv", "json")]

    @cached_property
    def norms(self) -> Norms:
        """Norms of the first usable translations of up to 20,000 lines, spread over the file."""
        sources, translations = [], []
        for block in spread_stretches(self._blocks(), at_least=100):
            for _, source, translation in block.numbered():
                if not self._fault(source, translation):
                    sources.append(source)
                    translations.append(translation)
        norms = Norms.learn(sources, translations, self.judge)
        if norms.similarity is None and norms.log_prob is None:
            _logger.warning(
                "warning: %d translations are too few for a lexicon, so translations of another "
                "source are not found; a --judge finds them",
                len(sources),
            )
        return norms

    def windows(self, lines: range) -> Iterator[Window]:
        """Yield the pairs and the rejected candidates of some lines."""
        read = islice(read_candidates(self.candidates), lines.start, lines.stop)
        number = lines.start
        while window := list(islice(read, _WINDOW_LINES)):
            yield self._window(number + 1, window)
            number += len(window)

    def _blocks(self) -> Iterator[LineBlock]:
        read = read_candidates(self.candidates)
        first = 0
        while window := list(islice(read, BLOCK_LINES)):
            targets = [next(iter(each.translations), "") for each in window]
            yield LineBlock(first, [each.source for each in window], targets)
            first += len(window)

    def _fault(self, source: str, translation: str) -> str:
        """Return the reason to reject a candidate by its text, "" without one."""
        allowed = "\n" in translation and "commentary" in self.allow
        if allowed or "\n" in source:
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
                for utility in compute_expected_utilities(texts, UTILITIES["chrf"]())
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
            if not isnan(mean):
                each.log_prob = mean

    def _best(self, kept: list["_Judged"]) -> str:
        """Return the best of several candidates; among equals the first."""
        if len(kept) == 1:
            return kept[0].text
        texts = [each.text for each in kept]
        scores = [each.log_prob for each in kept]
        if self.choice == "agreement":
            metric = SIMILARITIES[self.similarity](self.languages[1])
            scores = compute_expected_utilities(
                texts, lambda text, other: metric.sentence_score(text, [other]).score
            )
        return texts[scores.index(max(scores))]


@dataclass
class _Judged:
    """A candidate, and the filter that rejects it."""

    source: str
    text: str
    fault: str
    log_prob: float = -inf
    """Mean log-probability of a token under the judge, if it is known."""
