"""HTTP application: the JSON API and the page."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, get_args

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from starlette.exceptions import HTTPException as StarletteHTTPException

from mt import __version__
from mt.decoding.translator import Status, Translation
from mt.errors import did_you_mean
from mt.serving.batching import Answer, Batcher, FailedError, QueueFullError, StoppedError, Wanted
from mt.serving.metrics import CLIENT_GONE, Metrics, RequestMetrics

TRANSLATE = "/translate"
BODY_SECONDS = 30.0
"""Time limit for the arrival of a request body."""
MOST_WEIGHTS = 100_000
"""Largest number of attention weights in the answer for a text."""
_ESCAPED_BYTES, _OTHER_BYTES = 12, 2**16
_MESSAGE_LENGTH = 300
_STOPPING = "the server is being stopped"
# Only the contents of the page itself, and the API of its own server.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on single requests, and on all requests together."""

    sentences: int = 256
    """Lines of a request, over all its texts."""
    characters: int = 20_000
    """Characters of a request, over all its texts."""
    waiting: int = 1024
    """Lines in the queue, over all requests."""
    alternatives: int = 0
    """Alternatives of a text."""
    requests: int = 512
    """Concurrent requests."""

    @property
    def body_bytes(self) -> int:
        """Largest body that `characters` can need: a JSON escape takes up to 12 bytes."""
        return _ESCAPED_BYTES * self.characters + _OTHER_BYTES


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
    """Further translations, best first; empty for a text of several lines."""
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
        (413, "Too many bytes, characters or lines."),
        (422, "Invalid request."),
        (429, "Too many lines in the queue; try again later."),
        (503, "Too many concurrent requests; try again later. Or the server is being stopped."),
    )
}


def build_app(batcher: Batcher, metrics: Metrics, *, name: str, limits: Limits) -> FastAPI:
    """Return the application; it starts and stops `batcher`. `name` is the model's on the page."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        batcher.stop()
        await asyncio.to_thread(batcher.join)

    # FastAPI's own documentation pages load scripts from the network.
    app = FastAPI(title="mt", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(RequestMetrics, metrics=metrics, path=TRANSLATE)
    app.add_exception_handler(StarletteHTTPException, _error_response)
    metrics.watch_queue(lambda: batcher.waiting)
    page = files("mt.serving").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": _PAGE_POLICY})

    schema = {"schema": TranslationRequest.model_json_schema()}
    body = {"required": True, "content": {"application/json": schema}}
    places = asyncio.Semaphore(limits.requests)  # uvicorn's own limit does not answer in JSON

    @app.post(TRANSLATE, responses=_PROBLEMS, openapi_extra={"requestBody": body})
    async def translate(request: Request) -> TranslationResponse:
        """Translate texts, each line as one sentence."""
        if places.locked():
            message = f"too many requests at once, at most {limits.requests:,} are taken; try again"
            raise HTTPException(503, message, {"Retry-After": "1"})
        async with places:
            wanted = await read_request(request, limits)
            texts = [read_text(text) for text in wanted.texts]
            lines = [line for text in texts for line in text.lines]
            per_line = Wanted(wanted.alternatives + 1, wanted.attention)
            answers = iter(await _translated(request, batcher, lines, per_line))
        found = [_answer(text, [next(answers) for _ in text.lines]) for text in texts]
        return TranslationResponse(translations=found)

    @app.get("/health")
    async def health() -> JSONResponse:
        """Return the status of the server, the model and its limits."""
        status, code = ("ok", 200) if batcher.working else ("stopped", 503)
        about = {"characters": limits.characters, "alternatives": limits.alternatives}
        return JSONResponse({"status": status, "model": name, **about}, code)

    @app.get("/metrics")
    async def counters() -> Response:
        """Return the counters in the text format of Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return app


async def _error_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def read_request(request: Request, limits: Limits) -> TranslationRequest:
    """Read and check a request.

    Raises HTTPException with a message of one line: 413 for too much content, 422 for invalid
    content, 408 if the body does not arrive in time.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _receive(request, limits.body_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise HTTPException(408, message) from None
    try:
        wanted = TranslationRequest.model_validate(json.loads(body))
    except ValidationError as error:
        raise HTTPException(422, _one_line(error.errors(include_url=False))) from None
    except json.JSONDecodeError as error:
        raise HTTPException(422, f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise HTTPException(422, "the body is not JSON: it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise HTTPException(422, "the body is not readable JSON") from None
    for count, most, unit in (
        (sum(map(len, wanted.texts)), limits.characters, "characters"),
        (sum(len(read_text(text).lines) for text in wanted.texts), limits.sentences, "lines"),
    ):
        if count > most:
            raise HTTPException(413, f"`texts`: {count:,} {unit} in all, the limit is {most:,}")
    if wanted.alternatives > limits.alternatives:
        message = f"`alternatives`: at most {limits.alternatives}, limited by this model's search"
        raise HTTPException(422, message)
    return wanted


async def _receive(request: Request, most: int) -> bytes:
    """Return the body; uvicorn drops the rest of a body that is too large."""
    body, more = bytearray(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise HTTPException(CLIENT_GONE)
        body += message.get("body", b"")
        if len(body) > most:
            raise HTTPException(413, f"the body is larger than the limit of {most:,} bytes")
        more = message.get("more_body", False)
    return bytes(body)


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


async def _translated(
    request: Request, batcher: Batcher, lines: Sequence[str], wanted: Wanted
) -> list[Answer]:
    """Return the answers for all lines; raise HTTPException if the batcher fails or refuses."""
    try:
        return await _unless_gone(request, batcher.submit(lines, wanted))
    except QueueFullError:
        message = f"too many lines in the queue, the limit is {batcher.most_waiting:,}; try again"
        raise HTTPException(429, message, {"Retry-After": "1"}) from None
    except StoppedError:
        raise HTTPException(503, _STOPPING) from None
    except FailedError:
        message = "the request could not be translated; see the server's log"
        raise HTTPException(500, message) from None


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


_LINE_END = re.compile(r"(\r\n|\r|\n)")  # as in the translator


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of a text and the line ends between them."""

    lines: tuple[str, ...]
    ends: tuple[str, ...]
    """One fewer than lines."""

    def join(self, lines: Sequence[str]) -> str:
        """Return other lines joined by the line ends of this text."""
        pairs = zip(lines, (*self.ends, ""), strict=True)
        return "".join(part for pair in pairs for part in pair)


def read_text(text: str) -> Text:
    """Split a text at its line ends: newline, carriage return, or both."""
    parts = _LINE_END.split(text)
    return Text(tuple(parts[::2]), tuple(parts[1::2]))


def _answer(text: Text, answers: list[Answer]) -> TranslatedText:
    translations = [each.translation for each in answers]
    several = len(translations) > 1
    statuses = [each.status for each in translations if each.source.strip()]
    return TranslatedText(
        text=text.join([each.text for each in translations]),
        status=min(statuses, key=get_args(Status).index, default="empty"),
        score=sum(each.score for each in translations),
        notes=[
            f"line {number}: {note}" if several else note
            for number, each in enumerate(translations, start=1)
            for note in each.notes
        ],
        alternatives=[] if several else _alternatives(translations[0]),
        attention=_attention(answers),
    )


def _alternatives(translation: Translation) -> list[Alternative]:
    """Return the alternatives with distinct texts."""
    scores: dict[str, float] = {}
    for each in translation.alternatives:
        scores.setdefault(each.text, each.score)
    scores.pop(translation.text, None)
    return [Alternative(text=text, score=score) for text, score in scores.items()]


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
