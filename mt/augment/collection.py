"""Collection of candidates from a program or endpoint, into a file that resumes after a kill."""

import hashlib
import json
import re
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, tee
from operator import mul
from pathlib import Path
from typing import Any, ClassVar, Protocol

from mt.augment.teacher import Sources, why_not_translated
from mt.data.corpus_files import LineReader
from mt.decoding.shards import Extent, Job, Shard, Window
from mt.errors import DataError, UserError

JSON_LINES = ".jsonl"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of another program to one source."""

    translations: tuple[str, ...] = ()
    problem: str = ""
    """Reason for having no translation."""
    sent: int = 0
    """Tokens of the request, if the program counts them."""
    received: int = 0
    """Tokens of the answer."""


@dataclass(frozen=True, slots=True)
class Candidates:
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


def read_candidates(path: Path) -> Iterator[Candidates]:
    """Stream a file of candidates; raise DataError naming a line of another form."""
    parse = _from_json if JSON_LINES in path.suffixes else _from_columns
    for number, line in enumerate(LineReader(path), 1):
        try:
            yield parse(line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: line {number}: must be {_FORMS[parse]}, it begins with `{line[:40]}`"
            ) from error


def parse_translations(line: str) -> tuple[str, ...]:
    """Return the translations in a JSON array; raise ValueError for anything else."""
    return _texts(parse_json(line))


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value; raise ValueError for invalid JSON and for deeply nested values."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def as_text(value: object) -> str:
    """Return a text of JSON without white space around it; lone surrogates become U+FFFD.

    Raises TypeError unless the value is a text.
    """
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise ValueError("not a list of texts")
    return tuple(map(as_text, values))


def _from_json(line: str) -> Candidates:
    record = parse_json(line)
    problem = as_text(record.get("problem", ""))
    return Candidates(as_text(record["source"]), _texts(record["translations"]), problem)


def _from_columns(line: str) -> Candidates:
    source, tab, rest = line.partition("\t")
    if line and not tab:
        raise ValueError("no tab")
    return Candidates(source.strip(), tuple(map(str.strip, rest.split("\t"))))


_FORMS = {
    _from_json: '{"source": "...", "translations": ["..."]}',
    _from_columns: "a source, a tab and a translation",
}


SUFFIX = "-candidates"
SENT, RECEIVED = "tokens sent", "tokens received"
PART_LINES = 1000
"""Lines for each start of a program."""
_WINDOW_LINES = 32
_WINDOW_SECONDS = 2.0
"""Answers are written after this number of lines or seconds, so that a kill loses few of them."""


class AnswerSource(Protocol):
    """Program or endpoint that translates."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the answers."""

    @property
    def window(self) -> int:
        """Unit of lines in which shards divide the sources."""

    def check(self) -> None:
        """Raise UserError for an unsuitable setting."""

    def answers(self, sources: Iterable[str], languages: tuple[str, str]) -> Iterator[Answer]:
        """Yield the answer for each source, in order; raise UserError naming the cause."""


@dataclass(frozen=True)
class Command:
    """Program that reads sources, one per line, and writes as many translations.

    With `n_best` above 1, it writes a JSON array of translations on each line. The shell starts it
    anew for each 1,000 lines, because only its end shows that no line was added or lost.
    """

    command: str
    n_best: int = 1
    window: ClassVar[int] = 16

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the answers; the command may hold a key, so only its hash."""
        digest = hashlib.sha256(self.command.encode(errors="surrogateescape")).hexdigest()
        return {"teacher": "command", "teacher_command_sha256": digest, "n_best": self.n_best}

    def check(self) -> None:
        """Raise UserError if there is no command."""
        if not self.command.strip():
            raise UserError("--teacher-command: is empty; name a program")

    def answers(self, sources: Iterable[str], languages: tuple[str, str]) -> Iterator[Answer]:
        """Yield the answer for each source, in order.

        Raises UserError if the program fails or writes another number of lines.
        """
        del languages  # the program has them
        sources = iter(sources)
        while part := list(islice(sources, PART_LINES)):
            lines = self._run(part)
            for number, (source, line) in enumerate(zip(part, lines, strict=True), 1):
                yield self._answer(line, f"line {number} of its output, for `{source[:40]}`,")

    def _run(self, sources: list[str]) -> list[bytes]:
        text = "".join(f"{source}\n" for source in sources).encode()
        done = subprocess.run(self.command, shell=True, input=text, stdout=subprocess.PIPE)
        if done.returncode:
            raise self._error(f"ended with status {done.returncode}")
        lines = done.stdout.removesuffix(b"\n").split(b"\n") if done.stdout else []
        if len(lines) != len(sources):
            raise self._error(
                f"wrote {len(lines):,} lines for {len(sources):,}; line N of its output must "
                "answer line N of its input"
            )
        return lines

    def _answer(self, line: bytes, name: str) -> Answer:
        try:
            text = line.decode()
            return Answer(parse_translations(text) if self.n_best > 1 else (as_text(text),))
        except UnicodeDecodeError:
            raise self._error(f"{name} is not UTF-8") from None
        except ValueError:
            wanted = 'JSON array of translations, such as ["one", "two"]'
            raise self._error(f"{name} is no {wanted}") from None

    def _error(self, problem: str) -> UserError:
        program = f" `{self._program}`" if self._program else ""
        return UserError(
            f"--teacher-command{program}: {problem}; what was answered is kept, the same command "
            "continues"
        )

    @property
    def _program(self) -> str:
        """Name of the program for messages: the first word that sets no variable, "" if unclear."""
        try:
            words = shlex.split(self.command)
        except ValueError:
            return ""
        return next((word for word in words if not re.match(r"\w+=", word)), "")


@dataclass(frozen=True)
class Collection:
    """Sources, and the program or endpoint that translates them."""

    teacher: AnswerSource
    sources: Sources
    config: Path
    languages: tuple[str, str]
    prices: tuple[float, float] | None = None
    """Prices of a million tokens sent and received."""

    def job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError for unsuitable settings or sources."""
        self.teacher.check()
        settings = {
            "command": "collect candidates",
            **self.sources.settings(),
            "source_language": self.languages[0],
            "target_language": self.languages[1],
            **self.teacher.settings,
        }
        name = self.sources.name(self.languages[0]) + SUFFIX
        extent = Extent.of((pair.source for pair in self.sources.pairs()), self.teacher.window)
        if not extent.lines:
            raise UserError(f"{self.sources.origin}: is empty")
        files, record = (folder / f"{name}{JSON_LINES}",), folder / f"{name}.json"
        return Job(files, record, settings, extent, shard, self.spent)

    def spent(self, counts: Mapping[str, float]) -> str:
        """Return the numbers of tokens and their cost, "" if the teacher counts none."""
        numbers = [int(counts.get(name, 0)) for name in (SENT, RECEIVED)]
        if not any(numbers):
            return ""
        text = f"{numbers[0]:,} {SENT}, {numbers[1]:,} {RECEIVED.removeprefix('tokens ')}"
        if self.prices is None:
            return text
        cost = sum(map(mul, numbers, self.prices)) / 1_000_000
        return f"{text}, cost {cost:,.4f}"

    def windows(self, lines: range) -> Iterator[Window]:
        """Yield the candidates of some sources; those before an error are yielded first."""
        rows: list[tuple[Candidates, Answer]] = []
        since = time.monotonic()
        try:
            for row in self._rows(lines):
                rows.append(row)
                if len(rows) == _WINDOW_LINES or time.monotonic() - since > _WINDOW_SECONDS:
                    yield _window(rows)
                    rows, since = [], time.monotonic()
        except (UserError, KeyboardInterrupt):
            if rows:
                yield _window(rows)
            raise
        if rows:
            yield _window(rows)

    def _rows(self, lines: range) -> Iterator[tuple[Candidates, Answer]]:
        pairs = islice(self.sources.pairs(), lines.start, lines.stop)
        texts, ahead = tee(pair.source for pair in pairs)
        asked = (text.strip() for text in ahead if not why_not_translated(text))
        answers = self.teacher.answers(asked, self.languages)
        for text in texts:
            if reason := why_not_translated(text):
                shown = text.encode(errors="replace").decode()
                yield Candidates(shown.strip(), problem=reason), Answer()
            else:
                answer = next(answers)
                yield Candidates(text.strip(), answer.translations, answer.problem), answer


def _window(rows: list[tuple[Candidates, Answer]]) -> Window:
    text = "".join(f"{candidates.as_json()}\n" for candidates, _ in rows)
    counts = Counter[str]()
    for _, answer in rows:
        counts[SENT] += answer.sent
        counts[RECEIVED] += answer.received
    return Window(len(rows), (text.encode(),), +counts)
