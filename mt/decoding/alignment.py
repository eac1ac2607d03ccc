"""Links between the characters of a line and those of its translation."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import fields
from mt.data.vocabulary import SPACE_MARK, Vocabulary, escape
from mt.decoding.engine import ExplainingEngine, TokenDetails
from mt.decoding.text import repair_unicode
from mt.decoding.translator import Part, Translation, Translator

Span = tuple[int, int]
"""Start and end of a part of a text, in characters."""


@dataclass(frozen=True, slots=True)
class Link:
    """A target token and a source token with which it is aligned."""

    source: Span
    """Place of the source token in `Translation.source`."""
    target: Span
    """Place of the target token in `Translation.text`."""


def find_links(
    translations: Sequence[Translation], translator: Translator
) -> list[tuple[Link, ...] | None]:
    """Return the links of the best alternative of each translation, in the order of its tokens.

    All are explained together, by one more pass of the model. None: the engine does not explain.
    A target token has a link for each source token with which it is aligned, at most one with the
    engines of `mt`.

    No span is empty, and none begins or ends with white space. The text of a span is the text of
    its token, except for
    - bytes of a character, whose span is the whole character;
    - source tokens that are white space or a part of a normalized character, whose span is that of
      the next token;
    - normalized source text, whose span is the text before the normalization.

    Target tokens that are white space, or bytes that are left out, have no link, and neither have
    those aligned with EOS, a tag or white space at the end of a sentence.
    """
    if not isinstance(translator.engine, ExplainingEngine):
        return [None] * len(translations)
    every = [part for each in translations for part in each.alternatives[0].parts]
    sources, hypotheses = [part.source for part in every], [part.hypothesis for part in every]
    details = iter(translator.engine.explain(sources, hypotheses) if every else ())
    found: list[tuple[Link, ...] | None] = []
    for translation in translations:
        some = islice(details, len(translation.alternatives[0].parts))
        found.append(tuple(_links(translation, some, translator.tokenizer)))
    return found


def _links(
    translation: Translation, details: Iterator[TokenDetails], tokenizer: Tokenizer
) -> Iterator[Link]:
    parts = translation.alternatives[0].parts
    sources = _spans(translation.source, [_source_tokens(part, tokenizer) for part in parts])
    targets = _spans(
        translation.text, [_target_tokens(part.hypothesis.ids, tokenizer.target) for part in parts]
    )
    for part, source, target, each in zip(parts, sources, targets, details, strict=True):
        for number in reversed(range(len(part.source) - 1)):
            if number not in source and number + 1 in source:
                source[number] = source[number + 1]
        first = 0 if tokenizer.tag is None else 1
        for source_token, target_token in each.alignment:
            if source_token >= first and source_token in source and target_token in target:
                yield Link(source[source_token], target[target_token])


# White space may be stripped, added or changed on the way from tokens to a line; all other
# characters stay in order.
_Tokens = list[list[int]]
"""Tokens of each character of a part, without white space."""
_AS_READ = re.compile("[\udc80-\udcff]+|.", re.DOTALL)
_ESCAPED_CHARACTER = re.compile(f"{escape(SPACE_MARK)[0]}[_=]|.", re.DOTALL)


def _spans(line: str, parts: Iterable[_Tokens]) -> Iterator[dict[int, Span]]:
    """Yield the place in the line of each token of each part."""
    places = iter(
        [
            match.span()
            for match in _AS_READ.finditer(line)
            for character in repair_unicode(match[0])[0]
            if not character.isspace()
        ]
    )
    for part in parts:
        spans: dict[int, Span] = {}
        for tokens, (start, end) in zip(part, places, strict=False):
            for token in tokens:
                spans[token] = spans.get(token, (start, end))[0], end
        yield spans


def _target_tokens(ids: Sequence[int], vocabulary: Vocabulary) -> _Tokens:
    """Return the tokens of each character in the text of `ids`."""
    owners = [token for token, number in enumerate(ids) for _ in vocabulary.token_bytes[number]]
    content = b"".join(vocabulary.token_bytes[number] for number in ids)
    text, tokens, place = "", [], 0
    for character in content.decode("utf-8", "surrogateescape"):
        length = len(character.encode("utf-8", "surrogateescape"))
        if not "\udc80" <= character <= "\udcff":  # invalid bytes are left out
            text += character
            tokens.append(owners[place : place + length])
        place += length
    return _unescaped(text, tokens)


_TOKEN, _SURFACE = 2, 3
"""Fields of SentencePieceText and of its tokens in sentencepiece.proto."""


def _source_tokens(part: Part, tokenizer: Tokenizer) -> _Tokens:
    """Return the tokens of each character in the text of a part, before its normalization."""
    encode = tokenizer.source.processor.encode
    message = encode(escape(part.text), out_type="serialized_proto")
    tokens = [dict(fields(content)) for field, content in fields(message) if field == _TOKEN]
    first = 0 if tokenizer.tag is None else 1
    assert len(tokens) == len(part.source) - 1 - first, "the text is that of the tokens"
    surfaces = [token.get(_SURFACE, b"").decode() for token in tokens]
    owners = [[number] for number, surface in enumerate(surfaces, start=first) for _ in surface]
    return _unescaped("".join(surfaces), owners)


def _unescaped(text: str, tokens: _Tokens) -> _Tokens:
    """Return the tokens of each character of the unescaped text, without white space."""
    return [
        [token for each in tokens[match.start() : match.end()] for token in each]
        for match in _ESCAPED_CHARACTER.finditer(text)
        if not match[0].isspace()
    ]
