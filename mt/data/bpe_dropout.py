"""BPE-dropout (Provilkov et al. 2020, algorithm 1): segmentations with merges left out at random.

A word begins as its characters. In every step each merge that is possible is dropped with
probability p, and of those left the one learnt first is done; a word ends at a step with none
left. All words of a text take their steps together.
"""

import numpy as np

from mt.data.symbols import Ids, PairTable, Pieces, Places, Symbols


class BpeDropout:
    """Draws segmentations; with a dropout of 0, the one of SentencePiece itself."""

    def __init__(self, pieces: Pieces, dropout: float) -> None:
        ids = {text: number for number, text in pieces.texts.items()}
        self._merges = PairTable(
            {
                (ids[text[:cut]], ids[text[cut:]]): number
                for text, number in ids.items()
                for cut in range(1, len(text))
                if text[:cut] in ids and text[cut:] in ids
            }
        )
        self._rank = (-pieces.scores).astype(np.int64)
        self._none = len(pieces.scores)
        self._dropout = dropout

    def segment(self, symbols: Symbols, random: np.random.Generator) -> Ids:
        """Return [N] the id of the piece that begins at each symbol, -1 where none does."""
        word, end = symbols.word, len(symbols.ids)
        # A chain through each word; what lies before and after it is the symbol `end`.
        ids = np.append(symbols.ids, np.int32(self._none))
        begins = np.append(symbols.begins, True)
        after = np.append(np.where(begins[1:], end, np.arange(1, end + 1)), end)
        before = np.append(np.where(begins[:-1], end, np.arange(-1, end - 1)), end)
        merge = self._merges.find(ids, ids[after])  # of each symbol with the one after it
        step, last_step = 0, np.zeros(end and int(word[-1]) + 1, np.int64)
        possible = np.flatnonzero(merge >= 0)
        while len(best := self._first(possible, merge, word, random)):
            step += 1
            last_step[word[best]] = step
            gone = after[best]
            ids[best], ids[gone] = merge[best], -1
            after[best] = after[gone]
            before[after[gone]] = best
            merge[gone] = -1
            changed = np.concatenate([before[best], best])
            new = changed[merge[changed] < 0]
            merge[changed] = self._merges.find(ids[changed], ids[after[changed]])
            possible = possible[last_step[word[possible]] == step]
            possible = np.concatenate([possible, new])
            possible = np.sort(possible[merge[possible] >= 0], kind="stable")
        return ids[:-1]

    def _first(
        self, possible: Places, merge: Ids, word: Places, random: np.random.Generator
    ) -> Places:
        """Return where in each word the merge is that was learnt first, of those not dropped."""
        kept = possible[random.random(len(possible)) >= self._dropout]
        if not len(kept):
            return kept
        bits = int(kept[-1]).bit_length()
        order = self._rank[merge[kept]] << bits | kept  # by rank, then from left to right
        words = np.flatnonzero(np.diff(word[kept], prepend=-1))
        return np.minimum.reduceat(order, words) & ((1 << bits) - 1)
