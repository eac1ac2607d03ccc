"""The rules that every section of the configuration shares."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

LocalPath = Annotated[Path, Field(strict=False)]
"""A path, which YAML can only give as text."""

TagText = Annotated[str, Field(pattern=r"^<[1-9a-z][A-Za-z0-9_-]+>$")]
"""A tag: a word in angle brackets, such as `<bt>` or `<2de>`."""


class Section(BaseModel):
    """A frozen section: unknown keys are errors, and no value is converted to a declared type.

    A whole number may stand for a fraction, nothing else: a quoted "3" is no number and `true` is
    no 1. A field that holds a tuple or a path says `strict=False`, since YAML has only lists and
    text; the elements stay strict.
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
        """Read a section whose keys are all commented out, which YAML calls null, as empty."""
        return {} if value is None else value
