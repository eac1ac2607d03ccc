"""The API and the page: which path gives what."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException as StarletteHTTPException

from mt import __version__
from mt.decoding.translation import Translation
from mt.serving.batching import (
    Answer,
    Batcher,
    FailedError,
    QueueFullError,
    StoppedError,
    Wanted,
)
from mt.serving.messages import (
    MOST_WEIGHTS,
    Alternative,
    Attention,
    Limits,
    Problem,
    TranslatedText,
    TranslationRequest,
    TranslationResponse,
    read_request,
)
from mt.serving.metrics import CLIENT_GONE, Measured, Metrics
from mt.serving.texts import Text, notes_of, read_text, status_of

TRANSLATE = "/translate"
BUSY, CROWDED, STOPPING, FAILED = 429, 503, 503, 500
_STOPPING = "the server is being stopped"
# Nothing but what is in the page itself, and the API that it came from.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": told}
    for status, told in (
        (413, "Too many bytes, characters or lines."),
        (422, "Not what was expected."),
        (429, "Too many lines wait; try again later."),
        (503, "Too many requests at once; try again later. Or the server is being stopped."),
    )
}


def build_app(batcher: Batcher, metrics: Metrics, *, name: str, limits: Limits) -> FastAPI:
    """Return the application that answers with what the batcher translates; it starts and stops it.

    `name` is what the page calls the model.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        batcher.stop()
        await asyncio.to_thread(batcher.join)

    # FastAPI's own pages of documentation load scripts from the network.
    app = FastAPI(title="mt", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Measured, metrics=metrics, path=TRANSLATE)
    app.add_exception_handler(StarletteHTTPException, _as_json)
    metrics.watch_queue(lambda: batcher.waiting)
    _add_translate(app, batcher, limits)
    about = {"characters": limits.characters, "alternatives": limits.alternatives}
    _add_status(app, batcher, metrics, {"model": name, **about})
    _add_page(app)
    return app


def _add_translate(app: FastAPI, batcher: Batcher, limits: Limits) -> None:
    schema = {"schema": TranslationRequest.model_json_schema()}
    body = {"required": True, "content": {"application/json": schema}}
    places = _Places(limits.requests)

    @app.post(TRANSLATE, responses=_PROBLEMS, openapi_extra={"requestBody": body})
    async def translate(request: Request) -> TranslationResponse:
        """Translate texts, each line of them as a sentence."""
        with places.one():
            asked = await read_request(request, limits)
            texts = [read_text(text) for text in asked.texts]
            lines = [line for text in texts for line in text.lines]
            wanted = Wanted(asked.alternatives + 1, asked.attention)
            answers = iter(await _result(request, _submit(batcher, lines, wanted)))
        found = [_answer(text, [next(answers) for _ in text.lines]) for text in texts]
        return TranslationResponse(translations=found)


class _Places:
    """The requests that there may be at once; uvicorn's own limit does not answer in JSON."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take a place meanwhile; raise HTTPException where none is free."""
        if self.taken >= self.most:
            told = f"too many requests at once, at most {self.most:,} are taken; try again"
            raise HTTPException(CROWDED, told, {"Retry-After": "1"})
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


def _add_status(
    app: FastAPI, batcher: Batcher, metrics: Metrics, about: dict[str, str | int]
) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        """Say whether texts are being translated, and by what."""
        working = batcher.working
        status = "ok" if working else "stopped"
        return JSONResponse({"status": status, **about}, 200 if working else STOPPING)

    @app.get("/metrics")
    async def counters() -> Response:
        """Give the counters, in the text format of Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _add_page(app: FastAPI) -> None:
    page = files("mt.serving").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": _PAGE_POLICY})


def _submit(batcher: Batcher, lines: Sequence[str], wanted: Wanted) -> Future[list[Answer]]:
    try:
        return batcher.submit(lines, wanted)
    except QueueFullError:
        told = f"too many lines wait already, at most {batcher.most_waiting:,} may; try again"
        raise HTTPException(BUSY, told, {"Retry-After": "1"}) from None
    except StoppedError:
        raise HTTPException(STOPPING, _STOPPING) from None


async def _result(request: Request, future: Future[list[Answer]]) -> list[Answer]:
    try:
        return await _unless_gone(request, future)
    except StoppedError:
        raise HTTPException(STOPPING, _STOPPING) from None
    except FailedError:
        told = "this could not be translated; the server's log says why"
        raise HTTPException(FAILED, told) from None


async def _unless_gone(request: Request, future: Future[list[Answer]]) -> list[Answer]:
    """Return the future's result; where the client leaves before, the future is cancelled."""
    answer = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(_leaving(request))
    either: list[asyncio.Future[Any]] = [answer, gone]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(CLIENT_GONE)
        return answer.result()
    finally:
        gone.cancel()
        answer.cancel()


async def _leaving(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answer(text: Text, answers: list[Answer]) -> TranslatedText:
    translations = [each.translation for each in answers]
    return TranslatedText(
        text=text.join([each.text for each in translations]),
        status=status_of(translations),
        score=sum(each.score for each in translations),
        notes=list(notes_of(translations)),
        alternatives=_others(translations[0]) if len(translations) == 1 else [],
        attention=_attention(answers),
    )


def _attention(answers: Sequence[Answer]) -> list[Attention] | None:
    known = [each.attention for each in answers if each.attention is not None]
    parts = [part for of_line in known for part in of_line]
    if len(known) < len(answers) or sum(part.weights.size for part in parts) > MOST_WEIGHTS:
        return None
    return [
        # Rounded as float64: a rounded float32 has a long tail of digits.
        Attention(
            source=part.source,
            target=part.target,
            weights=part.weights.astype(float).round(3).tolist(),
        )
        for part in parts
    ]


def _others(translation: Translation) -> list[Alternative]:
    """Return the alternatives that read differently, each once."""
    scores: dict[str, float] = {}
    for each in translation.alternatives:
        scores.setdefault(each.text, each.score)
    scores.pop(translation.text, None)
    return [Alternative(text=text, score=score) for text, score in scores.items()]


async def _as_json(_: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
