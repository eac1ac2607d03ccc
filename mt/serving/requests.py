"""Requests: their access, bodies, limits, texts and counters."""

import asyncio
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from fastapi import HTTPException, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from mt.config.data import Direction
from mt.data.placeholders import TaggedText
from mt.data.tokenizer import Tokenizer
from mt.decoding.preparation import repair_unicode
from mt.decoding.translator import Translation
from mt.documents.document import SUFFIXES, SourceDocument, read_document
from mt.documents.segments import Options, TranslatedLine, count_untranslated
from mt.errors import DataError, UserError, did_you_mean
from mt.files import require_file
from mt.tables import make_printable

BODY_SECONDS = 30.0
FORM, FORM_IN_PARTS = "application/x-www-form-urlencoded", "multipart/form-data"
ANY_ORIGIN = "*"
CLIENT_GONE = 499
"""Status recorded for a request whose client has disconnected."""
_ESCAPED_BYTES, _OTHER_BYTES = 12, 2**16
_MOST_FIELDS = 100
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+")
_ADDRESS = re.compile(r"[\d.]+|[0-9a-f:.]+:[0-9a-f:.]*")
_LOCAL_NAMES = (".localhost", ".local", ".internal", ".home.arpa")
_KEY = re.compile(rb"[!-~]+")
_LARGEST_KEY_FILE = 1 << 20
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_LINE_END = re.compile(r"(\r\n|\r|\n)")  # as in the translator
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TextFormat = Literal["text", "html"]


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
    requests: int = 512

    @property
    def body_bytes(self) -> int:
        """Largest body that `characters` can need.

        A character takes up to 12 bytes as a JSON escape, and as many in a form.
        """
        return _ESCAPED_BYTES * self.characters + _OTHER_BYTES


def check_size(count: int, most: int, *, unit: str, name: str, status: int) -> None:
    """Raise HTTPException with `status` for too many characters or lines in the field `name`."""
    if count > most:
        raise HTTPException(status, f"`{name}`: {count:,} {unit} in all, the limit is {most:,}")


@dataclass(frozen=True, slots=True)
class Access:
    """Permissions of a server: by default no key is needed, and no other origin is allowed."""

    keys: tuple[bytes, ...] = ()
    """Accepted API keys; empty: none is needed."""
    origins: tuple[str, ...] = ()
    """Other origins whose pages may use the server; `*` stands for all."""
    host: str = ""
    """Name that the server is asked to listen on."""

    def check_origin(self, request: Request) -> None:
        """Raise HTTPException (403) for a request by a page of an origin that is not allowed.

        Browsers send the origin with each POST request. They also send simple requests of other
        origins without asking, and only hide the answers.
        """
        origin = request.headers.get("origin")
        if origin is None or ANY_ORIGIN in self.origins or origin in self.origins:
            return
        host = request.headers.get("host", "").lower()
        is_same_origin = (
            request.headers.get("sec-fetch-site") == "same-origin"
            or origin.partition("://")[2].lower() == host
        )
        # A host that no stranger can point at this machine (DNS rebinding): an address, a name
        # without a dot or of a local network, an allowed origin.
        name = urlsplit(f"//{host}").hostname or ""
        is_safe_host = (
            _ADDRESS.fullmatch(name)
            or "." not in name.rstrip(".")
            or name.endswith(_LOCAL_NAMES)
            or name in {urlsplit(allowed).hostname for allowed in self.origins} | {self.host}
        )
        if not (is_same_origin and (self.keys or is_safe_host)):
            message = "pages of this origin may not use the server; see `mt serve --allow-origin`"
            raise HTTPException(403, message)

    def check_key(self, request: Request, *, missing: int, field: str | None = None) -> None:
        """Raise HTTPException unless the header or the field `api_key` has a key of the server.

        The status is `missing` without a key, and 403 for a wrong one.
        """
        if not self.keys:
            return
        header = _BEARER.fullmatch(request.headers.get("authorization", ""))
        key = field or (header and header[1])
        if not key:
            message = "an API key is needed: `Authorization: Bearer KEY`, or the field `api_key`"
            headers = {"WWW-Authenticate": "Bearer"} if missing == 401 else None
            raise HTTPException(missing, message, headers)
        sent = key.encode("utf-8", "surrogatepass")
        # All keys are compared, so that the time does not depend on the key that is sent.
        equal = [hmac.compare_digest(sent, accepted) for accepted in self.keys]
        if not any(equal):
            raise HTTPException(403, "the API key is wrong")


def read_access(key_file: Path | None, origins: Sequence[str]) -> Access:
    """Return the permissions from a file with a key per line and from the allowed origins.

    Blank lines of the file are skipped. Raises UserError for an origin with a path or without a
    scheme, and for a file without keys or with a line that is no key; a message contains no key.
    """
    for origin in origins:
        if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin.lower()):
            raise UserError(
                f"--allow-origin {origin}: an origin is a scheme and a host, with a port if "
                "needed, as in `https://example.org`"
            )
    lines: list[bytes] = []
    if key_file:
        with require_file(key_file).open("rb") as file:
            lines = [line.strip() for line in file.read(_LARGEST_KEY_FILE).splitlines()]
        for position, line in enumerate(lines, start=1):
            if line and not _KEY.fullmatch(line):
                problem = f"line {position} is not a key: a key has ASCII characters without spaces"
                raise UserError(f"{key_file}: {problem}")
        if not any(lines):
            raise UserError(f"{key_file}: has no API key; write one per line")
    return Access(tuple(filter(None, lines)), tuple(origin.lower() for origin in origins))


async def receive_body(request: Request, limits: Limits) -> Request:
    """Return the request with its body; raise HTTPException for a large (413) or slow (408) one."""
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > limits.body_bytes:  # uvicorn drops the rest
            most = f"{limits.body_bytes:,}"
            raise HTTPException(413, f"the body is larger than the limit of {most} bytes")
        return message

    received = Request(request.scope, receive)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            await received.body()
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise HTTPException(CLIENT_GONE) from None
    return received


async def read_body(request: Request, *, invalid: int) -> Any:
    """Return a JSON body, or the fields of a form as a dict, in which repeated fields are lists.

    A body that begins with a brace is JSON, even if its header calls it a form, as curl does.
    Raises HTTPException with a message of one line: `invalid` for a body that is not JSON, 400 for
    a damaged form, 415 for a compressed body.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise HTTPException(415, "the body is compressed; send it without `Content-Encoding`")
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_form = kind in {FORM, FORM_IN_PARTS} and not body.lstrip().startswith(b"{")
    try:
        if not is_form:
            return json.loads(body, object_pairs_hook=join_fields)
        if kind == FORM_IN_PARTS:
            parts = request.form(max_files=0, max_fields=_MOST_FIELDS, max_part_size=len(body))
            async with parts as form:
                return join_fields(form.multi_items())
        # Starlette reads bytes that are not escaped as Latin-1; curl sends them as UTF-8.
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
        return join_fields(fields)
    except json.JSONDecodeError as error:
        raise HTTPException(invalid, f"the body is not JSON: {error}") from None
    except (ValueError, RecursionError):
        if is_form:
            raise HTTPException(400, "the body cannot be read as a form in UTF-8") from None
        raise HTTPException(invalid, "the body cannot be read as JSON in UTF-8") from None


def join_fields(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields by name; the value of a field that is given several times is a list."""
    values: dict[str, list[Any]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    return {name: several if several[1:] else several[0] for name, several in values.items()}


Refuse = Callable[[range, str], None]
"""Function that receives the numbers of texts that keep their source, and the reason."""


@dataclass(frozen=True, slots=True)
class RequestText:
    """Lines of a text or file to translate."""

    lines: tuple[str, ...]
    join: Callable[[Sequence[TranslatedLine], Refuse], bytes]
    """Function that returns the text, as UTF-8, or the file with other lines in place of these."""
    unit: Literal["line", "text"] = "text"
    has_tags: bool = False
    """True if links between lines and translations decide about the places of tags."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Number of texts by the reason for which they are not translated."""


def read_text(text: str) -> RequestText:
    """Split a text at its line ends: newline, carriage return, or both."""
    parts = _LINE_END.split(text)

    def join(lines: Sequence[TranslatedLine], _: Refuse) -> bytes:
        pairs = zip((line.text for line in lines), (*parts[1::2], ""), strict=True)
        return "".join(part for pair in pairs for part in pair).encode()

    return RequestText(tuple(parts[::2]), join, "line")


def read_html(text: str, direction: Direction) -> RequestText:
    """Find the texts of a page or of a part of one; lone surrogates are read as U+FFFD."""
    document = SourceDocument(repair_unicode(text)[0], "utf-8", "html")
    return _find_texts(document, Options("html", direction.source, direction.target))


def read_file(
    content: bytes, name: str, direction: Direction, column: str | None = None
) -> RequestText:
    """Find the texts of a file; raise DataError for an unknown suffix and for a damaged file."""
    suffix, name = PurePosixPath(name).suffix.lower(), make_printable(name)
    if suffix not in SUFFIXES:
        hint = did_you_mean(suffix, SUFFIXES)
        raise DataError(f"{name}: unknown suffix{hint}; known are {', '.join(SUFFIXES)}")
    document = read_document(content, SUFFIXES[suffix], name)
    return _find_texts(document, Options(name, direction.source, direction.target, column))


def _find_texts(document: SourceDocument, options: Options) -> RequestText:
    items = document.read_items(options)
    texts = [text for item in items for text in item.texts]

    def join(lines: Sequence[TranslatedLine], refuse: Refuse) -> bytes:
        return b"".join(document.translate(items, lines, refuse))

    has_tags = any(isinstance(text, TaggedText) for text in texts)
    return RequestText(tuple(texts), join, has_tags=has_tags, kept=count_untranslated(items))


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

    def count_batch(self, tokenizer: Tokenizer, translations: Sequence[Translation]) -> None:
        """Count a batch of translated lines."""
        texts = [repair_unicode(line.source)[0] for line in translations]
        sources = sum(len(ids) - 1 for ids in tokenizer.encode_source(texts))
        targets = sum(len(line.alternatives[0].ids) for line in translations if line.alternatives)
        self._tokens.labels("source").inc(sources)
        self._tokens.labels("target").inc(targets)
        self._sentences.inc(len(translations))
        self._batches.observe(len(translations))

    def as_text(self) -> bytes:
        """Return all counters in the text format of Prometheus."""
        return generate_latest(self._registry)
