"""Lines in another language than the config says, looked for in a sample of the pairs."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from mt.data.language import in_other_language, known_languages
from mt.doctor.findings import MOST_LINES_TOLD, Finding
from mt.doctor.reading import Block
from mt.doctor.spreading import Spread, here

MOST_PAIRS = 100_000
"""An identifier takes some time for each line; a share is known well enough from so many."""

_SEED = 1


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The lines of a block that are looked at, with their numbers from 1."""

    numbers: list[int]
    sources: list[str]
    targets: list[str]


def other_languages(
    blocks: Iterable[Block], pairs: int, *, languages: tuple[str, str], spread: Spread = here
) -> list[Finding]:
    """Return how many lines of a sample are surely in another language, for either side.

    The sample is the same in each call; `DataError` where py3langid is not installed.
    """
    known_languages()  # raises here, not in another process
    chosen = _sample(pairs)
    found: tuple[list[int], list[int]] = ([], [])
    samples = (_within(chosen, block) for block in blocks)
    for hits in spread(partial(_judge, languages), samples):
        for all_hits, more in zip(found, hits, strict=True):
            all_hits += more
    return [
        Finding("other_language", side, len(hits), len(chosen), tuple(hits[:MOST_LINES_TOLD]))
        for side, hits in zip(("source", "target"), found, strict=True)
    ]


def _judge(languages: tuple[str, str], sample: _Chosen) -> tuple[list[int], list[int]]:
    sides = (sample.sources, sample.targets)
    source, target = (
        [n for n, text in zip(sample.numbers, texts, strict=True) if in_other_language(text, code)]
        for texts, code in zip(sides, languages, strict=True)
    )
    return source, target


def _sample(pairs: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the numbers of the pairs that are looked at, from 0, in order."""
    if pairs <= MOST_PAIRS:
        return np.arange(pairs)
    generator = np.random.default_rng(_SEED)
    return np.sort(generator.choice(pairs, MOST_PAIRS, replace=False))


def _within(chosen: "np.ndarray[tuple[int], np.dtype[np.int64]]", block: Block) -> _Chosen:
    end = block.first + len(block.sources)
    first, last = np.searchsorted(chosen, (block.first, end))
    places = (chosen[first:last] - block.first).tolist()
    return _Chosen(
        [block.first + place + 1 for place in places],
        [block.sources[place] for place in places],
        [block.targets[place] for place in places],
    )
