"""Lines in another language than the config says, looked for in a sample of the pairs."""

from collections.abc import Iterable

import numpy as np

from mt.data.language import in_other_language
from mt.doctor.findings import MOST_LINES_TOLD, Finding
from mt.doctor.reading import Block

MOST_PAIRS = 100_000
"""An identifier takes some time for each line; a share is known well enough from so many."""

_SEED = 1


def other_languages(
    blocks: Iterable[Block], pairs: int, *, languages: tuple[str, str]
) -> list[Finding]:
    """Return how many lines of a sample are surely in another language, for either side.

    The sample is the same in each call; `DataError` where py3langid is not installed.
    """
    chosen = _sample(pairs)
    found: tuple[list[int], list[int]] = ([], [])
    for block in blocks:
        lines = _within(chosen, block)
        sides = (block.sources, block.targets)
        for hits, texts, language in zip(found, sides, languages, strict=True):
            hits += [n + 1 for n in lines if in_other_language(texts[n - block.first], language)]
    return [
        Finding("other_language", side, len(hits), len(chosen), tuple(hits[:MOST_LINES_TOLD]))
        for side, hits in zip(("source", "target"), found, strict=True)
    ]


def _sample(pairs: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the numbers of the pairs that are looked at, from 0, in order."""
    if pairs <= MOST_PAIRS:
        return np.arange(pairs)
    generator = np.random.default_rng(_SEED)
    return np.sort(generator.choice(pairs, MOST_PAIRS, replace=False))


def _within(chosen: "np.ndarray[tuple[int], np.dtype[np.int64]]", block: Block) -> list[int]:
    end = block.first + len(block.sources)
    first, last = np.searchsorted(chosen, (block.first, end))
    return [int(line) for line in chosen[first:last]]
