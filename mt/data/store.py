"""Encoded pairs on disk: written once for a corpus and a tokenizer, memory-mapped ever after.

An Arrow IPC file (https://arrow.apache.org/docs/format/Columnar.html): record batches with two
columns of lists of int32; the last one is empty and carries what was left out.
"""

import errno
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from tqdm import tqdm

from mt.data.pairs import PairSource, SentencePair
from mt.data.tokenizer import Tokenizer
from mt.errors import DataError
from mt.files import replacing

_FORMAT = 1
"""Part of a store's name; raised whenever the same corpus would be stored otherwise."""
_CHUNK_PAIRS = 8192
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
    """More pieces on a side, end mark included, than `max_pieces`."""
    empty: int
    """Nothing but white space on a side."""
    total: int
    """All pairs of the corpus, those of the store included."""

    def plus(self, other: "LeftOut") -> "LeftOut":
        """Add up the counts of two parts of a corpus."""
        return LeftOut(
            self.too_long + other.too_long, self.empty + other.empty, self.total + other.total
        )


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Views of one record batch in the file; row r is values[offsets[r]:offsets[r + 1]]."""

    source_offsets: NDArray[np.int32]
    source: NDArray[np.int32]
    target_offsets: NDArray[np.int32]
    target: NDArray[np.int32]


class PairStore:
    """The encoded pairs of a corpus; they stay on disk, only their lengths are in memory."""

    lengths: NDArray[np.int32]
    """[N 2]: pieces of source and target of each pair, end marks included."""
    left_out: LeftOut

    def __init__(self, path: Path) -> None:
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        *full, last = (
            reader.get_batch_with_custom_metadata(number)
            for number in range(reader.num_record_batches)
        )
        self.left_out = LeftOut(**json.loads(last.custom_metadata[_LEFT_OUT]))
        self._chunks = [_chunk(found.batch) for found in full]
        rows = [len(chunk.source_offsets) - 1 for chunk in self._chunks]
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self.lengths = np.concatenate(
            [
                np.stack([np.diff(chunk.source_offsets), np.diff(chunk.target_offsets)], axis=1)
                for chunk in self._chunks
            ]
        )
        self.lengths.flags.writeable = False

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest_source(self) -> int:
        """Pieces of the longest source side, end mark included."""
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
            chunk = self._chunks[number]
            source, target = chunk.source_offsets, chunk.target_offsets
            examples.append(
                Example(
                    index,
                    chunk.source[source[row] : source[row + 1]],
                    chunk.target[target[row] : target[row + 1]],
                )
            )
        return examples


def _chunk(batch: Any) -> _Chunk:
    """View a record batch; raise `pyarrow.ArrowInvalid` where its offsets make no sense."""
    batch.validate(full=True)
    source, target = batch.column("source"), batch.column("target")
    return _Chunk(
        source.offsets.to_numpy(zero_copy_only=True),
        source.values.to_numpy(zero_copy_only=True),
        target.offsets.to_numpy(zero_copy_only=True),
        target.values.to_numpy(zero_copy_only=True),
    )


def prepare_store(
    pairs: PairSource, tokenizer: Tokenizer, *, max_pieces: int, cache: Path
) -> PairStore:
    """Open the encoded pairs of a corpus, encoding them first unless `cache` has them.

    The file's name is a fingerprint of the text itself, the tokenizer and `max_pieces`, so a
    changed corpus is never mistaken for its former self. Memory does not grow with the corpus but
    for its lengths, 8 bytes a pair. Raises `DataError` where the corpus is unreadable, or no pair
    of it is left. Several processes may prepare the same store at once.
    """
    sums = pairs.checksums()
    key = [_FORMAT, sums.source, sums.target, max_pieces, tokenizer.fingerprint]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    path = cache / "pairs" / f"{name}.arrow"
    if path.exists():
        try:
            return PairStore(path)
        except (ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
            _logger.warning("%s: damaged (%s); encoding the corpus anew", path, error)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as temporary:
            _write(temporary, pairs, tokenizer=tokenizer, max_pieces=max_pieces)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            error.filename = str(path.parent)  # so that the user learns which disk is full
        raise
    return PairStore(path)


def _write(path: Path, pairs: PairSource, *, tokenizer: Tokenizer, max_pieces: int) -> None:
    """Encode a corpus into an Arrow file, chunk by chunk."""
    left_out = LeftOut(too_long=0, empty=0, total=0)
    started_at = time.perf_counter()
    with (
        path.open("wb") as file,
        pyarrow.ipc.new_file(file, _SCHEMA) as writer,
        tqdm(desc="encoding", unit=" pairs", unit_scale=True, disable=None) as bar,
    ):
        remaining = iter(pairs.pairs())
        while chunk := list(islice(remaining, _CHUNK_PAIRS)):
            encoded = _encode(chunk, tokenizer, max_pieces=max_pieces)
            writer.write_batch(encoded.batch)
            left_out = left_out.plus(encoded.left_out)
            bar.update(len(chunk))
        if left_out.too_long + left_out.empty == left_out.total:
            raise DataError(
                f"{pairs.description}: no pair is left to train on: of {left_out.total:,}, "
                f"{left_out.empty:,} have an empty side and {left_out.too_long:,} have more than "
                f"`data.max_pieces` {max_pieces} pieces on a side"
            )
        metadata = {_LEFT_OUT: json.dumps(asdict(left_out))}
        writer.write_batch(_batch([], []), custom_metadata=metadata)
    seconds = time.perf_counter() - started_at
    _logger.info(
        "encoded %s pairs in %.1f s, %s pairs/s",
        f"{left_out.total:,}",
        seconds,
        f"{left_out.total / seconds:,.0f}",
    )


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A record batch, and what is not in it."""

    batch: Any
    left_out: LeftOut


def _encode(chunk: list[SentencePair], tokenizer: Tokenizer, *, max_pieces: int) -> _Encoded:
    filled = [pair for pair in chunk if pair.source.strip() and pair.target.strip()]
    sources = tokenizer.encode_source([pair.source for pair in filled])
    targets = tokenizer.encode_target([pair.target for pair in filled])
    fits = [
        len(source) <= max_pieces and len(target) <= max_pieces
        for source, target in zip(sources, targets, strict=True)
    ]
    batch = _batch(list(compress(sources, fits)), list(compress(targets, fits)))
    empty = len(chunk) - len(filled)
    return _Encoded(batch, LeftOut(fits.count(False), empty, len(chunk)))


def _batch(sources: list[list[int]], targets: list[list[int]]) -> Any:
    return pyarrow.record_batch([_lists(sources), _lists(targets)], schema=_SCHEMA)


def _lists(rows: list[list[int]]) -> Any:
    """Return rows of ids as an Arrow array; NumPy in between is several times faster."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
    return pyarrow.ListArray.from_arrays(offsets, values)
