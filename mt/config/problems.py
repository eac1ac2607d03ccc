"""What pydantic finds wrong, in the words of the configuration: keys, lines and near names."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mt.config.base import Section
from mt.config.document import Document, Keys, Problem
from mt.config.keys import Place, choices, formats_with, kinds_below, locate, suggest
from mt.config.keys import format_name as format_of
from mt.errors import ConfigError, did_you_mean


def problems_in(
    error: ValidationError, root: type[Section], document: Document
) -> Iterator[Problem]:
    """Yield everything that a check of the document against `root` has found."""
    found = error.errors(include_url=False)
    told = {problem.keys for problem in document.problems}
    meant = {
        suggest(root, locate(root, details["loc"]))
        for details in found
        if details["type"] == "extra_forbidden"
    }
    for details in found:
        place = locate(root, details["loc"])
        unreadable = details["input"] is None and place.keys in told
        misspelt = details["type"] == "missing" and place.dotted in meant
        if unreadable or misspelt:
            continue
        if details["type"] == "value_error":
            yield from _broken_rules(details, place, document)
        else:
            yield _problem(details, place, root, document)


def config_error(problems: Iterable[Problem], *, file: str) -> ConfigError:
    """Return one error that tells all problems, in the order in which the file is read."""
    ordered = sorted(problems, key=lambda problem: problem.origin)
    lines = [_line(problem) for problem in ordered]
    if len(lines) == 1:
        return ConfigError(lines[0])
    head = f"{file}: {len(lines)} problems" if file else f"{len(lines)} problems"
    return ConfigError("\n".join([head, *lines]))


def _line(problem: Problem) -> str:
    dotted = ".".join(problem.keys)
    label = problem.origin.label
    if label == f"--set {dotted}" or not dotted:
        return f"{label}: {problem.text}" if label else problem.text
    return f"{label}: `{dotted}`: {problem.text}" if label else f"`{dotted}`: {problem.text}"


def _broken_rules(details: ErrorDetails, place: Place, document: Document) -> Iterator[Problem]:
    """Yield the rules across fields that do not hold; each is a line of the validator's text."""
    for text in str(details["ctx"]["error"]).splitlines():
        named = [tuple(word.split(".")) for word in re.findall(r"`([\w.-]+)", text)]
        # Of the keys that the rule is about, the one given last has broken it.
        given = [document.origins[keys] for keys in named if keys in document.origins]
        origin = max(given, default=document.origin(place.keys))
        says_where = any(len(keys) > 1 for keys in named)
        yield Problem(origin, () if says_where else place.keys, text)


def _problem(
    details: ErrorDetails, place: Place, root: type[Section], document: Document
) -> Problem:
    kind, value = details["type"], details["input"]
    origin = document.origin(place.keys)
    if kind == "extra_forbidden":
        return Problem(origin, place.keys, _unknown(root, place))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_kind(place.keys, value, root, document)
    if kind == "literal_error" and place.field:
        return Problem(origin, place.keys, _no_choice(value, choices(place.field.annotation)))
    if details["loc"][-1:] == ("[key]",):
        text = (
            "a name is made of letters, digits, `_` and `-`, and begins with one of the first two"
        )
        return Problem(origin, place.keys, text)
    if kind == "string_pattern_mismatch" and place.field:
        text = f"{_shown(value)} does not have the right form: {place.field.description}"
        return Problem(origin, place.keys, text)
    if kind in _WORDS:
        return Problem(origin, place.keys, _WORDS[kind](value, details.get("ctx", {})))
    text = details["msg"]
    return Problem(origin, place.keys, f"{text[0].lower()}{text[1:]}, not {_shown(value)}")


def _unknown(root: type[Section], place: Place) -> str:
    if formats := formats_with(root, place):
        kind = format_of(place.section) if place.section else None
        listed = " or ".join(f"`format: {name}`" for name in formats)
        return f"unknown with `format: {kind}`; it goes with {listed}"
    near = suggest(root, place)
    return f"unknown; did you mean `{near}`?" if near else "unknown"


def _wrong_kind(keys: Keys, value: Any, root: type[Section], document: Document) -> Problem:
    if not isinstance(value, dict):
        text = f"keys such as `corpus` were expected under it, not {_shown(value)}"
        return Problem(document.origin(keys), keys, text)
    formats = tuple(format_of(kind) or "" for kind in kinds_below(root, keys))
    keys = (*keys, "format")
    return Problem(document.origin(keys), keys, _no_choice(value["format"], formats))


def _no_choice(value: Any, words: tuple[str, ...]) -> str:
    listed = ", ".join(f"`{word}`" for word in words)
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    if len(words) == 1:
        return f"{_shown(value)} is not {listed}, the only choice"
    return f"{_shown(value)} is none of {listed}{near}"


def _expected(what: str) -> Callable[[Any, dict[str, Any]], str]:
    return lambda value, _: f"{what} was expected, not {_shown(value)}"


def _bound(words: str, name: str) -> Callable[[Any, dict[str, Any]], str]:
    return lambda value, limits: f"{value} is out of range: {words} {limits[name]}"


_WORDS: dict[str, Callable[[Any, dict[str, Any]], str]] = {
    "missing": lambda _value, _limits: "is required and missing",
    "int_type": _expected("a whole number"),
    "int_from_float": _expected("a whole number"),
    "float_type": _expected("a number"),
    "finite_number": _expected("a finite number"),
    "string_type": _expected("text"),
    "string_too_short": _expected("text"),
    "bool_type": _expected("`true` or `false`"),
    "path_type": _expected("a path"),
    "tuple_type": _expected("a list"),
    "list_type": _expected("a list"),
    "dict_type": _expected("a section of names"),
    "model_type": _expected("a section of keys"),
    "greater_than": _bound("must be more than", "gt"),
    "greater_than_equal": _bound("must be at least", "ge"),
    "less_than": _bound("must be less than", "lt"),
    "less_than_equal": _bound("must be at most", "le"),
    "multiple_of": lambda value, limits: f"{value} is no multiple of {limits['multiple_of']}",
}


def _shown(value: Any) -> str:
    """Return a value as a user knows it, with the reason why a look-alike is not what it seems."""
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict):
        return "a section of keys"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        short = value if len(value) <= 60 else f"{value[:57]}..."
        quoted = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|true|false|null", value, re.I)
        return f"the text `{short}` (leave out the quotes)" if quoted else f"`{short}`"
    return f"the number {value}"
