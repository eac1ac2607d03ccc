"""How a translation is searched for."""

from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import Section


class DecodingConfig(Section):
    """Greedy or beam search; these settings stay with the model."""

    search: Literal["greedy", "beam"] = "beam"
    """Take the best next piece, or keep the `beam` best beginnings."""
    beam: Annotated[int, Field(ge=1, le=200)] = 5
    """Beginnings kept by beam search."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 0.6
    """Exponent alpha of ((5 + length) / 6) ** alpha, which divides the log-probability."""
    max_length_ratio: Annotated[float, Field(ge=0.0)] = 1.0
    """Longest translation: this times the source's pieces ..."""
    max_length_extra: Annotated[int, Field(ge=1)] = 50
    """... plus this, end mark included."""
    batch_size: Annotated[int, Field(ge=1)] = 64
    """Sentences decoded at once; it changes the speed, not the translations."""
