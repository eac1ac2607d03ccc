"""Where the two sides of a corpus slip apart: a line too many or too few on one of them.

Line i of the source side is compared with lines i - 3 to i + 3 of the target side, by the lexicon.
In step, the line opposite is the most alike; past a slip another one is, for all lines that follow.
The distance that each line has is then found as the cheapest path: it gains the likeness of the
lines that it pairs, and pays for every change of distance (Viterbi 1967).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from mt.doctor.tally import Block, Spread, here

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


GROUP_LINES = 5
"""Lines whose likeness is summed: the grain of what is found."""
_CHANGE_COST = 30.0
"""What a change of distance must gain, in nats; likeness of neighbours is no independent proof."""
_CALIBRATION_GROUPS = 20
_DISTANCES = 2 * WINDOW + 1


@dataclass(frozen=True, slots=True)
class Shift:
    """From about source line `line` on, line i translates to line i + `distance`."""

    line: int
    distance: int


def find_shifts(blocks: Iterable[Block], lexicon: Lexicon, *, spread: Spread = here) -> list[Shift]:
    """Return where the distance between lines that translate each other changes, in order.

    Lines count from 1. Where one side has up to 3 lines more, the last lines are taken to lie that
    far apart, so that a shift is always named.
    """
    likeness, extra = _read(spread(lexicon.embed, blocks))
    if not len(likeness):
        return []
    scale = _nats_per_likeness(likeness)
    # Sides of one length prove nothing: what lacks here may be too much there.
    end = extra + WINDOW if 0 < abs(extra) <= WINDOW else None
    distances = _cheapest_path(likeness * scale, end=end) - WINDOW
    before = np.concatenate(([0], distances[:-1]))
    return [
        Shift(int(group) * GROUP_LINES + 1, int(distances[group]))
        for group in np.flatnonzero(distances != before)
    ]


def likeness_in_step(blocks: Iterable[Block], lexicon: Lexicon) -> float:
    """Return by how much lines in step are more alike than lines around them, in deviations.

    In standard deviations over groups of lines, at the best of the distances. On corpora that one
    can train on it is above 1; where the lines of a side are shuffled, what chance leaves of it.
    """
    likeness, _ = _read(map(lexicon.embed, blocks))
    if not len(likeness):
        return 0.0
    others = (likeness.sum(1, keepdims=True) - likeness) / (_DISTANCES - 1)
    ahead = likeness - others
    return float((ahead.mean(0) / np.maximum(ahead.std(0), 1e-6)).max())


def _read(embedded: Iterable[tuple[Floats, Floats]]) -> tuple[Floats, int]:
    """Return the summed likeness [groups, distances], and how many lines the target has more."""
    sums = [np.empty((0, _DISTANCES), dtype=np.float32)]
    waiting = np.empty((0, _DISTANCES), dtype=np.float32)
    counts = _Counts()
    for rows in _likeness(embedded, counts):
        rows = np.concatenate((waiting, rows))
        whole = len(rows) // GROUP_LINES * GROUP_LINES
        sums.append(rows[:whole].reshape(-1, GROUP_LINES, _DISTANCES).sum(1))
        waiting = rows[whole:]
    if len(waiting):
        sums.append(waiting.sum(0, keepdims=True))
    return np.concatenate(sums), counts.targets - counts.sources


@dataclass
class _Counts:
    sources: int = 0
    targets: int = 0


def _likeness(embedded: Iterable[tuple[Floats, Floats]], counts: _Counts) -> Iterator[Floats]:
    """Yield the likeness of source lines with the target lines around them [lines, distances].

    A source line can be compared once the 3 target lines after it are there; past the ends of the
    target side there are lines without words.
    """
    sources = targets = nothing = np.zeros((0, 0), dtype=np.float32)
    for left, right in embedded:
        if not nothing.size:
            nothing = np.zeros((WINDOW, left.shape[1]), dtype=np.float32)
            sources, targets = nothing[:0], nothing
        counts.sources += len(left)
        counts.targets += len(right)
        sources = np.concatenate((sources, left))
        targets = np.concatenate((targets, right))
        ready = min(len(sources), len(targets) - 2 * WINDOW)
        if ready > 0:
            yield _compare(sources[:ready], targets)
            sources, targets = sources[ready:], targets[ready:]
    targets = np.concatenate((targets, nothing))
    ready = min(len(sources), len(targets) - 2 * WINDOW)
    if ready > 0:
        yield _compare(sources[:ready], targets)


def _compare(sources: Floats, targets: Floats) -> Floats:
    rows = len(sources)
    products = [
        np.einsum("id,id->i", sources, targets[distance : distance + rows])
        for distance in range(_DISTANCES)
    ]
    return np.stack(products, axis=1)


def _nats_per_likeness(likeness: Floats) -> float:
    """Return the slope of the log-likelihood ratio between lines in step and out of step.

    Both are taken for normal with one variance. Which distance is in step is judged over stretches
    of 100 lines.
    """
    groups = len(likeness)
    starts = np.arange(0, groups, _CALIBRATION_GROUPS)
    best = np.add.reduceat(likeness, starts, axis=0).argmax(1)
    best = np.repeat(best, _CALIBRATION_GROUPS)[:groups]
    in_step = np.zeros(likeness.shape, dtype=bool)
    in_step[np.arange(groups), best] = True
    right, wrong = likeness[in_step], likeness[~in_step]
    variance = (right.var() + wrong.var()) / 2
    return float((right.mean() - wrong.mean()) / max(float(variance), 1e-6))


def _cheapest_path(gains: Floats, *, end: int | None) -> npt.NDArray[np.int64]:
    """Return the state of each group on the best path [groups]; it starts in step."""
    groups, states = gains.shape
    came_from = np.empty((groups, states), dtype=np.int8)
    stay = np.arange(states)
    total = np.full(states, -_CHANGE_COST)
    total[WINDOW] = 0.0
    for group in range(groups):
        best = int(total.argmax())
        changing = total[best] - _CHANGE_COST
        came_from[group] = np.where(total >= changing, stay, best)
        total = np.maximum(total, changing) + gains[group]
    state = int(total.argmax()) if end is None else end
    path = np.empty(groups, dtype=np.int64)
    for group in range(groups - 1, -1, -1):
        path[group] = state
        state = int(came_from[group, state])
    return path
