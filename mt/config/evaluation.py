"""Configuration of scoring, expected scores and published scores."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mt.config.base import Section

Text = Annotated[str, Field(min_length=1)]
Bleu = Annotated[float, Field(ge=0.0, le=100.0)]
MEANT_TOKENIZERS = {"none": "already-tokenized"}
"""Names of `evaluation.bleu_tokenizer` by sacreBLEU's name."""


class Protocol(Section):
    """Protocol of a published BLEU; `unknown` where the source is silent."""

    scorer: Literal["sacrebleu", "fairseq", "multi-bleu", "unknown"] = "unknown"
    """Program; the ones named agree unless an n-gram count is zero."""
    tokenizer: Literal[
        "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "already-tokenized", "unknown"
    ] = "unknown"
    """Tokenizer of the scorer, named as in `evaluation.bleu_tokenizer`."""
    case: Literal["kept", "folded", "unknown"] = "unknown"
    """Case handling of the scorer."""
    text: Literal["plain", "tokenised", "lower-cased", "tokenised,lower-cased", "unknown"] = (
        "unknown"
    )
    """Form of the references before scoring."""
    references: Annotated[int, Field(ge=1, le=1000)] = 1
    """References per sentence; more references give a higher score."""


class Published(Section):
    """A score published by others on a test split of the recipe."""

    split: str
    """Name of the test split in `data.tests`."""
    system: Text
    """Short description of the system."""
    score: Bleu
    """Published BLEU."""
    protocol: Protocol = Protocol()
    """Scoring protocol."""
    source: Text
    """Publication, and where the score was read if elsewhere."""


class Band(Section):
    """Range of BLEU that a recipe must reach."""

    low: Bleu
    """Lowest BLEU that passes."""
    high: Bleu = 100.0
    """Highest BLEU that passes."""

    def _broken_rules(self) -> Iterator[str]:
        if self.low > self.high:
            yield f"`low` {self.low} is above `high` {self.high}"


class EvaluationConfig(Section):
    """BLEU and chrF by sacreBLEU."""

    bleu_tokenizer: Literal[
        "auto", "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "already-tokenized"
    ] = "auto"
    """sacreBLEU's tokenizer; `auto`: by target language; `already-tokenized`: split at spaces."""
    expected: dict[str, Band] = Field(default_factory=dict)
    """Range of BLEU by test split; `make reproduce` fails outside it."""
    published: Annotated[tuple[Published, ...], Field(strict=False)] = ()
    """Published scores, which `make reproduce` compares with."""
    seed_band: Bleu = 0.0
    """Largest difference in BLEU to a published score that is attributed to the seed."""

    @field_validator("bleu_tokenizer", mode="before")
    @classmethod
    def _refuse_sacrebleu_name(cls, value: Any) -> Any:
        if isinstance(value, str) and value in MEANT_TOKENIZERS:
            meant = MEANT_TOKENIZERS[value]
            raise ValueError(f"`{value}` is not the name of a tokenizer; did you mean `{meant}`?")
        return value
