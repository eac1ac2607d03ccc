"""Drawing the pieces of an epoch: another store, of the same pairs in the same order.

`python -m mt.data.draw DRAWING` does it in a process of its own, for `mt.data.epochs`.
"""

import _thread
import hashlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mt.data.rows import Rows
from mt.data.sampling import Sampler
from mt.data.store import Chunk, PairStore, open_store, write_store
from mt.data.tokenizer import Tokenizer
from mt.data.vocabulary import Vocabulary
from mt.errors import EXIT_INTERRUPTED, run_reporting_errors

_FORMAT = 1
"""Part of a folder's name; raised whenever the same seed would draw otherwise."""
_LOWEST_PRIORITY = 19
_SECONDS_TO_CLEAN_UP = 5.0


@dataclass(frozen=True)
class Drawing:
    """What the pieces of a run's epochs are drawn from; they follow from it and the epoch alone."""

    store: Path
    """The file of the pairs in the pieces that the tokenizer gives when nothing is drawn."""
    tokenizer: Path
    """The tokenizer's folder."""
    source: float
    """`tokenizer.sampling` of the source side; 0 leaves it as it is."""
    target: float
    """That of the target side."""
    max_pieces: int
    seed: int

    @classmethod
    def from_json(cls, text: str) -> "Drawing":
        """Read what `as_json` wrote."""
        values = json.loads(text)
        paths = {name: Path(values[name]) for name in ("store", "tokenizer")}
        return cls(**{**values, **paths})

    def as_json(self) -> str:
        """Return everything as text."""
        return json.dumps(asdict(self), default=str)

    def path(self, epoch: int) -> Path:
        """Return the file of an epoch's store; the store's own name tells corpus and tokenizer."""
        key = [_FORMAT, self.store.name, self.source, self.target, self.max_pieces, self.seed]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
        return self.store.parent.with_name("epochs") / name / f"{epoch}.arrow"


def draw(drawing: Drawing, epoch: int, *, threads: int) -> None:
    """Write the store of an epoch unless it is there; the number of threads changes nothing in it.

    Of several processes that want the same, one draws and the others wait.
    """
    path = drawing.path(epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent / ".lock"):
        if open_store(path):
            return
        for left_behind in path.parent.glob(f".{path.name}.*"):
            left_behind.unlink()
        plain, sides = PairStore(drawing.store), _Sides(drawing, epoch)
        pool = ThreadPoolExecutor(threads)
        try:
            chunks = pool.map(sides.drawn, plain.chunks, range(len(plain.chunks)))
            write_store(path, chunks, doing=f"drawing the pieces of epoch {epoch + 1}")
        finally:
            pool.shutdown(cancel_futures=True)


class _Sides:
    """Draws the chunks of an epoch, in any order, since each has generators of its own."""

    def __init__(self, drawing: Drawing, epoch: int) -> None:
        tokenizer = Tokenizer.load(drawing.tokenizer)
        self._source = _sampler(tokenizer.source, drawing.source)
        self._target = _sampler(tokenizer.target, drawing.target)
        self._max_pieces = drawing.max_pieces
        self._seeds = [drawing.seed, epoch]

    def drawn(self, chunk: Chunk, number: int) -> Chunk:
        """Return the same pairs in other pieces."""
        seeds = np.random.SeedSequence(self._seeds, spawn_key=(number,))
        source, target = (np.random.Generator(np.random.PCG64(seed)) for seed in seeds.spawn(2))
        return Chunk(
            self._sampled(chunk.source, self._source, source),
            self._sampled(chunk.target, self._target, target),
            chunk.left_out,
        )

    def _sampled(self, rows: Rows, sampler: Sampler | None, random: np.random.Generator) -> Rows:
        return sampler.sample(rows, random, max_pieces=self._max_pieces) if sampler else rows


def _sampler(vocabulary: Vocabulary, strength: float) -> Sampler | None:
    return Sampler(vocabulary, strength) if strength else None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes out; on systems without file locks each draws for itself."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Draw the epochs that stdin asks for, a number a line, and answer on stdout when each is done.

    At the lowest priority, and for as long as somebody holds the other end of stdin: that is a
    training, and however it ends, the system then closes that end.
    """
    drawing = Drawing.from_json(sys.argv[1])
    if sys.platform != "win32":
        os.nice(_LOWEST_PRIORITY)
    # Whoever started the training may have had it ignored, and `_listen` needs it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threads = max(1, (os.cpu_count() or 1) // 4)
    asked: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    while (epoch := asked.get()) is not None:
        draw(drawing, epoch, threads=threads)
        sys.stdout.write(f"{epoch}\n")
        sys.stdout.flush()
    return 0


def _listen(asked: queue.SimpleQueue[int | None]) -> None:
    # Not sys.stdin: Python could not end while a thread reads from it.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        for line in stdin:
            asked.put(int(line))
    asked.put(None)
    _thread.interrupt_main()  # so that a drawing stops, and leaves no unfinished file
    time.sleep(_SECONDS_TO_CLEAN_UP)
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
