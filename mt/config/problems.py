"""What pydantic finds wrong, in the words of the configuration: keys, lines and near names."""

import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mt.config.base import Section
from mt.config.document import Document, Keys, Problem
from mt.errors import ConfigError, did_you_mean

ANY_NAME = "NAME"
"""Stands in a key for a name that the user gives, as in `data.tests.NAME.source`."""
_NEAR = 0.6
# A near key of the same section wins over one that is slightly nearer but stands elsewhere.
_SIBLING_BONUS = 0.15


@dataclass(frozen=True, slots=True)
class Below:
    """What stands under a key: nothing, one section, or one of several kinds of section."""

    sections: tuple[type[Section], ...] = ()
    named: bool = False
    """Whether a name of the user's, or a number in a list, stands between key and section."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the configuration, as a user writes it."""

    keys: Keys
    section: type[Section] | None
    """The section that the last key is looked up in; None where the keys go deeper than any."""
    field: FieldInfo | None
    """The field that the last key names; None for an unknown key."""

    @property
    def dotted(self) -> str:
        """The keys as one word: `model.norm`."""
        return ".".join(self.keys)


def fields(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the fields of a section by the names that stand in YAML."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def below(annotation: Any) -> Below:
    """Return what stands under a field of this type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return below(get_args(annotation)[0])
    if origin is dict:
        return Below(below(get_args(annotation)[1]).sections, named=True)
    if origin is tuple and (sections := below(get_args(annotation)[0]).sections):
        return Below(sections, named=True)
    if origin in (Union, types.UnionType):
        parts = [below(part) for part in get_args(annotation)]
        return Below(tuple(section for part in parts for section in part.sections))
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return Below((annotation,))
    return Below()


def choices(annotation: Any) -> tuple[str, ...]:
    """Return the words that a field of this type may hold, where it lists them."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(word for part in get_args(annotation) for word in choices(part))


def format_name(section: type[Section]) -> str | None:
    """Return the `format` of a kind of source, or None for any other section."""
    field = section.model_fields.get("format")
    return choices(field.annotation)[0] if field else None


def all_places(root: type[Section]) -> Iterator[Place]:
    """Yield every key there is, sections before what they hold, with ANY_NAME for free names."""
    yield from _places(root, ())


def locate(root: type[Section], location: tuple[int | str, ...]) -> Place:
    """Return the place of a pydantic error: its location without the kind tags of unions."""
    here = Below((root,))
    place = Place((), root, None)
    for part in map(str, location):
        if here.named:
            here = Below(here.sections)
            place = Place((*place.keys, part), None, place.field)
        elif len(here.sections) > 1:
            here = Below(tuple(kind for kind in here.sections if format_name(kind) == part))
        elif here.sections:
            field = fields(here.sections[0]).get(part)
            place = Place((*place.keys, part), here.sections[0], field)
            here = below(field.annotation) if field else Below()
        elif part != "[key]":
            place = Place((*place.keys, part), None, place.field)
    return place


def suggest(root: type[Section], place: Place) -> str | None:
    """Return the dotted key nearest to an unknown one, over all sections, or None."""
    wanted = place.keys[-1].lower().replace("-", "_")
    siblings = fields(place.section) if place.section else {}
    scored = [
        (_likeness(wanted, key) + _SIBLING_BONUS, ".".join((*place.keys[:-1], key)))
        for key in siblings
        if _likeness(wanted, key) >= _NEAR
    ]
    scored += [
        (_likeness(wanted, other.keys[-1]), other.dotted)
        for other in all_places(root)
        if _likeness(wanted, other.keys[-1]) >= _NEAR and ANY_NAME not in other.keys
    ]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def formats_with(root: type[Section], place: Place) -> tuple[str, ...]:
    """Return the formats of a source that do know the key which this one does not."""
    kinds = kinds_below(root, place.keys[:-1])
    return tuple(format_name(kind) or "" for kind in kinds if place.keys[-1] in fields(kind))


def kinds_below(root: type[Section], keys: Keys) -> tuple[type[Section], ...]:
    """Return the kinds of section that can stand under some keys."""
    here = Below((root,))
    for key in keys:
        if here.named:
            here = Below(here.sections)
            continue
        found = [fields(kind)[key] for kind in here.sections if key in fields(kind)]
        here = below(found[0].annotation) if found else Below()
    return here.sections


def _places(section: type[Section], prefix: Keys) -> Iterator[Place]:
    for key, field in fields(section).items():
        place = Place((*prefix, key), section, field)
        yield place
        under = below(field.annotation)
        for kind in under.sections:
            yield from _places(kind, (*place.keys, ANY_NAME) if under.named else place.keys)


def _likeness(word: str, other: str) -> float:
    return SequenceMatcher(None, word, other).ratio()


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
        kind = format_name(place.section) if place.section else None
        listed = " or ".join(f"`format: {name}`" for name in formats)
        return f"unknown with `format: {kind}`; it goes with {listed}"
    near = suggest(root, place)
    return f"unknown; did you mean `{near}`?" if near else "unknown"


def _wrong_kind(keys: Keys, value: Any, root: type[Section], document: Document) -> Problem:
    if not isinstance(value, dict):
        text = f"keys such as `corpus` were expected under it, not {_shown(value)}"
        return Problem(document.origin(keys), keys, text)
    formats = tuple(format_name(kind) or "" for kind in kinds_below(root, keys))
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
