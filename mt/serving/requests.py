"""Requests of both APIs: their access, bodies, limits and texts."""

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
from starlette.requests import ClientDisconnect
from starlette.types import Message

from mt.config.data import Direction
from mt.data.filters import identify, in_other_language
from mt.decoding.preparation import repair_unicode
from mt.documents.document import SUFFIXES, SourceDocument, read_document
from mt.documents.segments import Options, TranslatedLine, count_untranslated
from mt.errors import DataError, UserError, did_you_mean
from mt.files import require_file
from mt.languages import base_language, language_name
from mt.serving.served_runs import INVALID, Pairs
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
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_LINE_END = re.compile(r"(\r\n|\r|\n)")  # as in the translator
TextFormat = Literal["text", "html"]
AUTO = "auto"
_MISSING = "Invalid request: missing {} parameter"
_LIBRE_FIELDS = {"q", "source", "target", "format", "api_key"}


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
        lines = [line.strip() for line in require_file(key_file).read_bytes().splitlines()]
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

    return RequestText(tuple(texts), join, kept=count_untranslated(items))


@dataclass(frozen=True, slots=True)
class LibreRequest:
    """Request of LibreTranslate's API, checked but for its languages."""

    source: str
    """A language, or AUTO."""
    target: str
    texts: tuple[str, ...]
    is_list: bool
    """True for a list of texts, which is answered by lists."""
    alternatives: int
    format: TextFormat


def is_libretranslate(body: Any) -> bool:
    """Return True for a body with fields of LibreTranslate's and without `texts`."""
    return isinstance(body, dict) and "texts" not in body and not _LIBRE_FIELDS.isdisjoint(body)


def read_libre_request(body: Mapping[str, Any], limits: Limits, pairs: Pairs) -> LibreRequest:
    """Check a request, and raise HTTPException (400); unknown fields are ignored."""
    texts = read_libre_texts(body, limits)
    for name in ("source", "target"):
        if body.get(name) in (None, ""):
            raise _invalid(f"{_MISSING.format(name)}; {pairs}")
        if not isinstance(body[name], str):
            raise _invalid(f"`{name}`: a string was expected")
    source = AUTO if body["source"].lower() == AUTO else body["source"]
    format: TextFormat = "html" if body.get("format") == "html" else "text"
    if (body.get("format") or "text") != format:
        raise _invalid("`format`: `text` or `html` was expected")
    try:
        alternatives = body.get("alternatives")
        alternatives = 0 if alternatives in (None, "") else int(alternatives)
    except (TypeError, ValueError, OverflowError):
        alternatives = -1
    if alternatives < 0:
        raise _invalid("`alternatives`: a number from 0 on was expected")
    alternatives = min(alternatives, limits.alternatives)
    is_list = isinstance(body["q"], list)
    return LibreRequest(source, body["target"], texts, is_list, alternatives, format)


def read_libre_texts(body: Any, limits: Limits) -> tuple[str, ...]:
    """Return the texts of the field `q`; raise HTTPException (400) if it is missing or too long."""
    field = body.get("q") if isinstance(body, dict) else None
    if field is None:
        raise _invalid(_MISSING.format("q"))
    texts = tuple(field) if isinstance(field, list) else (field,)
    if not all(isinstance(text, str) for text in texts):
        raise _invalid("`q`: a string or a list of strings was expected")
    count = sum(map(len, texts))
    check_size(count, limits.characters, unit="characters", name="q", status=INVALID)
    return texts


def read_key(body: Any) -> str | None:
    """Return the field `api_key` of a body, or None without one; raise HTTPException (400)."""
    key = body.get("api_key") if isinstance(body, dict) else None
    if not isinstance(key, str | None):
        raise _invalid("`api_key`: a string was expected")
    return key


def detect_language(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the most probable language of texts, as `/detect` answers.

    Raises HTTPException: 400 for blank texts, 501 if py3langid is not installed.
    """
    text = "\n".join(texts)
    if not text.strip():
        raise _invalid(_MISSING.format("q"))
    try:
        language, probability = identify(repair_unicode(text)[0])
    except DataError as error:
        raise HTTPException(501, str(error)) from None
    return [_describe(language, probability)]


def detect_sources(texts: Sequence[str], language: str, pairs: Pairs) -> list[dict[str, Any]]:
    """Return the `detectedLanguage` of each text, which is that of the chosen model.

    The confidence is 0 if the language could not be identified: the text is too short, the
    language unsupported, or py3langid not installed. Raises HTTPException (400) for a text that is
    clearly in another language.
    """
    detected = []
    for text in texts:
        try:
            likely, probability = identify(text)
            is_other = in_other_language(text, language)
        except DataError:
            likely, probability, is_other = "", 0.0, False
        if is_other:
            raise _invalid(f"`q`: the text is in {language_name(likely)} (`{likely}`); {pairs}")
        is_source = likely == base_language(language)
        detected.append(_describe(language, probability if is_source else 0.0))
    return detected


def _describe(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability, 1), "language": language}


def _invalid(message: str) -> HTTPException:
    return HTTPException(INVALID, message)
