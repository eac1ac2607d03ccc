"""Subword regularisation of the unigram model (Kudo 2018, section 3).

A segmentation x of a word is drawn from all there are, with P(x) proportional to the product of
its pieces' probabilities, raised to an exponent (the paper's alpha with l infinite): forward
filtering, backward sampling. All words of a text go through it together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mt.data.symbols import Ids, PairTable, Pieces, Places, Symbols


@dataclass(frozen=True, slots=True)
class _Arcs:
    """The pieces that fit somewhere, ordered by the symbol where they end, so in groups."""

    start: Places
    """The first symbol of each."""
    last: Places
    """The last symbol of each, itself included."""
    piece: Ids
    depth: Places
    """How many symbols of its word stand before `last`; the order is by this first."""

    @property
    def groups(self) -> Places:
        """Where the arcs of the next `last` begin."""
        return np.flatnonzero(np.diff(self.last, prepend=-1))


class UnigramSampling:
    """Draws segmentations; an exponent near 0 takes all alike, a large one the likeliest."""

    def __init__(self, pieces: Pieces, exponent: float) -> None:
        children: dict[tuple[int, int], int] = {}
        ends: dict[int, int] = {}
        spelling = pieces.spelling
        for number in range(len(pieces.scores)):
            node = 0
            for symbol in spelling.values[spelling.offsets[number] : spelling.offsets[number + 1]]:
                node = children.setdefault((node, int(symbol)), len(children) + 1)
            ends[node] = number
        self._children = PairTable(children)
        self._piece = np.array([ends.get(node, -1) for node in range(len(children) + 1)], np.int32)
        self._longest = int(spelling.lengths.max())
        self._score = exponent * pieces.scores

    def segment(self, symbols: Symbols, random: np.random.Generator) -> Ids:
        """Return [N] the id of the piece that begins at each symbol, -1 where none does."""
        arcs = self._arcs(symbols)
        chosen = _draw(self._shares(arcs, symbols), arcs.groups, random)
        start = np.empty(len(symbols.ids), np.int64)
        piece = np.empty(len(symbols.ids), np.int32)
        start[arcs.last[chosen]], piece[arcs.last[chosen]] = arcs.start[chosen], arcs.piece[chosen]
        found = np.full(len(symbols.ids), -1, np.int32)
        here = np.flatnonzero(np.append(symbols.begins[1:], True))  # the words' ends, then back
        while len(here):
            found[start[here]] = piece[here]
            here = start[here]
            here = here[~symbols.begins[here]] - 1
        return found

    def _arcs(self, symbols: Symbols) -> _Arcs:
        """Find every piece at every symbol: the trie is walked from all of them at once."""
        ids, word = symbols.ids, symbols.word
        start = np.arange(len(ids))
        node = np.zeros(len(ids), np.int32)
        found = []
        for length in range(self._longest):
            last = start + length
            inside = last < len(ids)
            inside[inside] = word[last[inside]] == word[start[inside]]
            start, node, last = start[inside], node[inside], last[inside]
            node = self._children.find(node, ids[last])
            start, node, last = start[node >= 0], node[node >= 0], last[node >= 0]
            whole = self._piece[node] >= 0
            found.append((start[whole], last[whole], self._piece[node[whole]]))
        starts, lasts, pieces = (np.concatenate(parts) for parts in zip(*found, strict=True))
        depth = lasts - np.flatnonzero(symbols.begins)[word[lasts]]
        order = np.lexsort((starts, lasts, depth))
        return _Arcs(starts[order], lasts[order], pieces[order], depth[order])

    def _shares(self, arcs: _Arcs, symbols: Symbols) -> NDArray[np.float64]:
        """Return the probability of each arc, given that a piece ends where it ends."""
        # total[i]: log of the sum over the ways from the word's beginning to symbol i. The last
        # element stands for a word's beginning.
        total = np.zeros(len(symbols.ids) + 1)
        before = np.where(symbols.begins[arcs.start], -1, arcs.start - 1)
        value = self._score[arcs.piece]
        groups = arcs.groups
        deepest = int(arcs.depth[-1]) if len(arcs.depth) else -1
        bounds = np.searchsorted(arcs.depth, np.arange(deepest + 2))
        group_bounds = np.searchsorted(groups, bounds)
        for depth in range(deepest + 1):
            here = slice(bounds[depth], bounds[depth + 1])
            value[here] += total[before[here]]
            starts = groups[group_bounds[depth] : group_bounds[depth + 1]]
            total[arcs.last[starts]] = np.logaddexp.reduceat(value[here], starts - bounds[depth])
        return np.exp(value - total[arcs.last])


def _draw(shares: NDArray[np.float64], groups: Places, random: np.random.Generator) -> Places:
    """Choose one element of each group, by its share; `groups` are their beginnings."""
    ends = np.append(groups[1:], len(shares))
    sums = np.concatenate([[0.0], np.cumsum(shares)])
    aims = sums[groups] + random.random(len(groups)) * (sums[ends] - sums[groups])
    chosen: Places = np.clip(np.searchsorted(sums, aims, side="right") - 1, groups, ends - 1)
    return chosen
