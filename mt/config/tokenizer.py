"""How text becomes tokens."""

from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import LocalPath, Section, TagText


class TokenizerConfig(Section):
    """A SentencePiece tokenizer, trained by the run or taken from elsewhere."""

    from_: Annotated[LocalPath | None, Field(alias="from")] = None
    """A run or tokenizer folder to copy the tokenizer of; null: `training.init_from`, if given."""
    added_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """So many new tokens of the corpus, at most, extend each vocabulary that is copied."""
    algorithm: Literal["bpe", "unigram"] = "bpe"
    """Byte-pair encoding, or the unigram language model."""
    vocabulary: Literal["joint", "separate"] = "joint"
    """One vocabulary over both languages, or one for each side."""
    vocabulary_size: Annotated[int, Field(ge=300, le=1_000_000)] = 8000
    """Tokens per vocabulary, special and byte tokens included; lowered where the text has fewer."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 0.9999
    """Share of the characters that get a token of their own; the rest is spelled in bytes."""
    byte_fallback: Literal["on", "off"] = "on"
    """Spell unseen characters in bytes (lossless), or map them to the unknown token."""
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    """Leave text as it is, or fold it by SentencePiece's rule (lossy: `，` becomes `,`)."""
    tags: Annotated[tuple[TagText, ...], Field(strict=False)] = ()
    """Tokens that no text gives, set in front of source lines by `tag` keys: `<bt>`, `<2de>`."""
    sample_lines: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000_000
    """At most so many lines, drawn by the seed, train the tokenizer."""
    sampling: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Draws other tokens each epoch: BPE's dropout, unigram's exponent (low: varied); 0: never."""
    sampling_target: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """The same for the target side alone; null: as `sampling`."""
