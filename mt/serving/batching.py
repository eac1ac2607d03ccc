"""Batching of concurrent requests: lines wait in a queue, one thread translates them in batches."""

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

from mt.decoding.alignment import Link
from mt.decoding.engine import ExplainingEngine
from mt.decoding.translator import Translation, Translator
from mt.documents.segments import TranslatedLine
from mt.serving.requests import Metrics

MORE_SECONDS = 0.003
"""Time that an incomplete batch waits for lines of other requests."""
_logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """Too many lines in the queue; a later request may succeed."""


class StoppedError(Exception):
    """The server is being stopped."""


class FailedError(Exception):
    """The engine failed on this request; the traceback is in the log."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of a request for each of its lines."""

    n_best: int = 1
    attention: bool = False
    links: bool = False
    """Find the aligned words, for the places of tags."""

    @property
    def explains(self) -> bool:
        """True if the answer needs one more pass of the model."""
        return self.attention or self.links


@dataclass(frozen=True, slots=True)
class PartAttention:
    """Attention of a line, or of a part of a split line."""

    source: list[str]
    """Source tokens, EOS last."""
    target: list[str]
    """Target tokens without EOS."""
    weights: NDArray[np.float32]
    """Attention of each target token to each source token [T S], from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result for one line."""

    translation: Translation
    attention: tuple[PartAttention, ...] | None = None
    """Attention of the best translation's parts; None if not requested or not available."""
    links: tuple[Link, ...] | None = None
    """Links of the best translation; None if not requested or not available."""

    @property
    def text(self) -> TranslatedLine:
        """Return the best translation with its links."""
        return TranslatedLine(self.translation.text, self.links or ())


@dataclass(slots=True, eq=False)
class _Job:
    """Lines of one request and the answers to the first of them."""

    lines: Sequence[str]
    wanted: Wanted
    future: Future[list[Answer]] = field(default_factory=Future)
    answers: list[Answer] = field(default_factory=list)
    taken: int = 0

    @property
    def left(self) -> int:
        return len(self.lines) - self.taken


_Share = tuple[_Job, Sequence[str]]
"""Lines of one job within a batch."""


class Batcher:
    """Translate the lines of all requests in batches of `decoding.batch_size`.

    Requests take turns. A request with more lines than fit into a batch returns to the end of the
    queue with the rest, so a short request waits for at most one batch of each earlier request. All
    lines of a batch have the same `n_best`: a search for more hypotheses may find others, and an
    answer must not depend on other requests. Only one thread calls the translator, from `start` to
    `stop`. Cancelling a future removes its waiting lines from the queue.
    """

    def __init__(self, translator: Translator, metrics: Metrics, *, most_waiting: int) -> None:
        self.translator = translator
        self.metrics = metrics
        self.most_waiting = most_waiting
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        # A daemon, so that a second Ctrl-C does not wait for the current batch.
        self._thread = threading.Thread(target=self._work, name="translator", daemon=True)

    @property
    def waiting(self) -> int:
        """Number of lines in the queue, without the current batch."""
        with self._changed:
            return sum(job.left for job in self._jobs)

    @property
    def working(self) -> bool:
        """True between `start` and `stop`."""
        return self._thread.is_alive() and not self._stopped

    def start(self) -> None:
        """Start translating."""
        self._thread.start()

    def stop(self) -> None:
        """Refuse all waiting requests with StoppedError; the current batch is still answered."""
        with self._changed:
            self._stopped = True
            refused = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in refused:
            _fail(job, StoppedError())

    def join(self) -> None:
        """Wait for the current batch, after `stop`."""
        self._thread.join()

    def submit(
        self, lines: Sequence[str], wanted: Wanted = Wanted(), *, is_begun: bool = False
    ) -> Future[list[Answer]]:
        """Return a future of the answers to the lines, in order.

        The future may hold StoppedError or FailedError. Raises QueueFullError if too many lines
        wait and no earlier lines of the request were answered (`is_begun`), StoppedError after
        `stop`.
        """
        job = _Job(lines, wanted)
        if not lines:
            job.future.set_result([])
            return job.future
        job.future.add_done_callback(lambda _: self._remove(job))
        with self._changed:
            if self._stopped:
                raise StoppedError
            waiting = sum(each.left for each in self._jobs)
            if not is_begun and waiting + len(lines) > self.most_waiting:
                raise QueueFullError
            self._jobs.append(job)
            self._changed.notify_all()
        return job.future

    def _remove(self, job: _Job) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)

    def _work(self) -> None:
        while not self._stopped:
            if batch := self._next_batch():
                self._translate(batch)

    def _next_batch(self) -> list[_Share]:
        """Wait for lines and take a batch; it is empty if a request was cancelled meanwhile."""
        size = self.translator.decoding.sentences_at_once
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopped)
            self._changed.wait_for(
                lambda: sum(job.left for job in self._jobs) >= size or self._stopped,
                timeout=MORE_SECONDS,
            )
            return self._take(size)

    def _take(self, size: int) -> list[_Share]:
        """Take up to `size` lines; jobs with more lines move to the end of the queue."""
        alike = [job for job in self._jobs if job.wanted.n_best == self._jobs[0].wanted.n_best]
        batch: list[_Share] = []
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

    def _translate(self, batch: list[_Share]) -> None:
        lines = [line for _, share in batch for line in share]
        try:
            found = list(self.translator.stream(lines, n_best=batch[0][0].wanted.n_best))
        except Exception as error:
            if len(batch) > 1:  # a failing request must not fail the others
                for alone in batch:
                    self._translate([alone])
                return
            _logger.exception("a request could not be translated")
            _fail(batch[0][0], FailedError(str(error)))
            return
        self.metrics.count_batch(self.translator.tokenizer, found)
        translations = iter(found)
        shares = [(job, [*islice(translations, len(share))]) for job, share in batch]
        # Requests without attention or links do not wait for those of others.
        for job, share in sorted(shares, key=lambda each: each[0].wanted.explains):
            self._answer(job, share)

    def _answer(self, job: _Job, translations: Sequence[Translation]) -> None:
        """Add answers to a job, and resolve its future once all lines are answered."""
        try:
            explained = attention_of(translations, self.translator)
            attention = explained if job.wanted.attention else itertools.repeat(None)
            found = self.translator.find_links(translations) if job.wanted.links else ()
            job.answers += map(Answer, translations, attention, found or itertools.repeat(None))
        except Exception as error:
            _logger.exception("the attention of a request could not be computed")
            _fail(job, FailedError(str(error)))
        if len(job.answers) == len(job.lines) and _claim(job):
            job.future.set_result(job.answers)


def _fail(job: _Job, error: Exception) -> None:
    if _claim(job):
        job.future.set_exception(error)


def _claim(job: _Job) -> bool:
    """Return True if the future can still be resolved; it can then no longer be cancelled."""
    return not job.future.done() and job.future.set_running_or_notify_cancel()


def attention_of(
    translations: Sequence[Translation], translator: Translator
) -> Iterator[tuple[PartAttention, ...] | None]:
    """Yield the attention of each translation's non-empty parts, None if not available."""
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
    tokenizer = translator.tokenizer
    for of_line in best:
        pairs = zip(of_line, islice(details, len(of_line)), strict=True)
        found = [
            PartAttention(
                tokenizer.source.processor.id_to_piece(list(part.source)),
                tokenizer.target.processor.id_to_piece(list(part.hypothesis.ids)),
                detail.attention,
            )
            for part, detail in pairs
            if detail.attention is not None
        ]
        yield tuple(found) if len(found) == len(of_line) else None
