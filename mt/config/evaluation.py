"""How translations are scored, and what the scores of a recipe are held against."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from mt.config.base import Section
from mt.errors import did_you_mean

Text = Annotated[str, Field(min_length=1)]


class Protocol(Section):
    """How a BLEU was computed, as far as its source says; what it does not say is `unknown`."""

    scorer: Literal["sacrebleu", "fairseq", "multi-bleu", "unknown"] = "unknown"
    """The program; those named here compute the same where no count of n-grams is zero."""
    tokenizer: Literal[
        "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "already-tokenized", "unknown"
    ] = "unknown"
    """What the scorer took for words, in the names of `evaluation.bleu_tokenizer`."""
    case: Literal["kept", "folded", "unknown"] = "unknown"
    """Whether the scorer itself told capital letters from small ones."""
    text: Literal["plain", "tokenised", "lower-cased", "tokenised,lower-cased", "unknown"] = (
        "unknown"
    )
    """The form of the references, before the scorer did anything."""
    references: Annotated[int, Field(ge=1)] = 1
    """How many of them each sentence had; more of them make a higher score."""


class Published(Section):
    """A score that others have published on a test split of the recipe."""

    split: str
    """The test split, by its name in `data.tests`."""
    system: Text
    """What was scored, in a few words."""
    score: Annotated[float, Field(ge=0.0, le=100.0)]
    """Its BLEU."""
    protocol: Protocol = Protocol()
    """How it was computed."""
    source: Text
    """Where it is published, and whether it was read there or elsewhere."""


MEANT_TOKENIZERS = {"none": "already-tokenized"}
"""What sacreBLEU calls a tokenizer, and what it is called here."""


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

    bleu_tokenizer: Literal[
        "auto", "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "already-tokenized"
    ] = "auto"
    """sacreBLEU's tokenizer; `auto` goes by the target language, `already-tokenized` has none."""
    expected: dict[str, Band] = Field(default_factory=dict)
    """Band of BLEU by test split; `make reproduce` fails outside it."""
    published: Annotated[tuple[Published, ...], Field(strict=False)] = ()
    """Scores that others have published; `make reproduce` says how ours stand to them."""
    seed_band: Annotated[float, Field(ge=0.0, le=100.0)] = 0.0
    """So many BLEU may a score lie from a published one and be the same: what seeds make of it."""

    @field_validator("bleu_tokenizer", mode="before")
    @classmethod
    def _by_our_name(cls, value: Any) -> Any:
        if isinstance(value, str) and value in MEANT_TOKENIZERS:
            meant = did_you_mean(MEANT_TOKENIZERS[value], MEANT_TOKENIZERS.values())
            raise ValueError(f"`{value}` is not the name of a tokenizer{meant}")
        return value
