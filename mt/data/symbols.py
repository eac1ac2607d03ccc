"""Pieces spelled out in characters: what the sampling of segmentations works on.

Everything is ids in flat arrays. Of a text that SentencePiece has encoded, the ids alone tell its
characters, so neither the text nor its corpus is needed to segment it anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mt.data.rows import Rows
from mt.data.vocabulary import SPACE_MARK, Vocabulary

Ids = NDArray[np.int32]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Symbols:
    """The characters of many words; no piece reaches over the end of a word."""

    ids: Ids
    """[N] The piece of each character, or of a byte of it where it has none."""
    word: Places
    """[N] To which word each belongs: 0, 0, 0, 1, 1, 2 and so on."""
    begins: NDArray[np.bool_]
    """[N] True at the first of each word."""


class PairTable:
    """A dictionary from pairs of numbers to a number that answers for whole arrays at once."""

    def __init__(self, entries: Mapping[tuple[int, int], int]) -> None:
        """Take entries of numbers from 0 to 2**31 - 1."""
        pairs = np.array(list(entries), np.int64).reshape(-1, 2)
        keys = pairs[:, 0] << 32 | pairs[:, 1]
        order = np.argsort(keys)
        # The last entry, which no pair finds, gives every search a place to end at.
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._values = np.append(np.array(list(entries.values()), np.int32)[order], np.int32(-1))

    def find(self, left: NDArray[np.integer], right: NDArray[np.integer]) -> Ids:
        """Return what stands for each pair, -1 where nothing does."""
        wanted = left.astype(np.int64) << 32 | right
        found = np.searchsorted(self._keys, wanted)
        return np.where(self._keys[found] == wanted, self._values[found], np.int32(-1))


class Pieces:
    """The pieces of a vocabulary, and the characters of which each consists."""

    texts: dict[int, str]
    """The pieces that are text; neither bytes nor the special ones, which nothing merges into."""
    scores: NDArray[np.float64]
    """[V] SentencePiece's score: minus the rank of a merge, or a log probability."""
    spelling: Rows
    """[V rows] The ids of each piece's characters; of what is no text, its own id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        processor, size = vocabulary.processor, len(vocabulary)
        self.texts = vocabulary.texts()
        self.scores = np.array([processor.get_score(number) for number in range(size)])
        ids = {text: number for number, text in self.texts.items()}
        spelled = [self._spell(number, ids) for number in range(size)]
        self.spelling = Rows.of(spelled)
        across = any(SPACE_MARK in text[1:] for text in self.texts.values())
        # Without a piece that goes on after a space, segmenting word by word is the same.
        self._begins_word = np.zeros(size, np.bool_)
        self._begins_word[
            [n for n, text in self.texts.items() if text[0] == SPACE_MARK]
        ] = not across

    def _spell(self, number: int, ids: dict[str, int]) -> list[int]:
        characters = [ids.get(character, -1) for character in self.texts.get(number, "")]
        return characters if characters and -1 not in characters else [number]

    def symbols(self, rows: Rows) -> tuple[Symbols, NDArray[np.integer]]:
        """Return the characters of some rows, and where each row begins and ends [rows + 1]."""
        spelled = self.spelling.take(rows.values)
        offsets = spelled.offsets[rows.offsets]
        begins = self._begins_word[spelled.values]
        begins[offsets[:-1]] = True
        return Symbols(spelled.values, np.cumsum(begins) - 1, begins), offsets
