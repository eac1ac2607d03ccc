"""What a decoder layer keeps between steps, so that no piece is computed twice."""

import torch
from torch import Tensor

_FIRST_ROOM = 16


class LayerCache:
    """The keys and values of a layer, for B sentences of K rows each, R rows in all.

    Those of the pieces so far are [R G T K'], in G heads, and lie in memory with room for more, so
    that a new piece moves none of them. Those of the encoder's output, `memory_keys` and
    `memory_values` [B G S K'], are held once a sentence: all of its rows look at the same.
    """

    def __init__(self, memory_keys: Tensor, memory_values: Tensor, rows: int) -> None:
        self.memory_keys = memory_keys
        self.memory_values = memory_values
        self.pieces = 0
        self._keys = _room(memory_keys, rows, 0)
        self._values = _room(memory_values, rows, 0)

    @property
    def keys(self) -> Tensor:
        """Return the keys of the pieces so far [R G T K']."""
        return self._keys[:, :, : self.pieces]

    @property
    def values(self) -> Tensor:
        """Return the values of the pieces so far [R G T K']."""
        return self._values[:, :, : self.pieces]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Put the keys and values of one more piece [R G 1 K'] at the end."""
        if self.pieces == self._keys.shape[2]:
            room = max(_FIRST_ROOM, self.pieces)
            self._keys, self._values = (
                torch.cat((each, _room(each, len(each), room)), dim=2)
                for each in (self._keys, self._values)
            )
        self._keys[:, :, self.pieces] = keys[:, :, 0]
        self._values[:, :, self.pieces] = values[:, :, 0]
        self.pieces += 1

    def reorder(self, rows: Tensor, places: Tensor) -> None:
        """Let the rows `places` [M] continue the former rows `rows` [M]; the others stay."""
        for each in (self.keys, self.values):
            each[places] = each[rows]

    def keep(self, sentences: Tensor, rows: Tensor) -> None:
        """Drop all sentences, and all of their rows, but these."""
        kept = self.keys[rows], self.values[rows]
        self._keys, self._values = self._keys[: len(rows)], self._values[: len(rows)]
        self.keys.copy_(kept[0])
        self.values.copy_(kept[1])
        self.memory_keys = self.memory_keys.index_select(0, sentences)
        self.memory_values = self.memory_values.index_select(0, sentences)


def _room(like: Tensor, rows: int, pieces: int) -> Tensor:
    """Return memory for keys or values of so many more pieces."""
    return like.new_empty(rows, like.shape[1], pieces, like.shape[3])
