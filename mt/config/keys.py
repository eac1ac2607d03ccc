"""Which keys there are: the sections walked as data, for finding places and near names."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from mt.config.base import Section
from mt.config.document import Keys

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
