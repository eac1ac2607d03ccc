"""Where the two sides of a corpus slip apart: a line too many or too few on one of them.

Line i of the source side is compared with lines i - 3 to i + 3 of the target side, by the lexicon.
In step, the line opposite is the most alike; past a slip another one is, for all lines that follow.
The distance that each line has is then found as the cheapest path: it gains the likeness of the
lines that it pairs, and pays for every change of distance (Viterbi 1967).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mt.doctor.lexicon import WINDOW, Floats, Lexicon
from mt.doctor.reading import Block
from mt.doctor.spreading import Spread, here

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
