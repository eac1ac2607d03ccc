"""Configuration of the tokenizer."""

from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import Automatic, LocalPath, Section, TagText


class TokenizerConfig(Section):
    """A SentencePiece tokenizer, trained by the run or copied."""

    from_: Annotated[LocalPath | None, Field(alias="from")] = None
    """Run or tokenizer folder to copy the tokenizer from; null: `training.init_from`, if set."""
    added_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Maximum number of new tokens to add to each copied vocabulary. They are learned from text in
    languages that only corpora with a new tag have; without such a language, from all text."""
    algorithm: Annotated[Literal["bpe", "unigram"], Automatic] = "bpe"
    """Byte-pair encoding, or the unigram language model."""
    vocabulary: Annotated[Literal["joint", "separate"], Automatic] = "joint"
    """One vocabulary for both languages, or one for each side."""
    vocabulary_size: Annotated[int, Field(ge=300, le=1_000_000), Automatic] = 8000
    """Tokens per vocabulary, with special and byte tokens; lowered if the text has too few."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0), Automatic] = 0.9999
    """Share of the characters with a token of their own; the others are spelled in bytes."""
    byte_fallback: Literal["on", "off"] = "on"
    """Spell unseen characters in bytes (lossless), or map them to the unknown token."""
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    """Keep the text, or apply SentencePiece's NFKC rule (lossy: `，` becomes `,`)."""
    tags: Annotated[tuple[TagText, ...], Field(strict=False)] = ()
    """Reserved tokens that `tag` keys put in front of source lines: `<bt>`, `<2de>`."""
    sample_lines: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000_000
    """Maximum number of lines, drawn by the seed, for training the tokenizer."""
    sampling: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Subword sampling in training: BPE dropout rate, or unigram exponent (low: varied); 0: off."""
    sampling_target: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    """Subword sampling of the target side; null: as `sampling`."""
