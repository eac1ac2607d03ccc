"""SentencePiece vocabulary: lossless conversion between text and ids.

SentencePiece (Kudo and Richardson 2018) marks a space by U+2581, so that character is escaped in
text. Decoding is done here instead of in SentencePiece, so that it is defined for all ids.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import sentencepiece

from mt.errors import ConfigError, did_you_mean, listed
from mt.special_ids import BOS, EOS, PAD, UNK

SPACE_MARK = "\u2581"
_ESCAPE = "\U000f2581"
"""Private-use character; in text, it is escaped as well."""
_ESCAPED_MARK = _ESCAPE + "_"
_ESCAPED_ESCAPE = _ESCAPE + "="
_ESCAPED = re.compile(f"{_ESCAPE}[_=]")

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
_LINES_WORTH_THREADS = 64
_SHOWN_TAGS = 8


def escape(text: str) -> str:
    """Return `text` without U+2581; `unescape` is the inverse."""
    if SPACE_MARK not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPED_ESCAPE).replace(SPACE_MARK, _ESCAPED_MARK)


def unescape(text: str) -> str:
    """Undo `escape`; an escape character without a known escape is unchanged."""
    if _ESCAPE not in text:
        return text
    return _ESCAPED.sub(lambda found: SPACE_MARK if found[0] == _ESCAPED_MARK else _ESCAPE, text)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of one side, or of both."""

    processor: Any
    """SentencePiece processor, untyped."""
    token_bytes: tuple[bytes, ...]
    """UTF-8 bytes of each id."""

    @classmethod
    def from_model(cls, model: bytes) -> "Vocabulary":
        """Read a serialized SentencePiece model.

        Raises `ValueError` if it is not one, or its special ids are not those of `mt.special_ids`.
        """
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            special = tuple(
                getattr(processor, name)() for name in ("pad_id", "unk_id", "bos_id", "eos_id")
            )
        except RuntimeError as error:
            raise ValueError("is no SentencePiece model") from error
        if special != (PAD, UNK, BOS, EOS):
            raise ValueError("is a SentencePiece model of other special ids")
        size = processor.get_piece_size()
        return cls(processor, tuple(_bytes_of(processor, number) for number in range(size)))

    def __len__(self) -> int:
        return len(self.token_bytes)

    @property
    def algorithm(self) -> str:
        """`bpe` if the scores are ranks 0, -1, -2 and so on, in any order, else `unigram`."""
        scores = sorted(map(self.processor.get_score, self.texts()), reverse=True)
        return "bpe" if scores == [-rank for rank in range(len(scores))] else "unigram"

    @cached_property
    def tags(self) -> dict[str, int]:
        """Ids of the tags, tokens that no text produces and that decode to nothing."""
        numbers = range(max(PAD, UNK, BOS, EOS) + 1, len(self))
        return {
            self.processor.id_to_piece(number): number
            for number in numbers
            if self.processor.is_control(number)
        }

    def tag_id(self, tag: str) -> int:
        """Return the id of a tag; raise ConfigError if the vocabulary has no token for it."""
        known = self.tags
        if tag in known:
            return known[tag]
        there = f"only {listed([*known][:_SHOWN_TAGS])}" if known else "none"
        more = f" and {len(known) - _SHOWN_TAGS} more" if len(known) > _SHOWN_TAGS else ""
        raise ConfigError(
            f"the tag `{tag}` has no token: of tags, the tokenizer has {there}{more}; "
            f"`tokenizer.tags` reserves them before a training{did_you_mean(tag, known)}"
        )

    def texts(self) -> dict[int, str]:
        """Return the tokens that are text, in SentencePiece's notation, by id."""
        processor = self.processor
        return {
            number: processor.id_to_piece(number)
            for number in range(len(self))
            if not (
                processor.is_control(number)
                or processor.is_unknown(number)
                or processor.is_byte(number)
            )
        }

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters of the text tokens; all others become bytes or UNK."""
        return frozenset("".join(self.texts().values()))

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, with EOS at the end."""
        threads = -1 if len(lines) >= _LINES_WORTH_THREADS else 1  # -1: all cores
        escaped = [escape(line) for line in lines]
        ids: list[list[int]] = self.processor.encode(escaped, add_eos=True, num_threads=threads)
        return ids

    def decode(
        self, ids: Sequence[int], *, errors: Literal["replace", "ignore"] = "replace"
    ) -> str:
        """Return the text of `ids` up to the first EOS, without PAD and BOS.

        UNK becomes U+FFFD; `errors` says what becomes of invalid UTF-8.
        """
        found: list[bytes] = []
        for number in ids:
            assert number >= 0, "an id is never negative"
            if number == EOS:
                break
            found.append(self.token_bytes[number])
        # Encoding adds one space in front, so that a word has the same token everywhere.
        text = b"".join(found).decode("utf-8", errors=errors).removeprefix(" ")
        return unescape(text)

    def has_invalid_bytes(self, ids: Sequence[int]) -> bool:
        """Return whether some bytes of the text of `ids` form no character."""
        return self.decode(ids) != self.decode(ids, errors="ignore")


def _bytes_of(processor: Any, number: int) -> bytes:
    if processor.is_byte(number):
        return bytes([int(processor.id_to_piece(number)[1:-1], base=16)])
    if processor.is_control(number):
        return b""
    if processor.is_unknown(number):
        return UNREADABLE.encode()
    token: str = processor.id_to_piece(number)
    return token.replace(SPACE_MARK, " ").encode()
