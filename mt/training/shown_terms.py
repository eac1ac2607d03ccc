"""Target terms shown in training sources, so that a model learns to write the terms it is shown.

In a share of the pairs, one to three source words are followed by the target word that translates
them, between two tags (Dinu et al. 2019, "Training Neural Machine Translation to Apply Terminology
Constraints"). Often another target word takes its place on both sides, so that only the shown one
can be right, and sometimes the source word is another one too. Some words are shown in another form
than the target has, so that the model inflects (Bergmanis and Pinnis 2021).
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from mt.data.store import Chunk, Rows, concatenate
from mt.data.tokenizer import SPACE_MARK, Tokenizer, Vocabulary
from mt.data.verbatim import is_unspaced
from mt.training.objectives import TranslationTable

_FORMAT = 1
"""Part of the key; raised whenever the same seed shows other terms."""
_MOST_TERMS, _MOST_CHARACTERS = 3, 3
"""Terms of a sentence; tokens of a source term of a script without spaces."""
_OTHER_TARGET, _INVENTED, _OTHER_SOURCE = 0.5, 0.5, 0.3
"""Share of the terms with another target word; of these, of those that are made up of two words,
and of those with another source word."""
_OTHER_FORM = 0.25
"""Share of the remaining terms that are shown in another form, if the pairs have one."""
_COMMON_LETTERS, _OTHER_LETTERS = 4, 3
"""Least number of equal letters at the start of two forms, and largest number of others."""
_LEAST_PROBABILITY = 0.1
"""Mean probability of the tokens of a target word given those of its source word."""
_FREQUENT = 1 / 250
"""Share of the tokens of a text from which on a token alone is no term."""
_BATCH_ROWS = 64
"""Rows aligned at once."""
_Span = tuple[int, int]
"""First token and end of a word."""
_Word = tuple[int, ...]
"""Tokens of a word."""


@dataclass(frozen=True)
class TermDrawing:
    """Shows terms in some training pairs; the choice follows from the seed and the pairs."""

    share: float
    """Share of the pairs."""
    corpora: tuple[str, ...]
    """Names of the stores that the table is learned from."""
    learn_table: Callable[[], TranslationTable]
    """Function that returns the table by which words are aligned."""

    @property
    def key(self) -> str:
        """Text that differs for another draw."""
        return f"terms {_FORMAT} {self.share} {' '.join(self.corpora)}"

    def apply(
        self, chunk: Chunk, tokenizer: Tokenizer, seed: np.random.SeedSequence, *, max_tokens: int
    ) -> Chunk:
        """Return a chunk in which some rows show terms.

        A row that would exceed `max_tokens` on a side keeps its tokens.
        """
        random = np.random.Generator(np.random.PCG64(seed))
        rows = np.flatnonzero(random.random(len(chunk.source)) < self.share)
        row_seed = int(random.integers(1 << 62))
        chosen = Chunk(chunk.source.take(rows), chunk.target.take(rows), chunk.left_out)
        if not len(rows):
            return chunk
        changed = _show_terms(chosen, tokenizer, self.learn_table(), Random(row_seed))
        source, target = (Rows.of(side) for side in zip(*changed, strict=True))
        fits = (source.lengths <= max_tokens) & (target.lengths <= max_tokens)
        order = np.arange(len(chunk.source))
        order[rows[fits]] = len(chunk.source) + np.flatnonzero(fits)
        return Chunk(
            concatenate([chunk.source, source]).take(order),
            concatenate([chunk.target, target]).take(order),
            chunk.left_out,
        )


def _show_terms(
    chunk: Chunk, tokenizer: Tokenizer, table: TranslationTable, random: Random
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield both sides of each row of a chunk with terms."""
    pairs = [
        (chunk.source[row].tolist(), chunk.target[row].tolist()) for row in range(len(chunk.source))
    ]
    found = _find_pairs(chunk, pairs, tokenizer, table)
    words = dict.fromkeys(
        (tuple(source[slice(*first)]), tuple(target[slice(*second)]))
        for (source, target), spans in zip(pairs, found, strict=True)
        for first, second in spans
    )
    choice = _TermChoice(tokenizer, [*words], random)
    for (source, target), spans in zip(pairs, found, strict=True):
        random.shuffle(spans)
        count = random.randint(1, _MOST_TERMS)
        chosen: list[tuple[_Span, _Span]] = []
        for pair in spans:
            if len(chosen) < count and all(
                all(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(pair, other, strict=True))
                for other in chosen
            ):
                chosen.append(pair)
        edits = [
            (
                first,
                second,
                *choice.choose(tuple(source[slice(*first)]), tuple(target[slice(*second)])),
            )
            for first, second in chosen
        ]
        yield (
            _edit(source, [(first, new) for first, _, new, _ in edits]),
            _edit(target, [(second, new) for _, second, _, new in edits]),
        )


def _edit(ids: Sequence[int], edits: Sequence[tuple[_Span, _Word]]) -> list[int]:
    edited = list(ids)
    for (first, end), new in sorted(edits, reverse=True):
        edited[first:end] = new
    return edited


class _TermChoice:
    """Choice of the target words that are shown, and of those that the target has."""

    def __init__(
        self, tokenizer: Tokenizer, words: Sequence[tuple[_Word, _Word]], random: Random
    ) -> None:
        assert tokenizer.term_ids is not None, "the tokenizer has the tags of terms"
        self._tokenizer, self._tags, self._random = tokenizer, tokenizer.term_ids, random
        self._sources = [*dict.fromkeys(source for source, _ in words)]
        self._targets = [*dict.fromkeys(target for _, target in words)]
        self._translations: dict[_Word, list[_Word]] = {}
        for source, target in words:
            self._translations.setdefault(source, []).append(target)

    def choose(self, source: _Word, target: _Word) -> tuple[_Word, _Word]:
        """Return a source word with the shown term, and its target word."""
        random, written = self._random, source
        shown = target
        if random.random() < _OTHER_TARGET:
            target = shown = random.choice(self._targets)
            if random.random() < _INVENTED:
                other = random.choice(self._targets)
                target = shown = (*target[: (len(target) + 1) // 2], *other[len(other) // 2 :])
            if random.random() < _OTHER_SOURCE:
                written = random.choice(self._sources)
        elif random.random() < _OTHER_FORM:
            shown = random.choice([*self._find_forms(source, target), target])
        if self._tokenizer.source is not self._tokenizer.target:
            text = self._tokenizer.decode_target(shown)
            shown = tuple(self._tokenizer.encode_terms([text])[0])
        return (*written, self._tags[0], *shown, self._tags[1]), target

    def _find_forms(self, source: _Word, target: _Word) -> Iterator[_Word]:
        """Yield other translations of a source word that begin as a target word does."""
        word = self._tokenizer.decode_target(target)
        for other in self._translations[source]:
            text = self._tokenizer.decode_target(other)
            fewest = max(_COMMON_LETTERS, max(len(word), len(text)) - _OTHER_LETTERS)
            if other != target and text[:fewest] == word[:fewest] and len(text) >= fewest:
                yield other


class _WordTokens:
    """Words of tokenized text on one side."""

    def __init__(self, vocabulary: Vocabulary, rows: Rows) -> None:
        size = len(vocabulary)
        self.is_letters = [False] * size
        self.is_unspaced = [False] * size
        self.is_spaced = [False] * size
        """Tokens that begin with a space."""
        self.begins = [True] * size
        """Tokens that do not continue a word."""
        for token, text in vocabulary.texts().items():
            word = text.removeprefix(SPACE_MARK)
            self.is_spaced[token] = text != word
            self.is_letters[token] = bool(word) and all(
                c.isalpha() or unicodedata.category(c)[0] == "M" for c in word
            )
            self.is_unspaced[token] = is_unspaced(word[:1] or " ")
            continues = self.is_letters[token] and not self.is_unspaced[token]
            self.begins[token] = text != word or not continues
        counts = np.bincount(rows.values, minlength=size)
        self.is_frequent = (counts > _FREQUENT * counts.sum()).tolist()

    def starts_text(self, token: int) -> bool:
        """Return whether a token stands at the start of a text alone, and never inside one."""
        return self.is_spaced[token] and self.is_unspaced[token]

    def split(self, ids: Sequence[int]) -> Iterator[_Span]:
        """Yield each word, and each run of a few tokens of a script without spaces."""
        starts = [index for index, token in enumerate(ids) if self.begins[token]]
        for number, (first, end) in enumerate(pairwise([*starts, len(ids)])):
            if self.is_term(ids, first, end):
                yield first, end
            if not self.is_unspaced[ids[first]]:
                continue
            for stop in starts[number + 2 : number + 1 + _MOST_CHARACTERS]:
                if not all(self.is_unspaced[token] for token in ids[first:stop]):
                    break
                yield first, stop

    def is_term(self, ids: Sequence[int], first: int, end: int) -> bool:
        """Return whether some tokens are whole words, and not a single frequent token."""
        is_frequent = end == first + 1 and self.is_frequent[ids[first]]
        is_word = all(self.is_letters[token] for token in ids[first:end])
        return is_word and not is_frequent and self.begins[ids[first]] and self.begins[ids[end]]


def _find_pairs(
    chunk: Chunk,
    pairs: Sequence[tuple[list[int], list[int]]],
    tokenizer: Tokenizer,
    table: TranslationTable,
) -> list[list[tuple[_Span, _Span]]]:
    """Return the pairs of a source word and a target word aligned with it alone, in each row."""
    source_words = _WordTokens(tokenizer.source, chunk.source)
    target_words = _WordTokens(tokenizer.target, chunk.target)
    found: list[list[tuple[_Span, _Span]]] = []
    for (source, target), (positions, probabilities) in zip(
        pairs, _align(chunk, table), strict=True
    ):
        linked: dict[int, list[int]] = {}
        for token, position in enumerate(positions):
            linked.setdefault(position, []).append(token)
        row: list[tuple[_Span, _Span]] = []
        for first, end in source_words.split(source):
            tokens = sorted(token for at in range(first, end) for token in linked.get(at, ()))
            if not tokens or tokens[-1] - tokens[0] + 1 != len(tokens):
                continue
            span = tokens[0], tokens[-1] + 1
            is_probable = sum(probabilities[slice(*span)]) >= _LEAST_PROBABILITY * len(tokens)
            is_inside = not target_words.starts_text(target[span[0]])
            if is_probable and is_inside and target_words.is_term(target, *span):
                row.append(((first, end), span))
        found.append(row)
    return found


def _align(chunk: Chunk, table: TranslationTable) -> list[tuple[list[int], list[float]]]:
    """Return source position and probability of each target token of each row."""
    aligned: list[tuple[list[int], list[float]]] = [([], [])] * len(chunk.source)
    order = np.argsort(chunk.source.lengths, kind="stable").tolist()
    for first in range(0, len(order), _BATCH_ROWS):
        rows = order[first : first + _BATCH_ROWS]
        source, target = (
            pad_sequence([torch.tensor(side[row]) for row in rows], batch_first=True)
            for side in (chunk.source, chunk.target)
        )
        positions = table.align(source, target)
        tokens = source.gather(1, positions.clamp(min=0))
        probabilities = table.look_up(tokens, target)
        for row, place, probability in zip(
            rows, positions.tolist(), probabilities.tolist(), strict=True
        ):
            end = len(chunk.target[row])
            aligned[row] = place[:end], probability[:end]
    return aligned
