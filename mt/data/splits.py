"""Splits and training corpora of a config, and cleaned corpora as files.

Held-out splits are chosen from the training pairs by a hash, so that the choice depends on their
texts and the name of the split, but not on their order.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from tqdm import tqdm

from mt.config.data import CleaningConfig, DataConfig, Direction, HeldOutSource
from mt.data.filters import PAIR_FACTOR, Cleaning, has_empty_side, hash_pair, hash_text
from mt.data.pairs import (
    Checksums,
    ColumnSource,
    EvenSample,
    PairSource,
    SentencePair,
    read_expected_sums,
)
from mt.data.processes import map_pairs
from mt.data.sources import open_source
from mt.data.tokenizer_training import TokenizerText
from mt.errors import ConfigError, DataError, listed
from mt.files import open_aside, put_in_place

_BLOCK_PAIRS = 4000
_MIN_SAMPLE = 4096
_LEAST_CANDIDATES, _SURPLUS = 10_000, 10
"""Pairs to choose from at least, and more for each held-out pair: the cleaning removes some, and
some share a text with others."""


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

    def pinned(self, sums: Checksums, verdicts: bytes | None = None) -> "OpenedCorpus":
        """Return the same corpus, which must match these checksums from now on.

        `verdicts` are those of its scan.
        """
        source = replace(self.source, expected=sums)
        return replace(self, source=source, cleaning=replace(self.cleaning, verdicts=verdicts))


def open_splits(data: DataConfig, names: Iterable[str] | None = None) -> dict[str, OpenedCorpus]:
    """Find the files of `valid` and of test splits, by default of all, by name."""
    sections = {name: data.split(name) for name in names or data.split_names()}
    held_out, splits = dict[str, PairSource](), dict[str, OpenedCorpus]()
    if any(isinstance(section, HeldOutSource) for section in sections.values()):
        corpora = _open_training_files(data)
        held_out = _open_held_out(data, corpora)
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
    corpora = _open_training_files(data)
    held_out = _open_held_out(data, corpora)
    given: tuple[PairSource, ...] = ()
    if data.cleaning.overlap:
        names = (name for name in data.split_names() if name not in held_out)
        given = tuple(open_split(data, name).source for name in names)
    cleaned = []
    for corpus in corpora:
        cleaning = Cleaning(data.cleaning, corpus.direction, tuple(held_out.values()), given)
        cleaned.append(replace(corpus, cleaning=cleaning))
    return tuple(cleaned)


def _open_training_files(data: DataConfig) -> list[OpenedCorpus]:
    """Find the files of all training corpora, with the cleaning off."""
    corpora = []
    for key, section in data.train_corpora().items():
        direction = data.direction_of(section)
        off = Cleaning(CleaningConfig(), direction)
        tags = section.tag, section.target_tag
        source = open_source(section, direction)
        corpora.append(OpenedCorpus(key, source, direction, tags, off, section.weight))
    return corpora


def read_cleaned_pairs(corpora: Iterable[OpenedCorpus]) -> Iterator[SentencePair]:
    """Stream the cleaned pairs of all corpora, each pair once."""
    return (pair for corpus in corpora for pair in corpus.cleaned())


@dataclass(frozen=True)
class SplitPairs:
    """Validation or test split after its reading."""

    key: str
    """Key below `data`."""
    direction: Direction
    checksums: Checksums
    pairs: tuple[SentencePair, ...]


def read_splits(data: DataConfig, *, are_held_out: bool) -> dict[str, SplitPairs]:
    """Read the held-out splits or the other ones of `valid` and the test splits.

    Raises `DataError` if a split is unreadable or differs from its checksums.
    """
    checksums: dict[str, Checksums] = {}
    splits = {}
    for name, split in open_splits(data).items():
        if isinstance(split.source, HeldOutPairs) == are_held_out:
            pairs = tuple(split.source.recorded(name, checksums))
            splits[name] = SplitPairs(split.key, split.direction, checksums[name], pairs)
    return splits


@dataclass(frozen=True)
class CorpusScan:
    """Facts from one reading of the training corpora, before any cleaning."""

    checksums: dict[str, Checksums]
    """By key of the corpus below `data`."""
    pairs: int
    characters: tuple[int, int]
    verdicts: dict[str, bytes]
    """Of filters that judge a pair by itself, by key of each corpus cleaned for a tokenizer."""
    sample: tuple[SentencePair, ...]
    """All pairs, or 4,096 to 8,192 of them, evenly spread over the corpora."""


Watcher = Callable[[Iterator[SentencePair]], Iterator[SentencePair]]
"""Takes the pairs of a corpus while it is read, and yields them unchanged."""


def scan_corpora(
    corpora: Sequence[OpenedCorpus],
    *,
    text: TokenizerText | None = None,
    watchers: Mapping[str, Watcher] | None = None,
) -> CorpusScan:
    """Read all training corpora once.

    The pairs of held-out splits are chosen in the same reading. The cleaned pairs are added to
    `text`, from which the tokenizer is learnt, without the texts of held-out pairs. A watcher, by
    key of its corpus, takes all its pairs. Raises `DataError` if a corpus is unreadable.
    """
    held_out = [split for corpus in corpora for split in corpus.cleaning.held_out]
    choice = held_out[0].choice if held_out and isinstance(held_out[0], HeldOutPairs) else None
    checksums: dict[str, Checksums] = {}
    verdicts = dict[str, bytearray]()
    characters = [0, 0]
    sample = EvenSample[SentencePair](2 * _MIN_SAMPLE)
    with tqdm(desc="reading", unit=" pairs", unit_scale=True, disable=None) as bar:

        def read_blocks(corpus: OpenedCorpus) -> Iterator[list[SentencePair]]:
            reading = corpus.source.recorded(corpus.key, checksums)
            if choice:
                reading = choice.watch(corpus.key, reading)
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
            # Which pairs are held out is known at the end.
            cleaning = replace(corpus.cleaning, held_out=())
            judged = verdicts[corpus.key] = bytearray()
            cleaned = cleaning.clean(chain.from_iterable(blocks), verdicts=judged)
            while block := list(islice(cleaned, _BLOCK_PAIRS)):
                text.add(block, corpus.direction, corpus=corpus.key)
    if choice:
        choice.choose()
        if text is not None:
            text.leave_out(corpora[0].cleaning.held_out_texts)
    return CorpusScan(
        checksums,
        sample.seen,
        (characters[0], characters[1]),
        {key: bytes(judged) for key, judged in verdicts.items()},
        tuple(sample.items),
    )


@dataclass(frozen=True)
class HeldOutPairs(ColumnSource):
    """Held-out split; its pairs stay in memory once they are chosen."""

    split: "HeldOutSplit"
    choice: "HeldOutChoice"

    @property
    def description(self) -> str:
        """Number of pairs, and descriptions of the corpora."""
        corpora = ", ".join(corpus.description for corpus in self.split.corpora.values())
        return f"{self.split.count:,} pairs held out of {corpora}"

    def read(self) -> Iterator[SentencePair]:
        """Stream the pairs in the order of their hashes."""
        return iter(self.choice.pairs()[self.split.name])


def _open_held_out(data: DataConfig, corpora: Sequence[OpenedCorpus]) -> dict[str, PairSource]:
    """Return the splits held out of training corpora, by name, in the order of their choice.

    The tests are chosen first, then `valid`.
    """
    sources = {name: data.split(name) for name in (*data.tests, "valid")}
    held_out = {
        name: source for name, source in sources.items() if isinstance(source, HeldOutSource)
    }
    if not held_out:
        return {}
    most = _LEAST_CANDIDATES + _SURPLUS * sum(source.held_out for source in held_out.values())
    splits = []
    # The other filters judge a pair by itself; with them, the order of the pairs has no influence.
    settings = data.cleaning.changed(overlap=None, duplicates=None)
    for name, source in held_out.items():
        cleaning = Cleaning(settings, data.direction_of(source))
        keys = data.matching_corpora(source)
        matching = {corpus.key: corpus.source for corpus in corpora if corpus.key in keys}
        splits.append(HeldOutSplit(name, source.held_out, matching, cleaning, most))
    given = tuple(open_split(data, name).source for name in sources if name not in held_out)
    choice = HeldOutChoice(tuple(splits), given)
    return {
        split.name: HeldOutPairs(read_expected_sums(held_out[split.name]), split, choice)
        for split in splits
    }


_CHOSEN: dict[str, dict[str, list[SentencePair]]] = {}
"""Pairs of held-out splits by name, by everything that determines their choice."""


@dataclass(frozen=True)
class HeldOutChoice:
    """Choice of the pairs of all held-out splits, made while the training corpora are read.

    The rank of a pair is a hash of its normalized texts and the name of the split. From
    the lowest rank on, a pair is chosen if the cleaning leaves it and neither text is taken by
    another one. So the order of a corpus has no influence, and no two held-out pairs share a text.
    """

    splits: tuple["HeldOutSplit", ...]
    """In the order of their choice."""
    given: tuple[PairSource, ...]
    """The other splits, whose texts are not chosen."""

    @cached_property
    def key(self) -> str:
        """Text that differs for another choice, and for files that changed."""
        corpora = [*self.given, *(c for split in self.splits for c in split.corpora.values())]
        values = [value for corpus in corpora for value in vars(corpus).values()]
        files = [value.stat() for value in values if isinstance(value, Path) and value.is_file()]
        return f"{self} {[(file.st_size, file.st_mtime_ns) for file in files]}"

    def pairs(self) -> dict[str, list[SentencePair]]:
        """Return the chosen pairs by split; read the corpora for them unless that is done.

        Raises `DataError` if there are too few.
        """
        if self.key not in _CHOSEN:
            corpora = {key: c for split in self.splits for key, c in split.corpora.items()}
            watched = chain.from_iterable(self.watch(key, c.pairs()) for key, c in corpora.items())
            bar = tqdm(watched, "holding out", unit=" pairs", unit_scale=True, disable=None)
            deque(bar, maxlen=0)
            self.choose()
        return _CHOSEN[self.key]

    def watch(self, key: str, pairs: Iterator[SentencePair]) -> Iterator[SentencePair]:
        """Yield all pairs of a training corpus, and keep those that may be chosen."""
        matching = [split for split in self.splits if key in split.corpora]
        for block, hashes in map_pairs(_hash_block, pairs, _BLOCK_PAIRS):
            for texts, hashed in zip(block, hashes, strict=True):
                pair = SentencePair(*texts)
                for split in matching:
                    rank = hashed ^ split.mask
                    if rank <= split.threshold:
                        split.add(rank, pair)
                yield pair

    def choose(self) -> None:
        """Choose from the pairs that `watch` kept; raise `DataError` if there are too few."""
        chosen: dict[str, list[SentencePair]] = {}
        taken = {h for split in self.given for pair in split.pairs() for h in hash_pair(pair)}
        for split in self.splits:
            candidates = split.clean_lowest()
            rivals = [rival for rival in self.splits if rival.corpora == split.corpora]
            room = len(candidates) // 2 - sum(len(chosen.get(rival.name, ())) for rival in rivals)
            pairs = chosen[split.name] = []
            for pair in candidates:
                hashes = hash_pair(pair)
                if len(pairs) < min(split.count, room) and taken.isdisjoint(hashes):
                    pairs.append(pair)
                    taken.update(hashes)
            if len(pairs) < split.count:
                key = "valid" if split.name == "valid" else f"tests.{split.name}"
                corpora = listed(f"data.{key}" for key in split.corpora)
                raise DataError(
                    f"`data.{key}.held_out`: only {len(pairs):,} pairs of {corpora} can be held "
                    f"out, {split.count:,} are asked for; no two held-out pairs share a text, and "
                    "at most half of the distinct pairs are held out"
                )
        _CHOSEN[self.key] = chosen


def _hash_block(block: Sequence[tuple[str, str]]) -> list[int]:
    """Return a 64-bit hash of each pair, from those of both sides, normalized."""
    hashes = (hash_pair(SentencePair(*texts)) for texts in block)
    return [(PAIR_FACTOR * source + target) % (1 << 64) for source, target in hashes]


@dataclass
class HeldOutSplit:
    """Size of a held-out split, and those pairs of its corpora that may be chosen.

    These are the pairs of lowest rank. Others are dropped at once: the threshold falls while the
    corpora are read.
    """

    name: str
    count: int
    corpora: dict[str, PairSource]
    """Training corpora of the same languages and tag, by key below `data`."""
    cleaning: Cleaning
    most: int
    """Pairs to keep; all pairs of a smaller corpus are kept."""

    def __post_init__(self) -> None:
        self.mask = hash_text(self.name)
        self.threshold = (1 << 64) - 1
        self.lowest: dict[int, SentencePair] = {}

    def add(self, rank: int, pair: SentencePair) -> None:
        """Keep a pair of low rank for now.

        Of several pairs with the same normalized texts, the first in alphabetical order remains.
        """
        other = self.lowest.get(rank, pair)
        self.lowest[rank] = min(other, pair, key=lambda one: (one.source, one.target))
        if len(self.lowest) > 2 * self.most:
            ranks = sorted(self.lowest)[: self.most]
            self.lowest = {rank: self.lowest[rank] for rank in ranks}
            self.threshold = ranks[-1]

    def clean_lowest(self) -> list[SentencePair]:
        """Return the pairs of lowest rank that the cleaning leaves, in the order of their ranks."""
        ranks = sorted(self.lowest)[: self.most]
        judgements = self.cleaning.judge(self.lowest[rank] for rank in ranks)
        pairs = [judged.pair for judged in judgements if judged.removed_by is None]
        return [pair for pair in pairs if not has_empty_side(pair.source, pair.target)]


@dataclass(frozen=True, slots=True)
class CleanedFiles:
    """Files and counts of one cleaned corpus."""

    key: str
    """Key below `data`: `train`, or `train.corpora.NAME`."""
    files: tuple[Path, ...]
    total: int
    changed: int
    """Remaining pairs that a change of text has altered."""
    removed: dict[str, int]
    """Removed pairs by filter, in their order, zeros included."""


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
    cleaned = []
    with open_aside(folder) as temporary:
        for corpus in corpora:
            name = corpus.key.rpartition(".")[2]  # `train`, or the name in a mixture
            names = [f"{name}.{language}" for language in corpus.direction]
            names.append("removed.tsv" if corpus.key == "train" else f"{name}.removed.tsv")
            total = changed = 0
            removed = dict.fromkeys(corpus.cleaning.make_filters(), 0)
            judgements = corpus.cleaning.judge(corpus.pairs())
            with ExitStack() as stack:
                sources, targets, listing = (
                    stack.enter_context(
                        (temporary / name).open("w", encoding="utf-8", newline="\n")
                    )
                    for name in names
                )
                bar = tqdm(judgements, "cleaning", unit=" pairs", unit_scale=True, disable=None)
                for judged in bar:
                    total += 1
                    if judged.removed_by is None:
                        changed += judged.pair != judged.original
                        sources.write(f"{judged.pair.source}\n")
                        targets.write(f"{judged.pair.target}\n")
                        continue
                    removed[judged.removed_by] += 1
                    texts = (text.replace("\t", " ") for text in astuple(judged.original))
                    listing.write("\t".join([str(total), judged.removed_by, *texts]) + "\n")
            if sum(removed.values()) == total:
                raise DataError(
                    f"{corpus.source.description}: the cleaning leaves no pair of {total:,}"
                )
            files = tuple(folder / name for name in names)
            cleaned.append(CleanedFiles(corpus.key, files, total, changed, removed))
        put_in_place(temporary, folder, is_new=True)
    return tuple(cleaned)
