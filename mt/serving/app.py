"""The API and the page: which path gives what."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException as StarletteHTTPException

from mt import __version__
from mt.decoding.translation import Translation
from mt.serving.batching import Batcher, FailedError, QueueFullError, StoppedError
from mt.serving.messages import (
    Alternative,
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
BUSY, STOPPING, FAILED = 429, 503, 500
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
        (503, "The server is being stopped."),
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

    @app.post(TRANSLATE, responses=_PROBLEMS, openapi_extra={"requestBody": body})
    async def translate(request: Request) -> TranslationResponse:
        """Translate texts, each line of them as a sentence."""
        asked = await read_request(request, limits)
        texts = [read_text(text) for text in asked.texts]
        lines = [line for text in texts for line in text.lines]
        future = _submit(batcher, lines, n_best=asked.alternatives + 1)
        translations = iter(await _result(request, future))
        found = [_answer(text, [next(translations) for _ in text.lines]) for text in texts]
        return TranslationResponse(translations=found)


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


def _submit(batcher: Batcher, lines: Sequence[str], *, n_best: int) -> Future[list[Translation]]:
    try:
        return batcher.submit(lines, n_best=n_best)
    except QueueFullError:
        told = f"too many lines wait already, at most {batcher.most_waiting:,} may; try again"
        raise HTTPException(BUSY, told, {"Retry-After": "1"}) from None
    except StoppedError:
        raise HTTPException(STOPPING, _STOPPING) from None


async def _result(request: Request, future: Future[list[Translation]]) -> list[Translation]:
    try:
        return await _unless_gone(request, future)
    except StoppedError:
        raise HTTPException(STOPPING, _STOPPING) from None
    except FailedError:
        told = "this could not be translated; the server's log says why"
        raise HTTPException(FAILED, told) from None


async def _unless_gone(request: Request, future: Future[list[Translation]]) -> list[Translation]:
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


def _answer(text: Text, translations: list[Translation]) -> TranslatedText:
    return TranslatedText(
        text=text.join([each.text for each in translations]),
        status=status_of(translations),
        score=sum(each.score for each in translations),
        notes=list(notes_of(translations)),
        alternatives=_others(translations[0]) if len(translations) == 1 else [],
    )


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
