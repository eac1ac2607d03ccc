"""Links between the characters of a source text and those of its translation."""

import math
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import accumulate, pairwise

import numpy as np

from mt.config import DecodingConfig
from mt.data.normalization import INVISIBLE, split_by_form
from mt.data.sentencepiece_model import fields
from mt.data.tokenizer import SPACE_MARK, Tokenizer, Vocabulary, escape
from mt.data.words import WORD, find_inner_places, is_unspaced
from mt.decoding.engine import Engine, ExplainingEngine, TokenDetails, TranslatedPart
from mt.decoding.preparation import repair_unicode
from mt.languages import FINAL_MARKS

Span = tuple[int, int]
"""Start and end of a part of a text, in characters."""
_LEAST_LOSS = 0.5
"""Log-probability that an aligned word loses without the word of the source, times attention."""
_LIKELY = math.log(0.25)
"""Log-probability of a word that belongs to the one before, given the word of the source alone."""


@dataclass(frozen=True, slots=True)
class Link:
    """A target token and a source token with which it is aligned."""

    source: Span
    """Place of the source token in the source text."""
    target: Span
    """Place of the target token in the translation."""


def align_words(
    parts: Sequence[TranslatedPart], engine: Engine, tokenizer: Tokenizer
) -> list[list[Link]]:
    """Return the links of each part, in the order of the target tokens, by one more pass.

    Places are those in `TranslatedPart.source_text` and in the decoded tokens of the hypothesis. A
    target token has a link for each source token with which it is aligned, at most one with the
    engines of `mt`, and none if the engine does not explain.

    No span is empty, and none begins or ends with white space. The text of a span is the text of
    its token, except for
    - bytes of a character, whose span is the whole character;
    - source tokens that are white space or a part of a normalized character, whose span is that of
      the next token;
    - normalized source text, whose span is the text before the normalization.

    Target tokens that are white space, or bytes that are left out, have no link, and neither have
    those aligned with EOS, a tag or white space at the end of a sentence.
    """
    if not parts or not isinstance(engine, ExplainingEngine):
        return [[] for _ in parts]
    # Without shown target terms, each target token is aligned with a token of the text.
    if term_ids := tokenizer.term_ids:
        parts = [replace(part, source=without_terms(part.source, term_ids)) for part in parts]
    details = engine.explain([part.source for part in parts], [part.hypothesis for part in parts])
    links = list[list[Link]]()
    for part, detail in zip(parts, details, strict=True):
        source = _spans(part.source_text, source_tokens(part.source_text, part.source, tokenizer))
        ids, text = part.hypothesis.ids, tokenizer.decode_target(part.hypothesis.ids)
        target = _spans(text, _target_tokens(ids, tokenizer.target))
        for token in reversed(range(len(part.source) - 1)):
            if token not in source and token + 1 in source:
                source[token] = source[token + 1]
        links.append(
            [
                Link(source[left], target[right])
                for left, right in detail.alignment
                if left >= tokenizer.tags_in_front and left in source and right in target
            ]
        )
    return links


def without_terms(source: Sequence[int], term_ids: tuple[int, int]) -> list[int]:
    """Return source tokens without the target terms between their tags."""
    opened, closed = ([*accumulate(token == tag for token in source)] for tag in term_ids)
    is_shown = [before > after for before, after in zip(opened, closed, strict=True)]
    return [t for t, shown in zip(source, is_shown, strict=True) if not shown and t != term_ids[1]]


def map_positions(links: Sequence[Link], source: str, target: str) -> Callable[[int], int]:
    """Return a function from places in a source text to places in its translation.

    A place is beside the word aligned with the nearest one in the source, on the same side; without
    links it is in proportion. Only the end of the source is behind the final mark.
    """
    end = len(target.rstrip(FINAL_MARKS + string.whitespace))
    ordered = sorted(links, key=lambda link: (link.source, link.target))

    def map_position(offset: int) -> int:
        if not source[offset:].strip():
            return len(target)
        position, step = round(offset * len(target) / max(len(source), 1)), -1
        if ordered:
            after = next((link for link in ordered if link.source[0] >= offset), None)
            before = next((link for link in reversed(ordered) if link.source[1] <= offset), None)
            if after and (not before or after.source[0] - offset <= offset - before.source[1] + 1):
                position = after.target[0]
            else:
                position, step = before.target[1] if before else 0, 1
        while 0 < position < len(target):  # to the start or end of the word around it
            around = target[position - 1 : position + 1]
            if not around.isalnum() or any(map(is_unspaced, around)):
                break
            position += step
        return min(position, end)

    return map_position


@dataclass(frozen=True, slots=True)
class _Word:
    """Word of a translation, with the tokens that hold a part of it."""

    start: int
    end: int
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class WordAligner:
    """Alignment of words of a source text with words of its translation."""

    engine: Engine
    tokenizer: Tokenizer
    alone: dict[str, str] = field(default_factory=dict)
    """Translations of words alone, filled on demand."""

    def align(
        self, part: TranslatedPart, words: Sequence[Sequence[Span]], fixed: Sequence[Span]
    ) -> list[Span | None]:
        """Return the place in a translation of each word of its source text, given by its places.

        It is where the translation has what the model writes for the word alone, if it has it once,
        and otherwise where it depends on the word. None: nowhere, or the engine does not explain.
        No two share a word; those in `fixed` places stay.
        """
        if not (words and part.hypothesis.ids and isinstance(self.engine, ExplainingEngine)):
            return [None] * len(words)
        text, term_ids = part.source_text, self.tokenizer.term_ids
        source = without_terms(part.source, term_ids) if term_ids else part.source
        free, aligned = _words_of(part, fixed, self.tokenizer), list[Span | None]()
        for places in words:
            word = text[slice(*places[0])]
            alone = self._translate(word, self.engine).casefold()
            runs = [
                (first, end)
                for first in range(len(free))
                for end in range(first + 1, len(free) + 1)
                if part.text[free[first].start : free[end - 1].end].casefold() == alone
            ]
            if len(runs) != 1:
                starts, ends = zip(*places, strict=True)
                outside = zip([0, *ends], [*starts, len(text)], strict=True)
                rest = "".join(text[start:end] for start, end in outside).split()
                sources = [source, *self.tokenizer.encode_source([word, " ".join(rest), ""])]
                details = self.engine.explain(sources, [part.hypothesis] * 4)
                owners = source_tokens(text, source, self.tokenizer)
                borders = [[len("".join(text[:at].split())) for at in span] for span in places]
                columns = {
                    t for first, last in borders for owner in owners[first:last] for t in owner
                }
                runs = _find_dependent(part.text, free, details, sorted(columns))
            aligned += [(free[first].start, free[end - 1].end) for first, end in runs] or [None]
            for first, end in runs:
                free = [*free[:first], *free[end:]]
        return aligned

    def _translate(self, word: str, engine: ExplainingEngine) -> str:
        """Return what depends most on a word in the translation of it alone, or nothing."""
        if word not in self.alone:
            source, empty = self.tokenizer.encode_source([word, ""])
            [hypothesis] = engine.translate_ids([source], DecodingConfig(search="greedy"))
            text = self.tokenizer.decode_target(hypothesis.ids)
            words = _words_of(TranslatedPart(source, hypothesis, word, text), [], self.tokenizer)
            self.alone[word] = ""
            if words:
                full, without = engine.explain([source, empty], [hypothesis] * 2)
                gained = np.subtract(full.log_probs, without.log_probs)
                weights = [gained[written.tokens].sum() for written in words]
                first, end = _join_words(text, words, weights, full)
                self.alone[word] = text[words[first].start : words[end - 1].end]
        return self.alone[word]


def _find_dependent(
    text: str, words: Sequence[_Word], details: Sequence[TokenDetails], columns: list[int]
) -> list[tuple[int, int]]:
    """Return first and end of the words that depend on a word of the source, or nothing.

    `details` are those of the translation, and with the word alone, without the word and without a
    source. What depends on the word is less likely without it (Li et al. 2019, "On the Word
    Alignment from Neural Machine Translation"), more likely with it alone, and attends to it.
    """
    full, alone, without, empty = details
    lost = np.subtract(full.log_probs, without.log_probs)
    gained = np.subtract(alone.log_probs, empty.log_probs)
    seen = np.ones(len(lost)) if full.attention is None else full.attention[:, columns].sum(1)
    losses = [lost[word.tokens].sum() * seen[word.tokens].max() for word in words]
    gains = [gained[word.tokens].sum() * seen[word.tokens].max() for word in words]
    weights = [loss + gain for loss, gain in zip(losses, gains, strict=True)]
    best = max(range(len(words)), key=weights.__getitem__, default=None)
    if best is None or losses[best] < _LEAST_LOSS:
        return []
    return [_join_words(text, words, weights, alone)]


def _join_words(
    text: str, words: Sequence[_Word], weights: Sequence[float], details: TokenDetails
) -> tuple[int, int]:
    """Return the first word and the end of the words that belong to the one of most weight.

    They are the next ones of a tenth of its weight, without spaces of half of it or likely, and
    none is repeated.
    """
    written = [text[word.start : word.end] for word in words]
    first = best = max(range(len(words)), key=weights.__getitem__)
    end = best + 1
    while end < len(words):
        gap = text[words[end - 1].end : words[end].start]
        is_heavy = weights[end] >= weights[best] / 2
        is_likely = sum(details.log_probs[token] for token in words[end].tokens) >= _LIKELY
        joins = weights[end] >= weights[best] / 10 if gap else is_heavy or is_likely
        if gap.strip() or not joins or written[end] in written[first:end]:
            break
        # In scripts without spaces, a counter or a verb before the word depends on it as well; a
        # particle or a verb is often a single character.
        is_long = len(written[end]) > 1
        if not gap and is_long and (is_heavy or len(written[first]) == 1):
            first = end
        end += 1
    return first, end


def _words_of(part: TranslatedPart, fixed: Sequence[Span], tokenizer: Tokenizer) -> list[_Word]:
    """Return the words of a translation that have letters and are outside of fixed places."""
    text, written, words = part.text, part.hypothesis.ids, list[_Word]()
    decoded = tokenizer.decode_target(written)
    tokens = _spans(decoded, _target_tokens(written, tokenizer.target))
    [spans] = map_spans_to_line([[*tokens.values()]], [decoded], text)
    token_spans = [(token, *span) for token, span in zip(tokens, spans, strict=True) if span]
    inner = find_inner_places(text)
    for start, end in pairwise(at for at in range(len(text) + 1) if at not in inner):
        in_word = [token for token, left, right in token_spans if left < end and start < right]
        is_free = not any(start < right and left < end for left, right in fixed)
        if in_word and is_free and any(map(str.isalpha, text[start:end])):
            letters = [at for at in range(start, end) if text[at].isalnum()]
            words.append(_Word(letters[0], letters[-1] + 1, in_word))
    return words


def map_spans_to_line(
    spans: Sequence[Sequence[Span]], texts: Sequence[str], line: str
) -> Iterator[list[Span | None]]:
    """Yield the spans of each text as spans of a line that holds the texts in this order.

    White space may differ. Text that was put into the line or taken out, and other case, change the
    words; None: a span that begins or ends in a word which the line does not have.
    """
    in_texts = [
        (index, position)
        for index, text in enumerate(texts)
        for position, character in enumerate(text)
        if not character.isspace()
    ]
    in_line = [
        match.span()
        for match in _AS_READ.finditer(line)
        for character in repair_unicode(match[0])[0]
        if not character.isspace()
    ]
    if len(in_texts) != len(in_line):  # invisible marks between sentences are not in the texts
        in_texts = [(i, place) for i, place in in_texts if not INVISIBLE.match(texts[i], place)]
        in_line = [span for span in in_line if not INVISIBLE.match(line, span[0])]
    if len(in_texts) == len(in_line):
        span_by_character = dict(zip(in_texts, in_line, strict=True))
    else:
        span_by_character = dict(_by_words(texts, line))
    for index, text_spans in enumerate(spans):
        ends = [
            (span_by_character.get((index, a)), span_by_character.get((index, b - 1)))
            for a, b in text_spans
        ]
        yield [(first[0], last[1]) if first and last else None for first, last in ends]


def _by_words(texts: Sequence[str], line: str) -> Iterator[tuple[tuple[int, int], Span]]:
    """Yield text, place and span in the line of the characters of words that both have."""
    in_texts = [(index, word) for index, text in enumerate(texts) for word in WORD.finditer(text)]
    in_line = list(WORD.finditer(line))
    left = [word[0].casefold() for _, word in in_texts]
    right = [word[0].casefold() for word in in_line]
    for block in SequenceMatcher(None, left, right).get_matching_blocks():
        for place in range(block.size):
            (index, word), line_word = in_texts[block.a + place], in_line[block.b + place]
            for position in range(word.start(), word.end()):
                first = min(line_word.start() + position - word.start(), line_word.end() - 1)
                yield (index, position), (first, first + 1)


_Tokens = list[list[int]]
"""Tokens of each character of a text, without white space."""
_AS_READ = re.compile("[\udc80-\udcff]+|.", re.DOTALL)
_ESCAPED_CHARACTER = re.compile(f"{escape(SPACE_MARK)[0]}[_=]|.", re.DOTALL)


def _spans(text: str, tokens: _Tokens) -> dict[int, Span]:
    """Return the place of each token in a text."""
    positions = [position for position, character in enumerate(text) if not character.isspace()]
    spans: dict[int, Span] = {}
    for position, token_indices in zip(positions, tokens, strict=True):
        for token in token_indices:
            spans[token] = spans.get(token, (position, 0))[0], position + 1
    return spans


def _target_tokens(ids: Sequence[int], vocabulary: Vocabulary) -> _Tokens:
    """Return the tokens of each character in the text of `ids`."""
    owners = [token for token, token_id in enumerate(ids) for _ in vocabulary.token_bytes[token_id]]
    content = b"".join(vocabulary.token_bytes[token_id] for token_id in ids)
    text, tokens, start = "", [], 0
    for character in content.decode("utf-8", "surrogateescape"):
        length = len(character.encode("utf-8", "surrogateescape"))
        if not "\udc80" <= character <= "\udcff":  # invalid bytes are left out
            text += character
            tokens.append(owners[start : start + length])
        start += length
    return _unescaped(text, tokens)


_TOKEN, _SURFACE = 2, 3
"""Fields of SentencePieceText and of its tokens in sentencepiece.proto."""


def source_tokens(text: str, source: Sequence[int], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the places in `source` of the tokens of each character of its text.

    The text is that before normalization; white space is left out.
    """
    encode, normalize = tokenizer.source.processor.encode, tokenizer.normalize_source
    message = encode(escape(normalize(text)), out_type="serialized_proto")
    tokens = [dict(fields(content)) for field, content in fields(message) if field == _TOKEN]
    first, tags = tokenizer.tags_in_front, int(tokenizer.tag is not None)
    assert len(tokens) == len(source) - 1 - tags, "the text is that of the tokens"
    surfaces = [token.get(_SURFACE, b"").decode() for token in tokens]
    owners = [[index] for index, surface in enumerate(surfaces, start=first) for _ in surface]
    tokens_by_character = iter(_unescaped("".join(surfaces), owners))
    of_text = []
    for characters, form in split_by_form(text, normalize):
        of_form = [token for c in form if not c.isspace() for token in next(tokens_by_character)]
        visible = [c for c in characters if not c.isspace()]
        of_text += [
            of_form if form == characters or not INVISIBLE.match(c) else [] for c in visible
        ]
    return of_text


def _unescaped(text: str, tokens: _Tokens) -> _Tokens:
    """Return the tokens of each character of the unescaped text, without white space."""
    return [
        [token for owners in tokens[match.start() : match.end()] for token in owners]
        for match in _ESCAPED_CHARACTER.finditer(text)
        if not match[0].isspace()
    ]
