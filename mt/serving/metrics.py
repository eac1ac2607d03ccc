"""What the server counts, in the text format of Prometheus."""

import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mt.data.tokenizer import Tokenizer
from mt.decoding.text import mend
from mt.decoding.translator import Translation

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CLIENT_GONE = 499
"""The status noted for a request whose client has left; nobody is there to receive it."""


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "mt_requests", "Requests to translate, by HTTP status.", ["status"], registry=registry
        )
        self._seconds = Histogram(
            "mt_request_seconds",
            "From a request's first byte to its answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._sentences = Counter("mt_sentences", "Lines translated.", registry=registry)
        self._tokens = Counter(
            "mt_tokens",
            "Tokens of these lines, by side, end marks not counted.",
            ["side"],
            registry=registry,
        )
        self._batches = Histogram(
            "mt_batch_sentences", "Lines translated at once.", buckets=_SENTENCES, registry=registry
        )
        self._waiting = Gauge("mt_waiting_sentences", "Lines in the queue.", registry=registry)

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Read the length of the queue from `waiting` whenever it is asked for."""
        self._waiting.set_function(waiting)

    def note_request(self, status: int, seconds: float) -> None:
        """Count a request that has been answered."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def note_batch(self, tokenizer: Tokenizer, translations: Sequence[Translation]) -> None:
        """Count lines that have been translated."""
        texts = [mend(each.source)[0] for each in translations]
        sources = sum(len(ids) - 1 for ids in tokenizer.encode_source(texts))
        targets = sum(len(each.alternatives[0].ids) for each in translations if each.alternatives)
        self._tokens.labels("source").inc(sources)
        self._tokens.labels("target").inc(targets)
        self._sentences.inc(len(translations))
        self._batches.observe(len(translations))

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        return generate_latest(self._registry)


class Measured:
    """An ASGI application that notes how each request to one path was answered, and when."""

    def __init__(self, app: ASGIApp, metrics: Metrics, path: str) -> None:
        self.app = app
        self.metrics = metrics
        self.path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["path"] != self.path:
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), CLIENT_GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            self.metrics.note_request(status, time.perf_counter() - began)
