"""HTTP application: the JSON API, LibreTranslate's API, documents, and the page."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Annotated, Any, get_args
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from starlette.exceptions import HTTPException as StarletteHTTPException

from mt import __version__
from mt.config.data import Direction
from mt.decoding.translator import Status, Translation
from mt.documents.segments import TranslatedLine
from mt.errors import DataError, did_you_mean
from mt.serving.batching import Answer, Batcher, FailedError, QueueFullError, StoppedError, Wanted
from mt.serving.libretranslate import (
    INVALID,
    REQUEST_SCHEMA,
    as_answer,
    detect,
    detect_sources,
    is_libretranslate,
    languages,
    read_key,
    read_libre_request,
    read_texts,
)
from mt.serving.requests import (
    CLIENT_GONE,
    FORM,
    Access,
    Limits,
    Metrics,
    RequestMetrics,
    Text,
    TextFormat,
    check_size,
    read_body,
    read_file,
    read_html,
    read_text,
    receive_body,
)

TRANSLATE, DOCUMENT = "/translate", "/document"
MOST_WEIGHTS = 100_000
"""Largest number of attention weights in the answer for a text."""
_MESSAGE_LENGTH = 300
_STOPPING = "the server is being stopped"
_BYTES = "application/octet-stream"
# Only the contents of the page itself, and the API of its own server.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def _string(value: object) -> str:
    # pydantic's own check rejects lone surrogates, which the translator accepts.
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "a string was expected")
    return value


class TranslationRequest(BaseModel):
    """Texts to translate."""

    model_config = ConfigDict(extra="forbid")

    texts: list[Annotated[str, PlainValidator(_string, json_schema_input_type=str)]]
    """Texts of one or more lines, one sentence per line."""
    alternatives: Annotated[int, Field(ge=0, strict=True)] = 0
    """Number of alternatives to return for each text of one line."""
    attention: Annotated[bool, Field(strict=True)] = False
    """Return the attention between the tokens."""
    format: TextFormat = "text"
    """`html` for pages or parts of pages: only their texts change."""


class Alternative(BaseModel):
    """Another translation of the same text."""

    text: str
    score: float


class Attention(BaseModel):
    """Attention of a line, or of a part of a line that was too long for the model."""

    source: list[str]
    """Source tokens, EOS last."""
    target: list[str]
    """Target tokens without EOS."""
    weights: list[list[float]]
    """Weight of each source token, one row per target token; a row sums to 1.

    Mean over the heads of the last decoder layer but one, to three digits.
    """


class TranslatedText(BaseModel):
    """Translation of a text, with the line ends of the text."""

    text: str
    status: Status
    """Status of the text; of several lines, the first in the order of this list."""
    score: float
    """Ranking score of the search, summed over lines; higher is better."""
    notes: list[str]
    alternatives: list[Alternative]
    """Further translations, best first; empty for several lines, or several texts of HTML."""
    attention: list[Attention] | None = None
    """Attention of each line or part that is not empty, in order.

    Null if not requested, not available from the engine, or more than 100,000 numbers.
    """


class TranslationResponse(BaseModel):
    """Translations in the order of the texts."""

    translations: list[TranslatedText]


class Problem(BaseModel):
    """Error message, one line."""

    error: str


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in (
        (400, "Invalid request of LibreTranslate's API, or one without its API key."),
        (401, "No API key."),
        (403, "Wrong API key, or a page of an origin that is not allowed."),
        (413, "Too many bytes, characters or lines."),
        (422, "Invalid request."),
        (429, "Too many lines in the queue; try again later."),
        (503, "Too many concurrent requests; try again later. Or the server is being stopped."),
    )
}


def build_app(
    batcher: Batcher, metrics: Metrics, *, name: str, limits: Limits, access: Access
) -> FastAPI:
    """Return the application; it starts and stops `batcher`. `name` is the model's on the page."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        batcher.stop()
        await asyncio.to_thread(batcher.join)

    # FastAPI's own documentation pages load scripts from the network.
    app = FastAPI(title="mt", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(RequestMetrics, metrics=metrics, paths=(TRANSLATE, DOCUMENT))
    access.add_to(app)
    app.add_exception_handler(StarletteHTTPException, _error_response)
    metrics.watch_queue(lambda: batcher.waiting)
    service = _Service(batcher, limits, access, asyncio.Semaphore(limits.requests))
    _add_texts(app, service)
    _add_documents(app, service)
    page = files("mt.serving").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": _PAGE_POLICY})

    @app.get("/health")
    async def health() -> JSONResponse:
        """Return the status of the server, the model, its limits, and if it needs an API key."""
        status, code = ("ok", 200) if batcher.working else ("stopped", 503)
        about = {"characters": limits.characters, "alternatives": limits.alternatives}
        about["bytes"] = limits.body_bytes
        about["api_key"] = bool(access.keys)
        return JSONResponse({"status": status, "model": name, **about}, code)

    @app.get("/metrics")
    async def counters() -> Response:
        """Return the counters in the text format of Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return app


@dataclass(frozen=True, slots=True)
class _Service:
    """Steps that the endpoints share."""

    batcher: Batcher
    limits: Limits
    access: Access
    places: asyncio.Semaphore
    """Concurrent requests; uvicorn's own limit does not answer in JSON."""

    @property
    def direction(self) -> Direction:
        return self.batcher.translator.direction

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[bytes]:
        """Check the origin, take a place, and receive the body."""
        self.access.check_origin(request)
        if self.places.locked():
            most = self.limits.requests
            message = f"too many requests at once, at most {most:,} are taken; try again"
            raise HTTPException(503, message, {"Retry-After": "1"})
        async with self.places:
            yield await receive_body(request, self.limits)

    async def read(
        self, texts: Sequence[str], format: TextFormat, *, name: str, status: int
    ) -> list[Text]:
        """Split texts into lines; raise HTTPException with `status` for too many of them."""
        if format == "html":
            pages = (read_html(text, self.direction) for text in texts)
            found = await asyncio.to_thread(list, pages)
        else:
            found = [read_text(text) for text in texts]
        count = sum(len(text.lines) for text in found)
        check_size(count, self.limits.sentences, unit="lines", name=name, status=status)
        return found

    async def translated(
        self, request: Request, texts: Sequence[Text], wanted: Wanted
    ) -> list[TranslatedText]:
        """Return the answer for each text."""
        lines = [line for text in texts for line in text.lines]
        wanted = replace(wanted, links=any(text.has_tags for text in texts))
        answers = iter(await self.answers(request, lines, wanted))
        return [_answer(text, [next(answers) for _ in text.lines]) for text in texts]

    async def answers(
        self, request: Request, lines: Sequence[str], wanted: Wanted, *, is_begun: bool = False
    ) -> list[Answer]:
        """Return the answers for all lines; raise HTTPException if the batcher fails or refuses."""
        try:
            future = self.batcher.submit(lines, wanted, is_begun=is_begun)
            return await _unless_gone(request, future)
        except QueueFullError:
            most = self.batcher.most_waiting
            message = f"too many lines in the queue, the limit is {most:,}; try again"
            raise HTTPException(429, message, {"Retry-After": "1"}) from None
        except StoppedError:
            raise HTTPException(503, _STOPPING) from None
        except FailedError:
            message = "the request could not be translated; see the server's log"
            raise HTTPException(500, message) from None


def _add_texts(app: FastAPI, service: _Service) -> None:
    """Add the endpoints that translate or identify texts, and `/languages`."""
    schemas = [TranslationRequest.model_json_schema(), REQUEST_SCHEMA]
    body_of_translate = {
        "required": True,
        "content": {
            "application/json": {"schema": {"anyOf": schemas}},
            FORM: {"schema": REQUEST_SCHEMA},
        },
    }

    @app.post(
        TRANSLATE,
        response_model=TranslationResponse,
        responses=_PROBLEMS,
        openapi_extra={"requestBody": body_of_translate},
    )
    async def translate(request: Request) -> Any:
        """Translate texts, each line as one sentence or more; or answer LibreTranslate's API."""
        async with service.received(request) as content:
            body = read_body(content, request, invalid=422)
            if not is_libretranslate(body):
                service.access.check_key(request, missing=401)
                wanted = read_request(body, service.limits)
                texts = await service.read(wanted.texts, wanted.format, name="texts", status=413)
                per_line = Wanted(wanted.alternatives + 1, wanted.attention)
                found = await service.translated(request, texts, per_line)
                return TranslationResponse(translations=found)
            service.access.check_key(request, missing=INVALID, field=read_key(body))
            libre = read_libre_request(body, service.direction, service.limits)
            texts = await service.read(libre.texts, libre.format, name="q", status=INVALID)
            detected = None
            if libre.is_auto:
                plain = ["\n".join(text.lines) for text in texts]
                detected = await asyncio.to_thread(detect_sources, plain, service.direction)
            found = await service.translated(request, texts, Wanted(libre.alternatives + 1))
            others = [[other.text for other in each.alternatives] for each in found]
            return JSONResponse(as_answer(libre, [each.text for each in found], others, detected))

    @app.post("/detect", responses=_PROBLEMS)
    async def detect_language(request: Request) -> JSONResponse:
        """Identify the language of the field `q`, as LibreTranslate does."""
        async with service.received(request) as content:
            body = read_body(content, request, invalid=INVALID)
            service.access.check_key(request, missing=INVALID, field=read_key(body))
            texts = read_texts(body, service.limits)
            return JSONResponse(await asyncio.to_thread(detect, texts))

    @app.get("/languages")
    async def list_languages() -> JSONResponse:
        """Return the languages of the model, as LibreTranslate does."""
        return JSONResponse(languages(service.direction))


def _add_documents(app: FastAPI, service: _Service) -> None:
    """Add the endpoint that translates files."""
    body = {"schema": {"type": "string", "format": "binary"}}
    name: dict[str, Any] = {"name": "name", "in": "query", "schema": {"type": "string"}}
    parameters = [
        name | {"required": True, "description": "Name of the file; its suffix is the format."},
        name | {"name": "column", "description": "Column of TSV, or field of JSON lines."},
    ]
    described = {
        "parameters": parameters,
        "requestBody": {"required": True, "content": {_BYTES: body}},
    }

    @app.post(
        DOCUMENT,
        response_class=Response,
        responses={200: {"content": {_BYTES: body}}, **_PROBLEMS},
        openapi_extra=described,
    )
    async def translate_document(request: Request) -> Response:
        """Translate the texts of a file, the body; everything else is kept byte for byte."""
        async with service.received(request) as content:
            service.access.check_key(request, missing=401)
            path = PurePosixPath(request.query_params.get("name", ""))
            if not path.name:
                raise HTTPException(422, "`name`: is missing, as in /document?name=page.html")
            column = request.query_params.get("column") or None
            direction, step = service.direction, service.limits.sentences
            try:
                file = await asyncio.to_thread(read_file, content, path.name, direction, column)
            except DataError as error:
                # The option of `mt translate` is a field here.
                raise HTTPException(422, str(error).replace("--column", "column")) from None
            found: list[TranslatedLine] = []
            wanted = Wanted(links=file.has_tags)
            for start in range(0, len(file.lines), step):  # a file may be longer than the queue
                lines = file.lines[start : start + step]
                answers = await service.answers(request, lines, wanted, is_begun=bool(start))
                found += [each.text for each in answers]
            name = quote(f"{path.stem}.{direction.target}{path.suffix}", safe="")
            headers = {
                "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
                "X-Content-Type-Options": "nosniff",
            }
            return Response(await asyncio.to_thread(file.join, found), 200, headers, _BYTES)


async def _error_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def read_request(body: Any, limits: Limits) -> TranslationRequest:
    """Check a request; raise HTTPException, 422 for invalid and 413 for too much content."""
    try:
        wanted = TranslationRequest.model_validate(body)
    except ValidationError as error:
        raise HTTPException(422, _one_line(error.errors(include_url=False))) from None
    count = sum(map(len, wanted.texts))
    check_size(count, limits.characters, unit="characters", name="texts", status=413)
    if wanted.alternatives > limits.alternatives:
        message = f"`alternatives`: at most {limits.alternatives}, limited by this model's search"
        raise HTTPException(422, message)
    return wanted


def _one_line(problems: list[ErrorDetails]) -> str:
    # An unknown key comes before the missing key that it probably misspells.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    more = len(problems) - 1
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        text = f"`{key}`: unknown{did_you_mean(key, TranslationRequest.model_fields)}"
    elif first["type"] == "missing":
        text = f"`{key}`: is missing"
    elif key:
        text = f"`{key}`: {first['msg']}"
    else:
        text = 'an object was expected: {"texts": ["...", "..."]}'
    return f"{' '.join(text.split())[:_MESSAGE_LENGTH]}{f' (and {more} more)' if more else ''}"


async def _unless_gone(request: Request, future: Future[list[Answer]]) -> list[Answer]:
    """Return the future's result; cancel the future if the client disconnects first."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(disconnect())
    either: list[asyncio.Future[Any]] = [answer, gone]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(CLIENT_GONE)
        return answer.result()
    finally:
        gone.cancel()
        answer.cancel()


def _answer(text: Text, answers: list[Answer]) -> TranslatedText:
    translations = [each.translation for each in answers]
    several = len(translations) > 1
    statuses = [each.status for each in translations if each.source.strip()]
    return TranslatedText(
        text=text.join([each.text for each in answers]),
        status=min(statuses, key=get_args(Status).index, default="empty"),
        score=sum(each.score for each in translations),
        notes=[
            f"{text.unit} {number}: {note}" if several else note
            for number, each in enumerate(translations, start=1)
            for note in each.notes
        ],
        alternatives=_alternatives(text, *translations) if len(translations) == 1 else [],
        attention=_attention(answers),
    )


def _alternatives(text: Text, translation: Translation) -> list[Alternative]:
    """Return the alternatives with distinct texts."""
    scores: dict[str, float] = {}
    for each in translation.alternatives:
        scores.setdefault(each.text, each.score)
    scores.pop(translation.text, None)
    return [
        Alternative(text=text.join([TranslatedLine(line)]), score=score)
        for line, score in scores.items()
    ]


def _attention(answers: Sequence[Answer]) -> list[Attention] | None:
    known = [each.attention for each in answers if each.attention is not None]
    parts = [part for of_line in known for part in of_line]
    if len(known) < len(answers) or sum(part.weights.size for part in parts) > MOST_WEIGHTS:
        return None
    return [
        # Rounded in float64: a rounded float32 prints many digits.
        Attention(
            source=part.source,
            target=part.target,
            weights=part.weights.astype(float).round(3).tolist(),
        )
        for part in parts
    ]
