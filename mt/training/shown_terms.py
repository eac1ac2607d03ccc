"""Target terms shown in training sources, so that a model learns to write the terms it is shown.

In a share of the pairs, some source words are followed by the target words that translate them,
between two tags (Dinu et al. 2019, "Training Neural Machine Translation to Apply Terminology
Constraints"). Often other target words take their place on both sides, so that only the shown ones
can be right. Some words are shown without their endings, so that the model inflects (Bergmanis and
Pinnis 2021, "Facilitating Terminology Translation with Target Lemma Annotations").
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray

from mt.data.store import Chunk, Rows, concatenate
from mt.data.tokenizer import SPACE_MARK, Tokenizer
from mt.data.words import is_unspaced
from mt.errors import ConfigError
from mt.training.translation_table import TranslationTable

_MOST_TERMS, _MOST_WORDS = 2, 3
"""Terms of a sentence, and target words of a term."""
_TWO_WORDS = 0.3
"""Share of the searches for a term of two source words."""
_LEAST_PROBABILITY = 0.1
"""Mean probability of the tokens of a target word given those of its source word."""
_FREQUENT = 1 / 300
"""Share of the tokens of a text from which on a token alone is no term."""

_BLOCK = 256
"""Pairs whose probabilities are looked up at once."""
Flags = NDArray[np.bool_]


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
    """Share of these that are made up of tokens of several words."""
    other_form: float = 0.25
    """Share of the remaining terms that lack the ending, of those that are a word without it."""

    def __post_init__(self) -> None:
        """Raise ConfigError for separate vocabularies: tokens of targets are shown in sources."""
        if self.tokenizer.source is not self.tokenizer.target:
            raise ConfigError("`data.terms` needs a tokenizer with `vocabulary: joint`")

    def __call__(self, drawn: Chunk, chunk: Chunk, seed: np.random.SeedSequence) -> Chunk:
        """Return drawn rows, in which some rows of a chunk with terms take the place of others.

        These have their usual tokens, so that a shown term is cut as in the target.
        """
        random = Random(int(seed.generate_state(1, np.uint64)[0]))
        rows = [row for row in range(len(chunk.source)) if random.random() < self.share]
        pairs = [(chunk.source[row].tolist(), chunk.target[row].tolist()) for row in rows]
        words_of_sides = [self._split(side, rows) for side in (chunk.source, chunk.target)]
        places = [
            self._find(probabilities, source, target, random)
            for probabilities, source, target in zip(
                self._look_up(chunk, rows), *words_of_sides, strict=True
            )
        ]
        terms = zip(pairs, places, strict=True)
        words = [*{tuple(pair[1][place]): None for pair, found in terms for _, place in found}]
        order, new = np.arange(len(chunk.source)), list[tuple[list[int], list[int]]]()
        for row, (source, target), of_pair in zip(rows, pairs, places, strict=True):
            shown: dict[int, list[int]] = {}
            # From the right, since an edit moves what is behind it.
            for end, place in sorted(of_pair, key=lambda term: term[1].start, reverse=True):
                shown[end], target[place] = self._choose(tuple(target[place]), words, random)
            shown_in = [t for at, token in enumerate(source) for t in (*shown.get(at, ()), token)]
            if len(shown_in) <= self.max_tokens >= len(target):
                order[row] = len(chunk.source) + len(new)
                new.append((shown_in, target))
        left, right = (Rows.of([pair[side] for pair in new]) for side in (0, 1))
        return Chunk(
            concatenate([drawn.source, left]).take(order),
            concatenate([drawn.target, right]).take(order),
            chunk.left_out,
        )

    def _choose(
        self, word: tuple[int, ...], words: Sequence[tuple[int, ...]], random: Random
    ) -> tuple[list[int], Sequence[int]]:
        """Return the tokens that show a term for a target word, and the word of the target."""
        assert self.tokenizer.term_ids is not None, "the tokenizer has the tags of terms"
        shown = word
        if random.random() < self.unseen:
            shown = word = random.choice(words)
            if random.random() < self.invented:
                others = (random.choice(words) for _ in range(random.randint(1, _MOST_WORDS)))
                shown = word = (word[0], *map(random.choice, others))
        elif random.random() < self.other_form and word[:-1] in words:
            shown = word[:-1]
        return [self.tokenizer.term_ids[0], *shown, self.tokenizer.term_ids[1]], word

    @cached_property
    def _tokens(self) -> tuple[Flags, Flags]:
        """True for tokens that begin a word, and for tokens of letters; both [V]."""
        begins = np.full(self.tokenizer.source_size, True)
        has_letters = np.full(self.tokenizer.source_size, False)
        for token, text in self.tokenizer.source.texts().items():
            letters = text.removeprefix(SPACE_MARK)
            is_spaced, has_no_spaces = letters != text, is_unspaced(letters[:1] or " ")
            is_word = all(c.isalpha() or unicodedata.category(c)[0] == "M" for c in letters)
            begins[token] = is_spaced or has_no_spaces or not is_word
            # A space in a script without spaces is at the start of a text alone.
            has_letters[token] = is_word and not (is_spaced and has_no_spaces)
        return begins, has_letters

    def _split(self, side: Rows, rows: list[int]) -> Iterator[tuple[list[int], list[bool]]]:
        """Yield the start of each word of some rows and the end, and True for possible terms."""
        begins, has_letters = self._tokens
        counts = np.bincount(side.values, minlength=len(begins))
        is_frequent = counts > _FREQUENT * counts.sum()
        chosen = side.take(np.array(rows, np.int64))
        (starts,) = np.nonzero(begins[chosen.values])
        # EOS is a word of its own, so that no word reaches into the next row.
        is_alone = np.diff(starts, append=len(chosen.values)) == 1
        are_terms = np.logical_and.reduceat(has_letters[chosen.values], starts)
        are_terms &= ~(is_alone & is_frequent[chosen.values[starts]])
        for first, end in pairwise(chosen.offsets.tolist()):
            of_row = slice(*np.searchsorted(starts, (first, end)))
            yield [*(starts[of_row] - first).tolist(), end - first], are_terms[of_row].tolist()

    def _look_up(self, chunk: Chunk, rows: list[int]) -> Iterator[NDArray[np.float32]]:
        """Yield the probabilities of the target tokens given the source tokens [T S] of rows."""
        table = self.learn_table()
        for block in (rows[first : first + _BLOCK] for first in range(0, len(rows), _BLOCK)):
            pairs = [(chunk.source[row], chunk.target[row]) for row in block]
            sources = np.concatenate([np.tile(source, len(target)) for source, target in pairs])
            targets = np.concatenate([np.repeat(target, len(source)) for source, target in pairs])
            found = table.look_up(torch.from_numpy(sources), torch.from_numpy(targets)).numpy()
            ends = np.cumsum([len(source) * len(target) for source, target in pairs])
            for (source, target), cells in zip(pairs, np.split(found, ends[:-1]), strict=True):
                yield cells.reshape(len(target), len(source))

    def _find(
        self,
        probabilities: NDArray[np.float32],
        source: tuple[list[int], list[bool]],
        target: tuple[list[int], list[bool]],
        random: Random,
    ) -> list[tuple[int, slice]]:
        """Return the ends of some source terms of a pair, and the places of their target words.

        The target words are aligned with the source words alone.
        """
        (starts, is_term), (target_starts, is_target) = source, target
        by_word = np.maximum.reduceat(probabilities, starts[:-1], axis=1)
        by_word = np.add.reduceat(by_word, target_starts[:-1])
        owners, best = by_word.argmax(1).tolist(), by_word.max(1).tolist()
        linked: list[list[int]] = [[] for _ in is_term]
        for word, (first, end) in enumerate(pairwise(target_starts)):
            if best[word] >= _LEAST_PROBABILITY * (end - first):
                linked[owners[word]].append(word)
        found, taken, most = list[tuple[int, slice]](), set[int](), random.randint(1, _MOST_TERMS)
        for first in random.sample(range(len(linked)), len(linked)):
            last = first + (2 if random.random() < _TWO_WORDS else 1)
            if len(found) == most or not all(linked[first:last]) or not all(is_term[first:last]):
                continue
            words = sorted(word for of_one in linked[first:last] for word in of_one)
            is_whole = words[-1] - words[0] < len(words) <= _MOST_WORDS
            is_free = taken.isdisjoint(range(first, last))
            if is_whole and is_free and all(is_target[word] for word in words):
                place = slice(target_starts[words[0]], target_starts[words[-1] + 1])
                found.append((starts[last], place))
                taken.update(range(first, last))
        return found
