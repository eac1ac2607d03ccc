"""Several corpora as one: their stores side by side, and which of their pairs an epoch takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from mt.data.batches import Indices
from mt.data.store import LeftOut, PairStore

_OWN_KEY = 0x6D6978
"""Keeps these draws apart from all others that a run makes from its seed."""


class JoinedStore(PairStore):
    """The pairs of several stores, one store after the other; nothing is copied but lengths."""

    def __init__(self, stores: Sequence[PairStore]) -> None:
        """Take opened stores, one at the least."""
        self.chunks = [chunk for store in stores for chunk in store.chunks]
        self._starts = np.cumsum([0, *(len(chunk.source) for chunk in self.chunks)], dtype=np.int64)
        self.lengths = np.concatenate([store.lengths for store in stores])
        self.lengths.flags.writeable = False
        self.left_out = reduce(LeftOut.plus, (store.left_out for store in stores))


def joined(stores: Sequence[PairStore]) -> PairStore:
    """Return several stores as one; a single one as it is."""
    return stores[0] if len(stores) == 1 else JoinedStore(stores)


@dataclass(frozen=True, slots=True)
class Mixture:
    """How many pairs of each corpus an epoch takes, and which.

    A corpus is gone through pass by pass, each pass in a random order of its own; an epoch takes
    up where the one before has ended. So after any number of epochs each pair of a corpus has been
    taken as often as any other of it, or once more.
    """

    sizes: tuple[int, ...]
    """Pairs of each corpus; in a joined store they stand one corpus after the other."""
    weights: tuple[float, ...]
    """How many passes over each corpus an epoch takes."""

    @property
    def is_plain(self) -> bool:
        """Whether every epoch takes each pair once."""
        return all(weight == 1 for weight in self.weights)

    def counts(self, epoch: int) -> list[int]:
        """Return how many pairs of each corpus an epoch takes; they differ by one at the most."""
        spans = (self._span(number, epoch) for number in range(len(self.sizes)))
        return [last - first for first, last in spans]

    def pairs(self, *, seed: int, epoch: int) -> Indices:
        """Return the pairs of an epoch by their places in the joined store, in ascending order.

        They follow from the seed and the epoch alone; of a pair that is taken several times, the
        place is there as often.
        """
        starts = np.cumsum([0, *self.sizes]).tolist()
        taken = [
            starts[number] + self._taken(number, seed=seed, epoch=epoch)
            for number in range(len(self.sizes))
        ]
        return np.sort(np.concatenate(taken))

    def _span(self, number: int, epoch: int) -> tuple[int, int]:
        """Return where an epoch begins and ends in the passes over a corpus, put end to end."""
        share = self.weights[number] * self.sizes[number]
        return round(epoch * share), round((epoch + 1) * share)

    def _taken(self, number: int, *, seed: int, epoch: int) -> Indices:
        size = self.sizes[number]
        first, last = self._span(number, epoch)
        parts = [np.zeros(0, np.int64)]
        for lap in range(first // size, -(-last // size)):
            begin, end = max(first - lap * size, 0), min(last - lap * size, size)
            if end - begin == size:
                parts.append(np.arange(size))
                continue
            entropy = np.random.SeedSequence(seed, spawn_key=(_OWN_KEY, number, lap))
            random = np.random.Generator(np.random.PCG64(entropy))
            parts.append(random.permutation(size)[begin:end])
        return np.concatenate(parts)


def mix(sizes: Sequence[int], weights: Sequence[float], *, temperature: float = 1.0) -> Mixture:
    """Return the mixture of corpora with so many pairs, each 1 or more, and these weights.

    At a `temperature` T other than 1 an epoch takes as many pairs as there are in all corpora, of
    each a share in proportion to size^(1/T) (Arivazhagan et al. 2019, section 4.2); the weights
    multiply that.
    """
    powers = np.array(sizes, np.float64) ** (1 / temperature)
    passes = powers / powers.sum() * sum(sizes) / np.array(sizes)
    factors = passes.tolist() if temperature != 1 else [1.0] * len(sizes)
    weighted = (factor * weight for factor, weight in zip(factors, weights, strict=True))
    return Mixture(tuple(sizes), tuple(weighted))
