"""Encoded pairs on disk: written once per corpus and tokenizer, then memory-mapped.

An Arrow IPC file (https://arrow.apache.org/docs/format/Columnar.html): record batches with two
columns, lists of int32. The last batch is empty and carries the counts of `LeftOut`. A mixture
takes some pairs of several corpora in each epoch.
"""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from tqdm import tqdm

from mt.data.filters import Cleaning, has_empty_side
from mt.data.pairs import Checksums, PairSource
from mt.data.processes import map_pairs
from mt.data.tokenizer import Tokenizer
from mt.errors import DataError
from mt.files import make_cache_folder, name_errors, replace_file

_FORMAT = 3
"""Part of a store's name; raised whenever the same corpus would be stored differently."""
CHUNK_PAIRS = 8192
"""Part of the format: subword sampling draws chunk by chunk."""
_SCHEMA = pyarrow.schema([(side, pyarrow.list_(pyarrow.int32())) for side in ("source", "target")])
_LEFT_OUT = b"left_out"
_MIXTURE_KEY = 0x6D6978
"""Separates the draws of a mixture from others with the same seed."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rows:
    """Ragged array of ids; row r is `values[offsets[r]:offsets[r + 1]]`."""

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
        """Return the given rows in the given order."""
        lengths = self.lengths[rows]
        offsets = np.cumsum(np.append(0, lengths), dtype=np.int64)
        shifts = np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Rows(self.values[np.arange(offsets[-1]) + shifts], offsets)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts."""
    lengths = np.concatenate([np.zeros(1, np.int64), *(part.lengths for part in parts)])
    values = np.concatenate([np.zeros(0, np.int32), *(part.values for part in parts)])
    return Rows(values, np.cumsum(lengths, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Example:
    """Encoded pair; both sides end with EOS."""

    index: int
    source: NDArray[np.int32]
    target: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Counts of the pairs of a corpus: omitted from its store, and in all."""

    too_long: int
    """More than `max_tokens` tokens on a side, EOS included."""
    empty: int
    """Only white space on a side."""
    total: int
    """All pairs of the corpus, also those in the store."""
    removed: dict[str, int] = field(default_factory=dict)
    """Removed by `data.cleaning` and for held-out splits, by filter.

    `too_long` and `empty` are counted among the pairs that remain.
    """

    def plus(self, other: "LeftOut") -> "LeftOut":
        """Add the counts of two parts of a corpus."""
        return LeftOut(
            self.too_long + other.too_long,
            self.empty + other.empty,
            self.total + other.total,
            dict(Counter(self.removed) + Counter(other.removed)),
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive pairs of a store: one record batch of its file."""

    source: Rows
    target: Rows
    left_out: LeftOut
    """Counts for the lines of the corpus that this chunk covers; not read back from a file."""


class PairStore:
    """Encoded pairs of a corpus, memory-mapped; only their lengths are in memory."""

    lengths: NDArray[np.int32]
    """[N 2] Tokens of source and target of each pair, EOS included."""
    left_out: LeftOut
    chunks: list[Chunk]
    """All pairs in order, as read-only views of the file."""

    def __init__(self, path: Path) -> None:
        """Open a file; raises the errors that `open_store` handles if it is damaged."""
        self.path = path
        with name_errors(path):
            reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        *full, last = map(reader.get_batch_with_custom_metadata, range(reader.num_record_batches))
        self.left_out = LeftOut(**json.loads(last.custom_metadata[_LEFT_OUT]))
        self.chunks = []
        for record in full:
            record.batch.validate(full=True)
            source, target = (
                Rows(
                    _view(record.batch.column(side).values),
                    _view(record.batch.column(side).offsets),
                )
                for side in _SCHEMA.names
            )
            self.chunks.append(Chunk(source, target, LeftOut(0, 0, len(source))))
        sides = [(chunk.source.lengths, chunk.target.lengths) for chunk in self.chunks]
        self._set_lengths([np.stack(lengths, axis=1) for lengths in sides])

    def _set_lengths(self, parts: list[NDArray[np.int32]]) -> None:
        self._starts = np.cumsum([0, *(len(chunk.source) for chunk in self.chunks)], dtype=np.int64)
        self.lengths = np.concatenate(parts)
        self.lengths.flags.writeable = False

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest_source(self) -> int:
        """Tokens of the longest source, EOS included."""
        return int(self.lengths[:, 0].max())

    def examples(self, indices: Sequence[int] | NDArray[np.integer]) -> list[Example]:
        """Return the pairs at `indices`; their ids are read-only views of the file."""
        positions = np.asarray(indices, dtype=np.int64)
        assert len(positions) == 0 or 0 <= positions.min() <= positions.max() < len(self)
        holders = np.searchsorted(self._starts, positions, side="right") - 1
        rows = positions - self._starts[holders]
        chunks = (self.chunks[holder] for holder in holders.tolist())
        return [
            Example(index, chunk.source[row], chunk.target[row])
            for index, chunk, row in zip(positions.tolist(), chunks, rows.tolist(), strict=True)
        ]


def _view(array: Any) -> NDArray[np.int32]:
    """View an int32 array of Arrow, whose own `to_numpy` takes 0.3 s to import pandas."""
    buffer = array.buffers()[1]
    return np.frombuffer(buffer, np.int32, count=len(array), offset=4 * array.offset)


def prepare_store(
    pairs: PairSource,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    cache: Path,
    sums: Checksums | None = None,
    cleaning: Cleaning | None = None,
) -> PairStore:
    """Open the encoded pairs of a corpus; encode them first unless `cache` has them.

    The file is named by the checksums of the text, its cleaning, the tokenizer and `max_tokens`.
    `sums` saves reading the corpus for its checksums. Several processes may prepare the same store
    at once. Raises `DataError` if the corpus is unreadable or no pair remains.
    """
    sums = sums or pairs.checksums()
    key = [_FORMAT, sums.source, sums.target, max_tokens, tokenizer.fingerprint]
    if cleaning and cleaning.fingerprint:
        key.append(cleaning.fingerprint)
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    path = cache / "pairs" / f"{name}.arrow"
    if store := open_store(path):
        return store
    began = time.perf_counter()
    chunks = _encode_chunks(pairs, tokenizer, max_tokens=max_tokens, cleaning=cleaning)
    write_store(path, tqdm(chunks, "encoding", unit=" pairs", unit_scale=CHUNK_PAIRS, disable=None))
    store, seconds = PairStore(path), time.perf_counter() - began
    total = store.left_out.total
    _logger.info(
        "encoding: %s pairs in %.1f s, %s pairs/s",
        *(f"{total:,}", seconds, f"{total / seconds:,.0f}"),
    )
    return store


def open_store(path: Path) -> PairStore | None:
    """Open a store; return None if it does not exist or is damaged, which is logged."""
    try:
        return PairStore(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        _logger.warning("%s: damaged (%s); writing it again", path, error)
        return None


def write_store(path: Path, chunks: Iterable[Chunk]) -> None:
    """Write a store chunk by chunk; the file appears when it is complete."""
    make_cache_folder(path.parent)
    left_out = LeftOut(too_long=0, empty=0, total=0)
    with (
        replace_file(path) as temporary,
        temporary.open("wb") as file,
        pyarrow.ipc.new_file(file, _SCHEMA) as writer,
    ):
        for chunk in chunks:
            writer.write_batch(_make_batch(chunk.source, chunk.target))
            left_out = left_out.plus(chunk.left_out)
        metadata = {_LEFT_OUT: json.dumps(asdict(left_out))}
        writer.write_batch(_make_batch(Rows.of([]), Rows.of([])), custom_metadata=metadata)


def _make_batch(source: Rows, target: Rows) -> Any:
    lists = [
        pyarrow.ListArray.from_arrays(rows.offsets.astype(np.int32), rows.values)
        for rows in (source, target)
    ]
    return pyarrow.record_batch(lists, schema=_SCHEMA)


def _encode_chunks(
    pairs: PairSource, tokenizer: Tokenizer, *, max_tokens: int, cleaning: Cleaning | None
) -> Iterator[Chunk]:
    """Encode a corpus chunk by chunk; raise `DataError` at the end if no pair remains."""
    left_out = LeftOut(too_long=0, empty=0, total=0)
    removed = Counter[str]()
    remaining = cleaning.clean(pairs.pairs(), removed) if cleaning else iter(pairs.pairs())
    encode = partial(_encode_block, tokenizer, max_tokens)
    for _, chunk in map_pairs(encode, remaining, CHUNK_PAIRS):
        left_out = left_out.plus(chunk.left_out)
        yield chunk
    if left_out.too_long + left_out.empty == left_out.total:
        cleaned = f", the cleaning takes out {removed.total():,}" if removed else ""
        raise DataError(
            f"{pairs.description}: no pair is left to train on: of "
            f"{left_out.total + removed.total():,}{cleaned}, {left_out.empty:,} have an empty side "
            f"and {left_out.too_long:,} have more than `data.max_tokens` {max_tokens} tokens on a "
            "side"
        )
    if removed:
        nothing = Rows.of([])
        yield Chunk(nothing, nothing, LeftOut(0, 0, removed.total(), dict(removed)))


def _encode_block(tokenizer: Tokenizer, max_tokens: int, block: Sequence[tuple[str, str]]) -> Chunk:
    filled = [pair for pair in block if not has_empty_side(*pair)]
    source = Rows.of(tokenizer.encode_source([source for source, _ in filled]))
    target = Rows.of(tokenizer.encode_target([target for _, target in filled]))
    (fitting,) = np.nonzero((source.lengths <= max_tokens) & (target.lengths <= max_tokens))
    left_out = LeftOut(len(filled) - len(fitting), len(block) - len(filled), len(block))
    return Chunk(source.take(fitting), target.take(fitting), left_out)


class JoinedStore(PairStore):
    """Pairs of several stores, one store after the other; only lengths are copied."""

    def __init__(self, stores: Sequence[PairStore]) -> None:
        """Take one or more opened stores."""
        self.chunks = [chunk for store in stores for chunk in store.chunks]
        self._set_lengths([store.lengths for store in stores])
        self.left_out = reduce(LeftOut.plus, (store.left_out for store in stores))


def join_stores(stores: Sequence[PairStore]) -> PairStore:
    """Return several stores as one; a single store is returned unchanged."""
    return stores[0] if len(stores) == 1 else JoinedStore(stores)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Selection of pairs for each epoch.

    Each corpus is read in passes, each in a random order; an epoch continues where the previous one
    ended. So after any epoch, the pairs of a corpus have been taken equally often up to one.
    """

    sizes: tuple[int, ...]
    """Pairs of each corpus, in the order of the joined store."""
    weights: tuple[float, ...]
    """Passes over each corpus in one epoch."""

    @property
    def is_plain(self) -> bool:
        """True if every epoch takes each pair once."""
        return all(weight == 1 for weight in self.weights)

    def counts(self, epoch: int) -> list[int]:
        """Return the pairs that an epoch takes from each corpus; epochs differ by at most one."""
        spans = (self._span(corpus, epoch) for corpus in range(len(self.sizes)))
        return [last - first for first, last in spans]

    def pairs(self, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the positions of an epoch's pairs in the joined store, ascending.

        They follow from seed and epoch alone. A pair that is taken several times is repeated.
        """
        start, taken = 0, [np.zeros(0, np.int64)]
        for corpus, size in enumerate(self.sizes):
            first, last = self._span(corpus, epoch)
            for lap in range(first // size, -(-last // size)):
                begin, end = max(first - lap * size, 0), min(last - lap * size, size)
                order = np.arange(size)
                if end - begin < size:
                    entropy = np.random.SeedSequence(seed, spawn_key=(_MIXTURE_KEY, corpus, lap))
                    order = np.random.Generator(np.random.PCG64(entropy)).permutation(size)
                taken.append(start + order[begin:end])
            start += size
        return np.sort(np.concatenate(taken))

    def _span(self, corpus: int, epoch: int) -> tuple[int, int]:
        """Return begin and end of an epoch in the concatenated passes over a corpus."""
        share = self.weights[corpus] * self.sizes[corpus]
        return round(epoch * share), round((epoch + 1) * share)


def mix(sizes: Sequence[int], weights: Sequence[float], *, temperature: float = 1.0) -> Mixture:
    """Return the mixture of corpora of the given sizes, each 1 or more.

    With a `temperature` T other than 1, the shares of the corpora in an epoch are proportional to
    size^(1/T) (Arivazhagan et al. 2019, section 4.2), an epoch has as many pairs as all corpora
    together, and the weights multiply the shares.
    """
    powers = np.array(sizes, np.float64) ** (1 / temperature)
    passes = powers / powers.sum() * sum(sizes) / np.array(sizes)
    factors = passes.tolist() if temperature != 1 else [1.0] * len(sizes)
    weighted = (factor * weight for factor, weight in zip(factors, weights, strict=True))
    return Mixture(tuple(sizes), tuple(weighted))
