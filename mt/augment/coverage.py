"""Choice of diverse lines from a text, by greedy coverage of the n-grams of its tokens.

Chosen one after the other, each line has the largest mean gain of its n-grams. The gain of one is
halved by each chosen line that has it (Biçici and Yuret 2011, "Instance Selection for Machine
Translation using Feature Decay Algorithms"). An n-gram that occurs once gains nothing, or noise
would come first. Gains never rise, so those computed before are bounds (Minoux 1978).

Coverage alone prefers long lines of rare words. So lines are grouped by length and into dialogue
and other text, and each group keeps its share of the text.
"""

import heapq
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
_LONGEST_NGRAM = 3
_SLOT_BITS = 26
"""N-grams are hashed into a table of 64 million counts, so that memory has a limit."""
_BLOCK_LINES = 100_000
"""Lines of which each block gives its share, so that memory has a limit."""
_FACTOR, _SPREAD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_DECAY = 0.5 ** np.arange(256)
_DIALOGUE = re.compile(
    r"""\s*[-‐‑–—―"“”„‟'‘’‚«»‹›「『〝¿¡]|.*[?!？！؟;՞՜፧⸮⁇-⁉]["”“’»«」』]*\s*$""", re.DOTALL
)
"""A dash or quotation mark in front, or a question or exclamation at the end; `;` is Greek."""
_logger = logging.getLogger(__name__)


def choose_lines(
    read: Callable[[], Iterable[str]], count: int, encode: Callable[[list[str]], list[list[int]]]
) -> Bools:
    """Return a mask of `count` diverse lines; all distinct ones if there are no more.

    `read` reads the text; empty lines are left out. `encode` returns at least one token a line.
    """
    # The hash of the empty text is 0.
    hashes = np.fromiter(map(hash, read()), np.int64)
    distinct = np.zeros(len(hashes), bool)
    distinct[np.unique(hashes, return_index=True)[1]] = True
    distinct &= hashes != 0
    total = int(distinct.sum())
    if count >= total:
        return distinct
    occurring, held = (np.zeros(1 << _SLOT_BITS, np.uint8) for _ in range(2))
    for _, lines in _read_blocks(read(), distinct):
        slots, times = np.unique(_find_slots(encode(lines))[0], return_counts=True)
        occurring[slots] = np.minimum(occurring[slots] + times, 2)
    chosen, passed = np.zeros_like(distinct), 0
    for numbers, lines in _read_blocks(read(), distinct):
        ids = encode(lines)
        by_line = np.split(*_find_slots(ids))
        groups: dict[tuple[bool, int], list[int]] = {}
        for index, line in enumerate(lines):
            group = _DIALOGUE.match(line) is not None, len(ids[index]).bit_length()
            groups.setdefault(group, []).append(index)
        for _, members in sorted(groups.items()):
            quota = count * (passed + len(members)) // total - count * passed // total
            passed += len(members)
            chosen[numbers[_choose(members, quota, by_line, occurring, held)]] = True
    _logger.info("%s of %s distinct lines chosen", f"{count:,}", f"{total:,}")
    return chosen


def _read_blocks(lines: Iterable[str], wanted: Bools) -> Iterator[tuple[Ints, list[str]]]:
    """Yield blocks of the wanted lines with their numbers, from 0."""
    numbered = compress(enumerate(lines), wanted)
    while block := list(islice(numbered, _BLOCK_LINES)):
        yield np.array([number for number, _ in block]), [line for _, line in block]


def _find_slots(ids: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return the slots of the n-grams of lines, each once a line, and the borders between lines."""
    owners = np.repeat(np.arange(len(ids)), [len(tokens) for tokens in ids])
    tokens = np.fromiter(chain.from_iterable(ids), np.uint64)
    hashes, cells = np.zeros(len(tokens), np.uint64), []
    for order in range(min(_LONGEST_NGRAM, len(tokens))):
        last = tokens[order:]
        hashes = hashes[: len(last)] * _FACTOR + last + np.uint64(1)
        slots = (hashes * _SPREAD >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
        is_inside = owners[: len(last)] == owners[order:]
        cells.append((owners[: len(last)] << _SLOT_BITS | slots)[is_inside])
    distinct = np.unique(np.concatenate(cells))
    borders = np.searchsorted(distinct >> _SLOT_BITS, np.arange(1, len(ids)))
    return distinct & ((1 << _SLOT_BITS) - 1), borders


def _choose(
    members: Sequence[int], count: int, by_line: Sequence[Ints], occurring: Bytes, held: Bytes
) -> list[int]:
    """Return `count` of the lines `members`, and add their n-grams to those `held`."""

    def gain_of(line: int) -> float:
        slots = by_line[line]
        return float((_DECAY[held[slots]] * (occurring[slots] > 1)).mean())

    bounds = [(-gain_of(line), line) for line in members] if count else []
    heapq.heapify(bounds)
    chosen: list[int] = []
    while len(chosen) < count:
        _, line = heapq.heappop(bounds)
        gain, slots = gain_of(line), by_line[line]
        if bounds and gain < -bounds[0][0]:
            heapq.heappush(bounds, (-gain, line))
            continue
        chosen.append(line)
        held[slots] += held[slots] < len(_DECAY) - 1
    return chosen
