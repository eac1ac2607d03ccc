"""Problems of invalid configurations: keys, lines and nearest valid names."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mt.config.base import Section
from mt.config.data import IMPLIED_FORMATS
from mt.errors import did_you_mean

Keys = tuple[str, ...]
"""Path of a value: `("model", "norm")` is `model.norm`."""
ANY_NAME = "NAME"
"""Placeholder in a key for a name chosen by the user, as in `data.tests.NAME.source`."""
_MIN_SIMILARITY = 0.6
# A similar key of the same section is preferred to a slightly more similar key of another.
_SIBLING_BONUS = 0.15


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Place of a value, `FILE:12` or `--set model.norm`, ordered by reading order."""

    order: int
    label: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A single problem of a configuration."""

    origin: Origin
    keys: Keys
    """Key of the problem; empty if the text names it."""
    text: str

    def __str__(self) -> str:
        dotted, label = ".".join(self.keys), self.origin.label
        key = f"`{dotted}`" if dotted and label != f"--set {dotted}" else ""
        return ": ".join(filter(None, (label, key, self.text)))


@dataclass(frozen=True)
class Document:
    """Values of a configuration before validation."""

    values: Any
    """A mapping, whose values are plain data; any value for a fragment."""
    origins: dict[Keys, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    """Problems found in parsing, such as a duplicate key."""

    def origin(self, keys: Iterable[str]) -> Origin:
        """Return the origin of a value, or of the nearest enclosing section that has one."""
        path = tuple(keys)
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, Origin(0, ""))


@dataclass(frozen=True, slots=True)
class Place:
    """A key of the configuration."""

    keys: Keys
    section: type[Section] | None
    """Section of the last key; None if the keys go deeper than any section."""
    field: FieldInfo | None
    """Field of the last key, or of the list that it is in; None for an unknown key."""


@cache
def all_places(root: type[Section]) -> tuple[Place, ...]:
    """Return every key, sections before their content, with ANY_NAME for user-chosen names."""

    def read(section: type[Section], prefix: Keys) -> Iterator[Place]:
        for key, info in fields(section).items():
            keys = (*prefix, key)
            yield Place(keys, section, info)
            is_named, nested = _sections_of(info.annotation)
            for below in nested:
                yield from read(below, (*keys, ANY_NAME) if is_named else keys)

    return tuple(read(root, ()))


def _sections_of(annotation: Any) -> tuple[bool, list[type[Section]]]:
    """Return the sections below a field of this type, several for the formats of a corpus.

    The first value is True if a name chosen by the user, or a list index, precedes the section.
    """
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return False, [annotation]
    is_named, sections = get_origin(annotation) in {dict, tuple}, list[type[Section]]()
    for part in get_args(annotation):
        is_named_below, nested = _sections_of(part)
        is_named = is_named or is_named_below
        sections += nested
    return is_named, sections


def fields(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the fields of a section by their name in YAML."""
    return {info.alias or name: info for name, info in section.model_fields.items()}


def choices(annotation: Any) -> tuple[str, ...]:
    """Return the words that a type allows; empty if it does not list them."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(word for part in get_args(annotation) for word in choices(part))


def format_name(section: type[Section]) -> str | None:
    """Return the `format` of a corpus section, or None for any other section."""
    info = section.model_fields.get("format")
    return choices(info.annotation)[0] if info else None


def sections_at(root: type[Section], keys: Iterable[str]) -> tuple[type[Section], ...]:
    """Return the sections allowed under some keys: none, one, or one for each corpus format."""
    path = tuple(keys)
    sections = dict[type[Section], None]()
    for place in all_places(root):
        *parents, _ = place.keys
        is_below = len(parents) == len(path) and all(
            parent in {key, ANY_NAME} for parent, key in zip(parents, path, strict=True)
        )
        if is_below and place.section is not None:
            sections[place.section] = None
    return tuple(sections)


def locate(root: type[Section], location: Iterable[int | str]) -> Place:
    """Return the place of a pydantic error location, without the tags of unions."""
    place = Place((), root, None)
    sections: tuple[type[Section], ...] = (root,)
    for part in map(str, location):
        if len(sections) > 1:  # the tag of the corpus format
            sections = tuple(section for section in sections if format_name(section) == part)
        elif part != "[key]":
            section = sections[0] if sections else None
            info = fields(section).get(part) if section else place.field
            place = Place((*place.keys, part), section, info)
            sections = sections_at(root, place.keys)
    return place


def suggest(root: type[Section], place: Place) -> str | None:
    """Return the most similar dotted key of any section, or None without a similar one."""
    *parents, word = place.keys
    siblings = fields(place.section) if place.section else {}
    known = [(*parents, key) for key in siblings]
    known += [other.keys for other in all_places(root) if ANY_NAME not in other.keys]
    similarity = SequenceMatcher(b=word.lower().replace("-", "_"))
    nearest: dict[str, float] = {}
    for keys in known:
        similarity.set_seq1(keys[-1])
        ratio = similarity.ratio()
        if ratio >= _MIN_SIMILARITY:
            is_sibling = keys[:-1] == (*parents,)
            nearest.setdefault(".".join(keys), ratio + is_sibling * _SIBLING_BONUS)
    return max(nearest, key=nearest.__getitem__, default=None)


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
        elif details["type"] == "missing" and ".".join(place.keys) in misspelt:
            continue
        elif details["input"] is not None or place.keys not in unread:
            keys, text = _describe(details, place, root)
            yield Problem(document.origin(keys), keys, text)


def _describe(details: ErrorDetails, place: Place, root: type[Section]) -> tuple[Keys, str]:
    """Return the keys and the text of a problem, by pydantic's type of the error."""
    kind, value, keys = details["type"], details["input"], place.keys
    if kind == "extra_forbidden":
        parents = sections_at(root, keys[:-1])
        formats = [section for section in parents if keys[-1] in fields(section)]
        if formats and place.section:
            listed = " or ".join(f"`format: {format_name(section)}`" for section in formats)
            name = format_name(place.section)
            return keys, f"unknown with `format: {name}`; it belongs to {listed}"
        near = suggest(root, place)
        return keys, f"unknown; did you mean `{near}`?" if near else "unknown"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        if not isinstance(value, dict):
            return keys, f"expected keys such as `corpus`, got {_shown(value)}"
        words = tuple(format_name(section) or "" for section in sections_at(root, keys))
        if "format" in value:
            return (*keys, "format"), _not_a_choice(value["format"], words)
        implied = next(key for key in IMPLIED_FORMATS if key in value)
        listed = ", ".join(f"`{word}`" for word in words)
        return (*keys, implied), f"not possible here, where `format` is one of {listed}"
    if kind == "literal_error" and place.field:
        return keys, _not_a_choice(value, choices(place.field.annotation))
    if details["loc"][-1:] == ("[key]",):
        return (
            keys,
            "a name has only letters, digits, `_` and `-`, and begins with a letter or digit",
        )
    if kind == "string_pattern_mismatch" and place.field:
        return keys, f"{_shown(value)} does not have the right form: {place.field.description}"
    if kind in _MESSAGES:
        values = {"shown": _shown(value), "value": value, **details.get("ctx", {})}
        return keys, _MESSAGES[kind].format(**values) + _HINTS.get((kind, ".".join(keys)), "")
    message = details["msg"]
    return keys, f"{message[0].lower()}{message[1:]}, got {_shown(value)}"


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
