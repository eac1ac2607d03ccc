"""Bodies of requests: their arrival, their limits, and their decoding from JSON or a form."""

import asyncio
import json
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from typing import Any
from urllib.parse import parse_qs

from fastapi import HTTPException, Request

from mt.serving.metrics import CLIENT_GONE

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
