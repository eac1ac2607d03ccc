"""A tokenizer of characters, an engine of capitals, and a translator with any engine."""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from mt.config import DecodingConfig
from mt.config.data import Direction
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import Engine, ExplainingEngine, Hypothesis
from mt.decoding.translator import Translator
from mt.runs import LineStatistics
from mt.special_ids import EOS, UNK

INVALID = 0xE000
"""Stands for a byte that forms no character."""


@cache
def characters_below(known: int) -> frozenset[str]:
    return frozenset(map(chr, range(known)))


class Characters:
    """A tokenizer whose tokens are characters; those from `known` on are unknown."""

    target_prefix: tuple[int, ...] = ()
    is_normal = False
    term_ids = None
    scripts: frozenset[str] = frozenset()

    def __init__(self, known: int = 0x110000) -> None:
        self.known = known
        self.source = self.target = self.processor = self
        self.characters = characters_below(known)

    def id_to_piece(self, ids: Sequence[int]) -> list[str]:
        return ["</s>" if number == EOS else chr(number) for number in ids]

    def normalize_source(self, text: str) -> str:
        return text

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        # Lone surrogates raise an error, as in SentencePiece.
        texts = [line.encode("utf-8").decode() for line in lines]
        return [[*(ord(c) if ord(c) < self.known else UNK for c in text), EOS] for text in texts]

    encode = encode_target = encode_source

    def tagged(self, tag: str | None, target_tag: str | None) -> "Characters":
        assert tag is target_tag is None
        return self

    def decode_target(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def has_invalid_bytes(self, ids: Sequence[int]) -> bool:
        return INVALID in ids


def text_of(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


class UpperCase(Engine):
    """An engine that returns the prefix and the source in upper case, and records its calls."""

    def __init__(self, *, finished: bool = True) -> None:
        self.calls: list[list[int]] = []
        self.prefixes: list[list[str]] = []
        self.finished = finished

    def n_best_ids(self, sources: Any, decoding: Any, count: int, *, prefixes: Any = ()) -> Any:
        self.calls.append([len(source) for source in sources])
        self.prefixes.append([text_of(prefix) for prefix in prefixes])
        assert all(source[-1] == EOS for source in sources)
        return [
            [Hypothesis((*prefix, *upper(text_of(source[:-1]))), -2.0, -1.0, self.finished)]
            for source, prefix in zip(sources, prefixes, strict=True)
        ]


class ExplainingFake(ExplainingEngine):
    """An engine with details of its translations that scores no others."""

    longest = None

    def score(self, sources: Any, targets: Any) -> list[list[float]]:
        raise NotImplementedError


def upper(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text.upper()))


def build_translator(
    engine: Engine,
    *,
    longest: int = 20,
    language: str = "en",
    known: int = 0x110000,
    source_language: str = "en",
    line_shape: LineStatistics | None = None,
    **decoding: Any,
) -> Translator:
    """Return a translator of characters; `decoding` are keys of the decoding config.

    It splits no sentences unless `split_sentences` says so.
    """
    return Translator(
        engine,
        cast("Tokenizer", Characters(known)),
        DecodingConfig(**{"split_sentences": "off", **decoding}),
        longest_source=longest,
        direction=Direction(source_language, language),
        line_shape=line_shape,
    )
