"""Batches of like length by the positions that they hold, padding included; without torch."""

from collections.abc import Iterator, Mapping


def length_batches(lengths: Mapping[int, int], *, positions: int) -> Iterator[list[int]]:
    """Yield the numbers that `lengths` has a length for, in batches, the longest first.

    A batch holds at most `positions` pieces, sentences times the longest; a longer one is alone.
    """
    order = sorted(lengths, key=lambda number: -lengths[number])
    while order:
        rows = max(1, positions // lengths[order[0]])
        yield order[:rows]
        order = order[rows:]
