"""Subword regularisation: the text of encoded rows, cut into other pieces at random.

SentencePiece can draw segmentations too, but not the same ones twice: what version 0.2.3 draws
follows from its seed and from the process that it runs in. Here they follow from the generator
that is given, on any machine. (The last digit of a logarithm is not the same on all processors;
of the unigram model's draws, one in about 10^11 could tell.)
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

import numpy as np

from mt.data.bpe_dropout import BpeDropout
from mt.data.rows import Rows, concatenate
from mt.data.symbols import Ids, Pieces, Symbols
from mt.data.unigram_sampling import UnigramSampling
from mt.data.vocabulary import Vocabulary

_BLOCK_PIECES = 1 << 14
"""So many pieces are segmented at once: enough for whole arrays to pay, little enough memory.

It is part of what a seed gives: the rows of a block share the generator's numbers."""


class Segmenter(Protocol):
    """An algorithm that draws segmentations."""

    def segment(self, symbols: Symbols, random: np.random.Generator) -> Ids:
        """Return [N] the id of the piece that begins at each symbol, -1 where none does."""


SAMPLERS: dict[str, Callable[[Pieces, float], Segmenter]] = {
    "bpe": BpeDropout,
    "unigram": UnigramSampling,
}


class Sampler:
    """Draws segmentations by the algorithm of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary, strength: float) -> None:
        """Take the dropout of BPE, or the exponent of the unigram model."""
        self._pieces = Pieces(vocabulary)
        self._segmenter = SAMPLERS[vocabulary.algorithm](self._pieces, strength)

    def sample(self, rows: Rows, random: np.random.Generator, *, max_pieces: int) -> Rows:
        """Return rows of the same text in pieces drawn anew.

        A row that comes to more than `max_pieces`, end mark included, stays as it is.
        """
        blocks = np.flatnonzero(np.diff(rows.offsets[:-1] // _BLOCK_PIECES, prepend=-1))
        bounds = [*blocks.tolist(), len(rows)]
        drawn = [
            self._sample(rows.take(np.arange(first, last)), random, max_pieces)
            for first, last in pairwise(bounds)
        ]
        return concatenate(drawn)

    def _sample(self, rows: Rows, random: np.random.Generator, max_pieces: int) -> Rows:
        symbols, offsets = self._pieces.symbols(rows)
        pieces = self._segmenter.segment(symbols, random)
        begun = np.concatenate([[0], np.cumsum(pieces >= 0)])
        drawn = Rows(pieces[pieces >= 0], begun[offsets])
        too_long = drawn.lengths > max_pieces
        if not too_long.any():
            return drawn
        count = len(too_long)
        return concatenate([drawn, rows]).take(np.arange(count) + too_long * count)
