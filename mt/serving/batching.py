"""Batching of concurrent requests: lines wait in a queue, one thread translates them in batches."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal
from weakref import WeakSet

from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mt.data.glossary import Glossary
from mt.decoding.translator import Translation, Translator

MORE_SECONDS = 0.003
"""Time that an incomplete batch waits for lines of other requests."""
TRIAL = "a"
"""Line that shows if an engine works; one without words is not translated."""
STOPPED = 503, "the server is being stopped"
FAILED = 500, "the request could not be translated; see the server's log"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LineOptions:
    """Model of a request, and its options for each of its lines."""

    translator: Translator
    n_best: int = 1
    glossary: Glossary | None = None
    """None: that of the translator."""


@dataclass(slots=True, eq=False)
class _PendingRequest:
    """Lines of one request and the answers to the first of them."""

    lines: Sequence[str]
    options: LineOptions
    future: Future[list[Translation]] = field(default_factory=Future)
    answers: list[Translation] = field(default_factory=list)
    taken: int = 0

    @property
    def left(self) -> int:
        return len(self.lines) - self.taken


_Slice = tuple[_PendingRequest, Sequence[str]]


class Metrics:
    """Counters of one server in the text format of Prometheus."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("mt_requests", "Requests.", ["status"], registry=registry)
        self._seconds = Histogram(
            "mt_request_seconds", "Time to the answer.", buckets=_SECONDS, registry=registry
        )
        self._sentences = Counter("mt_sentences", "Lines translated.", registry=registry)
        self._tokens = Counter("mt_tokens", "Tokens of these lines.", ["side"], registry=registry)
        self._batches = Histogram(
            "mt_batch_sentences", "Lines per batch.", buckets=_SENTENCES, registry=registry
        )
        self.waiting = Gauge("mt_waiting_sentences", "Lines in the queue.", registry=registry)

    def count_request(self, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def count_batch(self, translations: Sequence[Translation]) -> None:
        """Count a batch of translated lines."""
        parts = [part for line in translations for part in line.alternatives[0].parts]
        self._tokens.labels("source").inc(sum(len(part.source) - 1 for part in parts))
        self._tokens.labels("target").inc(sum(len(part.hypothesis.ids) for part in parts))
        self._sentences.inc(len(translations))
        self._batches.observe(len(translations))

    def as_text(self) -> bytes:
        """Return all counters in the text format of Prometheus."""
        return generate_latest(self._registry)


class Batcher:
    """Translate the lines of all requests in batches of `decoding.batch_size`.

    Requests take turns. A request with more lines than fit into a batch returns to the end of the
    queue with the rest, so a short request waits for at most one batch of each earlier request. All
    lines of a batch have the same model, glossary and `n_best`: a search for more hypotheses may
    find others, and an answer must not depend on other requests. Only one thread translates, from
    `start` to `stop`. Cancelling a future removes its waiting lines from the queue.
    """

    def __init__(self, metrics: Metrics, *, most_waiting: int) -> None:
        self.metrics = metrics
        self.most_waiting = most_waiting
        self._requests: deque[_PendingRequest] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self.failing = WeakSet[Translator]()
        """Models in memory whose last translation failed."""
        # A daemon, so that a second Ctrl-C does not wait for the current batch.
        self._thread = threading.Thread(target=self._work, name="translator", daemon=True)

    @property
    def waiting(self) -> int:
        """Number of lines in the queue, without the current batch."""
        with self._changed:
            return sum(request.left for request in self._requests)

    @property
    def status(self) -> Literal["ok", "failing", "stopped"]:
        """`failing` after a failed translation, `stopped` before `start` and after `stop`."""
        if self._stopped or not self._thread.is_alive():
            return "stopped"
        return "failing" if self.failing else "ok"

    def start(self) -> None:
        """Start translating."""
        self._thread.start()

    def stop(self) -> None:
        """Refuse all waiting requests; the current batch is still answered."""
        with self._changed:
            self._stopped = True
            refused = list(self._requests)
            self._requests.clear()
            self._changed.notify_all()
        for request in refused:
            _fail(request, STOPPED)

    def join(self) -> None:
        """Wait for the current batch, after `stop`."""
        self._thread.join()

    def submit(
        self, lines: Sequence[str], options: LineOptions, *, is_begun: bool = False
    ) -> Future[list[Translation]]:
        """Return a future of the translations of the lines, in order.

        It holds an HTTPException if the engine fails. Raises HTTPException after `stop`, and if too
        many lines wait and no earlier lines of the request were answered (`is_begun`).
        """
        request = _PendingRequest(lines, options)
        if not lines:
            request.future.set_result([])
            return request.future

        def remove(_: object) -> None:
            with self._changed, suppress(ValueError):  # it has left the queue
                self._requests.remove(request)

        request.future.add_done_callback(remove)
        with self._changed:
            if self._stopped:
                raise HTTPException(*STOPPED)
            if not is_begun and self.waiting + len(lines) > self.most_waiting:
                message = f"too many lines in the queue, the limit is {self.most_waiting:,}"
                raise HTTPException(429, f"{message}; try again", {"Retry-After": "1"})
            self._requests.append(request)
            self._changed.notify_all()
        return request.future

    def _work(self) -> None:
        while not self._stopped:
            if batch := self._next_batch():
                self._translate(batch)
            del batch  # it keeps its model in memory

    def _next_batch(self) -> list[_Slice]:
        """Wait for lines and take a batch; it is empty if a request was cancelled meanwhile."""
        batch: list[_Slice] = []
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._stopped)
            if not self._requests:
                return batch
            size = self._requests[0].options.translator.decoding.sentences_at_once
            self._changed.wait_for(lambda: self.waiting >= size or self._stopped, MORE_SECONDS)
            first = self._requests[0].options if self._requests else None
            for request in [request for request in self._requests if request.options == first]:
                lines = request.lines[request.taken : request.taken + size]
                if not lines:
                    break
                batch.append((request, lines))
                request.taken += len(lines)
                size -= len(lines)
                self._requests.remove(request)
                if request.left:
                    self._requests.append(request)
            return batch

    def _translate(self, batch: list[_Slice]) -> None:
        lines = [line for _, some_lines in batch for line in some_lines]
        options = batch[0][0].options
        translator = options.translator
        try:
            translate = translator.stream
            translations = [*translate(lines, n_best=options.n_best, glossary=options.glossary)]
            self.metrics.count_batch(translations)
        except Exception:
            if len(batch) > 1:  # a failing request must not fail the others
                for alone in batch:
                    self._translate([alone])
                return
            _logger.exception("a request could not be translated")
            self.failing.add(translator)
            _fail(batch[0][0], FAILED)
            return
        self.failing.discard(translator)
        remaining = iter(translations)
        for request, own_lines in batch:
            request.answers += islice(remaining, len(own_lines))
            if len(request.answers) == len(request.lines) and _claim(request):
                request.future.set_result(request.answers)


def _fail(request: _PendingRequest, answer: tuple[int, str]) -> None:
    if _claim(request):
        request.future.set_exception(HTTPException(*answer))


def _claim(request: _PendingRequest) -> bool:
    """Return True if the future can still be resolved; it can then no longer be cancelled."""
    return not request.future.done() and request.future.set_running_or_notify_cancel()
