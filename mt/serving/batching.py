"""Many requests, one translator: lines wait in a queue, one thread translates them in batches."""

import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from mt.decoding.engine import ExplainingEngine
from mt.decoding.translator import Part, Translation, Translator
from mt.serving.metrics import Metrics


@dataclass(frozen=True, slots=True)
class PartAttention:
    """The attention of a line, or of a part of a line that was split."""

    source: list[str]
    """The source tokens, the end mark last."""
    target: list[str]
    """The target tokens, without end mark."""
    weights: NDArray[np.float32]
    """How much each target token looks at each source token [T S], from 0 to 1."""


def attention_of(
    translations: Sequence[Translation], translator: Translator
) -> Iterator[tuple[PartAttention, ...] | None]:
    """Yield the attention of each part of each translation, None where the engine cannot tell.

    A part whose translation is empty is left out.
    """
    best = [
        [part for part in each.alternatives[0].parts if part.hypothesis.ids]
        for each in translations
    ]
    engine = translator.engine
    if not isinstance(engine, ExplainingEngine):
        yield from (None for _ in best)
        return
    parts = [part for of_line in best for part in of_line]
    sources, hypotheses = [part.source for part in parts], [part.hypothesis for part in parts]
    details = iter(engine.explain(sources, hypotheses))
    for of_line in best:
        pairs = zip(of_line, islice(details, len(of_line)), strict=True)
        found = [_named(part, detail.attention, translator) for part, detail in pairs]
        known = tuple(part for part in found if part is not None)
        yield known if len(known) == len(found) else None


def _named(
    part: Part, weights: NDArray[np.float32] | None, translator: Translator
) -> PartAttention | None:
    """Return the weights with the names of their tokens."""
    if weights is None:
        return None
    tokenizer = translator.tokenizer
    return PartAttention(
        tokenizer.source.processor.id_to_piece(list(part.source)),
        tokenizer.target.processor.id_to_piece(list(part.hypothesis.ids)),
        weights,
    )


MORE_SECONDS = 0.003
"""How long a batch that is not full waits for lines of other requests."""
_logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """More lines wait than may; whoever asks can try again later."""


class StoppedError(Exception):
    """The server is being stopped and translates no more."""


class FailedError(Exception):
    """The engine could not translate this; the log says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants of each line."""

    n_best: int = 1
    attention: bool = False


_PLAIN = Wanted()


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one line."""

    translation: Translation
    attention: tuple[PartAttention, ...] | None = None
    """Of the parts of the best translation; None where nobody asked or the engine cannot tell."""


@dataclass(slots=True, eq=False)
class _Job:
    """The lines of one request; `answers` holds those of the first of them."""

    lines: Sequence[str]
    wanted: Wanted
    future: Future[list[Answer]] = field(default_factory=Future)
    answers: list[Answer] = field(default_factory=list)
    taken: int = 0

    @property
    def left(self) -> int:
        return len(self.lines) - self.taken


_Part = tuple[_Job, Sequence[str]]
"""Lines of a job that are in a batch."""


class Batcher:
    """Translates the lines of all requests, `decoding.batch_size` at once.

    Requests take turns: one that has more lines than fit into a batch goes to the end of the queue
    with the rest, so a short one waits for one batch of each that came before, however long they
    are. Lines in a batch are alike in how many translations are wanted of them: a search may find
    others where it looks for more, and no request shall see what others ask for. The translator is
    called from one thread alone, that between `start` and `stop`. Whoever cancels a future takes
    the lines that wait for it out of the queue.
    """

    def __init__(self, translator: Translator, metrics: Metrics, *, most_waiting: int) -> None:
        self.translator = translator
        self.metrics = metrics
        self.most_waiting = most_waiting
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        # A daemon: a second Ctrl-C does not wait for the batch at hand.
        self._thread = threading.Thread(target=self._work, name="translator", daemon=True)

    @property
    def waiting(self) -> int:
        """Lines in the queue, those in the batch at hand not counted."""
        with self._changed:
            return sum(job.left for job in self._jobs)

    @property
    def working(self) -> bool:
        """Whether lines that are submitted will be translated."""
        return self._thread.is_alive() and not self._stopped

    def start(self) -> None:
        """Begin to translate."""
        self._thread.start()

    def stop(self) -> None:
        """Refuse what waits with StoppedError; the batch at hand is still answered."""
        with self._changed:
            self._stopped = True
            refused = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in refused:
            _fail(job, StoppedError())

    def join(self) -> None:
        """Wait for the batch at hand, after `stop`."""
        self._thread.join()

    def submit(self, lines: Sequence[str], wanted: Wanted = _PLAIN) -> Future[list[Answer]]:
        """Return a future of what became of the lines, in order.

        It may hold StoppedError or FailedError. Raises QueueFullError where too many lines wait,
        StoppedError after `stop`.
        """
        job = _Job(lines, wanted)
        if not lines:
            job.future.set_result([])
            return job.future
        job.future.add_done_callback(lambda _: self._forget(job))
        with self._changed:
            if self._stopped:
                raise StoppedError
            if sum(each.left for each in self._jobs) + len(lines) > self.most_waiting:
                raise QueueFullError
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    def _forget(self, job: _Job) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)

    def _work(self) -> None:
        while not self._stopped:
            if batch := self._next_batch():
                self._translate(batch)

    def _next_batch(self) -> list[_Part]:
        """Wait for lines and take them; none are there where a request was cancelled meanwhile."""
        size = self.translator.decoding.sentences_at_once
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopped)
            self._changed.wait_for(
                lambda: sum(job.left for job in self._jobs) >= size or self._stopped,
                timeout=MORE_SECONDS,
            )
            return self._take(size)

    def _take(self, size: int) -> list[_Part]:
        """Take up to `size` lines; a job that has more has had its turn and goes to the end."""
        alike = [job for job in self._jobs if job.wanted.n_best == self._jobs[0].wanted.n_best]
        batch: list[_Part] = []
        for job in alike:
            lines = job.lines[job.taken : job.taken + size]
            if not lines:
                break
            batch.append((job, lines))
            job.taken += len(lines)
            size -= len(lines)
            self._jobs.remove(job)
            if job.left:
                self._jobs.append(job)
        return batch

    def _translate(self, batch: list[_Part]) -> None:
        lines = [line for _, part in batch for line in part]
        try:
            found = list(self.translator.stream(lines, n_best=batch[0][0].wanted.n_best))
        except Exception as error:
            if len(batch) > 1:  # one that fails takes no other with it
                for alone in batch:
                    self._translate([alone])
                return
            _logger.exception("a request could not be translated")
            _fail(batch[0][0], FailedError(str(error)))
            return
        self.metrics.note_batch(self.translator.tokenizer, found)
        translations = iter(found)
        parts = [(job, [*itertools.islice(translations, len(part))]) for job, part in batch]
        # Nobody waits for attention that another has asked for.
        for job, part in sorted(parts, key=lambda part: part[0].wanted.attention):
            self._answer(job, part)

    def _answer(self, job: _Job, translations: Sequence[Translation]) -> None:
        """Add to a job's answers; the last ones are given to whoever waits for them."""
        try:
            told = attention_of(translations, self.translator)
            attention = told if job.wanted.attention else itertools.repeat(None)
            job.answers += map(Answer, translations, attention)
        except Exception as error:
            _logger.exception("the attention of a request could not be told")
            _fail(job, FailedError(str(error)))
        if len(job.answers) == len(job.lines) and _claim(job):
            job.future.set_result(job.answers)


def _fail(job: _Job, error: Exception) -> None:
    if _claim(job):
        job.future.set_exception(error)


def _claim(job: _Job) -> bool:
    """Return whether the future can still be answered; from then on nobody can cancel it."""
    return not job.future.done() and job.future.set_running_or_notify_cancel()
