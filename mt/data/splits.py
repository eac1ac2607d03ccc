"""Splits and training corpora of a config, and cleaned corpora as files.

Held-out splits are chosen from the training pairs. Pairs are ranked by hash, so that the choice
depends on their texts, the seed and the name of the split, but not on their order.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from heapq import heappush, heapreplace
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from mt.config.data import CleaningConfig, DataConfig, Direction, HeldOutSource
from mt.data.filters import Cleaning, has_empty_side, hash_pair, hash_text
from mt.data.pairs import (
    Checksums,
    ColumnSource,
    EvenSample,
    PairSource,
    SentencePair,
    read_expected_sums,
)
from mt.data.sources import open_source
from mt.data.tokenizer_training import TokenizerText
from mt.errors import ConfigError, DataError, listed
from mt.files import open_aside, put_in_place

_REMOVED_FILE = "removed.tsv"
_MIN_WINDOW = 1000
"""Least number of pairs to read and clean at once; the choice does not depend on it."""
_BLOCK_PAIRS = 4000
_MIN_SAMPLE = 4096
_MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Odd multipliers for hashes of pairs; odd, so that no bits of either side are lost."""
_Hashes = NDArray[np.uint64]
_Rows = NDArray[np.intp]


@dataclass(frozen=True)
class OpenedCorpus:
    """Training corpus or split whose files are found; none is read yet."""

    key: str
    """Key below `data`: `train`, `train.corpora.NAME`, `valid` or `tests.NAME`."""
    source: PairSource
    direction: Direction
    tags: tuple[str | None, str | None]
    """Tokens in front of source and target lines."""
    cleaning: Cleaning
    """Cleaning of a training corpus; off for a split."""
    weight: float = 1.0

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs, not cleaned."""
        return self.source.pairs()

    def cleaned(self) -> Iterator[SentencePair]:
        """Stream the cleaned pairs."""
        return self.cleaning.clean(self.source.pairs())

    def pinned(self, sums: Checksums) -> "OpenedCorpus":
        """Return the same corpus, which must match these checksums from now on."""
        return replace(self, source=replace(self.source, expected=sums))


def open_splits(data: DataConfig, names: Iterable[str] | None = None) -> dict[str, OpenedCorpus]:
    """Find the files of `valid` and of test splits, by default of all, by name."""
    sections = {name: data.split(name) for name in names or data.split_names()}
    are_held_out = any(isinstance(section, HeldOutSource) for section in sections.values())
    held_out = _open_held_out(data) if are_held_out else {}
    splits = {}
    for name, section in sections.items():
        assert section is not None, "the split exists"
        direction = data.direction_of(section)
        splits[name] = OpenedCorpus(
            name if name == "valid" else f"tests.{name}",
            held_out.get(name) or open_source(section, direction),
            direction,
            (section.tag, section.target_tag),
            Cleaning(CleaningConfig(), direction),
        )
    return splits


def open_split(data: DataConfig, name: str) -> OpenedCorpus:
    """Find the files of `valid` or of a test split."""
    return open_splits(data, [name])[name]


def open_training_corpora(data: DataConfig) -> tuple[OpenedCorpus, ...]:
    """Find the files of all training corpora."""
    held_out = _open_held_out(data)
    given: tuple[PairSource, ...] = ()
    if data.cleaning.overlap:
        names = (name for name in data.split_names() if name not in held_out)
        given = tuple(open_split(data, name).source for name in names)
    corpora = []
    for key, section in data.train_corpora().items():
        direction = data.direction_of(section)
        cleaning = Cleaning(data.cleaning, direction, tuple(held_out.values()), given)
        tags = section.tag, section.target_tag
        source = open_source(section, direction)
        corpora.append(OpenedCorpus(key, source, direction, tags, cleaning, section.weight))
    return tuple(corpora)


def read_cleaned_pairs(corpora: Iterable[OpenedCorpus]) -> Iterator[SentencePair]:
    """Stream the cleaned pairs of all corpora, each pair once."""
    return (pair for corpus in corpora for pair in corpus.cleaned())


@dataclass(frozen=True)
class ReadSplit:
    """Validation or test split after its reading."""

    key: str
    """Key below `data`."""
    direction: Direction
    checksums: Checksums
    pairs: tuple[SentencePair, ...]
    is_held_out: bool


def read_splits(data: DataConfig) -> dict[str, ReadSplit]:
    """Read `valid` and all test splits once each; held-out ones stay in memory.

    Raises `DataError` if a split is unreadable or differs from its checksums.
    """
    checksums: dict[str, Checksums] = {}
    splits = {}
    for name, split in open_splits(data).items():
        pairs = tuple(split.source.recorded(name, checksums))
        is_held_out = isinstance(split.source, HeldOutPairs)
        splits[name] = ReadSplit(split.key, split.direction, checksums[name], pairs, is_held_out)
    return splits


@dataclass(frozen=True)
class CorpusScan:
    """Facts from one reading of the training corpora, before any cleaning."""

    checksums: dict[str, Checksums]
    """By key of the corpus below `data`."""
    pairs: int
    characters: tuple[int, int]
    sample: tuple[SentencePair, ...]
    """All pairs, or 4,096 to 8,192 of them, evenly spread over the corpora."""


Watcher = Callable[[Iterator[SentencePair]], Iterator[SentencePair]]
"""Takes the pairs of a corpus while it is read, and yields them unchanged."""


def scan_corpora(
    corpora: Iterable[OpenedCorpus],
    *,
    text: TokenizerText | None = None,
    watchers: Mapping[str, Watcher] | None = None,
) -> CorpusScan:
    """Read all training corpora once.

    The cleaned pairs are added to `text`, from which the tokenizer is learnt. A watcher, by key of
    its corpus, takes all its pairs. Raises `DataError` if a corpus is unreadable.
    """
    checksums: dict[str, Checksums] = {}
    characters = [0, 0]
    sample = EvenSample[SentencePair](2 * _MIN_SAMPLE)
    with tqdm(desc="reading", unit=" pairs", unit_scale=True, disable=None) as bar:

        def read_blocks(corpus: OpenedCorpus) -> Iterator[list[SentencePair]]:
            reading = corpus.source.recorded(corpus.key, checksums)
            if watchers and corpus.key in watchers:
                reading = watchers[corpus.key](reading)
            while block := list(islice(reading, _BLOCK_PAIRS)):
                sample.add(block)
                characters[0] += sum(len(pair.source) for pair in block)
                characters[1] += sum(len(pair.target) for pair in block)
                bar.update(len(block))
                yield block

        for corpus in corpora:
            blocks = read_blocks(corpus)
            if text is None:
                deque(blocks, maxlen=0)
                continue
            cleaned = corpus.cleaning.clean(chain.from_iterable(blocks))
            while block := list(islice(cleaned, _BLOCK_PAIRS)):
                text.add(block, corpus.direction, corpus=corpus.key)
    return CorpusScan(checksums, sample.seen, (characters[0], characters[1]), tuple(sample.items))


@dataclass(frozen=True)
class HeldOutPairs(ColumnSource):
    """Held-out split; its pairs stay in memory once they are chosen."""

    split: "_Split"
    splits: tuple["_Split", ...]
    """All held-out splits of the config, in the order of their choice."""
    others: tuple[PairSource, ...]
    """The other splits, whose texts are not chosen."""

    @property
    def description(self) -> str:
        """Number of pairs, and descriptions of the corpora."""
        corpora = ", ".join(corpus.description for corpus in self.split.corpora.values())
        return f"{self.split.count:,} pairs held out of {corpora}"

    def read(self) -> Iterator[SentencePair]:
        """Stream the pairs in the order of their hashes."""
        return iter(_choose_all(self.splits, self.others)[self.split.name])


@dataclass(frozen=True)
class _Split:
    """Held-out split to choose."""

    name: str
    count: int
    seed: int
    corpora: dict[str, PairSource]
    """Training corpora of the same languages and tag, by key below `data`."""
    cleaning: Cleaning

    @property
    def key(self) -> str:
        return f"data.{'' if self.name == 'valid' else 'tests.'}{self.name}.held_out"

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs of all corpora."""
        return (pair for corpus in self.corpora.values() for pair in corpus.pairs())


def _open_held_out(data: DataConfig) -> dict[str, PairSource]:
    """Return the held-out splits by name, in the order of their choice: tests, then `valid`."""
    sources = {name: data.split(name) for name in (*data.tests, "valid")}
    held_out = {name: own for name, own in sources.items() if isinstance(own, HeldOutSource)}
    if not held_out:
        return {}
    others = tuple(open_split(data, name).source for name in sources if name not in held_out)
    splits = []
    # The other filters judge a pair by itself; with them, the order of the pairs has no influence.
    settings = data.cleaning.changed(overlap=None, duplicates=None)
    for name, source in held_out.items():
        direction, matching = data.direction_of(source), data.matching_corpora(source)
        corpora = {key: open_source(corpus, direction) for key, corpus in matching.items()}
        cleaning = Cleaning(settings, direction)
        splits.append(_Split(name, source.held_out, source.seed, corpora, cleaning))
    return {
        split.name: HeldOutPairs(
            read_expected_sums(held_out[split.name]), split, tuple(splits), others
        )
        for split in splits
    }


_CHOSEN: dict[str, dict[str, list[SentencePair]]] = {}
"""Pairs of held-out splits by name, by everything that determines their choice."""


def _choose_all(
    splits: Sequence[_Split], others: Sequence[PairSource]
) -> dict[str, list[SentencePair]]:
    """Return the pairs of each split, once chosen; raise `DataError` if there are too few."""
    parts = [
        (split.name, split.count, split.seed, split.cleaning.fingerprint, list(split.corpora))
        for split in splits
    ]
    corpora = [corpus for split in splits for corpus in split.corpora.values()]
    key = repr((parts, list(map(_identify, (*corpora, *others)))))
    if key in _CHOSEN:
        return _CHOSEN[key]
    taken = {hashed for other in others for pair in other.pairs() for hashed in hash_pair(pair)}
    candidates = {split.name: _LowestRanks(split) for split in splits}
    by_corpora: dict[tuple[str, ...], list[_Split]] = {}
    for split in splits:
        by_corpora.setdefault(tuple(split.corpora), []).append(split)
    hashes = {}
    for names, sharing in by_corpora.items():
        hashes[names] = _hash_pairs(sharing[0], [candidates[split.name] for split in sharing])
        count, distinct = sum(split.count for split in sharing), len(_distinct(hashes[names]))
        if count > distinct // 2:
            raise DataError(
                f"{listed(split.key for split in sharing)}: at most half of the {distinct:,} "
                f"distinct pairs of {listed(f'data.{name}' for name in names)} can be held out, "
                f"{distinct // 2:,}; {count:,} are asked for"
            )
    _CHOSEN[key] = {
        split.name: _choose(split, hashes[tuple(split.corpora)], candidates[split.name], taken)
        for split in splits
    }
    return _CHOSEN[key]


def _identify(corpus: PairSource) -> str:
    """Return a text that differs for other files, and for files that changed."""
    values = [getattr(corpus, field.name) for field in fields(corpus)]
    stats = [value.stat() for value in values if isinstance(value, Path) and value.is_file()]
    return repr((corpus, [(stat.st_size, stat.st_mtime_ns) for stat in stats]))


class _LowestRanks:
    """Texts of the pairs of lowest rank, kept while the corpora are read."""

    def __init__(self, split: _Split) -> None:
        self.rank = hash_text(f"{split.seed} {split.name}")
        # Twice as many as are cleaned at first, since others may be taken or removed.
        self._count = 2 * max(_MIN_WINDOW, 2 * split.count)
        self._highest: list[int] = []
        """Heap of the negative ranks."""
        self._pairs: dict[int, set[SentencePair]] = {}
        """By rank: pairs with equal normalized texts."""

    def add(self, hashed: int, pair: SentencePair) -> None:
        """Add a pair with the hash of its normalized texts."""
        rank = hashed ^ self.rank
        if rank in self._pairs:
            self._pairs[rank].add(pair)
        elif len(self._highest) < self._count:
            heappush(self._highest, -rank)
            self._pairs[rank] = {pair}
        elif rank < -self._highest[0]:
            del self._pairs[-heapreplace(self._highest, -rank)]
            self._pairs[rank] = {pair}

    def pairs(self, hashes: Iterable[int]) -> list[SentencePair] | None:
        """Return the pairs with these hashes; None if some were not kept."""
        ranked = [self._pairs.get(hashed ^ self.rank) for hashed in hashes]
        if None in ranked:
            return None
        return [pair for pairs in ranked if pairs for pair in pairs]


def _hash_pairs(split: _Split, candidates: Sequence[_LowestRanks]) -> _Hashes:
    """Hash the normalized pairs of the corpora: source, target and both [N 3]; 0 for a blank side.

    Takes 24 bytes a pair, and twice as much while it grows. Every pair is added to `candidates`.
    """
    hashes = array("Q")
    bar = tqdm(split.pairs(), "holding out", unit=" pairs", unit_scale=True, disable=None)
    for original in bar:
        pair = split.cleaning.changed(original)
        if has_empty_side(pair.source, pair.target):
            hashes.extend((0, 0, 0))
            continue
        source, target = hash_pair(pair)
        both = (source * _MIX[0] + target * _MIX[1]) % (1 << 64)
        hashes.extend((source, target, both))
        for lowest in candidates:
            lowest.add(both, original)
    return np.frombuffer(hashes, np.uint64).reshape(-1, 3)


def _distinct(hashes: _Hashes) -> _Rows:
    """Return one row for each distinct pair without a blank side, in order of their hashes."""
    values, rows = np.unique(hashes[:, 2], return_index=True)
    return np.asarray(rows[values != 0])


def _choose(
    split: _Split, hashes: _Hashes, candidates: _LowestRanks, taken: set[int]
) -> list[SentencePair]:
    """Return the pairs of a split, and add their texts to those that are `taken`.

    In the order of their ranks, a pair is chosen if the cleaning leaves it and neither text is
    taken. Only pairs that may be chosen are cleaned, because filters are slow.
    """
    rows = _distinct(hashes)
    rows = rows[np.argsort(hashes[rows, 2] ^ np.uint64(candidates.rank))]
    chosen: list[SentencePair] = []
    window = max(_MIN_WINDOW, 2 * split.count)
    while len(chosen) < split.count and len(rows):
        used = np.fromiter(taken, np.uint64, len(taken))
        rows = rows[~np.isin(hashes[rows, :2], used).any(axis=1)]
        texts = _texts(split, hashes, rows[:window], candidates)
        for source, target in hashes[rows[:window], :2].tolist():
            pair = texts.get((source, target))
            if pair and len(chosen) < split.count and taken.isdisjoint((source, target)):
                chosen.append(pair)
                taken.update((source, target))
        rows, window = rows[window:], 2 * window
    if len(chosen) < split.count:
        corpora = listed(f"data.{key}" for key in split.corpora)
        raise DataError(
            f"`{split.key}`: only {len(chosen):,} pairs of {corpora} can be held out, "
            f"{split.count:,} are asked for; no two held-out pairs share a text"
        )
    return chosen


def _texts(
    split: _Split, hashes: _Hashes, rows: _Rows, candidates: _LowestRanks
) -> dict[tuple[int, int], SentencePair]:
    """Return the cleaned pairs of some rows by hash, without those that the cleaning removes.

    Of several pairs with the same normalized texts, the first in alphabetical order is returned.
    Rows beyond the kept candidates are read again.
    """
    pairs: Iterable[SentencePair] | None = candidates.pairs(hashes[rows, 2].tolist())
    if pairs is None:
        missing = set(np.flatnonzero(np.isin(hashes[:, 2], hashes[rows, 2])).tolist())
        pairs = (pair for row, pair in enumerate(split.pairs()) if row in missing)
    texts: dict[tuple[int, int], SentencePair] = {}
    for judged in split.cleaning.judge(pairs):
        if judged.taken_by is None:
            key = hash_pair(judged.pair)
            texts[key] = min(texts.get(key, judged.pair), judged.pair, key=astuple)
    return texts


@dataclass(frozen=True, slots=True)
class CleanedFiles:
    """Files and counts of one cleaned corpus."""

    key: str
    """Key below `data`: `train`, or `train.corpora.NAME`."""
    files: tuple[Path, ...]
    total: int
    changed: int
    """Remaining pairs that a change of text has altered."""
    taken: dict[str, int]
    """Removed pairs by filter, in their order, zeros included."""

    @property
    def left(self) -> int:
        """Remaining pairs."""
        return self.total - sum(self.taken.values())


def write_cleaned(data: DataConfig, folder: Path) -> tuple[CleanedFiles, ...]:
    """Write the cleaned training pairs into a new folder, which appears when all is written.

    The files are `train.<language>`, one text per line, or `NAME.<language>` for each corpus of a
    mixture. `removed.tsv` or `NAME.removed.tsv` gets a tab-separated line for each removed pair:
    its number from 1, the filter, the original source and target with tabs replaced by spaces.
    """
    corpora = open_training_corpora(data)
    if not all(corpus.cleaning.is_on for corpus in corpora):
        raise ConfigError(
            "`data.cleaning` asks for nothing: set one of its keys; `mt data check` suggests some"
        )
    for source, target in (corpus.direction for corpus in corpora):
        if source == target:
            raise ConfigError(
                "`data.source_language` and `data.target_language` are both "
                f"{source}: the two files would have one name"
            )
    if folder.exists():
        raise DataError(f"{folder}: exists already; name a folder that is not there yet")
    if not folder.parent.is_dir():
        raise DataError(f"{folder}: there is no folder {folder.parent} to make it in")
    with open_aside(folder) as temporary:
        cleaned = tuple(_write(corpus, temporary, folder) for corpus in corpora)
        put_in_place(temporary, folder, is_new=True)
    return cleaned


def _write(corpus: OpenedCorpus, temporary: Path, folder: Path) -> CleanedFiles:
    """Write the files of a corpus into `temporary`, which becomes `folder`."""
    name = corpus.key.rpartition(".")[2]  # `train`, or the name in a mixture
    names = [f"{name}.{language}" for language in corpus.direction]
    names.append(_REMOVED_FILE if corpus.key == "train" else f"{name}.{_REMOVED_FILE}")
    total = changed = 0
    taken = dict.fromkeys(corpus.cleaning.filters, 0)
    judgements = corpus.cleaning.judge(corpus.pairs())
    with ExitStack() as stack:
        sources, targets, removed = (
            stack.enter_context((temporary / name).open("w", encoding="utf-8", newline="\n"))
            for name in names
        )
        bar = tqdm(judgements, desc="cleaning", unit=" pairs", unit_scale=True, disable=None)
        for judged in bar:
            total += 1
            if judged.taken_by is None:
                changed += judged.pair != judged.original
                sources.write(f"{judged.pair.source}\n")
                targets.write(f"{judged.pair.target}\n")
                continue
            taken[judged.taken_by] += 1
            texts = (text.replace("\t", " ") for text in astuple(judged.original))
            removed.write("\t".join([str(total), judged.taken_by, *texts]) + "\n")
    if total == sum(taken.values()):
        raise DataError(f"{corpus.source.description}: the cleaning leaves no pair of {total:,}")
    files = tuple(folder / name for name in names)
    return CleanedFiles(corpus.key, files, total, changed, taken)
