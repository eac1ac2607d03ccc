"""HTTP application: the JSON API, LibreTranslate's API, documents, and the page."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import PurePosixPath
from statistics import fmean
from typing import Annotated, Any, get_args
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware

from mt import __version__
from mt.config.data import Direction
from mt.data.glossary import Glossary, as_terms
from mt.decoding.preparation import repair_unicode
from mt.decoding.translator import Status, Translation
from mt.documents.html import visible_text
from mt.documents.segments import TranslatedLine, format_untranslated
from mt.errors import DataError, did_you_mean
from mt.serving.batching import TRIAL, Batcher, LineOptions
from mt.serving.requests import (
    AUTO,
    CLIENT_GONE,
    Access,
    Limits,
    RequestText,
    TextFormat,
    check_size,
    detect_language,
    detect_sources,
    is_libretranslate,
    read_body,
    read_file,
    read_html,
    read_key,
    read_libre_request,
    read_libre_texts,
    read_text,
    receive_body,
)
from mt.serving.served_runs import INVALID, Pairs, Route

_MESSAGE_LENGTH = 300
_REFUSED = "texts with a refused translation"
_BYTES = "application/octet-stream"
# Only the contents of the page itself, and the API of its own server.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def _check_string(value: object) -> str:
    # pydantic's own check rejects lone surrogates, which the translator accepts.
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "a string was expected")
    return value


Rows = dict[str, str]
"""Rows of a glossary."""


class TranslationRequest(BaseModel):
    """Texts to translate."""

    model_config = ConfigDict(extra="forbid")

    texts: list[Annotated[str, PlainValidator(_check_string, json_schema_input_type=str)]]
    """Texts of one or more lines, one sentence per line."""
    alternatives: Annotated[int, Field(ge=0, strict=True)] = 0
    format: TextFormat = "text"
    """`html` for pages or parts of pages: only their texts change."""
    glossary: Rows | None = None
    """Target term, or a list of them, by source term; replaces that of the server."""
    source: str | None = None
    """Languages of the texts and translations; a server of several pairs needs them."""
    target: str | None = None


class AlternativeAnswer(BaseModel):
    """Another translation of the same text."""

    text: str
    score: float


class TextAnswer(BaseModel):
    """Translation of a text, with the line ends of the text."""

    text: str
    status: Status
    """Status of the text; of several lines, the first in the order of this list."""
    score: float
    """Ranking score of the search, summed over lines; higher is better."""
    confidence: float | None
    """Expected chrF, 0 to 100, the mean of its lines; null for runs without a calibration."""
    notes: list[str]
    alternatives: list[AlternativeAnswer]
    """Further translations, best first; empty for several lines, or several texts of HTML."""
    terms: list[dict[str, str]] = []
    """Terms of the glossary in the text: source, target, fate and way of each."""


class TranslationResponse(BaseModel):
    """Translations in the order of the texts."""

    translations: list[TextAnswer]
    via: str | None = None
    """Language between those of the request, if no model has both: confidence is null, and score
    and alternatives are those of the second of two models."""


class ErrorAnswer(BaseModel):
    """Error message, one line."""

    error: str


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 408, 413, 415, 422, 429, 501, 503)
}


def build_app(batcher: Batcher, pairs: Pairs, *, limits: Limits, access: Access) -> FastAPI:
    """Return the application; it starts and stops `batcher`."""
    metrics = batcher.metrics

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        watch = asyncio.create_task(pairs.watch())
        yield
        watch.cancel()
        batcher.stop()
        await asyncio.to_thread(batcher.join)

    async def answer_error(request: Request, error: Any) -> Response:
        message = error.detail
        if error.status_code == 404:
            message = f"{request.url.path}: not found; /openapi.json describes the API"
        return JSONResponse({"error": message}, error.status_code, error.headers)

    # FastAPI's own documentation pages load scripts from the network.
    app = FastAPI(title="mt", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_exception_handler(StarletteHTTPException, answer_error)
    if access.origins:  # preflight requests of these origins, and answers that they may read
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Type"),
        )
    metrics.waiting.set_function(lambda: batcher.waiting)
    page = files("mt.serving").joinpath("page.html").read_text(encoding="utf-8")

    async def health() -> JSONResponse:
        """Return the status of the server, the model, its limits, and if it needs an API key.

        After a failed translation the engine is tried, and the status is `failing` if it fails.
        """
        for model in [*batcher.failing]:
            with suppress(HTTPException):
                await asyncio.wrap_future(batcher.submit([TRIAL], LineOptions(model)))
        routes = [route.describe() for route in pairs.routes]
        about = {
            "status": batcher.status,
            **(routes[0] if len(routes) == 1 else {"pairs": routes}),
            "characters": limits.characters,
            "alternatives": limits.alternatives,
            "bytes": limits.body_bytes,
            "api_key": bool(access.keys),
        }
        return JSONResponse(about, 200 if about["status"] == "ok" else 503)

    async def counters() -> Response:
        """Return the counters in the text format of Prometheus."""
        return Response(metrics.as_text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def index(_: Request) -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": _PAGE_POLICY})

    app.add_route("/", index)
    service = Service(batcher, pairs, limits, access, asyncio.Semaphore(limits.requests))
    for path, answer, kind in (
        ("/health", health, JSONResponse),
        ("/metrics", counters, PlainTextResponse),
        ("/languages", service.languages, JSONResponse),
    ):
        app.add_api_route(path, answer, response_class=kind)
        app.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False)
    request = TranslationRequest.model_json_schema()
    request["properties"]["alternatives"]["maximum"] = limits.alternatives
    app.post(
        "/translate",
        response_model=TranslationResponse,
        response_model_exclude_unset=True,
        responses=_ERRORS,
        openapi_extra=_describe_body("application/json", request),
    )(service.translate)
    app.post("/detect", responses=_ERRORS)(service.detect)
    app.post(
        "/document",
        response_class=Response,
        responses=_ERRORS,
        openapi_extra=_describe_body(_BYTES, {"type": "string", "format": "binary"}),
    )(service.translate_document)
    return app


def _describe_body(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


@dataclass(frozen=True, slots=True)
class Service:
    """Endpoints that translate, and the steps that they share."""

    batcher: Batcher
    pairs: Pairs
    limits: Limits
    access: Access
    concurrent: asyncio.Semaphore
    """Concurrent requests; uvicorn's own limit does not answer in JSON."""

    async def translate(self, request: Request) -> Any:
        """Translate texts, each line as one sentence or more; or answer LibreTranslate's API."""
        async with self.accept(request) as received:
            body = await read_body(received, invalid=422)
            if is_libretranslate(body):
                return await self.translate_libre(request, body)
            self.access.check_key(request, missing=401)
            own = read_request(body, self.limits)
            route = self.pairs.choose(own.source, own.target)
            texts = await self.read_texts(own.texts, own.format, route.direction, "texts")
            halves = await self.open(route, own.alternatives, own.glossary)
            answers = await self.translate_texts(request, texts, halves)
            via = {"via": route.via} if route.via else {}
            return TranslationResponse(translations=answers, **via)

    async def translate_libre(self, request: Request, body: Any) -> JSONResponse:
        """Translate texts as LibreTranslate does."""
        self.access.check_key(request, missing=INVALID, field=read_key(body))
        asked = read_libre_request(body, self.limits, self.pairs)
        fields: dict[str, list[Any]] = {}
        if asked.source == AUTO:
            is_html = asked.format == "html"
            plain = [visible_text(text) if is_html else text for text in asked.texts]
            plain = [repair_unicode(text)[0] for text in plain]
            choose = self.pairs.choose
            route = await asyncio.to_thread(choose, None, asked.target, "\n".join(plain))
            detected = asyncio.to_thread(detect_sources, plain, route.direction.source, self.pairs)
            fields["detectedLanguage"] = await detected
        else:
            route = self.pairs.choose(asked.source, asked.target)
        texts = await self.read_texts(asked.texts, asked.format, route.direction, "q")
        halves = await self.open(route, asked.alternatives)
        answers = await self.translate_texts(request, texts, halves)
        fields["translatedText"] = [answer.text for answer in answers]
        if asked.alternatives:
            alternatives = [[other.text for other in answer.alternatives] for answer in answers]
            fields["alternatives"] = alternatives
        answer = {name: of if asked.is_list else of[0] for name, of in fields.items()}
        return JSONResponse({**answer, "via": route.via} if route.via else answer)

    async def detect(self, request: Request) -> JSONResponse:
        """Identify the language of the field `q`, as LibreTranslate does."""
        async with self.accept(request, is_counted=False) as received:
            body = await read_body(received, invalid=INVALID)
            self.access.check_key(request, missing=INVALID, field=read_key(body))
            texts = read_libre_texts(body, self.limits)
            return JSONResponse(await asyncio.to_thread(detect_language, texts))

    async def languages(self) -> JSONResponse:
        """Return the languages of the models, as LibreTranslate does."""
        return JSONResponse(self.pairs.list_languages())

    async def translate_document(
        self,
        request: Request,
        name: str = "",
        column: str = "",
        glossary: str = "null",
        source: str = "",
        target: str = "",
    ) -> Response:
        """Translate the texts of a file, the body; everything else is kept byte for byte.

        The suffix of `name` is the format. `column` is a column of TSV, or a field of JSON lines.
        `glossary` is a JSON object; it, `source` and `target` are as in the requests for texts. The
        header `X-Not-Translated` of the answer counts the texts that keep their source, and `X-Via`
        names a language between those of the request.
        """
        async with self.accept(request) as received:
            self.access.check_key(request, missing=401)
            path = PurePosixPath(name)
            if not path.name:
                raise HTTPException(422, "`name`: is missing, as in /document?name=page.html")
            route = self.pairs.choose(source, target)
            direction, size = route.direction, self.limits.sentences
            content = await received.body()
            try:
                rows = TypeAdapter(Rows | None).validate_json(glossary)
            except ValidationError:
                raise HTTPException(422, "`glossary`: is no JSON object of terms") from None
            try:
                file = await asyncio.to_thread(
                    read_file, content, path.name, direction, column or None
                )
            except DataError as error:
                # The option of `mt translate` is a field here.
                raise HTTPException(422, str(error).replace("--column", "column")) from None
            texts: list[TranslatedLine] = []
            halves = await self.open(route, rows=rows)
            for start in range(0, len(file.lines), size):  # a file may be longer than the queue
                lines = file.lines[start : start + size]
                answers = await self.translate_lines(request, lines, halves, is_begun=bool(start))
                texts += map(_as_line, answers)
            file_name = quote(f"{path.stem}.{direction.target}{path.suffix}", safe="")
            headers = {
                "Content-Disposition": f"attachment; filename*=UTF-8''{file_name}",
                "X-Content-Type-Options": "nosniff",
            }
            if route.via:
                headers["X-Via"] = route.via
            kept = Counter(file.kept)
            translated = await asyncio.to_thread(
                file.join, texts, lambda numbers, _: kept.update({_REFUSED: len(numbers)})
            )
            if kept:
                headers["X-Not-Translated"] = (
                    format_untranslated(kept).encode("ascii", "replace").decode()
                )
            return Response(translated, 200, headers, _BYTES)

    @asynccontextmanager
    async def accept(self, request: Request, *, is_counted: bool = True) -> AsyncIterator[Request]:
        """Check the origin and the number of requests; yield the request with its body.

        The metrics count the request with the status of its answer.
        """
        began, status = time.perf_counter(), 500
        try:
            self.access.check_origin(request)
            if self.concurrent.locked():
                most = self.limits.requests
                message = f"too many requests at once, at most {most:,} are taken; try again"
                raise HTTPException(503, message, {"Retry-After": "1"})
            async with self.concurrent:
                yield await receive_body(request, self.limits)
            status = 200
        except StarletteHTTPException as error:
            status = error.status_code
            raise
        finally:
            if is_counted:
                self.batcher.metrics.count_request(status, time.perf_counter() - began)

    async def read_texts(
        self, texts: Sequence[str], format: TextFormat, direction: Direction, name: str
    ) -> list[RequestText]:
        """Split the texts of a field into lines; raise HTTPException for too many of them."""
        if format == "html":
            pages = (read_html(text, direction) for text in texts)
            split = await asyncio.to_thread(list, pages)
        else:
            split = [read_text(text) for text in texts]
        count = sum(len(text.lines) for text in split)
        status = INVALID if name == "q" else 413
        check_size(count, self.limits.sentences, unit="lines", name=name, status=status)
        return split

    async def open(
        self, route: Route, alternatives: int = 0, rows: Rows | None = None
    ) -> list[LineOptions]:
        """Return the options of a request for each model of a route, loaded if needed.

        Of two models, the second finds the alternatives, and neither has terms. Raises
        HTTPException, 422, for rows that are no terms, or for two models.
        """
        try:
            terms = None if rows is None else await asyncio.to_thread(as_terms, rows)
        except DataError as error:
            raise HTTPException(422, str(error)) from None
        if terms is not None and route.via:
            raise HTTPException(422, f"`glossary`: not for {route}: neither model has both sides")
        *before, last = await self.pairs.open(route)
        n_best = 1 + min(alternatives, route.runs[-1].alternatives)
        glossary = None if terms is None else Glossary(terms, route.direction)
        return [*map(LineOptions, before), LineOptions(last, n_best, glossary)]

    async def translate_texts(
        self, request: Request, texts: Sequence[RequestText], halves: Sequence[LineOptions]
    ) -> list[TextAnswer]:
        """Return the answer for each text."""
        lines = [line for text in texts for line in text.lines]
        answers = iter(await self.translate_lines(request, lines, halves))
        return [_combine(text, [next(answers) for _ in text.lines]) for text in texts]

    async def translate_lines(
        self,
        request: Request,
        lines: Sequence[str],
        halves: Sequence[LineOptions],
        *,
        is_begun: bool = False,
    ) -> list[Translation]:
        """Return the translations of all lines, by one model or by two, one after the other.

        The lines are cancelled if the client disconnects first. Raises HTTPException if the batcher
        fails or refuses, and for a client that is gone.
        """

        async def disconnect() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        answers: list[Translation] = []
        for options in halves:
            texts = [answer.text for answer in answers] or lines
            if len(halves) > 1:  # no links of two models: tags return in proportion
                texts = [*map(str, texts)]
            submitted = self.batcher.submit(texts, options, is_begun=is_begun or bool(answers))
            future = asyncio.wrap_future(submitted)
            gone: asyncio.Future[Any] = asyncio.ensure_future(disconnect())
            try:
                await asyncio.wait([future, gone], return_when=asyncio.FIRST_COMPLETED)
                if not future.done():
                    raise HTTPException(CLIENT_GONE)
                results = future.result()
            finally:
                gone.cancel()
                future.cancel()
            answers = [*map(_join_halves, answers, results)] if answers else results
        return answers


def _join_halves(first: Translation, second: Translation) -> Translation:
    """Return the translation of a line by two models: the worse status, and no confidence."""
    notes = (*(f"first model: {note}" for note in first.notes), *second.notes)
    status = min(first.status, second.status, key=get_args(Status).index)
    return replace(second, source=first.source, status=status, notes=notes, confidence=None)


def _as_line(translation: Translation) -> TranslatedLine:
    return TranslatedLine(translation.text, translation.links, translation.needs_review)


def read_request(body: Any, limits: Limits) -> TranslationRequest:
    """Check a request; raise HTTPException, 422 for invalid and 413 for too much content."""
    try:
        request = TranslationRequest.model_validate(body)
    except ValidationError as error:
        # An unknown key comes before the missing key that it probably misspells.
        problems = error.errors(include_url=False)
        first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            text = f"`{key}`: unknown{did_you_mean(key, TranslationRequest.model_fields)}"
        elif key:
            text = f"`{key}`: {first['msg']}"
        else:
            text = 'an object was expected: {"texts": ["...", "..."]}'
        raise HTTPException(422, " ".join(text.split())[:_MESSAGE_LENGTH]) from None
    count = sum(map(len, request.texts))
    check_size(count, limits.characters, unit="characters", name="texts", status=413)
    if request.alternatives > limits.alternatives:
        message = f"`alternatives`: at most {limits.alternatives}, limited by this model's search"
        raise HTTPException(422, message)
    return request


def _combine(text: RequestText, translations: list[Translation]) -> TextAnswer:
    """Return the answer for a text from the translations of its lines."""
    scores: dict[str, float] = {}
    if len(translations) == 1:
        for alternative in translations[0].alternatives:
            scores.setdefault(alternative.text, alternative.score)
        scores.pop(translations[0].text, None)
    statuses = [line.status for line in translations if line.source.strip()]
    notes = [
        note if len(translations) == 1 else f"{text.unit} {position}: {note}"
        for position, line in enumerate(translations, start=1)
        for note in line.notes
    ]
    known = [line.confidence for line in translations if line.confidence is not None]

    def refuse(positions: range, reason: str) -> None:
        notes.append(f"{text.unit} {positions[0]}: keeps its source: {reason}")

    return TextAnswer(
        text=text.join([*map(_as_line, translations)], refuse).decode(),
        status=min(statuses, key=get_args(Status).index, default="empty"),
        score=sum(line.score for line in translations),
        confidence=fmean(known) if known else None,
        notes=notes,
        alternatives=[
            AlternativeAnswer(
                text=text.join([TranslatedLine(line)], lambda *_: None).decode(), score=score
            )
            for line, score in scores.items()
        ],
        terms=[use.as_record() for line in translations for use in line.terms],
    )
