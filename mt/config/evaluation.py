"""How translations are scored."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mt.config.base import Section


class Band(Section):
    """Where a recipe's score must lie."""

    low: Annotated[float, Field(ge=0.0, le=100.0)]
    """The lowest BLEU that passes."""
    high: Annotated[float, Field(ge=0.0, le=100.0)] = 100.0
    """The highest BLEU that passes."""

    @model_validator(mode="after")
    def _ordered(self) -> "Band":
        if self.low > self.high:
            raise ValueError(f"`low` {self.low} is above `high` {self.high}")
        return self


class EvaluationConfig(Section):
    """BLEU and chrF by sacreBLEU."""

    bleu_tokenizer: Literal["auto", "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "none"] = (
        "auto"
    )
    """sacreBLEU's tokenizer; `auto` chooses by the target language."""
    expected: dict[str, Band] = Field(default_factory=dict)
    """Band of BLEU by test split; `make reproduce` fails outside it."""
