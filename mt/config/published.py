"""Scores that others have published, and how those were computed."""

from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import Section

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
