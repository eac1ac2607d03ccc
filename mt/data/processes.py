"""Work on the blocks of a corpus, divided among processes."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mt.data.pairs import SentencePair
from mt.errors import UserError

Texts = tuple[str, str]
_Block = TypeVar("_Block")
_Result = TypeVar("_Result")
_PATIENCE = 3.0
"""Seconds of work in this process; starting the others takes one or two."""
_MOST = 16
"""Processes; more wait for the corpus to be read."""


def count_processes() -> int:
    """Return the number of processes that share work by default: one for each core, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MOST)


def map_pairs(
    work: Callable[[list[Texts]], _Result], pairs: Iterable[SentencePair], size: int
) -> Iterator[tuple[list[Texts], _Result]]:
    """Yield the texts of each `size` pairs with the result of `work`, as `map_blocks` does."""
    texts = ((pair.source, pair.target) for pair in pairs)  # pickled faster than pairs
    return map_blocks(work, iter(lambda: list(islice(texts, size)), []))


def map_blocks(
    work: Callable[[_Block], _Result],
    blocks: Iterable[_Block],
    *,
    processes: int | None = None,
    patience: float = _PATIENCE,
) -> Iterator[tuple[_Block, _Result]]:
    """Yield each block with the result of `work`, in order; it depends on the block alone.

    After some seconds of work in this process, `processes` share the rest. `work`, blocks and
    results are pickled. An error of `work` is raised here, and UserError if a process was killed.
    """
    processes = count_processes() if processes is None else processes
    children, pending = list[subprocess.Popen[bytes]](), deque[_Block]()

    def receive(number: int) -> tuple[_Block, _Result]:
        child = children[number % processes]
        assert child.stdout is not None, "it is a pipe"
        try:
            result = pickle.load(child.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise _explain_death(child) from None
        if isinstance(result, Exception):
            raise result
        return pending.popleft(), result

    sent = 0
    try:
        for block in blocks:
            if patience > 0 or processes < 2:
                began = time.perf_counter()
                result = work(block)
                patience -= time.perf_counter() - began
                yield block, result
                continue
            if sent < processes:
                children.append(_start(work))
            # A process gets its next block before its result is used, so that it never waits.
            done = receive(sent) if len(pending) == processes else None
            _send(block, children[sent % processes])
            pending.append(block)
            sent += 1
            if done is not None:
                yield done
        while pending:
            yield receive(sent - len(pending))
    finally:
        for child in children:
            child.kill()
            child.communicate()


def _start(work: object) -> "subprocess.Popen[bytes]":
    """Start a process that answers each block; it imports nothing that `work` does not need.

    Unlike those of `multiprocessing`, it neither forks threads nor runs the main script again.
    """
    code = f"from {__name__} import answer; answer()"
    folders = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": folders},
    )
    _send(work, child)
    return child


def _send(value: object, child: "subprocess.Popen[bytes]") -> None:
    assert child.stdin is not None, "it is a pipe"
    try:
        pickle.dump(value, child.stdin, pickle.HIGHEST_PROTOCOL)
        child.stdin.flush()
    except BrokenPipeError:
        raise _explain_death(child) from None


def _explain_death(child: "subprocess.Popen[bytes]") -> UserError:
    status = child.wait()
    return UserError(
        f"a process that shares the work on the corpora ended with status {status}; if it was "
        "killed for lack of memory, allow more, or fewer cores (`taskset -c 0`)"
    )


def answer() -> None:
    """Read `work` and blocks from stdin, and write the result or the error of each to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    requests, results = sys.stdin.buffer, sys.stdout.buffer
    work: Callable[[Any], Any] = pickle.load(requests)
    while True:
        try:
            block = pickle.load(requests)
        except EOFError:
            return
        try:
            result = work(block)
        except Exception as error:
            result = error
        try:
            pickle.dump(result, results, pickle.HIGHEST_PROTOCOL)
            results.flush()
        except BrokenPipeError:  # the first process was killed
            os._exit(1)
