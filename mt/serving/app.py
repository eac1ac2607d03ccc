"""The API and the page: which path gives what."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
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
from mt.serving.metrics import CLIENT_GONE, Measured, Metrics

# What the translator takes for line ends as well.
_LINE_END = re.compile(r"(\r\n|\r|\n)")
_STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class Text:
    """A text as its lines and what stands between them."""

    lines: tuple[str, ...]
    ends: tuple[str, ...]
    """One fewer than lines."""

    def join(self, lines: Sequence[str]) -> str:
        """Return other lines with the ends that stand between those of this text."""
        pairs = zip(lines, (*self.ends, ""), strict=True)
        return "".join(part for pair in pairs for part in pair)


def read_text(text: str) -> Text:
    """Return a text cut at its line ends: newline, carriage return, or both."""
    parts = _LINE_END.split(text)
    return Text(tuple(parts[::2]), tuple(parts[1::2]))


def status_of(translations: Sequence[Translation]) -> Status:
    """Return the first of the lines' statuses in the order of `Status`, blank lines aside."""
    told = [each.status for each in translations if each.source.strip()]
    return min(told, key=_STATUSES.index, default="empty")


def notes_of(translations: Sequence[Translation]) -> Iterator[str]:
    """Yield what is to be known of a text, with the line's number where it has several."""
    for number, translation in enumerate(translations, start=1):
        place = f"line {number}: " if len(translations) > 1 else ""
        yield from (place + note for note in translation.notes)


BODY_SECONDS = 30.0
"""A body that has not arrived by then is given up."""
_ESCAPED_BYTES, _AROUND_BYTES = 12, 2**16
_TOLD = 300
MOST_WEIGHTS = 100_000
"""Attention weights told of a text."""
UNREADABLE, TOO_LARGE, TOO_SLOW = 422, 413, 408


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a request may ask for, and all requests together."""

    sentences: int = 256
    """Lines of all texts of a request."""
    characters: int = 20_000
    """Of all texts of a request."""
    waiting: int = 1024
    """Lines that wait for their translation."""
    alternatives: int = 0
    """Other translations of a text."""
    requests: int = 512
    """Requests that are read, or wait for their answer."""

    @property
    def body_bytes(self) -> int:
        """The largest body in which `characters` could come: JSON escapes take up to 12 bytes."""
        return _ESCAPED_BYTES * self.characters + _AROUND_BYTES


def _string(value: object) -> str:
    # pydantic's own check refuses lone surrogates, which the translator reads.
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "a string was expected")
    return value


class TranslationRequest(BaseModel):
    """What to translate."""

    model_config = ConfigDict(extra="forbid")

    texts: list[Annotated[str, PlainValidator(_string, json_schema_input_type=str)]]
    """Texts of one or more lines, each line a sentence."""
    alternatives: Annotated[int, Field(ge=0, strict=True)] = 0
    """How many other translations are wanted of each text that is one line."""
    attention: Annotated[bool, Field(strict=True)] = False
    """Whether the attention between the tokens is wanted."""


class Alternative(BaseModel):
    """Another translation of the same text."""

    text: str
    score: float


class Attention(BaseModel):
    """The attention of a line, or of a part of a line that was too long for the model."""

    source: list[str]
    """The source tokens, the end mark last."""
    target: list[str]
    """The target tokens, without end mark."""
    weights: list[list[float]]
    """A row for each target token: how much it looks at each source token; a row sums to 1.

    The mean over the heads of the last decoder layer but one, to three digits.
    """


class TranslatedText(BaseModel):
    """A text's translation, with the line ends of the text."""

    text: str
    status: Status
    """What is to be known of it; of several lines, the first in this order."""
    score: float
    """What the search ranks by, summed over lines; higher is better."""
    notes: list[str]
    alternatives: list[Alternative]
    """Other translations, best first; none of a text of several lines."""
    attention: list[Attention] | None = None
    """That of each line or part that is not empty, in order.

    Null where it was not asked for, the engine cannot tell it, or it is more than 100,000 numbers.
    """


class TranslationResponse(BaseModel):
    """The translations, in the order of the texts."""

    translations: list[TranslatedText]


class Problem(BaseModel):
    """Why there is no answer, in one line."""

    error: str


async def read_request(request: Request, limits: Limits) -> TranslationRequest:
    """Return what a request asks for.

    Raises HTTPException with one line that says what is wrong: 413 where it is too much, 422 where
    it cannot be read, 408 where it does not arrive.
    """
    body = await _read_body(request, limits.body_bytes)
    try:
        asked = TranslationRequest.model_validate(json.loads(body))
    except ValidationError as error:
        raise HTTPException(UNREADABLE, _told(error.errors(include_url=False))) from None
    except json.JSONDecodeError as error:
        raise HTTPException(UNREADABLE, f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise HTTPException(UNREADABLE, "the body is not JSON: it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise HTTPException(UNREADABLE, "the body is no JSON that can be read") from None
    _check(asked, limits)
    return asked


async def _read_body(request: Request, most: int) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _receive(request, most)
    except TimeoutError:
        told = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise HTTPException(TOO_SLOW, told) from None


async def _receive(request: Request, most: int) -> bytes:
    """Return the body; the rest of one that is too large is dropped by uvicorn as it comes."""
    body, more = bytearray(), True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise HTTPException(CLIENT_GONE)
        body += message.get("body", b"")
        if len(body) > most:
            told = f"the body is larger than {most:,} bytes, the most taken"
            raise HTTPException(TOO_LARGE, told)
        more = message.get("more_body", False)
    return bytes(body)


def _check(asked: TranslationRequest, limits: Limits) -> None:
    characters = sum(map(len, asked.texts))
    sentences = sum(len(read_text(text).lines) for text in asked.texts)
    for count, most, what in (
        (characters, limits.characters, "characters"),
        (sentences, limits.sentences, "lines"),
    ):
        if count > most:
            told = f"`texts`: {count:,} {what} in all, at most {most:,} are taken at once"
            raise HTTPException(TOO_LARGE, told)
    if asked.alternatives > limits.alternatives:
        told = f"`alternatives`: at most {limits.alternatives}, this model's search finds no more"
        raise HTTPException(UNREADABLE, told)


def _told(problems: list[ErrorDetails]) -> str:
    # A misspelt key comes before the key that is missing by it.
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
    return f"{' '.join(text.split())[:_TOLD]}{f' (and {more} more)' if more else ''}"


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
