"""Configuration of the tokenizer."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import Automatic, LocalPath, Section, TagText

_Share = Annotated[float, Field(ge=0.0, le=1.0)]


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
    tags: Annotated[tuple[TagText, ...], Field(strict=False)] = ()
    """Reserved tokens that `tag` keys put in front of source lines: `<bt>`, `<2de>`."""
    subword_dropout: Annotated[tuple[_Share, _Share], Field(strict=False)] = (0.0, 0.0)
    """Share of the BPE merges that training skips at random, on the source and the target side."""

    def _broken_rules(self) -> Iterator[str]:
        is_unigram = self.algorithm == "unigram" and not self.is_open("algorithm")
        if any(self.subword_dropout) and is_unigram:
            yield "`tokenizer.subword_dropout` needs `tokenizer.algorithm: bpe`"
