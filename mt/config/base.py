"""Base class and shared types of the configuration sections."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

LocalPath = Annotated[Path, Field(strict=False)]
"""A path, written as text in YAML."""

TagText = Annotated[str, Field(pattern=r"^<[1-9a-z][A-Za-z0-9_-]+>$")]
"""A tag: a word in angle brackets, such as `<bt>` or `<2de>`."""


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
        """Read null as an empty section: all of its keys may be commented out."""
        return {} if value is None else value

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if broken := [*self._broken_rules()]:
            raise ValueError("\n".join(broken))
        return self

    def _broken_rules(self) -> Iterable[str]:
        """Return a message for each broken rule across the keys; subclasses override it."""
        return ()
