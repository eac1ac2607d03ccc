"""Requests and answers of LibreTranslate's API, for its clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException

from mt.config.data import Direction
from mt.data.filters import identify, in_other_language
from mt.decoding.preparation import repair_unicode
from mt.errors import DataError
from mt.languages import base_language, code_parts, describe_country, language_name
from mt.serving.requests import Limits, TextFormat, check_size

INVALID = 400
AUTO = "auto"
_FIELDS = ("q", "source", "target", "format", "api_key")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LibreRequest:
    """Request to translate, checked."""

    texts: tuple[str, ...]
    is_list: bool
    """True for a list of texts, which is answered by lists."""
    is_auto: bool
    alternatives: int
    format: TextFormat


def is_libretranslate(body: Any) -> bool:
    """Return True for a body with fields of LibreTranslate's and without `texts`."""
    return isinstance(body, dict) and "texts" not in body and any(map(body.__contains__, _FIELDS))


def read_libre_request(
    body: Mapping[str, Any], direction: Direction, limits: Limits
) -> LibreRequest:
    """Check a request, and raise HTTPException (400); unknown fields are ignored."""
    texts = read_texts(body, limits)
    for name in ("source", "target"):
        if body.get(name) in (None, ""):
            raise _missing(name)
        if not isinstance(body[name], str):
            raise _invalid(f"`{name}`: a string was expected")
    source, target = body["source"], body["target"]
    format: TextFormat = "html" if body.get("format") == "html" else "text"
    if (body.get("format") or "text") != format:
        raise _invalid("`format`: `text` or `html` was expected")
    is_auto = source.lower() == AUTO
    for name, code, offered in (
        ("source", direction.source if is_auto else source, direction.source),
        ("target", target, direction.target),
    ):
        if not _same_language(code, offered):
            shown = " ".join(_readable(code).split())[:_SHOWN]
            reason = describe_country(shown) or f"`{shown}` is not supported"
            raise _invalid(f"`{name}`: {reason}; the model translates {direction}")
    try:
        alternatives = body.get("alternatives")
        alternatives = 0 if alternatives in (None, "") else int(alternatives)
    except (TypeError, ValueError, OverflowError):
        alternatives = -1
    if alternatives < 0:
        raise _invalid("`alternatives`: a number from 0 on was expected")
    is_list = isinstance(body["q"], list)
    alternatives = min(alternatives, limits.alternatives)
    return LibreRequest(texts, is_list, is_auto, alternatives, format)


def read_texts(body: Any, limits: Limits) -> tuple[str, ...]:
    """Return the texts of the field `q`; raise HTTPException (400) if it is missing or too long."""
    field = body.get("q") if isinstance(body, dict) else None
    if field is None:
        raise _missing("q")
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
        raise _missing("q")
    try:
        language, probability = identify(_readable(text))
    except DataError as error:
        raise HTTPException(501, str(error)) from None
    return [_describe(language, probability)]


def detect_sources(texts: Sequence[str], direction: Direction) -> list[dict[str, Any]]:
    """Return the `detectedLanguage` of each text, which is the source language of the model.

    The confidence is 0 if the language could not be identified: the text is too short, the
    language unsupported, or py3langid not installed. Raises HTTPException (400) for a text that is
    clearly in another language.
    """
    detected = []
    for text in map(_readable, texts):
        try:
            language, probability = identify(text)
            is_other = in_other_language(text, direction.source)
        except DataError:
            language, probability, is_other = "", 0.0, False
        if is_other:
            raise _invalid(
                f"`q`: the text is in {language_name(language)} (`{language}`); "
                f"the model translates {direction}"
            )
        is_source = language == base_language(direction.source)
        detected.append(_describe(direction.source, probability if is_source else 0.0))
    return detected


def list_languages(direction: Direction) -> list[dict[str, Any]]:
    """Return the languages of the model, each with those that it can be translated into."""
    targets = {direction.source: [direction.target]}
    return [
        {"code": code, "name": language_name(code), "targets": targets.get(code, [])}
        for code in dict.fromkeys((direction.source, direction.target))
    ]


def build_answer(
    request: LibreRequest,
    translations: Sequence[str],
    alternatives: Sequence[Sequence[str]],
    detected: Sequence[dict[str, Any]] | None,
) -> dict[str, Any]:
    """Return the answer to a request: lists for a list of texts, single values for a string.

    `detected` are the languages of the texts if the source is `auto`.
    """
    fields: dict[str, Sequence[Any]] = {"translatedText": translations}
    if request.is_auto:
        fields["detectedLanguage"] = detected or []
    if request.alternatives:
        fields["alternatives"] = alternatives
    return {name: list(values) if request.is_list else values[0] for name, values in fields.items()}


def _same_language(asked: str, offered: str) -> bool:
    """Return True for equal languages; one code may add a country or script (zh, zho-Hant)."""
    (first, *more), (offered_first, *offered_more) = map(code_parts, (asked, offered))
    shared = min(len(more), len(offered_more))
    is_same = language_name(first) == language_name(offered_first)
    return is_same and more[:shared] == offered_more[:shared]


def _describe(language: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability, 1), "language": language}


def _readable(text: str) -> str:
    return repair_unicode(text)[0]


def _invalid(message: str) -> HTTPException:
    return HTTPException(INVALID, message)


def _missing(name: str) -> HTTPException:
    return _invalid(f"Invalid request: missing {name} parameter")
