"""Alignment of the two sides of a corpus: lines out of step, and sides that are unrelated.

Word vectors learned from the corpus compare line i of the source side with lines i - 3 to i + 3 of
the target side. In step, the opposite line is the most similar; after a missing line, another one
is, for all following lines. The distance of each line follows from the best path, which gains the
similarity of the lines it pairs and pays for every change of distance (Viterbi 1967).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mt.data.pairs import EvenSample
from mt.data.words import WORD
from mt.doctor.tally import LineBlock

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
WINDOW = 3
CHUNK_LINES = 100
_LEXICON_CHUNKS = 100
_MAX_WORDS = 6000
_MIN_COUNT = 3
_DIMENSIONS = 64
_STEM = 5
_MAX_CHARACTERS = 300  # the head of a line identifies it
_MAX_FEATURES = 80
_SMOOTHING = 1.0


@dataclass(frozen=True)
class WordVectors:
    """A vector for each frequent word of both languages, similar for translations."""

    sources: dict[str, int]
    """Row of each word in `source_vectors`, most frequent first."""
    targets: dict[str, int]
    source_vectors: Floats
    target_vectors: Floats

    def embed(self, block: LineBlock) -> tuple[Floats, Floats]:
        """Return unit vectors of the lines of each side [lines D], zero without a known word."""
        return (
            _embed(block.sources, self.sources, self.source_vectors),
            _embed(block.targets, self.targets, self.target_vectors),
        )


def learn_word_vectors(blocks: Iterable[LineBlock]) -> WordVectors:
    """Learn vectors from at most 20,000 lines, in stretches spread over the corpus."""
    chunks = spread_stretches(blocks, at_least=_LEXICON_CHUNKS)
    sources = _choose_words(chunk.sources for chunk in chunks)
    targets = _choose_words(chunk.targets for chunk in chunks)
    counts = np.zeros((len(sources), len(targets)), dtype=np.float32)
    for chunk in chunks:
        # The word pairs of lines at most `WINDOW` apart.
        right = _find_word_ids(chunk.targets, targets)
        cells = [np.empty(0, dtype=np.int64)]
        for line, words in enumerate(_find_word_ids(chunk.sources, sources)):
            near = right[max(0, line - WINDOW) : line + WINDOW + 1]
            if near and len(words):
                # Rare words have the largest ids and discriminate best.
                others = np.concatenate([ids[-_MAX_FEATURES:] for ids in near])
                cells.append((words[-_MAX_FEATURES:, None] * len(targets) + others).ravel())
        used_cells, times = np.unique(np.concatenate(cells), return_counts=True)
        counts.reshape(-1)[used_cells] += times
    if not counts.size:
        empty = [np.zeros((size, 1), np.float32) for size in counts.shape]
        return WordVectors(sources, targets, *empty)
    # A truncated SVD of the counts minus their expectation, by subspace iteration from a fixed seed
    # (Halko, Martinsson and Tropp 2011).
    rows, columns = counts.sum(1), counts.sum(0)
    total = max(1.0, float(rows.sum()))
    row_scale = 1 / np.sqrt(rows + _SMOOTHING * max(1.0, float(rows.mean())))
    column_scale = 1 / np.sqrt(columns + _SMOOTHING * max(1.0, float(columns.mean())))
    counts -= np.outer(rows, columns / total)
    counts *= row_scale[:, None]
    counts *= column_scale
    generator = np.random.default_rng(1)
    basis = generator.standard_normal((len(columns), _DIMENSIONS)).astype(np.float32)
    for _ in range(3):
        image, _ = np.linalg.qr(counts @ basis)
        basis, _ = np.linalg.qr(counts.T @ image)
    left, strengths, rotation = np.linalg.svd(counts @ basis, full_matrices=False)
    root = np.sqrt(strengths)
    source_vectors = left * root * row_scale[:, None]
    target_vectors = (basis @ rotation.T) * root * column_scale[:, None]
    return WordVectors(
        sources, targets, source_vectors.astype(np.float32), target_vectors.astype(np.float32)
    )


def spread_stretches(blocks: Iterable[LineBlock], *, at_least: int) -> list[LineBlock]:
    """Return `at_least` to twice as many stretches of 100 lines, evenly spread over a corpus.

    Blocks begin at multiples of 100 lines. A smaller corpus is returned whole.
    """
    sample = EvenSample[LineBlock](2 * at_least)
    for block in blocks:
        for start in range(0, len(block.sources), CHUNK_LINES):
            part = slice(start, start + CHUNK_LINES)
            sample.add([LineBlock(block.first + start, block.sources[part], block.targets[part])])
    return sample.items


def _find_stems(line: str) -> set[str]:
    """Return the beginnings of the words of a line, and the characters of unspaced scripts."""
    return {word[:_STEM] for word in WORD.findall(line[:_MAX_CHARACTERS].lower())}


def _choose_words(sides: Iterable[Sequence[str]]) -> dict[str, int]:
    counts = Counter(stem for lines in sides for line in lines for stem in _find_stems(line))
    # Ties alphabetically, because the order of a set differs between processes.
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = [word for word, count in ranked[:_MAX_WORDS] if count >= _MIN_COUNT]
    return {word: index for index, word in enumerate(words)}


def _find_word_ids(lines: Sequence[str], words: dict[str, int]) -> list[Ids]:
    """Return the sorted ids of the different known words of each line."""
    return [
        np.array(sorted(words[stem] for stem in _find_stems(line) & words.keys()), dtype=np.int64)
        for line in lines
    ]


def _embed(lines: Sequence[str], words: dict[str, int], vectors: Floats) -> Floats:
    result = np.zeros((len(lines), vectors.shape[1]), dtype=np.float32)
    ids = _find_word_ids(lines, words)
    lengths = np.array([len(line) for line in ids], dtype=np.int64)
    if lengths.any():
        starts = (lengths.cumsum() - lengths)[lengths > 0]
        result[lengths > 0] = np.add.reduceat(vectors[np.concatenate(ids)], starts, axis=0)
    result /= np.maximum(np.linalg.norm(result, axis=1, keepdims=True), np.float32(1e-12))
    return result


GROUP_LINES = 5
"""Lines whose similarity is summed; the resolution of a shift."""
_CHANGE_COST = 30.0
"""Cost of a change of distance in nats; high, since neighbouring lines are not independent."""
_CALIBRATION_GROUPS = 20
_DISTANCES = 2 * WINDOW + 1


@dataclass(frozen=True, slots=True)
class Shift:
    """From source line `line` (approximate, from 1) on, line i pairs with line i + `distance`."""

    line: int
    distance: int


def find_shifts(blocks: Iterable[LineBlock], vectors: WordVectors) -> list[Shift]:
    """Return the places at which the distance between paired lines changes, in order.

    If one side has up to 3 lines more, the path must end at that distance, so that at least one
    shift is found.
    """
    similarity, extra = _sum_similarities(map(vectors.embed, blocks))
    if not len(similarity):
        return []
    # Sides of equal length may still be out of step: both may lack a line at different places.
    end = extra + WINDOW if 0 < abs(extra) <= WINDOW else None
    distances = _find_best_path(similarity * _calibrate(similarity), end=end) - WINDOW
    before = np.concatenate(([0], distances[:-1]))
    return [
        Shift(int(group) * GROUP_LINES + 1, int(distances[group]))
        for group in np.flatnonzero(distances != before)
    ]


_MIN_LINES_RELATED = 1000
_MIN_LEAD = 0.7
"""Of 8 real corpora the lowest lead is 1.5; shuffled, the highest is 0.5."""


def are_unrelated(stretches: Sequence[LineBlock], vectors: WordVectors) -> bool:
    """Return True if no line is more similar to the opposite line than to its neighbours.

    Returns False if that cannot be judged: below 1,000 lines, or if half of the lines are repeated
    nearby or have no frequent word, as in a list of names.
    """
    lines = sum(len(stretch.sources) for stretch in stretches)
    distinct = [_without_repeats(stretch) for stretch in stretches]
    embedded = [vectors.embed(stretch) for stretch in distinct]
    judged = sum(int((left.any(1) & right.any(1)).sum()) for left, right in embedded)
    if lines < _MIN_LINES_RELATED or judged <= lines / 2:
        return False
    similarity, _ = _sum_similarities(embedded)
    others = (similarity.sum(1, keepdims=True) - similarity) / (_DISTANCES - 1)
    lead = similarity - others
    # In standard deviations over groups, at the best distance.
    return float((lead.mean(0) / np.maximum(lead.std(0), 1e-6)).max()) < _MIN_LEAD


def _without_repeats(block: LineBlock) -> LineBlock:
    """Return the pairs whose sides are both new; several translations of a line often adjoin."""
    sources, targets = set[str](), set[str]()
    distinct = LineBlock(block.first, [], [])
    for _, source, target in block.numbered():
        if source not in sources and target not in targets:
            distinct.sources.append(source)
            distinct.targets.append(target)
        sources.add(source)
        targets.add(target)
    return distinct


def _sum_similarities(embedded: Iterable[tuple[Floats, Floats]]) -> tuple[Floats, int]:
    """Return summed similarities [groups, distances] and the surplus of target lines.

    Lines before the start and past the end of the target side are zero vectors.
    """
    sums = [np.empty((0, _DISTANCES), dtype=np.float32)]
    sources = targets = margin = np.zeros((0, 0), dtype=np.float32)
    surplus = 0
    for left, right in embedded:
        if not margin.size:
            margin = np.zeros((WINDOW, left.shape[1]), dtype=np.float32)
            sources, targets = margin[:0], margin
        surplus += len(right) - len(left)
        sources = np.concatenate((sources, left))
        targets = np.concatenate((targets, right))
        ready = max(0, min(len(sources), len(targets) - 2 * WINDOW)) // GROUP_LINES * GROUP_LINES
        sums.append(_compare(sources[:ready], targets))
        sources, targets = sources[ready:], targets[ready:]
    targets = np.concatenate((targets, margin))
    ready = max(0, min(len(sources), len(targets) - 2 * WINDOW))
    sums.append(_compare(sources[:ready], targets))
    return np.concatenate(sums), surplus


def _compare(sources: Floats, targets: Floats) -> Floats:
    rows = len(sources)
    products = [
        np.einsum("id,id->i", sources, targets[distance : distance + rows])
        for distance in range(_DISTANCES)
    ]
    return np.add.reduceat(np.stack(products, axis=1), np.arange(0, rows, GROUP_LINES), axis=0)


def _calibrate(similarity: Floats) -> float:
    """Return the slope of the log-likelihood ratio between lines in step and out of step.

    Both are modelled as normal with one variance. The distance in step is the best one of every
    100 lines.
    """
    groups = len(similarity)
    starts = np.arange(0, groups, _CALIBRATION_GROUPS)
    best = np.add.reduceat(similarity, starts, axis=0).argmax(1)
    best = np.repeat(best, _CALIBRATION_GROUPS)[:groups]
    in_step = np.zeros(similarity.shape, dtype=bool)
    in_step[np.arange(groups), best] = True
    right, wrong = similarity[in_step], similarity[~in_step]
    variance = (right.var() + wrong.var()) / 2
    return float((right.mean() - wrong.mean()) / max(float(variance), 1e-6))


def _find_best_path(gains: Floats, *, end: int | None) -> npt.NDArray[np.int64]:
    """Return the state of each group [groups] on the best path, which starts in step."""
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
