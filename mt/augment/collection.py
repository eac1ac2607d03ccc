"""Collection of candidates from a program or endpoint, into a file that resumes after a kill."""

import hashlib
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

from mt.augment.candidates import JSON_LINES, Answer, Candidates, as_text, parse_translations
from mt.augment.sources import Sources
from mt.augment.teacher import why_not_translated
from mt.decoding.shards import Extent, Job, Shard, Window
from mt.errors import UserError

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
