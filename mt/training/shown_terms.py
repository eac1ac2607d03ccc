"""Target terms shown in training sources, so that a model learns to write the terms it is shown.

In a share of the pairs, some source words are followed by the target words that translate them,
between two tags (Dinu et al. 2019, "Training Neural Machine Translation to Apply Terminology
Constraints"). Often other target words take their place on both sides, so that only the shown ones
can be right. Some words are shown in another form than the target has, so that the model inflects
(Bergmanis and Pinnis 2021, "Facilitating Terminology Translation with Target Lemma Annotations").
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray

from mt.data.glossary import STEM, is_form
from mt.data.store import Chunk, Rows, concatenate
from mt.data.tokenizer import SPACE_MARK, Tokenizer, Vocabulary
from mt.data.verbatim import is_unspaced
from mt.errors import ConfigError
from mt.training.objectives import TranslationTable

_MOST_TERMS, _MOST_WORDS = 2, 3
"""Terms of a sentence, and target words of a term."""
_TWO_WORDS = 0.3
"""Share of the searches for a term of two source words."""
_LEAST_PROBABILITY = 0.1
"""Mean probability of the tokens of a target word given those of its source word."""
_FREQUENT = 1 / 250
"""Share of the tokens of a text from which on a token alone is no term."""
_Word = tuple[int, ...]
"""Tokens of a term."""
_Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TermDrawing:
    """Shows terms in some training pairs; the choice follows from the seed and the pairs."""

    share: float
    """Share of the pairs."""
    corpora: tuple[str, ...]
    """Names of the stores that the table is learned from."""
    max_tokens: int
    """Most tokens of a side, as in the stores."""
    tokenizer: Tokenizer = field(repr=False)
    learn_table: Callable[[], TranslationTable] = field(repr=False)
    """Function that returns the table by which words are aligned."""
    unseen: float = 0.5
    """Share of the terms that are other words than the translation."""
    invented: float = 0.5
    """Share of these that are made up: the start of a word and the end of another one."""
    other_form: float = 0.25
    """Share of the remaining terms that are shown in another form, if the pairs have one."""

    def __post_init__(self) -> None:
        """Raise ConfigError for separate vocabularies: tokens of targets are shown in sources."""
        if self.tokenizer.source is not self.tokenizer.target:
            raise ConfigError("`data.terms` needs a tokenizer with `vocabulary: joint`")

    def __call__(self, chunk: Chunk, seed: np.random.SeedSequence) -> Chunk:
        """Return a chunk in which some rows show terms, unless these would be too long."""
        random = Random(int(seed.generate_state(1, np.uint64)[0]))
        rows = [row for row in range(len(chunk.source)) if random.random() < self.share]
        pairs = [(chunk.source[row].tolist(), chunk.target[row].tolist()) for row in rows]
        finder = _TermFinder(self.tokenizer.source, chunk, self.learn_table(), random)
        places = [finder.find(*pair) for pair in pairs]
        words = [
            tuple(target[place])
            for (_, target), of_pair in zip(pairs, places, strict=True)
            for _, place in of_pair
        ]
        choice = _Choice(self, words, random)
        order = np.arange(len(chunk.source))
        changed: list[tuple[list[int], list[int]]] = []
        for row, (source, target), of_pair in zip(rows, pairs, places, strict=True):
            shown, written = [], []
            for first, second in of_pair:
                term, word = choice.choose(tuple(target[second]))
                shown.append((first, self.tokenizer.show_term(source[first], term)))
                written.append((second, word))
            new = _edit(source, shown), _edit(target, written)
            if max(map(len, new)) <= self.max_tokens:
                order[row] = len(chunk.source) + len(changed)
                changed.append(new)
        sides = [Rows.of([pair[side] for pair in changed]) for side in (0, 1)]
        return Chunk(
            concatenate([chunk.source, sides[0]]).take(order),
            concatenate([chunk.target, sides[1]]).take(order),
            chunk.left_out,
        )


def _edit(ids: list[int], edits: Iterable[tuple[slice, Sequence[int]]]) -> list[int]:
    edited = ids.copy()
    for place, new in sorted(edits, key=lambda edit: edit[0].start, reverse=True):
        edited[place] = new
    return edited


class _Choice:
    """Choice of the target words that are shown, and of those that the target has."""

    def __init__(self, shares: TermDrawing, words: Sequence[_Word], random: Random) -> None:
        self._shares, self._random = shares, random
        self._words = [*dict.fromkeys(words)]
        self._long = [word for word in self._words if len(word) > 1] or self._words
        self._texts = {word: shares.tokenizer.decode_target(word).lower() for word in self._words}
        self._alike: dict[str, list[_Word]] = {}
        """Words by their first letters."""
        for word, text in self._texts.items():
            self._alike.setdefault(text[:STEM], []).append(word)

    def choose(self, word: _Word) -> tuple[_Word, _Word]:
        """Return the word that is shown for a target word, and the word that the target has."""
        draw, shares = self._random, self._shares
        if draw.random() < shares.unseen:
            other = draw.choice(self._words)
            if draw.random() < shares.invented:
                other = (other[0], *draw.choice(self._long)[1:])
            return other, other
        text = self._texts[word]
        other = draw.choice(self._alike[text[:STEM]])
        is_shown = draw.random() < shares.other_form and is_form(self._texts[other], text)
        return other if is_shown else word, word


class _TermFinder:
    """Search for source words and the target words that are aligned with them alone."""

    def __init__(
        self, vocabulary: Vocabulary, chunk: Chunk, table: TranslationTable, random: Random
    ) -> None:
        size = len(vocabulary)
        self._table, self._random = table, random
        self._begins, self._is_word = np.ones(size, bool), np.zeros(size, bool)
        for token, text in vocabulary.texts().items():
            letters = text.removeprefix(SPACE_MARK)
            is_spaced, has_no_spaces = letters != text, is_unspaced(letters[:1] or " ")
            is_word = all(c.isalpha() or unicodedata.category(c)[0] == "M" for c in letters)
            self._begins[token] = is_spaced or has_no_spaces or not is_word
            # A space in a script without spaces is at the start of a text alone.
            self._is_word[token] = is_word and not (is_spaced and has_no_spaces)
        counts = [np.bincount(side.values, minlength=size) for side in (chunk.source, chunk.target)]
        self._is_frequent = [of_side > _FREQUENT * of_side.sum() for of_side in counts]

    def find(self, source: list[int], target: list[int]) -> list[tuple[slice, slice]]:
        """Return the places of some terms in the tokens of both sides."""
        starts, is_term = self._split(source, self._is_frequent[0])
        target_starts, is_target = self._split(target, self._is_frequent[1])
        table = self._table.look_up(torch.tensor(source), torch.tensor(target)[:, None]).numpy()
        by_word = np.maximum.reduceat(table, starts, axis=1)
        by_word = (
            np.add.reduceat(by_word, target_starts)
            / np.diff(target_starts, append=len(target))[:, None]
        )
        linked: list[list[int]] = [[] for _ in starts]
        for word, owner in enumerate(by_word.argmax(1).tolist()):
            if by_word[word, owner] >= _LEAST_PROBABILITY:
                linked[owner].append(word)
        random, found = self._random, list[tuple[slice, slice]]()
        taken, most = set[int](), random.randint(1, _MOST_TERMS)
        for first in random.sample(range(len(starts)), len(starts)):
            end = first + (2 if random.random() < _TWO_WORDS else 1)
            words = sorted(word for of_one in linked[first:end] for word in of_one)
            is_whole = words and words[-1] - words[0] < len(words) <= _MOST_WORDS
            is_free = taken.isdisjoint(range(first, end)) and all(linked[first:end])
            if is_whole and is_free and is_term[first:end].all() and is_target[words].all():
                place = slice(target_starts[words[0]], target_starts[words[-1] + 1])
                found.append((slice(starts[first], starts[end]), place))
                taken.update(range(first, end))
            if len(found) == most:
                break
        return found

    def _split(self, ids: list[int], is_frequent: _Flags) -> tuple[NDArray[np.integer], _Flags]:
        """Return the start of each word, and True for words that may be terms."""
        starts = np.flatnonzero(self._begins[ids])
        is_long = np.diff(starts, append=len(ids)) > 1
        is_word = np.logical_and.reduceat(self._is_word[ids], starts)
        return starts, is_word & (is_long | ~is_frequent[np.array(ids)[starts]])
