"""Collection of candidates from an endpoint, into a file that resumes after a kill.

Candidates are translations by another program, one or several for each source. A file of
candidates has the columns source, translation, further translations, separated by tabs. A file with
the suffix `.jsonl` has an object on each line:
`{"source": "...", "translations": ["...", "..."]}`.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path
from typing import Any

from mt.augment.distill import Sources, find_source_fault
from mt.augment.endpoint import Endpoint, as_text, parse_json
from mt.data.corpus_files import LineReader
from mt.decoding.shards import Extent, Job, Shard, Window
from mt.errors import DataError, UserError

JSON_LINES = ".jsonl"
SUFFIX = "-candidates"
_WINDOW_LINES = 32
_WINDOW_SECONDS = 2.0
"""Answers are written after this number of lines or seconds, so that a kill loses few of them."""


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


def read_candidates(path: Path) -> Iterator[SourceCandidates]:
    """Stream a file of candidates; raise DataError naming a line of another form."""
    parse, form = _from_columns, "a source, a tab and a translation"
    if JSON_LINES in path.suffixes:
        parse, form = _from_json, '{"source": "...", "translations": ["..."]}'
    for number, line in enumerate(LineReader(path), 1):
        try:
            yield parse(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: line {number}: must be {form}, it begins with `{line[:40]}`"
            ) from error


def _from_json(line: str) -> SourceCandidates:
    record: Any = parse_json(line)
    problem, texts = as_text(record.get("problem", "")), record["translations"]
    if not isinstance(texts, list):
        raise TypeError("not a list")
    return SourceCandidates(as_text(record["source"]), tuple(map(as_text, texts)), problem)


def _from_columns(line: str) -> SourceCandidates:
    source, tab, rest = line.partition("\t")
    if line and not tab:
        raise ValueError("no tab")
    return SourceCandidates(source.strip(), tuple(map(str.strip, rest.split("\t"))))


@dataclass(frozen=True)
class Collection:
    """Sources, and the endpoint that translates them."""

    endpoint: Endpoint
    sources: Sources
    languages: tuple[str, str]

    def plan_job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError for unsuitable settings or sources."""
        self.endpoint.check()
        settings = {
            "command": "collect candidates",
            **self.sources.read_settings(),
            "source_language": self.languages[0],
            "target_language": self.languages[1],
            **self.endpoint.settings,
        }
        name = self.sources.choose_name(self.languages[0]) + SUFFIX
        extent = Extent.of(
            (pair.source for pair in self.sources.read_pairs()), self.endpoint.window
        )
        if not extent.lines:
            raise UserError(f"{self.sources.origin}: is empty")
        files, record = (folder / f"{name}{JSON_LINES}",), folder / f"{name}.json"
        return Job(files, record, settings, extent, shard)

    def make_windows(self, lines: range) -> Iterator[Window]:
        """Yield the candidates of some sources; those before an error are yielded first."""
        rows: list[SourceCandidates] = []
        since = time.monotonic()
        try:
            for row in self._rows(lines):
                rows.append(row)
                if len(rows) == _WINDOW_LINES or time.monotonic() - since > _WINDOW_SECONDS:
                    yield _as_window(rows)
                    rows, since = [], time.monotonic()
        except (UserError, KeyboardInterrupt, SystemExit):
            if rows:
                yield _as_window(rows)
            raise
        if rows:
            yield _as_window(rows)

    def _rows(self, lines: range) -> Iterator[SourceCandidates]:
        pairs = islice(self.sources.read_pairs(), lines.start, lines.stop)
        texts, ahead = tee(pair.source for pair in pairs)
        requests = (text.strip() for text in ahead if not find_source_fault(text))
        answers = self.endpoint.answer(requests, self.languages)
        for text in texts:
            if reason := find_source_fault(text):
                shown = text.encode(errors="replace").decode()
                yield SourceCandidates(shown.strip(), problem=reason)
            else:
                answer = next(answers)
                yield SourceCandidates(text.strip(), answer.translations, answer.problem)


def _as_window(rows: list[SourceCandidates]) -> Window:
    text = "".join(f"{candidates.as_json()}\n" for candidates in rows)
    return Window(len(rows), (text.encode(),), Counter())
