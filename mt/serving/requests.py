"""Requests: their access, bodies, limits, texts and counters."""

import asyncio
import hmac
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import parse_qs

from fastapi import HTTPException, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mt.config.data import Direction
from mt.data.tokenizer import Tokenizer
from mt.decoding.preparation import repair_unicode
from mt.decoding.translator import Translation
from mt.documents.document import SUFFIXES, SourceDocument, read_document
from mt.documents.segments import Options, TranslatedLine
from mt.errors import DataError, UserError, did_you_mean
from mt.files import existing_file
from mt.tables import printable

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


BODY_SECONDS = 30.0
"""Time limit for the arrival of a request body."""
_ESCAPED_BYTES, _OTHER_BYTES = 12, 2**16
FORM = "application/x-www-form-urlencoded"
_FORM_IN_PARTS = "multipart/form-data"
_MOST_FIELDS = 100


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
        """Largest body that `characters` can need.

        A character takes up to 12 bytes as a JSON escape, and as many in a form.
        """
        return _ESCAPED_BYTES * self.characters + _OTHER_BYTES


async def receive_body(request: Request, limits: Limits) -> bytes:
    """Return the body; raise HTTPException: 413 if it is too large, 408 if it is too slow."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _receive(request, limits.body_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_SECONDS:g} s"
        raise HTTPException(408, message) from None


def read_body(body: bytes, request: Request, *, invalid: int) -> Any:
    """Return a JSON body, or the fields of a form as a dict of strings.

    A body that begins with a brace is JSON, even if its header calls it a form, as curl does.
    Raises HTTPException with a message of one line: `invalid` for a body that is not JSON, 400 for
    a damaged form.
    """
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    is_form = kind in {FORM, _FORM_IN_PARTS} and not body.lstrip().startswith(b"{")
    name, invalid = ("a form", 400) if is_form else ("JSON", invalid)
    try:
        if not is_form:
            return json.loads(body)
        return _fields(body) if kind == FORM else _fields_in_parts(body, content_type)
    except json.JSONDecodeError as error:
        raise HTTPException(invalid, f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise HTTPException(invalid, f"the body is not {name}: it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise HTTPException(invalid, f"the body cannot be read as {name}") from None


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


def _fields(body: bytes) -> dict[str, str]:
    """Return the fields of a form, each by its first value; raise ValueError for damaged ones."""
    text = body.decode("utf-8")
    found = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    return {name: values[0] for name, values in found.items()}


def _fields_in_parts(body: bytes, content_type: str) -> dict[str, str]:
    """Return the fields of a multipart form; parts in parts are not read, nor are file names.

    The parser of `email` is for the headers alone: with nested parts, its time grows with the
    product of their depth and the lines.
    """
    read_headers = BytesHeaderParser().parsebytes
    boundary = read_headers(f"Content-Type: {content_type}".encode("latin-1")).get_boundary()
    if not boundary:
        raise ValueError("no boundary")
    parts = b"".join((b"\r\n", body)).split(f"\r\n--{boundary}".encode(), _MOST_FIELDS)
    fields: dict[str, str] = {}
    for part in parts[1:]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = read_headers(head.lstrip()).get_param("name", header="content-disposition")
        if isinstance(name, str):
            fields.setdefault(name, value.decode("utf-8"))
    return fields


def check_size(count: int, most: int, *, unit: str, name: str, status: int) -> None:
    """Raise HTTPException with `status` for too many characters or lines in the field `name`."""
    if count > most:
        message = f"`{name}`: {count:,} {unit} in all, the limit is {most:,}"
        raise HTTPException(status, message)


ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/?#@*]+)(.*)", re.DOTALL)
_KEY = re.compile(rb"[!-~]+")
_LARGEST_FILE = 1 << 20
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Access:
    """Permissions of a server: by default no key is needed, and no other origin is allowed."""

    keys: tuple[bytes, ...] = ()
    """Accepted API keys; empty: none is needed."""
    origins: tuple[str, ...] = ()
    """Other origins whose pages may use the server; `*` stands for all."""

    def check_origin(self, request: Request) -> None:
        """Raise HTTPException (403) for a request by a page of an origin that is not allowed.

        Browsers send the origin with each POST request. They also send simple requests of other
        origins without asking, and only hide the answers.
        """
        origin = request.headers.get("origin")
        if origin is None or ANY_ORIGIN in self.origins or origin in self.origins:
            return
        of_own_page = request.headers.get("sec-fetch-site") == "same-origin"
        own_host = request.headers.get("host", "").lower()
        if not of_own_page and origin.partition("://")[2].lower() != own_host:
            message = "pages of this origin may not use the server; see `mt serve --allow-origin`"
            raise HTTPException(403, message)

    def check_key(self, request: Request, *, missing: int, field: str | None = None) -> None:
        """Raise HTTPException unless the header or the field `api_key` has a key of the server.

        The status is `missing` without a key, and 403 for a wrong one.
        """
        if not self.keys:
            return
        header = _BEARER.fullmatch(request.headers.get("authorization", ""))
        given = field or (header and header[1])
        if not given:
            message = "an API key is needed: `Authorization: Bearer KEY`, or the field `api_key`"
            headers = {"WWW-Authenticate": "Bearer"} if missing == 401 else None
            raise HTTPException(missing, message, headers)
        sent = given.encode("utf-8", "surrogatepass")
        # All keys are compared, so that the time does not depend on the key that is given.
        equal = [hmac.compare_digest(sent, key) for key in self.keys]
        if not any(equal):
            raise HTTPException(403, "the API key is wrong")

    def add_to(self, app: Any) -> None:
        """Answer preflight requests of the allowed origins, and show them the answers."""
        if self.origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=self.origins,
                allow_methods=("GET", "POST"),
                allow_headers=("Authorization", "Content-Type"),
            )


NO_KEY_OWN_ORIGIN = Access()


def read_access(key_file: Path | None, origins: Sequence[str]) -> Access:
    """Return the permissions from a file with a key per line and from the allowed origins.

    Blank lines of the file are skipped. Raises UserError for an origin with a path or without a
    scheme, and for a file without keys or with a line that is no key; a message contains no key.
    """
    return Access(_read_keys(key_file) if key_file else (), tuple(map(_read_origin, origins)))


def _read_keys(path: Path) -> tuple[bytes, ...]:
    keys = []
    with existing_file(path).open("rb") as file:
        content = file.read(_LARGEST_FILE)
    for number, line in enumerate(content.splitlines(), start=1):
        key = line.strip()
        if key and not _KEY.fullmatch(key):
            raise UserError(
                f"{path}: line {number} is not a key: a key has ASCII characters without spaces"
            )
        keys.append(key)
    if not any(keys):
        raise UserError(f"{path}: has no API key; write one per line")
    return tuple(filter(None, keys))


def _read_origin(origin: str) -> str:
    if origin == ANY_ORIGIN:
        return origin
    found = _ORIGIN.fullmatch(origin.lower())
    if found and not found[2]:
        return found[1]
    nearest = f"; did you mean `{found[1]}`?" if found else ", as in `https://example.org`"
    raise UserError(
        f"--allow-origin {origin}: an origin is a scheme and a host, with a port if needed{nearest}"
    )


TextFormat = Literal["text", "html"]
_LINE_END = re.compile(r"(\r\n|\r|\n)")  # as in the translator


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of a text."""

    lines: tuple[str, ...]
    join: Callable[[Sequence[TranslatedLine]], str]
    """Function that returns the text with other lines in place of these."""
    unit: Literal["line", "text"] = "line"
    """Word for a line in notes."""
    has_tags: bool = False
    """True if links between lines and translations decide about the places of tags."""


@dataclass(frozen=True, slots=True)
class File:
    """Texts of a file."""

    lines: tuple[str, ...]
    join: Callable[[Sequence[TranslatedLine]], bytes]
    """Function that returns the file with other texts in place of these."""
    has_tags: bool
    """True if links between texts and translations decide about the places of tags."""


def read_text(text: str) -> Text:
    """Split a text at its line ends: newline, carriage return, or both."""
    parts = _LINE_END.split(text)

    def join(lines: Sequence[TranslatedLine]) -> str:
        pairs = zip((line.text for line in lines), (*parts[1::2], ""), strict=True)
        return "".join(part for pair in pairs for part in pair)

    return Text(tuple(parts[::2]), join)


def read_html(text: str, direction: Direction) -> Text:
    """Find the texts of a page or of a part of one; lone surrogates are read as U+FFFD."""
    document = SourceDocument(repair_unicode(text)[0], "utf-8", "html")
    file = _file(document, Options("html", direction.source, direction.target))
    return Text(file.lines, lambda lines: file.join(lines).decode(), "text", file.has_tags)


def read_file(content: bytes, name: str, direction: Direction, column: str | None = None) -> File:
    """Find the texts of a file in the format of its suffix.

    `column` has the texts of TSV or JSON lines. Raises DataError for an unknown suffix and for a
    damaged file.
    """
    suffix, name = PurePosixPath(name).suffix.lower(), printable(name)
    if suffix not in SUFFIXES:
        hint = did_you_mean(suffix, SUFFIXES)
        known = ", ".join(SUFFIXES)
        raise DataError(f"{name}: unknown suffix{hint}; known are {known}")
    document = read_document(content, SUFFIXES[suffix], name)
    return _file(document, Options(name, direction.source, direction.target, column))


def _file(document: SourceDocument, options: Options) -> File:
    texts = [text for item in document.read_items(options) for text in item.texts]

    def join(lines: Sequence[TranslatedLine]) -> bytes:
        return b"".join(document.translate(options, lambda _: iter(lines)))

    return File(tuple(text.text for text in texts), join, any(text.has_tags for text in texts))
