"""What the API takes and gives: JSON, checked against limits before anything is computed."""

import asyncio
import json
from dataclasses import dataclass
from typing import Annotated

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from mt.decoding.translation import Status
from mt.errors import did_you_mean
from mt.serving.metrics import CLIENT_GONE
from mt.serving.texts import read_text

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
    """Whether the attention between the pieces is wanted."""


class Alternative(BaseModel):
    """Another translation of the same text."""

    text: str
    score: float


class Attention(BaseModel):
    """The attention of a line, or of a part of a line that was too long for the model."""

    source: list[str]
    """The source pieces, the end mark last."""
    target: list[str]
    """The target pieces, without end mark."""
    weights: list[list[float]]
    """A row for each target piece: how much it looks at each source piece; a row sums to 1.

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
