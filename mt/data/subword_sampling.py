"""The store of each epoch when subword sampling is on: drawn ahead while the one before trains."""

import _thread
import hashlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from mt.data.store import Chunk, PairStore, Rows, concatenate, open_store, write_store
from mt.data.tokenizer import Tokenizer
from mt.data.vocabulary import SPACE_MARK, Vocabulary
from mt.errors import EXIT_INTERRUPTED, run_reporting_errors

Ids = NDArray[np.int32]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Symbols:
    """The characters of many words; no token reaches over the end of a word."""

    ids: Ids
    """[N] The token of each character, or of a byte of it where it has none."""
    word: Places
    """[N] To which word each belongs: 0, 0, 0, 1, 1, 2 and so on."""
    begins: NDArray[np.bool_]
    """[N] True at the first of each word."""


class PairTable:
    """A dictionary from pairs of numbers to a number that answers for whole arrays at once."""

    def __init__(self, entries: Mapping[tuple[int, int], int]) -> None:
        """Take entries of numbers from 0 to 2**31 - 1."""
        pairs = np.array(list(entries), np.int64).reshape(-1, 2)
        keys = pairs[:, 0] << 32 | pairs[:, 1]
        order = np.argsort(keys)
        # The last entry, which no pair finds, gives every search a place to end at.
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._values = np.append(np.array(list(entries.values()), np.int32)[order], np.int32(-1))

    def find(self, left: NDArray[np.integer], right: NDArray[np.integer]) -> Ids:
        """Return what stands for each pair, -1 where nothing does."""
        wanted = left.astype(np.int64) << 32 | right
        found = np.searchsorted(self._keys, wanted)
        return np.where(self._keys[found] == wanted, self._values[found], np.int32(-1))


class Tokens:
    """The tokens of a vocabulary, and the characters of which each consists."""

    texts: dict[int, str]
    """The tokens that are text; neither bytes nor the special ones, which nothing merges into."""
    scores: NDArray[np.float64]
    """[V] SentencePiece's score: minus the rank of a merge, or a log probability."""
    spelling: Rows
    """[V rows] The ids of each token's characters; of what is no text, its own id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        processor, size = vocabulary.processor, len(vocabulary)
        self.texts = vocabulary.texts()
        self.scores = np.array([processor.get_score(number) for number in range(size)])
        ids = {text: number for number, text in self.texts.items()}
        spelled = [self._spell(number, ids) for number in range(size)]
        self.spelling = Rows.of(spelled)
        across = any(SPACE_MARK in text[1:] for text in self.texts.values())
        # Without a token that goes on after a space, segmenting word by word is the same.
        self._begins_word = np.zeros(size, np.bool_)
        self._begins_word[
            [n for n, text in self.texts.items() if text[0] == SPACE_MARK]
        ] = not across

    def _spell(self, number: int, ids: dict[str, int]) -> list[int]:
        characters = [ids.get(character, -1) for character in self.texts.get(number, "")]
        return characters if characters and -1 not in characters else [number]

    def symbols(self, rows: Rows) -> tuple[Symbols, NDArray[np.integer]]:
        """Return the characters of some rows, and where each row begins and ends [rows + 1]."""
        spelled = self.spelling.take(rows.values)
        offsets = spelled.offsets[rows.offsets]
        begins = self._begins_word[spelled.values]
        begins[offsets[:-1]] = True
        return Symbols(spelled.values, np.cumsum(begins) - 1, begins), offsets


class BpeDropout:
    """Draws segmentations; with a dropout of 0, the one of SentencePiece itself."""

    def __init__(self, tokens: Tokens, dropout: float) -> None:
        ids = {text: number for number, text in tokens.texts.items()}
        self._merges = PairTable(
            {
                (ids[text[:cut]], ids[text[cut:]]): number
                for text, number in ids.items()
                for cut in range(1, len(text))
                if text[:cut] in ids and text[cut:] in ids
            }
        )
        self._rank = (-tokens.scores).astype(np.int64)
        self._none = len(tokens.scores)
        self._dropout = dropout

    def segment(self, symbols: Symbols, random: np.random.Generator) -> Ids:
        """Return [N] the id of the token that begins at each symbol, -1 where none does."""
        word, end = symbols.word, len(symbols.ids)
        # A chain through each word; what lies before and after it is the symbol `end`.
        ids = np.append(symbols.ids, np.int32(self._none))
        begins = np.append(symbols.begins, True)
        after = np.append(np.where(begins[1:], end, np.arange(1, end + 1)), end)
        before = np.append(np.where(begins[:-1], end, np.arange(-1, end - 1)), end)
        merge = self._merges.find(ids, ids[after])  # of each symbol with the one after it
        step, last_step = 0, np.zeros(end and int(word[-1]) + 1, np.int64)
        possible = np.flatnonzero(merge >= 0)
        while len(best := self._first(possible, merge, word, random)):
            step += 1
            last_step[word[best]] = step
            gone = after[best]
            ids[best], ids[gone] = merge[best], -1
            after[best] = after[gone]
            before[after[gone]] = best
            merge[gone] = -1
            changed = np.concatenate([before[best], best])
            new = changed[merge[changed] < 0]
            merge[changed] = self._merges.find(ids[changed], ids[after[changed]])
            possible = possible[last_step[word[possible]] == step]
            possible = np.concatenate([possible, new])
            possible = np.sort(possible[merge[possible] >= 0], kind="stable")
        return ids[:-1]

    def _first(
        self, possible: Places, merge: Ids, word: Places, random: np.random.Generator
    ) -> Places:
        """Return where in each word the merge is that was learnt first, of those not dropped."""
        kept = possible[random.random(len(possible)) >= self._dropout]
        if not len(kept):
            return kept
        bits = int(kept[-1]).bit_length()
        order = self._rank[merge[kept]] << bits | kept  # by rank, then from left to right
        words = np.flatnonzero(np.diff(word[kept], prepend=-1))
        return np.minimum.reduceat(order, words) & ((1 << bits) - 1)


@dataclass(frozen=True, slots=True)
class _Arcs:
    """The tokens that fit somewhere, ordered by the symbol where they end, so in groups."""

    start: Places
    """The first symbol of each."""
    last: Places
    """The last symbol of each, itself included."""
    token: Ids
    depth: Places
    """How many symbols of its word stand before `last`; the order is by this first."""

    @property
    def groups(self) -> Places:
        """Where the arcs of the next `last` begin."""
        return np.flatnonzero(np.diff(self.last, prepend=-1))


class UnigramSampling:
    """Draws segmentations; an exponent near 0 takes all alike, a large one the likeliest."""

    def __init__(self, tokens: Tokens, exponent: float) -> None:
        children: dict[tuple[int, int], int] = {}
        ends: dict[int, int] = {}
        spelling = tokens.spelling
        for number in range(len(tokens.scores)):
            node = 0
            for symbol in spelling.values[spelling.offsets[number] : spelling.offsets[number + 1]]:
                node = children.setdefault((node, int(symbol)), len(children) + 1)
            ends[node] = number
        self._children = PairTable(children)
        self._token = np.array([ends.get(node, -1) for node in range(len(children) + 1)], np.int32)
        self._longest = int(spelling.lengths.max())
        self._score = exponent * tokens.scores

    def segment(self, symbols: Symbols, random: np.random.Generator) -> Ids:
        """Return [N] the id of the token that begins at each symbol, -1 where none does."""
        arcs = self._arcs(symbols)
        chosen = _draw(self._shares(arcs, symbols), arcs.groups, random)
        start = np.empty(len(symbols.ids), np.int64)
        token = np.empty(len(symbols.ids), np.int32)
        start[arcs.last[chosen]], token[arcs.last[chosen]] = arcs.start[chosen], arcs.token[chosen]
        found = np.full(len(symbols.ids), -1, np.int32)
        here = np.flatnonzero(np.append(symbols.begins[1:], True))  # the words' ends, then back
        while len(here):
            found[start[here]] = token[here]
            here = start[here]
            here = here[~symbols.begins[here]] - 1
        return found

    def _arcs(self, symbols: Symbols) -> _Arcs:
        """Find every token at every symbol: the trie is walked from all of them at once."""
        ids, word = symbols.ids, symbols.word
        start = np.arange(len(ids))
        node = np.zeros(len(ids), np.int32)
        found = []
        for length in range(self._longest):
            last = start + length
            inside = last < len(ids)
            inside[inside] = word[last[inside]] == word[start[inside]]
            start, node, last = start[inside], node[inside], last[inside]
            node = self._children.find(node, ids[last])
            start, node, last = start[node >= 0], node[node >= 0], last[node >= 0]
            whole = self._token[node] >= 0
            found.append((start[whole], last[whole], self._token[node[whole]]))
        starts, lasts, tokens = (np.concatenate(parts) for parts in zip(*found, strict=True))
        depth = lasts - np.flatnonzero(symbols.begins)[word[lasts]]
        order = np.lexsort((starts, lasts, depth))
        return _Arcs(starts[order], lasts[order], tokens[order], depth[order])

    def _shares(self, arcs: _Arcs, symbols: Symbols) -> NDArray[np.float64]:
        """Return the probability of each arc, given that a token ends where it ends."""
        # total[i]: log of the sum over the ways from the word's beginning to symbol i. The last
        # element stands for a word's beginning.
        total = np.zeros(len(symbols.ids) + 1)
        before = np.where(symbols.begins[arcs.start], -1, arcs.start - 1)
        value = self._score[arcs.token]
        groups = arcs.groups
        deepest = int(arcs.depth[-1]) if len(arcs.depth) else -1
        bounds = np.searchsorted(arcs.depth, np.arange(deepest + 2))
        group_bounds = np.searchsorted(groups, bounds)
        for depth in range(deepest + 1):
            here = slice(bounds[depth], bounds[depth + 1])
            value[here] += total[before[here]]
            starts = groups[group_bounds[depth] : group_bounds[depth + 1]]
            total[arcs.last[starts]] = np.logaddexp.reduceat(value[here], starts - bounds[depth])
        return np.exp(value - total[arcs.last])


def _draw(shares: NDArray[np.float64], groups: Places, random: np.random.Generator) -> Places:
    """Choose one element of each group, by its share; `groups` are their beginnings."""
    ends = np.append(groups[1:], len(shares))
    sums = np.concatenate([[0.0], np.cumsum(shares)])
    aims = sums[groups] + random.random(len(groups)) * (sums[ends] - sums[groups])
    chosen: Places = np.clip(np.searchsorted(sums, aims, side="right") - 1, groups, ends - 1)
    return chosen


_BLOCK_TOKENS = 1 << 14
"""So many tokens are segmented at once: enough for whole arrays to pay, little enough memory.

It is part of what a seed gives: the rows of a block share the generator's numbers."""


class Segmenter(Protocol):
    """An algorithm that draws segmentations."""

    def segment(self, symbols: Symbols, random: np.random.Generator) -> Ids:
        """Return [N] the id of the token that begins at each symbol, -1 where none does."""


SAMPLERS: dict[str, Callable[[Tokens, float], Segmenter]] = {
    "bpe": BpeDropout,
    "unigram": UnigramSampling,
}


class Sampler:
    """Draws segmentations by the algorithm of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary, strength: float) -> None:
        """Take the dropout of BPE, or the exponent of the unigram model."""
        self._tokens = Tokens(vocabulary)
        self._segmenter = SAMPLERS[vocabulary.algorithm](self._tokens, strength)

    def sample(self, rows: Rows, random: np.random.Generator, *, max_tokens: int) -> Rows:
        """Return rows of the same text in tokens drawn anew.

        A row that comes to more than `max_tokens`, end mark included, stays as it is.
        """
        blocks = np.flatnonzero(np.diff(rows.offsets[:-1] // _BLOCK_TOKENS, prepend=-1))
        bounds = [*blocks.tolist(), len(rows)]
        drawn = [
            self._sample(rows.take(np.arange(first, last)), random, max_tokens)
            for first, last in pairwise(bounds)
        ]
        return concatenate(drawn)

    def _sample(self, rows: Rows, random: np.random.Generator, max_tokens: int) -> Rows:
        symbols, offsets = self._tokens.symbols(rows)
        tokens = self._segmenter.segment(symbols, random)
        begun = np.concatenate([[0], np.cumsum(tokens >= 0)])
        drawn = Rows(tokens[tokens >= 0], begun[offsets])
        too_long = drawn.lengths > max_tokens
        if not too_long.any():
            return drawn
        count = len(too_long)
        return concatenate([drawn, rows]).take(np.arange(count) + too_long * count)


_FORMAT = 1
"""Part of a folder's name; raised whenever the same seed would draw otherwise."""
_LOWEST_PRIORITY = 19
_SECONDS_TO_CLEAN_UP = 5.0


@dataclass(frozen=True)
class Drawing:
    """What the tokens of a run's epochs are drawn from; they follow from it and the epoch alone."""

    store: Path
    """The file of the pairs in the tokens that the tokenizer gives when nothing is drawn."""
    tokenizer: Path
    """The tokenizer's folder."""
    source: float
    """`tokenizer.sampling` of the source side; 0 leaves it as it is."""
    target: float
    """That of the target side."""
    max_tokens: int
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
        key = [_FORMAT, self.store.name, self.source, self.target, self.max_tokens, self.seed]
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
            write_store(path, chunks, doing=f"drawing the tokens of epoch {epoch + 1}")
        finally:
            pool.shutdown(cancel_futures=True)


class _Sides:
    """Draws the chunks of an epoch, in any order, since each has generators of its own."""

    def __init__(self, drawing: Drawing, epoch: int) -> None:
        tokenizer = Tokenizer.load(drawing.tokenizer)
        self._source = _sampler(tokenizer.source, drawing.source)
        self._target = _sampler(tokenizer.target, drawing.target)
        self._max_tokens = drawing.max_tokens
        self._seeds = [drawing.seed, epoch]

    def drawn(self, chunk: Chunk, number: int) -> Chunk:
        """Return the same pairs in other tokens."""
        seeds = np.random.SeedSequence(self._seeds, spawn_key=(number,))
        source, target = (np.random.Generator(np.random.PCG64(seed)) for seed in seeds.spawn(2))
        return Chunk(
            self._sampled(chunk.source, self._source, source),
            self._sampled(chunk.target, self._target, target),
            chunk.left_out,
        )

    def _sampled(self, rows: Rows, sampler: Sampler | None, random: np.random.Generator) -> Rows:
        return sampler.sample(rows, random, max_tokens=self._max_tokens) if sampler else rows


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
_SECONDS_TO_END = 10.0
_SILENT_SECONDS = 1.0
"""Who waits for less need not be told."""
_logger = logging.getLogger(__name__)


class DrawnEpochs:
    """Opens the stores of epochs one after the other, in any order if need be.

    A store that is no longer needed is deleted, and drawn again where it is asked for after all.
    """

    def __init__(self, drawing: Drawing, *, epochs: int | None) -> None:
        """Take what to draw, and how many epochs there are at most; None: nobody knows."""
        self._drawing = drawing
        self._epochs = epochs
        self._opened: tuple[int, PairStore] | None = None
        self._drawer: _Drawer | None = None

    def open(self, epoch: int) -> PairStore:
        """Return the store of an epoch, waiting for it if need be, and begin to draw the next."""
        if self._opened is None or self._opened[0] != epoch:
            store = self._drawn(epoch)
            self._forget_opened()
            self._opened = epoch, store
            if self._epochs is None or epoch + 1 < self._epochs:
                self._drawer = self._drawer or _Drawer(self._drawing)
                self._drawer.begin(epoch + 1)
        return self._opened[1]

    def close(self) -> None:
        """Stop drawing and delete what was drawn: no run will ask for it."""
        if self._drawer is not None:
            self._drawer.stop()
            self._drawing.path(self._drawer.epoch).unlink(missing_ok=True)
            self._drawer = None
        self._forget_opened()

    def _drawn(self, epoch: int) -> PairStore:
        drawer = self._drawer
        if drawer is not None and not (drawer.epoch == epoch and drawer.finish()):
            drawer.stop()
            self._drawer = None
        # Another run with the same tokens may delete the file as soon as it is there.
        while (store := open_store(self._drawing.path(epoch))) is None:
            draw(self._drawing, epoch, threads=os.cpu_count() or 1)
        return store

    def _forget_opened(self) -> None:
        if self._opened is not None:
            self._drawing.path(self._opened[0]).unlink(missing_ok=True)
            self._opened = None


class _Drawer:
    """A process that draws one epoch after the other; it ends with this object or this process."""

    epoch: int
    """What it was asked for last."""

    def __init__(self, drawing: Drawing) -> None:
        said = tempfile.TemporaryFile()  # noqa: SIM115 - `_stop` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mt.data.subword_sampling", drawing.as_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the training, which may go on for a while
        )
        self._said = said
        self.stop = weakref.finalize(self, _stop, self._process, said)

    def begin(self, epoch: int) -> None:
        """Have an epoch drawn."""
        self.epoch = epoch
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `finish` tells of a process that has ended
            self._process.stdin.write(f"{epoch}\n".encode())
            self._process.stdin.flush()

    def finish(self) -> bool:
        """Wait until the epoch is drawn and return True; if that fails, log why."""
        number = self.epoch + 1
        told = threading.Timer(
            _SILENT_SECONDS, _logger.info, ["waiting for the tokens of epoch %d", number]
        )
        told.start()
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        told.cancel()
        if answer:
            return True
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()
        _logger.warning(
            "the process that draws the tokens of epoch %d ahead has ended with status %d (%s); "
            "drawing them now",
            *(number, status, lines[-1].removeprefix("error: ") if lines else "it said nothing"),
        )
        return False


def _stop(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    said.close()


def _environment() -> dict[str, str]:
    """Return an environment in which this very package is found, wherever it was found first."""
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
