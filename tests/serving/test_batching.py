import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fastapi import HTTPException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mt.data.placeholders import TaggedText
from mt.decoding.translator import Translator
from mt.serving.batching import Batcher, LineOptions, Metrics

Build = Callable[..., Translator]
WITH_FIXTURES = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Queue(Batcher):
    """Batcher with one model for all requests that name none."""

    def __init__(self, translator: Translator, most_waiting: int = 100) -> None:
        super().__init__(Metrics(), most_waiting=most_waiting)
        self.options = LineOptions(translator)

    def add(self, lines: Sequence[str], *, is_begun: bool = False, **options: Any) -> Any:
        return self.submit(lines, replace(self.options, **options), is_begun=is_begun)


@contextmanager
def started(batcher: Batcher) -> Iterator[None]:
    batcher.start()
    try:
        yield
    finally:
        batcher.stop()
        batcher.join()


def texts(future: Any) -> list[str]:
    return [answer.text for answer in future.result(timeout=10)]


def reverse(lines: Sequence[str]) -> list[str]:
    return [line[::-1] for line in lines]


def test_requests_share_batches_and_one_thread(backwards: Build, engine: Any) -> None:
    queue = Queue(backwards(batch_size=8))
    jobs = [[f"request {position}, line {line}" for line in range(3)] for position in range(10)]
    futures = [queue.add(lines) for lines in jobs]
    assert (queue.waiting, queue.status) == (30, "stopped")
    with started(queue):
        assert queue.status == "ok"
        assert [texts(future) for future in futures] == [reverse(lines) for lines in jobs]
    assert [len(lines) for _, lines in engine.calls] == [8, 8, 8, 6]
    assert engine.threads == {"translator"}
    assert (queue.waiting, queue.status) == (0, "stopped")
    with pytest.raises(HTTPException):
        queue.add(["late"])


def test_full_queue_takes_only_the_rest_of_begun_requests(backwards: Build) -> None:
    queue = Queue(backwards(batch_size=8), most_waiting=3)
    first = queue.add(["ab", "cd", "ef"])
    with pytest.raises(HTTPException):
        queue.add(["gh"])
    rest = queue.add(["ij", "kl"], is_begun=True)
    assert queue.waiting == 5
    with started(queue):
        assert texts(first) + texts(rest) == ["ba", "dc", "fe", "ji", "lk"]


@WITH_FIXTURES
@given(
    jobs=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=8),
    batch_size=st.integers(1, 5),
)
def test_every_request_gets_its_own_answers(
    jobs: list[tuple[int, int]], batch_size: int, backwards: Build, engine: Any
) -> None:
    engine.calls.clear()
    queue = Queue(backwards(batch_size=batch_size))
    lines = [
        [f"{position}.{line}" for line in range(size)] for position, (size, _) in enumerate(jobs)
    ]
    with started(queue):
        futures = [
            queue.add(own, n_best=n_best) for own, (_, n_best) in zip(lines, jobs, strict=True)
        ]
        assert [texts(future) for future in futures] == [reverse(own) for own in lines]
        for future, (_, n_best) in zip(futures, jobs, strict=True):
            lists = [answer.alternatives for answer in future.result()]
            assert all(len(alternatives) == n_best for alternatives in lists)
    assert all(len(batch) <= batch_size for _, batch in engine.calls)
    translated = [line for _, batch in engine.calls for line in batch]
    assert sorted(translated) == sorted(line for own in lines for line in own)


@WITH_FIXTURES
@given(before=st.lists(st.integers(1, 60), max_size=6), batch_size=st.integers(1, 5))
def test_short_request_waits_for_one_batch_of_each_earlier_request(
    before: list[int], batch_size: int, backwards: Build, engine: Any
) -> None:
    engine.calls.clear()
    queue = Queue(backwards(batch_size=batch_size), most_waiting=1000)
    long = [queue.add([f"{job}.{line}" for line in range(n)]) for job, n in enumerate(before)]
    short = queue.add(["short"])
    with started(queue):
        assert texts(short) == ["trohs"]
        for job, lines in enumerate(before):
            assert texts(long[job]) == reverse([f"{job}.{line}" for line in range(lines)])
    batches = [lines for _, lines in engine.calls]
    own = next(position for position, lines in enumerate(batches) if "short" in lines)
    assert own <= len(before)
    assert all(len(lines) == batch_size for lines in batches[:-1])


def test_failing_requests_fail_no_other_request(
    backwards: Build, engine: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    translator = backwards(batch_size=4)
    monkeypatch.setattr(translator, "find_links", lambda tagged: [1 // 0 for _ in tagged])
    queue = Queue(translator)
    good, bad = queue.add(["ab"]), queue.add(["c", "bell", "d", "e", "f", "g"])
    unlinked = queue.add([TaggedText("ij")])
    with started(queue), caplog.at_level(logging.ERROR):
        assert texts(good) == ["ba"]
        for failing in (bad, unlinked):
            with pytest.raises(HTTPException):
                failing.result(timeout=10)
        assert texts(queue.add(["cd"])) == ["dc"]
    assert caplog.messages[0] == "a request could not be translated"
    assert len(caplog.messages) == 2
    assert all("g" not in lines for _, lines in engine.calls), "the rest is not tried"
