"""What a decoder layer keeps between steps, so that no piece is computed twice."""

import torch
from torch import Tensor

_FIRST_ROOM = 16


class LayerCache:
    """The keys and values of a layer, for B sentences of K rows each.

    Those of the pieces so far are [B G T*K K'], in G heads: the K rows of a position stand side by
    side. They lie in memory with room for more, and none is moved again: where a row of beam search
    continues another one, a mask tells which of the sentence's keys are of its beginning. (Moving
    them took twice the time of the attention itself.) Those of the encoder's output, `memory_keys`
    and `memory_values` [B G S K'], are held once a sentence: all of its rows look at the same.
    """

    def __init__(self, memory_keys: Tensor, memory_values: Tensor, rows: int) -> None:
        self.memory_keys = memory_keys
        self.memory_values = memory_values
        self.rows = rows
        self.pieces = 0
        self.watched = False
        self.attention: Tensor | None = None
        """Where it is watched, how much each row's newest piece looks at the memory [B K S].

        It is the mean over the heads, after a step and before `keep`.
        """
        self._keys = self._room(memory_keys, 0)
        self._values = self._room(memory_values, 0)

    @property
    def keys(self) -> Tensor:
        """Return the keys of the pieces so far [B G T*K K']."""
        return self._keys[:, :, : self.pieces].flatten(2, 3)

    @property
    def values(self) -> Tensor:
        """Return the values of the pieces so far [B G T*K K']."""
        return self._values[:, :, : self.pieces].flatten(2, 3)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Put keys and values of one more piece at the end: [B G K K'], or [B G 1 K'] for all."""
        if self.pieces == self._keys.shape[2]:
            more = max(_FIRST_ROOM, self.pieces)
            self._keys, self._values = (
                torch.cat((each, self._room(each, more)), dim=2)
                for each in (self._keys, self._values)
            )
        self._keys[:, :, self.pieces] = keys
        self._values[:, :, self.pieces] = values
        self.pieces += 1

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences, with all of their rows, but these."""
        self._keys, self._values, self.memory_keys, self.memory_values = (
            each.index_select(0, sentences)
            for each in (self._keys, self._values, self.memory_keys, self.memory_values)
        )

    def _room(self, like: Tensor, pieces: int) -> Tensor:
        """Return memory for keys or values of so many more pieces [B G T K K']."""
        return like.new_empty(*like.shape[:2], pieces, self.rows, like.shape[-1])
