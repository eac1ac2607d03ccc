"""Work on the blocks of a corpus, in this process or in several, in order either way."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
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
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_end_with_parent) as pool:
        yield partial(_side_by_side, pool, _WAITING_FOR_EACH * processes)


def _end_with_parent() -> None:
    """Let no process of the pool wait for work from one that was killed."""
    Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)


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
