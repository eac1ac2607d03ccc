"""Mixtures of corpora: joined stores, and the pairs that each epoch takes from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from mt.data.batches import Indices
from mt.data.store import LeftOut, PairStore

_OWN_KEY = 0x6D6978
"""Separates these draws from others with the same seed."""


class JoinedStore(PairStore):
    """Pairs of several stores, one store after the other; only lengths are copied."""

    def __init__(self, stores: Sequence[PairStore]) -> None:
        """Take one or more opened stores."""
        self.chunks = [chunk for store in stores for chunk in store.chunks]
        self._starts = np.cumsum([0, *(len(chunk.source) for chunk in self.chunks)], dtype=np.int64)
        self.lengths = np.concatenate([store.lengths for store in stores])
        self.lengths.flags.writeable = False
        self.left_out = reduce(LeftOut.plus, (store.left_out for store in stores))


def joined(stores: Sequence[PairStore]) -> PairStore:
    """Return several stores as one; a single store is returned unchanged."""
    return stores[0] if len(stores) == 1 else JoinedStore(stores)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Selection of pairs for each epoch.

    Each corpus is read in passes, each in a random order; an epoch continues where the previous one
    ended. So after any epoch, the pairs of a corpus have been taken equally often up to one.
    """

    sizes: tuple[int, ...]
    """Pairs of each corpus, in the order of the joined store."""
    weights: tuple[float, ...]
    """Passes over each corpus in one epoch."""

    @property
    def is_plain(self) -> bool:
        """True if every epoch takes each pair once."""
        return all(weight == 1 for weight in self.weights)

    def counts(self, epoch: int) -> list[int]:
        """Return the pairs that an epoch takes from each corpus; epochs differ by at most one."""
        spans = (self._span(number, epoch) for number in range(len(self.sizes)))
        return [last - first for first, last in spans]

    def pairs(self, *, seed: int, epoch: int) -> Indices:
        """Return the positions of an epoch's pairs in the joined store, ascending.

        They follow from seed and epoch alone. A pair that is taken several times is repeated.
        """
        starts = np.cumsum([0, *self.sizes]).tolist()
        taken = [
            starts[number] + self._taken(number, seed=seed, epoch=epoch)
            for number in range(len(self.sizes))
        ]
        return np.sort(np.concatenate(taken))

    def _span(self, number: int, epoch: int) -> tuple[int, int]:
        """Return begin and end of an epoch in the concatenated passes over a corpus."""
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
    """Return the mixture of corpora of the given sizes, each 1 or more.

    With a `temperature` T other than 1, the shares of the corpora in an epoch are proportional to
    size^(1/T) (Arivazhagan et al. 2019, section 4.2), an epoch has as many pairs as all corpora
    together, and the weights multiply the shares.
    """
    powers = np.array(sizes, np.float64) ** (1 / temperature)
    passes = powers / powers.sum() * sum(sizes) / np.array(sizes)
    factors = passes.tolist() if temperature != 1 else [1.0] * len(sizes)
    weighted = (factor * weight for factor, weight in zip(factors, weights, strict=True))
    return Mixture(tuple(sizes), tuple(weighted))
