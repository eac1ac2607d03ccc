"""Work on the blocks of a corpus, in this process or in several, in order either way."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result", covariant=True)

_WAITING_FOR_EACH = 2
"""Blocks that lie ready for a process; the rest of the corpus is not read before it is needed."""


class Spread(Protocol):
    """Gives the results of some work on each item, in the order of the items, as `map` does.

    With several processes work, items and results have to be such as can be pickled.
    """

    def __call__(self, work: Callable[[Any], Result], items: Iterable[Any], /) -> Iterator[Result]:
        """Do the work on each item."""


def here(work: Callable[[Any], Result], items: Iterable[Any], /) -> Iterator[Result]:
    """Do the work in this process."""
    return map(work, items)


@contextmanager
def spread_over(processes: int) -> Iterator[Spread]:
    """Give what spreads work over so many processes; 1 is this one."""
    if processes == 1:
        yield here
        return
    # Started anew, not forked: a fork of a process with threads may hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield partial(_side_by_side, pool, _WAITING_FOR_EACH * processes)


def _side_by_side(
    pool: ProcessPoolExecutor,
    most_waiting: int,
    work: Callable[[Any], Result],
    items: Iterable[Any],
    /,
) -> Iterator[Result]:
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > most_waiting:
            yield waiting.popleft().result()
    yield from (future.result() for future in waiting)
