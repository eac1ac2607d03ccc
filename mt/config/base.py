"""Base class and shared types of the configuration sections."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mt.errors import escape_line

LocalPath = Annotated[Path, Field(strict=False)]
"""A path, written as text in YAML."""

TagText = Annotated[
    str, Field(pattern=r"^(<[1-9a-z][A-Za-z0-9_-]+>|[a-z]{3}_[A-Z][a-z]{3}|__[a-z]{2,3}__)$")
]
"""A tag: a word in angle brackets, such as `<bt>`, or a language as in NLLB or M2M-100."""


def _allow_auto(schema: dict[str, Any]) -> None:
    """Add the value `auto` to the JSON schema of a field."""
    kinds = {key: schema.pop(key) for key in [*schema] if key not in {"description", "default"}}
    title = {"title": kinds.pop("title")} if "title" in kinds else {}
    choices = kinds.get("anyOf", [kinds])
    schema.update(title, anyOf=[{"const": "auto"}, *choices], default="auto")


Automatic = Field(json_schema_extra=_allow_auto)
"""Annotation of an automatic key: `Annotated[int, Automatic]`.

Training chooses its value if it is not given, or given as `auto` (`mt.training.resolve`). Other
uses of the section, such as a model built in Python, take the field's default.
"""


class Section(BaseModel):
    """A frozen section that rejects unknown keys and converts no value to the declared type.

    The only conversion is from a whole number to a float. A field of tuple or path type sets
    `strict=False`, since YAML has only lists and text; its elements stay strict.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        populate_by_name=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        """Read null as an empty section, and drop automatic keys with the value `auto`."""
        if not isinstance(value, dict):
            return {} if value is None else value
        return {
            key: setting
            for key, setting in value.items()
            if not (setting == "auto" and key in cls.automatic_keys())
        }

    def changed(self, **values: Any) -> Self:
        """Return a copy with changed values, validated as if they had been given at first.

        Raises pydantic's ValidationError for an unknown key, a wrong value or a broken rule.
        """
        current = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**current, **values})

    @classmethod
    def automatic_keys(cls) -> set[str]:
        """Return the names of the fields whose values training chooses if they are not given."""
        fields = cls.model_fields.items()
        return {name for name, field in fields if field.json_schema_extra is _allow_auto}

    def is_open(self, name: str) -> bool:
        """Return whether a field is automatic and not given: its rules do not apply yet."""
        return name in self.automatic_keys() and name not in self.model_fields_set

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = list(self._broken_rules())
        if broken:
            raise ValueError("\n".join(map(escape_line, broken)))
        return self

    def _broken_rules(self) -> Iterable[str]:
        """Return a message for each broken rule across the keys; subclasses override it."""
        return ()


class TaggedSection(Section):
    """Keys of the tokens that name a language or a kind of text."""

    tag: TagText | None = None
    """Token in front of each source line, one of `tokenizer.tags`: `<bt>`, `<2de>`; null: none."""
    target_tag: TagText | None = None
    """First token of each target line or translation, a language of NLLB or M2M-100; null: none."""
