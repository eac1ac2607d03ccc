"""Selection of training pairs from candidates: filters with a reason each, and the best of several.

Candidates are translations by another program, one or several for each source. No filter compares
meanings: a fluent translation of another source, or a refusal in the target language, passes if its
length fits. With several candidates for each source, those that agree with each other are kept.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mt.augment.distill import PAIRS, build_sentence_bleu, strip_suffixes
from mt.data.corpus_files import LineReader, scan
from mt.data.filters import (
    has_markup,
    in_other_language,
    in_wrong_script,
    known_languages,
    length_ratio,
    normalized,
    weighted_length,
)
from mt.data.verbatim import missing_verbatim
from mt.data.words import missing_numbers
from mt.decoding.retries import repeats_itself
from mt.decoding.sampling import UTILITIES, compute_expected_utilities
from mt.decoding.shards import Job, Window
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.files import require_regular_file
from mt.tables import make_printable

Check = Callable[[str, str, tuple[str, str]], bool]

JSON_LINES = ".jsonl"
SUFFIX = "-candidates"
"""End of the name of a file of candidates, before its suffix."""
LEFT_OUT = "lines without a translation left"
SEVERAL_LINES, NO_ANSWER = "several lines", "no translation"
_WINDOW_LINES = 2048
_COPY_LENGTH = 16
"""Letters of a text that is no name and therefore no translation of itself."""
_MOST_LENGTH_RATIO = 2.0
"""Of the pairs of six corpora of modern languages, at most 0.7 % have a larger ratio."""
_AGREEING = 0.5
"""Share of the best mean similarity to the other candidates that a candidate must reach."""
_FEWEST_TO_AGREE = 3
_QUOTED = re.compile(r"[\"'“”„«»‘’‚‹›「『《].*[\"'“”„«»‘’‚‹›」』》][.!?。]?", re.DOTALL)
_QUOTE_AT_END = re.compile(r"^\s*[\"'“”„«»‘’‚‹›「『《`–—-]|[\"'“”„«»‘’‚‹›」』》`][.!?。]?\s*$")
_MARKDOWN = ("```", "**")
_COLON = re.compile(r"[:：](?!\d)")
_DIVIDING = re.compile(r"[:：;；\"“”„«»‘‹›「『《—–]|\s-\s|(?<!\w)'")
"""Marks of a source that a translation may replace by a colon."""


@dataclass(frozen=True, slots=True)
class SourceCandidates:
    """A source and its candidate translations, best first if the order has a meaning."""

    source: str
    translations: tuple[str, ...] = ()
    problem: str = ""
    """Reason for having no translation."""

    def as_json(self) -> str:
        """Return one line of JSON."""
        record = {"source": self.source, "translations": self.translations}
        problem = {"problem": self.problem} if self.problem else {}
        return json.dumps({**record, **problem}, ensure_ascii=False)


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value; raise ValueError for invalid JSON and for deeply nested values."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def as_text(value: object) -> str:
    """Return a JSON text, stripped, without lone surrogates; raise TypeError for another value."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def read_candidates(path: Path) -> Iterator[SourceCandidates]:
    """Stream a file of candidates; raise DataError naming a line of another form.

    The columns are source, translation and further translations, separated by tabs. A file with
    the suffix `.jsonl` has an object on each line:
    `{"source": "...", "translations": ["...", "..."]}`.
    """
    is_json = JSON_LINES in path.suffixes
    form = "a source, a tab and a translation"
    if is_json:
        form = '{"source": "...", "translations": ["..."]}'
    for number, line in enumerate(LineReader(path), 1):
        try:
            if is_json:
                record = parse_json(line)
                source, texts = as_text(record["source"]), record["translations"]
                if not isinstance(texts, list):
                    raise TypeError("not a list")
                problem = as_text(record.get("problem", ""))
                yield SourceCandidates(source, tuple(map(as_text, texts)), problem)
            else:
                source, tab, rest = line.partition("\t")
                if line and not tab:
                    raise ValueError("no tab")
                yield SourceCandidates(source.strip(), tuple(map(str.strip, rest.split("\t"))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: line {number}: must be {form}, it begins with `{line[:40]}`"
            ) from error


def has_commentary(source: str, translation: str) -> bool:
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


def is_copy(source: str, translation: str) -> bool:
    """Return True for a translation equal to its source, unless it may be a name or a number."""
    if weighted_length(source) < _COPY_LENGTH or not any(map(str.isalpha, source)):
        return False
    return normalized(source) == normalized(translation)


CHECKS: dict[str, Check] = {
    "empty": lambda _source, text, _languages: not text,
    "commentary": lambda source, text, _languages: has_commentary(source, text),
    "copy": lambda source, text, _languages: is_copy(source, text),
    "script": lambda _source, text, languages: in_wrong_script(text, languages[1]),
    "language": lambda _source, text, languages: in_other_language(text, languages[1]),
    "repetition": lambda source, text, _: repeats_itself([*map(ord, text)], [*map(ord, source)]),
    "numbers": lambda source, text, _: bool(
        missing_verbatim(source, text) + missing_numbers(source, text)
    ),
    "length": lambda source, text, _: length_ratio(source, text) > _MOST_LENGTH_RATIO,
}
"""Filters of one candidate by name, in order of application; True rejects."""
REASONS = (*CHECKS, "agreement")
"""Names of all filters, for `--allow`."""


@dataclass(frozen=True)
class Selection:
    """File of candidates, and the rules by which pairs are selected from it."""

    candidates: Path
    languages: tuple[str, str]
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
            "input": scan(require_regular_file(self.candidates)).sha256,
            "source_language": self.languages[0],
            "target_language": self.languages[1],
            "allow": sorted(self.allow),
        }
        total = sum(1 for _ in read_candidates(self.candidates))
        if not total:
            raise UserError(f"{self.candidates}: is empty")
        return Job(tuple(self.list_files(folder)), settings, total, _WINDOW_LINES)

    def list_files(self, folder: Path) -> list[Path]:
        """Return the paths of the output, the record last."""
        source, target = self.languages
        name = strip_suffixes(self.candidates, source).removesuffix(JSON_LINES)
        name = name.removesuffix(".tsv").removesuffix(SUFFIX)
        return [folder / f"{name}.{end}" for end in (source, target, "rejected.tsv", "json")]

    def make_windows(self, lines: range) -> Iterator[Window]:
        """Yield the pairs and the rejected candidates of some lines."""
        rows = islice(read_candidates(self.candidates), lines.start, lines.stop)
        numbered = enumerate(rows, lines.start + 1)
        while window := list(islice(numbered, _WINDOW_LINES)):
            left, right, rejected = [], [], []
            counts = Counter[str]()
            for number, row in window:
                texts, faults = row.translations, self.find_faults(row)
                usable = [text for text, fault in zip(texts, faults, strict=True) if not fault]
                counts[PAIRS if usable else LEFT_OUT] += 1
                if usable:
                    left.append(row.source)
                    right.append(self.choose(usable))
                elif not texts:
                    texts, faults = (row.problem,), [NO_ANSWER]
                for position, (text, fault) in enumerate(zip(texts, faults, strict=True), 1):
                    if fault:
                        counts[f"rejected: {fault}"] += 1
                        columns = (str(number), str(position), fault, row.source, text)
                        rejected.append("\t".join(map(make_printable, columns)))
            sides = (left, right, rejected)
            output = tuple("".join(f"{text}\n" for text in side).encode() for side in sides)
            yield Window(len(window), output, counts)

    def find_faults(self, row: SourceCandidates) -> list[str]:
        """Return the filter that rejects each candidate, "" for a usable one."""
        checks = {name: check for name, check in CHECKS.items() if name not in self.allow}
        faults, usable = [], []
        for index, text in enumerate(row.translations):
            fault = "" if text else "empty"
            # A line of the output is one text.
            if "\n" in row.source or ("\n" in text and "commentary" not in checks):
                fault = SEVERAL_LINES
            for name, check in checks.items():
                fault = fault or (name if check(row.source, text, self.languages) else "")
            faults.append(fault)
            if not fault:
                usable.append(index)
        if len(usable) >= _FEWEST_TO_AGREE and "agreement" not in self.allow:
            texts = [row.translations[index] for index in usable]
            utilities = compute_expected_utilities(texts, UTILITIES["chrf"]())
            # Without the similarity of a text to itself, which is 100.
            similarities = [utility * len(usable) - 100 for utility in utilities]
            for index, similarity in zip(usable, similarities, strict=True):
                if similarity < _AGREEING * max(similarities):
                    faults[index] = "agreement"
        return faults

    def choose(self, texts: list[str]) -> str:
        """Return the text most similar to the others; among equals the first."""
        if len(texts) == 1:
            return texts[0]
        metric = build_sentence_bleu(self.languages[1])
        scores = compute_expected_utilities(
            texts, lambda text, other: metric.sentence_score(text, [other]).score
        )
        return texts[scores.index(max(scores))]
