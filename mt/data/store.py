"""Encoded pairs on disk: written once for a corpus and a tokenizer, memory-mapped ever after.

An Arrow IPC file (https://arrow.apache.org/docs/format/Columnar.html): record batches with two
columns of lists of int32; the last one is empty and carries what was left out.
"""

import errno
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from tqdm import tqdm

from mt.data.filters import Cleaning
from mt.data.pairs import Checksums, PairSource, SentencePair
from mt.data.tokenizer import Tokenizer
from mt.errors import DataError
from mt.files import naming, replacing


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of ids, one after another: row r is `values[offsets[r]:offsets[r + 1]]`."""

    values: NDArray[np.int32]
    offsets: NDArray[np.integer]
    """[rows + 1], from 0 to the number of values."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Rows":
        """Return the rows of a list."""
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        values = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> NDArray[np.integer]:
        """Ids in each row."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.integer]) -> "Rows":
        """Return some of the rows, in the order asked for."""
        lengths = self.lengths[rows]
        offsets = np.cumsum(np.append(0, lengths), dtype=np.int64)
        shifts = np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Rows(self.values[np.arange(offsets[-1]) + shifts], offsets)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts."""
    lengths = np.concatenate([np.zeros(1, np.int64), *(part.lengths for part in parts)])
    values = np.concatenate([np.zeros(0, np.int32), *(part.values for part in parts)])
    return Rows(values, np.cumsum(lengths, dtype=np.int64))


_FORMAT = 1
"""Part of a store's name; raised whenever the same corpus would be stored otherwise."""
_CHUNK_PAIRS = 8192
"""Part of the format: what is drawn of a pair when sampling depends on the others of its chunk."""
_SCHEMA = pyarrow.schema([(side, pyarrow.list_(pyarrow.int32())) for side in ("source", "target")])
_LEFT_OUT = b"left_out"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """One encoded pair; both sides end with EOS."""

    index: int
    """Its place in the store."""
    source: NDArray[np.int32]
    target: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many pairs of a corpus are not in its store, and why."""

    too_long: int
    """More tokens on a side, end mark included, than `max_tokens`."""
    empty: int
    """Nothing but white space on a side."""
    total: int
    """All pairs of the corpus, those of the store included."""
    cleaned: dict[str, int] = field(default_factory=dict)
    """Taken out by `data.cleaning` before the others are counted, by filter."""
    noisy: dict[str, int] = field(default_factory=dict)
    """Not left out, but with a source that has got noise, by its kind."""

    def plus(self, other: "LeftOut") -> "LeftOut":
        """Add up the counts of two parts of a corpus."""
        return LeftOut(
            self.too_long + other.too_long,
            self.empty + other.empty,
            self.total + other.total,
            dict(Counter(self.cleaned) + Counter(other.cleaned)),
            dict(Counter(self.noisy) + Counter(other.noisy)),
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive pairs of a store: one record batch of its file."""

    source: Rows
    target: Rows
    left_out: LeftOut
    """What is not in it of the part of the corpus that it holds; once written, it is not known."""


class PairStore:
    """The encoded pairs of a corpus; they stay on disk, only their lengths are in memory."""

    lengths: NDArray[np.int32]
    """[N 2]: tokens of source and target of each pair, end marks included."""
    left_out: LeftOut
    chunks: list[Chunk]
    """All pairs in their order, as read-only views of the file."""

    def __init__(self, path: Path) -> None:
        """Open a file; raise what `open_store` knows where it is not what was written."""
        self.path = path
        with naming(path):
            reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        *full, last = (
            reader.get_batch_with_custom_metadata(number)
            for number in range(reader.num_record_batches)
        )
        self.left_out = LeftOut(**json.loads(last.custom_metadata[_LEFT_OUT]))
        self.chunks = [_chunk(found.batch) for found in full]
        self._starts = np.cumsum([0, *(len(chunk.source) for chunk in self.chunks)], dtype=np.int64)
        self.lengths = np.concatenate(
            [
                np.stack([chunk.source.lengths, chunk.target.lengths], axis=1)
                for chunk in self.chunks
            ]
        )
        self.lengths.flags.writeable = False

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest_source(self) -> int:
        """Tokens of the longest source side, end mark included."""
        return int(self.lengths[:, 0].max())

    def examples(self, indices: Sequence[int] | NDArray[np.integer]) -> list[Example]:
        """Return the pairs at `indices`; their ids are read-only views of the file."""
        places = np.asarray(indices, dtype=np.int64)
        assert len(places) == 0 or 0 <= places.min() <= places.max() < len(self)
        numbers = np.searchsorted(self._starts, places, side="right") - 1
        rows = places - self._starts[numbers]
        examples = []
        for index, number, row in zip(
            places.tolist(), numbers.tolist(), rows.tolist(), strict=True
        ):
            chunk = self.chunks[number]
            examples.append(Example(index, chunk.source[row], chunk.target[row]))
        return examples


def _chunk(batch: Any) -> Chunk:
    """View a record batch; raise `pyarrow.ArrowInvalid` where its offsets make no sense."""
    batch.validate(full=True)
    source, target = (_rows(batch.column(side)) for side in _SCHEMA.names)
    return Chunk(source, target, LeftOut(too_long=0, empty=0, total=len(source)))


def _rows(lists: Any) -> Rows:
    return Rows(_view(lists.values), _view(lists.offsets))


def _view(numbers: Any) -> NDArray[np.int32]:
    """View int32 of Arrow; its own `to_numpy` imports pandas, a third of a second at each start."""
    buffer = numbers.buffers()[1]
    return np.frombuffer(buffer, np.int32, count=len(numbers), offset=4 * numbers.offset)


def prepare_store(
    pairs: PairSource,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    cache: Path,
    sums: Checksums | None = None,
    cleaning: Cleaning | None = None,
) -> PairStore:
    """Open the encoded pairs of a corpus, encoding them first unless `cache` has them.

    The file's name is a fingerprint of the text itself, its cleaning, the tokenizer and
    `max_tokens`, so a changed corpus is never mistaken for its former self. `sums` are the
    checksums of the corpus where they have just been taken; it is else read for them. Memory does
    not grow with the corpus but for its lengths, 8 bytes a pair, and what the cleaning needs.
    Raises `DataError` where the corpus is unreadable, or no pair of it is left. Several processes
    may prepare the same store at once.
    """
    sums = sums or pairs.checksums()
    path = _store_path(sums, tokenizer, max_tokens=max_tokens, cache=cache, cleaning=cleaning)
    if store := open_store(path):
        return store
    chunks = _encoded(pairs, tokenizer, max_tokens=max_tokens, cleaning=cleaning)
    write_store(path, chunks, doing="encoding")
    return PairStore(path)


def _store_path(
    sums: Checksums,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    cache: Path,
    cleaning: Cleaning | None = None,
) -> Path:
    """Return where the encoded pairs of a corpus are kept, by a fingerprint of what they hold."""
    key = [_FORMAT, sums.source, sums.target, max_tokens, tokenizer.fingerprint]
    key += [cleaning.fingerprint] if cleaning and cleaning.fingerprint else []
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    return cache / "pairs" / f"{name}.arrow"


def open_store(path: Path) -> PairStore | None:
    """Open a store that has been written; None where it has not, or is damaged, which is logged."""
    try:
        return PairStore(path)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        _logger.warning("%s: damaged (%s); it is made anew", path, error)
        return None


def write_store(path: Path, chunks: Iterable[Chunk], *, doing: str | None) -> None:
    """Write a store chunk by chunk; the file appears when it is complete.

    `doing` labels the progress bar and the log line; None shows neither.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as temporary:
            _write(temporary, chunks, doing)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            error.filename = str(path.parent)  # so that the user learns which disk is full
        raise


def _write(path: Path, chunks: Iterable[Chunk], doing: str | None) -> None:
    left_out = LeftOut(too_long=0, empty=0, total=0)
    started_at = time.perf_counter()
    with (
        path.open("wb") as file,
        pyarrow.ipc.new_file(file, _SCHEMA) as writer,
        tqdm(
            desc=doing, unit=" pairs", unit_scale=True, disable=True if doing is None else None
        ) as bar,
    ):
        for chunk in chunks:
            writer.write_batch(_batch(chunk.source, chunk.target))
            left_out = left_out.plus(chunk.left_out)
            bar.update(chunk.left_out.total)
        metadata = {_LEFT_OUT: json.dumps(asdict(left_out))}
        writer.write_batch(_batch(Rows.of([]), Rows.of([])), custom_metadata=metadata)
    if doing is not None:
        seconds = time.perf_counter() - started_at
        _logger.info(
            "%s: %s pairs in %.1f s, %s pairs/s",
            *(doing, f"{left_out.total:,}", seconds, f"{left_out.total / seconds:,.0f}"),
        )


def _encoded(
    pairs: PairSource, tokenizer: Tokenizer, *, max_tokens: int, cleaning: Cleaning | None
) -> Iterator[Chunk]:
    """Encode a corpus chunk by chunk; raise `DataError` at its end where no pair is left."""
    left_out = LeftOut(too_long=0, empty=0, total=0)
    taken, noisy = Counter[str](), Counter[str]()
    remaining = cleaning.clean(pairs.pairs(), taken, noisy) if cleaning else iter(pairs.pairs())
    while read := list(islice(remaining, _CHUNK_PAIRS)):
        chunk = _encode(read, tokenizer, max_tokens=max_tokens)
        left_out = left_out.plus(chunk.left_out)
        yield chunk
    if left_out.too_long + left_out.empty == left_out.total:
        told = f", the cleaning takes out {taken.total():,}" if taken else ""
        raise DataError(
            f"{pairs.description}: no pair is left to train on: of "
            f"{left_out.total + taken.total():,}{told}, {left_out.empty:,} have an empty side and "
            f"{left_out.too_long:,} have more than `data.max_tokens` {max_tokens} tokens on a side"
        )
    if taken or noisy:
        nothing = Rows.of([])
        yield Chunk(nothing, nothing, LeftOut(0, 0, taken.total(), dict(taken), dict(noisy)))


def _encode(read: list[SentencePair], tokenizer: Tokenizer, *, max_tokens: int) -> Chunk:
    filled = [pair for pair in read if pair.source.strip() and pair.target.strip()]
    source = Rows.of(tokenizer.encode_source([pair.source for pair in filled]))
    target = Rows.of(tokenizer.encode_target([pair.target for pair in filled]))
    fits = (source.lengths <= max_tokens) & (target.lengths <= max_tokens)
    (fitting,) = np.nonzero(fits)
    left_out = LeftOut(len(filled) - len(fitting), len(read) - len(filled), len(read))
    return Chunk(source.take(fitting), target.take(fitting), left_out)


def _batch(source: Rows, target: Rows) -> Any:
    return pyarrow.record_batch([_lists(source), _lists(target)], schema=_SCHEMA)


def _lists(rows: Rows) -> Any:
    return pyarrow.ListArray.from_arrays(rows.offsets.astype(np.int32), rows.values)
