"""Which words of two languages go together, learnt from a corpus that may be out of step.

Words of lines that stand near each other are counted, up to `WINDOW` lines apart and the same way
at every distance: so a corpus whose sides have slipped teaches the same, and no distance is
favoured by having been learnt from. The counts, each over what chance gives, are then brought to
few dimensions, as in correspondence analysis (Greenacre 1984): a line becomes a short vector, and
lines that translate each other have vectors that point the same way.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from mt.doctor.reading import Block

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

WINDOW = 3
CHUNK_LINES = 100
_CHUNKS = 100
_WORDS = 6000
_MIN_COUNT = 3
_DIMENSIONS = 64
_STEM = 5
_MAX_CHARACTERS = 300
"""Of a line only so much is looked at: enough to know it by."""
_MAX_FEATURES = 80
_SMOOTHING = 1.0

# Writing without spaces is taken character by character: kana, Han, Hangul, Thai, Lao, Khmer.
_UNSPACED = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+|\d+|[^\w\s]")


@dataclass(frozen=True)
class Lexicon:
    """A vector for each frequent word of either side."""

    sources: dict[str, int]
    targets: dict[str, int]
    source_vectors: Floats
    target_vectors: Floats

    def embed(self, block: Block) -> tuple[Floats, Floats]:
        """Return a vector for each line of both sides, of length 1, or 0 without words.

        [source lines, dimensions] and [target lines, dimensions].
        """
        return (
            _embed(block.sources, self.sources, self.source_vectors),
            _embed(block.targets, self.targets, self.target_vectors),
        )


def learn_lexicon(blocks: Iterable[Block]) -> Lexicon:
    """Learn from at most 20,000 lines, taken in stretches from the whole corpus."""
    chunks = spread_stretches(blocks, at_least=_CHUNKS)
    sources = _frequent_words(chunk.sources for chunk in chunks)
    targets = _frequent_words(chunk.targets for chunk in chunks)
    counts = np.zeros(len(sources) * len(targets), dtype=np.float32)
    for chunk in chunks:
        left = _ids(chunk.sources, sources)
        right = _ids(chunk.targets, targets)
        _count_near(left, right, counts.reshape(len(sources), len(targets)))
    return Lexicon(sources, targets, *_factors(counts.reshape(len(sources), len(targets))))


def spread_stretches(blocks: Iterable[Block], *, at_least: int) -> list[Block]:
    """Return every n-th stretch of 100 lines, n a power of 2.

    Such that so many of them are kept, or up to twice as many; of a small corpus it is all.
    """
    kept: list[Block] = []
    step = 1
    for block in blocks:
        for start in range(0, len(block.sources), CHUNK_LINES):
            first = block.first + start
            if first // CHUNK_LINES % step:
                continue
            end = start + CHUNK_LINES
            kept.append(Block(first, block.sources[start:end], block.targets[start:end]))
        if len(kept) > 2 * at_least:
            step *= 2
            kept = [chunk for chunk in kept if chunk.first // CHUNK_LINES % step == 0]
    return kept


def features(line: str) -> set[str]:
    """Return the words, cut to five letters, and the characters of unspaced writing."""
    return {word[:_STEM] for word in _WORD.findall(line[:_MAX_CHARACTERS].lower())}


def _frequent_words(sides: Iterable[Sequence[str]]) -> dict[str, int]:
    counts = Counter(feature for lines in sides for line in lines for feature in features(line))
    # Ties in alphabetical order: a set has a different order in every process.
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [word for word, count in ranked[:_WORDS] if count >= _MIN_COUNT]
    return {word: number for number, word in enumerate(words)}


def _ids(lines: Sequence[str], words: dict[str, int]) -> list[Ids]:
    return [
        np.array(sorted([words[f] for f in features(line) if f in words]), dtype=np.int64)
        for line in lines
    ]


def _count_near(left: Sequence[Ids], right: Sequence[Ids], counts: Floats) -> None:
    """Add to `counts` every two words of lines at most `WINDOW` apart."""
    width = counts.shape[1]
    cells = [np.empty(0, dtype=np.int64)]
    for number, words in enumerate(left):
        near = right[max(0, number - WINDOW) : number + WINDOW + 1]
        if near and len(words):
            # The rarest words say most: they have the largest numbers.
            others = np.concatenate([line[-_MAX_FEATURES:] for line in near])
            cells.append((words[-_MAX_FEATURES:, None] * width + others).ravel())
    found, times = np.unique(np.concatenate(cells), return_counts=True)
    counts.reshape(-1)[found] += times


def _factors(counts: Floats) -> tuple[Floats, Floats]:
    """Return the vectors of both sides: a truncated SVD of the counts over what chance gives.

    By subspace iteration (Halko, Martinsson and Tropp 2011) from a fixed seed.
    """
    if not counts.size:  # too few lines for any word to count
        height, width = counts.shape
        return np.zeros((height, 1), np.float32), np.zeros((width, 1), np.float32)
    rows, columns = counts.sum(1), counts.sum(0)
    total = max(1.0, float(rows.sum()))
    row_scale = 1 / np.sqrt(rows + _SMOOTHING * max(1.0, float(rows.mean())))
    column_scale = 1 / np.sqrt(columns + _SMOOTHING * max(1.0, float(columns.mean())))
    matrix = counts - np.outer(rows, columns / total)
    matrix *= row_scale[:, None]
    matrix *= column_scale
    generator = np.random.default_rng(1)
    basis = generator.standard_normal((len(columns), _DIMENSIONS)).astype(np.float32)
    for _ in range(3):
        left, _ = np.linalg.qr(matrix @ basis)
        basis, _ = np.linalg.qr(matrix.T @ left)
    left, strengths, right = np.linalg.svd(matrix @ basis, full_matrices=False)
    root = np.sqrt(strengths)
    source = left * root * row_scale[:, None]
    target = (basis @ right.T) * root * column_scale[:, None]
    return source.astype(np.float32), target.astype(np.float32)


class _Numbers(dict[str, int]):
    """The number of each word's stem, -1 of one that is not known; looked up once a block."""

    def __init__(self, stems: dict[str, int]) -> None:
        super().__init__()
        self._stems = stems

    def __missing__(self, word: str) -> int:
        self[word] = number = self._stems.get(word[:_STEM], -1)
        return number


def _embed(lines: Sequence[str], words: dict[str, int], vectors: Floats) -> Floats:
    result = np.zeros((len(lines), vectors.shape[1]), dtype=np.float32)
    number_of = _Numbers(words).__getitem__
    found = [set(map(number_of, _WORD.findall(line[:_MAX_CHARACTERS].lower()))) for line in lines]
    ids = np.fromiter(chain.from_iterable(found), dtype=np.int64)
    owners = np.repeat(np.arange(len(lines)), [len(line) for line in found])
    # In ascending order within a line: that of a set, and so the sum, differs between processes.
    keys = np.sort((owners * (len(words) + 1) + ids)[ids >= 0])
    owners, ids = np.divmod(keys, len(words) + 1)
    filled, starts = np.unique(owners, return_index=True)
    if len(filled):
        result[filled] = np.add.reduceat(vectors[ids], starts, axis=0)
    result /= np.maximum(np.linalg.norm(result, axis=1, keepdims=True), np.float32(1e-12))
    return result
