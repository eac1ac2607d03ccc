"""Counters of the server in the text format of Prometheus."""

import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mt.data.tokenizer import Tokenizer
from mt.decoding.preparation import repair_unicode
from mt.decoding.translator import Translation

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CLIENT_GONE = 499
"""Status recorded for a request whose client has disconnected."""


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "mt_requests", "Translation requests by HTTP status.", ["status"], registry=registry
        )
        self._seconds = Histogram(
            "mt_request_seconds",
            "Time from a request's first byte to its answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._sentences = Counter("mt_sentences", "Lines translated.", registry=registry)
        self._tokens = Counter(
            "mt_tokens",
            "Tokens of these lines by side, without end marks.",
            ["side"],
            registry=registry,
        )
        self._batches = Histogram(
            "mt_batch_sentences", "Lines per batch.", buckets=_SENTENCES, registry=registry
        )
        self._waiting = Gauge("mt_waiting_sentences", "Lines in the queue.", registry=registry)

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Report the length of the queue as `waiting` returns it."""
        self._waiting.set_function(waiting)

    def count_request(self, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def count_batch(self, tokenizer: Tokenizer, translations: Sequence[Translation]) -> None:
        """Count a batch of translated lines."""
        texts = [repair_unicode(each.source)[0] for each in translations]
        sources = sum(len(ids) - 1 for ids in tokenizer.encode_source(texts))
        targets = sum(len(each.alternatives[0].ids) for each in translations if each.alternatives)
        self._tokens.labels("source").inc(sources)
        self._tokens.labels("target").inc(targets)
        self._sentences.inc(len(translations))
        self._batches.observe(len(translations))

    def text(self) -> bytes:
        """Return all counters in the text format of Prometheus."""
        return generate_latest(self._registry)


class RequestMetrics:
    """ASGI middleware that records status and duration of the requests to some paths."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Sequence[str]) -> None:
        self.app = app
        self.metrics = metrics
        self.paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and record its answer."""
        if scope["type"] != "http" or scope["path"] not in self.paths:
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), CLIENT_GONE

        async def record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, record_status)
        finally:
            self.metrics.count_request(status, time.perf_counter() - began)
