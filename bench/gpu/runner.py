"""Sections of checks, run by worker processes with time limits, and their report.

A worker runs sections in order and ends after one that failed, because a failure may leave the
device unusable. The supervisor stops a worker that exceeds a limit, and starts a new one for the
remaining sections. It imports neither torch nor mt.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

Status = Literal["pass", "fail", "note"]
STARTUP_SECONDS = 120.0
"""Limit for the start of a worker: the imports of torch and mt."""
GRACE_SECONDS = 10.0
"""Time beyond its limit in which a section can end by itself."""
LEAST_SECONDS = 5.0
"""Remaining time below which no section begins."""


class Check(NamedTuple):
    """One line of the report."""

    status: Status
    what: str
    numbers: str

    def __str__(self) -> str:
        return f"{self.status}: {self.what}, {self.numbers}"


@dataclass(frozen=True)
class Settings:
    """Device of a run and the end of the current section."""

    device: str
    """`cuda`, or `cpu` with small sizes, which tries the program alone."""
    ends_at: float
    """Reading of `time.monotonic`."""

    @property
    def small(self) -> bool:
        """True for the sizes of a CPU."""
        return self.device == "cpu"

    @property
    def seconds_left(self) -> float:
        """Time until the section must end."""
        return self.ends_at - time.monotonic()


@dataclass(frozen=True)
class Section:
    """Named group of checks; `work` yields each line as soon as it is known."""

    title: str
    work: Callable[[Settings], Iterator[Check]]
    seconds: float
    """Time limit."""


class Unavailable(Exception):  # noqa: N818 - no error: the line becomes a note
    """Reason why a check does not apply to this machine."""


def attempt(what: str, work: Callable[[], str]) -> Check:
    """Return the outcome of a check; `work` returns its numbers or raises.

    The traceback goes to stderr, its last line into the report.
    """
    try:
        return Check("pass", what, work())
    except Unavailable as reason:
        return Check("note", what, str(reason))
    except Exception as error:
        traceback.print_exc()
        return Check("fail", what, last_line(error))


def observe(what: str, work: Callable[[], str]) -> Check:
    """Return a note with the numbers or the error of `work`, neither passed nor failed."""
    return attempt(what, work)._replace(status="note")


def require(condition: bool, message: str) -> None:  # noqa: FBT001 - as in an assertion
    """Raise AssertionError, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def last_line(error: BaseException) -> str:
    """Return type and message of an exception on one line of at most 300 characters."""
    lines = "".join(traceback.format_exception_only(error)).split()
    return " ".join(lines)[:300]


def run_worker(sections: Mapping[str, Section], names: Sequence[str], settings: Settings) -> None:
    """Run sections in order, up to one that fails, and write their checks to stdout as JSON.

    Everything else that is printed goes to stderr.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)

        def send(**message: Any) -> None:
            print(json.dumps(message), file=out, flush=True)

        for name in names:
            section = sections[name]
            if settings.seconds_left < LEAST_SECONDS:
                return
            ends_at = min(settings.ends_at, time.monotonic() + section.seconds)
            send(begin=name, ends_at=ends_at)
            failed = False
            try:
                for check in section.work(Settings(settings.device, ends_at)):
                    send(check=check)
                    failed |= check.status == "fail"
            except Exception as error:
                traceback.print_exc()
                send(check=Check("fail", section.title, last_line(error)))
                failed = True
            send(end=name)
            if failed:
                return


@dataclass
class Outcome:
    """Checks of a section that has begun."""

    title: str
    checks: list[Check] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Report:
    """Outcomes so far, written as Markdown after each line."""

    path: Path
    budget: float
    began_at: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Titles of the sections that have not begun."""

    @property
    def failed(self) -> bool:
        """True if a check has failed."""
        return any(check.status == "fail" for outcome in self.outcomes for check in outcome.checks)

    def add(self, check: Check) -> None:
        """Print a check of the current section and write the report."""
        print(check, flush=True)
        self.outcomes[-1].checks.append(check)
        self.write()

    def write(self) -> None:
        """Replace the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_name(f".{self.path.name}")
        unfinished.write_text(self.as_text(), encoding="utf-8")
        unfinished.replace(self.path)

    def as_text(self) -> str:
        """Return the report as Markdown, one line for each check."""
        checks = [check for outcome in self.outcomes for check in outcome.checks]
        counts = {
            name: sum(check.status == status for check in checks)
            for status, name in (("pass", "passed"), ("fail", "failed"), ("note", "notes"))
        }
        seconds = time.monotonic() - self.began_at
        lines = [
            "# Check of a GPU",
            "",
            f"{', '.join(f'{count} {name}' for name, count in counts.items())}; {seconds:.0f} of "
            f"{self.budget:.0f} s; {datetime.now(UTC).isoformat(timespec='seconds')}",
        ]
        for outcome in self.outcomes:
            lines += ["", f"## {outcome.title} ({outcome.seconds:.0f} s)", ""]
            lines += [f"- {check}" for check in outcome.checks]
        if self.waiting:
            lines += ["", "## Not run", "", *(f"- {title}" for title in self.waiting)]
        return "\n".join(lines) + "\n"


def supervise(
    sections: Mapping[str, Section], command: Sequence[str], *, seconds: float, path: Path
) -> int:
    """Run the sections in workers, write the report, and return 1 if a check failed, else 0.

    `command` starts a worker; the names of its sections and the end of the time are appended.
    """
    report, waiting = Report(path, seconds), [*sections]
    ends_at = time.monotonic() + seconds
    while waiting and ends_at - time.monotonic() > LEAST_SECONDS:
        begun = len(report.outcomes)
        words = [*command, "--worker", ",".join(waiting), "--ends-at", str(ends_at)]
        for name in _follow(words, ends_at, report, sections):
            waiting.remove(name)
            report.waiting = [sections[name].title for name in waiting]
        if len(report.outcomes) == begun:  # not even the first section has begun
            report.outcomes.append(Outcome(sections[waiting.pop(0)].title))
            report.add(Check("fail", "start of a worker", "see its messages on stderr"))
    report.waiting = [sections[name].title for name in waiting]
    report.write()
    for title in report.waiting:
        print(f"not run: {title}, the time is over")
    print(f"report: {path}")
    return int(report.failed)


def _follow(
    words: Sequence[str], ends_at: float, report: Report, sections: Mapping[str, Section]
) -> Iterator[str]:
    """Start a worker, report its checks, and yield the name of each section that begins."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_forward, args=(process.stdout, messages), daemon=True).start()
    limit, current, since = time.monotonic() + STARTUP_SECONDS, "", time.monotonic()
    try:
        while True:
            text = messages.get(timeout=max(limit - time.monotonic(), 0.01))
            if text is None:
                break
            message = json.loads(text)
            if "begin" in message:
                current, since = message["begin"], time.monotonic()
                limit = message["ends_at"] + GRACE_SECONDS
                report.outcomes.append(Outcome(sections[current].title))
                yield current
            elif "end" in message:
                current, limit = "", ends_at + GRACE_SECONDS
                report.write()
            else:
                report.outcomes[-1].seconds = time.monotonic() - since
                report.add(Check(*message["check"]))
        if current:
            report.add(Check("fail", current, f"the process ended with status {process.wait()}"))
    except queue.Empty:
        if current:
            over = time.monotonic() > ends_at
            reason = "the time is over" if over else "stopped at its time limit"
            report.add(Check("note" if over else "fail", current, reason))
    finally:
        end_process(process)


def _forward(lines: IO[str], messages: "queue.SimpleQueue[str | None]") -> None:
    for line in lines:
        messages.put(line)
    messages.put(None)


def end_process(process: "subprocess.Popen[str]") -> None:
    """Kill a process that leads a session, with its children, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def python(*words: object) -> list[str]:
    """Return a command of this interpreter."""
    return [sys.executable, *map(str, words)]
