"""Prefetching of updates in a thread."""

import threading
from collections.abc import Iterator

import pytest

from mt.training.loader import PlannedUpdate, Prefetcher
from mt.training.step import TokenCounts


def updates(count: int, error: Exception | None = None) -> Iterator[PlannedUpdate]:
    for number in range(count):
        yield PlannedUpdate(0, number, [], TokenCounts(1, 1))
    if error:
        raise error


def test_updates_come_in_order_and_the_thread_ends() -> None:
    threads = threading.active_count()
    with Prefetcher(updates(10)) as prefetcher:
        assert [each.number for each in prefetcher] == [*range(10)]
    with Prefetcher(updates(1000)) as prefetcher:
        assert next(iter(prefetcher)).number == 0  # the loop leaves early
    assert prefetcher.waited_seconds > 0
    assert threading.active_count() == threads


def test_error_of_the_thread_is_raised_after_the_updates_before_it() -> None:
    with Prefetcher(updates(3, ValueError("damaged"))) as prefetcher:
        iterator = iter(prefetcher)
        assert [next(iterator).number for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="damaged"):
            next(iterator)
