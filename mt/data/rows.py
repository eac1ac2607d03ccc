"""Many rows of ids in two flat arrays, the way that Arrow holds them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of ids, one after another: row r is `values[offsets[r]:offsets[r + 1]]`."""

    values: NDArray[np.int32]
    offsets: NDArray[np.integer]
    """[rows + 1], from 0 to the number of values."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Rows":
        """Return the rows of a list."""
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        values = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> NDArray[np.integer]:
        """Ids in each row."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.integer]) -> "Rows":
        """Return some of the rows, in the order asked for."""
        lengths = self.lengths[rows]
        offsets = np.cumsum(np.append(0, lengths), dtype=np.int64)
        shifts = np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Rows(self.values[np.arange(offsets[-1]) + shifts], offsets)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts."""
    lengths = np.concatenate([np.zeros(1, np.int64), *(part.lengths for part in parts)])
    values = np.concatenate([np.zeros(0, np.int32), *(part.values for part in parts)])
    return Rows(values, np.cumsum(lengths, dtype=np.int64))
