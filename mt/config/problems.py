"""Error messages for invalid configurations: keys, lines and nearest valid names."""

import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mt.config.base import Section
from mt.config.data import IMPLIED_FORMATS
from mt.config.yaml_reader import Document, Keys, Problem
from mt.errors import ConfigError, ConfigProblemsError, did_you_mean, escape_line

ANY_NAME = "NAME"
"""Placeholder in a key for a name chosen by the user, as in `data.tests.NAME.source`."""
_MIN_SIMILARITY = 0.6
# A similar key of the same section is preferred to a slightly more similar key of another.
_SIBLING_BONUS = 0.15


def config_error(problems: Iterable[Problem], *, file: str) -> ConfigError:
    """Return one error with all problems, in reading order."""
    ordered = sorted(problems, key=lambda problem: problem.origin)
    lines = [escape_line(_line(problem)) for problem in ordered]
    if len(lines) == 1:
        return ConfigError(lines[0])
    heading = ": ".join(filter(None, [file, f"{len(lines)} problems"]))
    return ConfigProblemsError("\n".join([heading, *lines]))


def _line(problem: Problem) -> str:
    dotted = ".".join(problem.keys)
    label = problem.origin.label
    key = f"`{dotted}`" if dotted and label != f"--set {dotted}" else ""
    return ": ".join(filter(None, (label, key, problem.text)))


def problems_in(
    error: ValidationError, root: type[Section], document: Document
) -> Iterator[Problem]:
    """Yield the problems of a document validated against `root`."""
    errors = error.errors(include_url=False)
    located = [(locate(root, details["loc"]), details) for details in errors]
    unread = {problem.keys for problem in document.problems}
    misspelt = {
        suggest(root, place) for place, details in located if details["type"] == "extra_forbidden"
    }
    for place, details in located:
        if details["type"] == "value_error":
            # A rule may be broken only because a value could not be read.
            if not any(keys[: len(place.keys)] == place.keys for keys in unread):
                for text in str(details["ctx"]["error"]).splitlines():
                    named = [tuple(word.split(".")) for word in re.findall(r"`([\w.-]+)", text)]
                    # The rule is reported at the last given of the keys that it names.
                    origins = [document.origins[keys] for keys in named if keys in document.origins]
                    dotted = next((keys for keys in named if len(keys) > 1), None)
                    origin = max(origins, default=document.origin(dotted or place.keys))
                    yield Problem(origin, () if dotted else place.keys, text)
        elif details["type"] == "missing" and place.dotted in misspelt:
            continue
        elif details["input"] is not None or place.keys not in unread:
            yield _problem(details, place, root, document)


def _problem(
    details: ErrorDetails, place: "Place", root: type[Section], document: Document
) -> Problem:
    kind, value, keys = details["type"], details["input"], place.keys
    if kind == "extra_forbidden":
        text = _unknown(root, place)
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        if isinstance(value, dict):
            formats = tuple(format_name(kind) or "" for kind in sections_at(root, keys))
            if "format" in value:
                keys = (*keys, "format")
                text = _not_a_choice(value["format"], formats)
            else:
                keys = (*keys, next(key for key in IMPLIED_FORMATS if key in value))
                listed = ", ".join(f"`{word}`" for word in formats)
                text = f"not possible here, where `format` is one of {listed}"
        else:
            text = f"expected keys such as `corpus`, got {_shown(value)}"
    elif kind == "literal_error" and place.field:
        text = _not_a_choice(value, choices(place.field.annotation))
    elif details["loc"][-1:] == ("[key]",):
        text = "a name has only letters, digits, `_` and `-`, and begins with a letter or digit"
    elif kind == "string_pattern_mismatch" and place.field:
        text = f"{_shown(value)} does not have the right form: {place.field.description}"
    elif kind in _MESSAGES:
        text = _MESSAGES[kind].format(shown=_shown(value), value=value, **details.get("ctx", {}))
        text += _HINTS.get((kind, place.dotted), "")
    else:
        message = details["msg"]
        text = f"{message[0].lower()}{message[1:]}, got {_shown(value)}"
    return Problem(document.origin(keys), keys, text)


def _unknown(root: type[Section], place: "Place") -> str:
    *parents, key = place.keys
    formats = [section for section in sections_at(root, parents) if key in fields(section)]
    if formats:
        kind = format_name(place.section) if place.section else None
        listed = " or ".join(f"`format: {format_name(section)}`" for section in formats)
        return f"unknown with `format: {kind}`; it belongs to {listed}"
    near = suggest(root, place)
    return f"unknown; did you mean `{near}`?" if near else "unknown"


def _not_a_choice(value: Any, words: tuple[str, ...]) -> str:
    listed = ", ".join(f"`{word}`" for word in words)
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    return f"{_shown(value)} is not one of {listed}{near}"


_MESSAGES = {
    "missing": "required, but missing",
    "int_type": "expected a whole number, got {shown}",
    "int_from_float": "expected a whole number, got {shown}",
    "float_type": "expected a number, got {shown}",
    "finite_number": "expected a finite number, got {shown}",
    "string_type": "expected text, got {shown}",
    "string_too_short": "expected text, got {shown}",
    "bool_type": "expected `true` or `false`, got {shown}",
    "path_type": "expected a path, got {shown}",
    "tuple_type": "expected a list, got {shown}",
    "list_type": "expected a list, got {shown}",
    "dict_type": "expected a section of names, got {shown}",
    "model_type": "expected a section of keys, got {shown}",
    "greater_than": "{value} is out of range: must be more than {gt}",
    "greater_than_equal": "{value} is out of range: must be at least {ge}",
    "less_than": "{value} is out of range: must be less than {lt}",
    "less_than_equal": "{value} is out of range: must be at most {le}",
    "multiple_of": "{value} is not a multiple of {multiple_of}",
}
"""Messages by pydantic's error type."""
_HINTS = {
    ("missing", "data.valid"): "; `valid: {held_out: 1000}` takes 1000 pairs of the training corpus"
}


def _shown(value: Any) -> str:
    """Return a value as it is written in YAML; mark text that only looks like another type."""
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
        return f"the text `{short}` (remove the quotes)" if quoted else f"`{short}`"
    return f"the number {value}"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the configuration."""

    keys: Keys
    section: type[Section] | None
    """Section of the last key; None if the keys go deeper than any section."""
    field: FieldInfo | None
    """Field of the last key; None for an unknown key."""

    @property
    def dotted(self) -> str:
        """The keys as text: `model.norm`."""
        return ".".join(self.keys)


@dataclass(frozen=True, slots=True)
class _Nested:
    """Sections below a key: none, one, or one for each corpus format."""

    sections: tuple[type[Section], ...] = ()
    named: bool = False
    """True if a name chosen by the user, or a list index, precedes the section."""


def fields(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the fields of a section by their name in YAML."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def choices(annotation: Any) -> tuple[str, ...]:
    """Return the words that a type allows; empty if it does not list them."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(word for part in get_args(annotation) for word in choices(part))


def format_name(section: type[Section]) -> str | None:
    """Return the `format` of a corpus section, or None for any other section."""
    field = section.model_fields.get("format")
    return choices(field.annotation)[0] if field else None


def all_places(root: type[Section], prefix: Keys = ()) -> Iterator[Place]:
    """Yield every key, sections before their content, with ANY_NAME for user-chosen names."""
    for key, field in fields(root).items():
        place = Place((*prefix, key), root, field)
        yield place
        nested = _nested(field.annotation)
        for section in nested.sections:
            yield from all_places(section, (*place.keys, ANY_NAME) if nested.named else place.keys)


def locate(root: type[Section], location: tuple[int | str, ...]) -> Place:
    """Return the place of a pydantic error location, without the tags of unions."""
    here = _Nested((root,))
    place = Place((), root, None)
    for part in map(str, location):
        if here.named:
            here = _Nested(here.sections)
            place = Place((*place.keys, part), None, place.field)
        elif len(here.sections) > 1:
            here = _Nested(tuple(kind for kind in here.sections if format_name(kind) == part))
        elif here.sections:
            field = fields(here.sections[0]).get(part)
            place = Place((*place.keys, part), here.sections[0], field)
            here = _nested(field.annotation) if field else _Nested()
        elif part != "[key]":
            place = Place((*place.keys, part), None, place.field)
    return place


def suggest(root: type[Section], place: Place) -> str | None:
    """Return the most similar dotted key of any section, or None without a similar one."""
    siblings = fields(place.section) if place.section else {}
    known = [((*place.keys[:-1], key), _SIBLING_BONUS) for key in siblings]
    known += [
        (other.keys, _SIBLING_BONUS if other.keys[:-1] == place.keys[:-1] else 0.0)
        for other in all_places(root)
        if ANY_NAME not in other.keys
    ]
    nearest: dict[str, float] = {}
    similarity = SequenceMatcher(b=place.keys[-1].lower().replace("-", "_"))
    for keys, bonus in known:
        similarity.set_seq1(keys[-1])
        ratio = similarity.ratio()
        if ratio >= _MIN_SIMILARITY:
            nearest.setdefault(".".join(keys), ratio + bonus)
    return max(nearest, key=nearest.__getitem__, default=None)


def sections_at(root: type[Section], keys: Iterable[str]) -> tuple[type[Section], ...]:
    """Return the sections allowed under some keys: none, one, or one for each corpus format."""
    here = _Nested((root,))
    for key in keys:
        if here.named:
            here = _Nested(here.sections)
            continue
        named = [fields(section)[key] for section in here.sections if key in fields(section)]
        here = _nested(named[0].annotation) if named else _Nested()
    return here.sections


def _nested(annotation: Any) -> _Nested:
    """Return the sections below a field of this type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _nested(get_args(annotation)[0])
    if origin is dict:
        return _Nested(_nested(get_args(annotation)[1]).sections, named=True)
    if origin is tuple:
        sections = _nested(get_args(annotation)[0]).sections
        return _Nested(sections, named=bool(sections))
    if origin in (Union, types.UnionType):
        parts = [_nested(part) for part in get_args(annotation)]
        return _Nested(tuple(section for part in parts for section in part.sections))
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _Nested((annotation,))
    return _Nested()
