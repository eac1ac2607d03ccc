"""Cleaning of training corpora: changes and filters by key of `data.cleaning`."""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

from mt.config.data import CleaningConfig, DataConfig, HeldOutSource
from mt.data import language_id, pair_checks
from mt.data.pairs import Checksums, PairSource, SentencePair
from mt.data.sources import open_source

_FIRST_SLOTS = 1 << 10
_FREE = 0


def text_hash(text: str) -> int:
    """Return a 64-bit hash of a text, the same on every machine, never 0.

    Ten million texts have a collision with a probability of 3 in a million.
    """
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def hashes_of(pair: SentencePair) -> tuple[int, int]:
    """Return the hashes of both sides of a pair, normalized."""
    return (
        text_hash(pair_checks.normalized(pair.source)),
        text_hash(pair_checks.normalized(pair.target)),
    )


class SeenTexts:
    """Set of 64-bit hashes of texts: an open hash table with linear probing.

    It takes 12 to 24 bytes a text, and 1.5 times as much while it grows.
    """

    def __init__(self) -> None:
        self._slots = array("Q", [_FREE]) * _FIRST_SLOTS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, text: str) -> bool:
        """Add a text; return True if it is new."""
        hashed = text_hash(text)
        slot = _slot(self._slots, hashed)
        if self._slots[slot] == hashed:
            return False
        self._slots[slot] = hashed
        self._count += 1
        if 3 * self._count > 2 * len(self._slots):
            self._grow()
        return True

    def _grow(self) -> None:
        grown = array("Q", [_FREE]) * (2 * len(self._slots))
        for hashed in self._slots:
            if hashed != _FREE:
                grown[_slot(grown, hashed)] = hashed
        self._slots = grown


def _slot(slots: "array[int]", hashed: int) -> int:
    """Return the slot of a hash, or the free slot for it."""
    last = len(slots) - 1  # a power of two less one
    slot = hashed & last
    while slots[slot] not in {_FREE, hashed}:
        slot = (slot + 1) & last
    return slot


HELD_OUT = "held_out"
"""Name of the filter that removes pairs with a text of a held-out split; it comes first."""
_RULES = 1
"""Part of the fingerprint; raised whenever the same config would clean differently."""
Filter = Callable[[SentencePair], bool]
"""Returns True for a pair to remove."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Cleaned pair, and the filter that removes it."""

    original: SentencePair
    pair: SentencePair
    taken_by: str | None
    """Key of the filter, or None for a pair that remains."""


@dataclass(frozen=True)
class Cleaning:
    """Cleaning of a stream of pairs, in order, the same in every pass.

    Only `duplicates` needs memory for the corpus, 12 to 24 bytes a pair; `overlap` and held-out
    splits need about 100 bytes for each validation and test pair.
    """

    data: DataConfig
    held_out: tuple[PairSource, ...] = ()
    """Splits of the same corpora. Pairs with one of their texts, normalized, are removed."""

    @property
    def is_on(self) -> bool:
        """True if a key of `data.cleaning` is set, or a split is held out."""
        return self.data.cleaning != CleaningConfig() or bool(self.held_out)

    @property
    def filters(self) -> tuple[str, ...]:
        """Names of the filters in use, in order of application."""
        asked = tuple(name for name in FILTERS if _asked(self.data.cleaning, name))
        return (HELD_OUT, *asked) if self.held_out else asked

    @cached_property
    def fingerprint(self) -> str | None:
        """Checksum of everything that affects the result; None if the cleaning is off."""
        if not self.is_on:
            return None
        settings = self.data.cleaning
        overlap = self.split_texts if settings.overlap else ((), ())
        parts = [
            *(_RULES, settings.model_dump(mode="json", exclude_defaults=True)),
            *(self.data.source_language, self.data.target_language),
            *map(sorted, overlap),
            language_id.model_version() if settings.language else None,
        ]
        if self.held_out:
            parts.append(sorted(self.held_out_texts))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @cached_property
    def held_out_texts(self) -> set[int]:
        """Hashes of the texts of the held-out splits, normalized."""
        pairs = (pair for split in self.held_out for pair in split.pairs())
        return {hashed for pair in pairs for hashed in hashes_of(pair)}

    @cached_property
    def split_texts(self) -> tuple[set[int], set[int]]:
        """Hashes of sources and targets of the splits that are not held out, for `overlap`."""
        form = OVERLAP[self.data.cleaning.overlap or "exact"]
        sources, targets = set[int](), set[int]()
        for name in self.data.split_names():
            split = self.data.split(name)
            assert split is not None
            if isinstance(split, HeldOutSource):
                continue
            for pair in map(self.changed, open_source(split, self.data).pairs()):
                sources.add(text_hash(form(pair.source)))
                targets.add(text_hash(form(pair.target)))
        nothing = {text_hash("")}
        return sources - nothing, targets - nothing

    def judge(self, pairs: Iterable[SentencePair]) -> Iterator[Judged]:
        """Stream all pairs of a corpus from the first, each with the filter that removes it.

        Raises `DataError` if a filter needs a package that is not installed.
        """
        constructors = {HELD_OUT: _held_out, **FILTERS}
        filters = {name: constructors[name](self) for name in self.filters}
        for pair in pairs:
            changed = self.changed(pair)
            taken_by = next((name for name, takes in filters.items() if takes(changed)), None)
            yield Judged(pair, changed, taken_by)

    def clean(
        self, pairs: Iterable[SentencePair], taken: Counter[str] | None = None
    ) -> Iterator[SentencePair]:
        """Stream the remaining pairs of a corpus from the first.

        `taken` counts removed pairs by filter.
        """
        if not self.is_on:
            yield from pairs
            return
        for judged in self.judge(pairs):
            if judged.taken_by is None:
                yield judged.pair
            elif taken is not None:
                taken[judged.taken_by] += 1

    def changed(self, pair: SentencePair) -> SentencePair:
        """Return a pair with the configured changes of its text."""
        for name, change in CHANGES.items():
            if _asked(self.data.cleaning, name):
                pair = SentencePair(change(pair.source), change(pair.target))
        return pair


def _asked(settings: CleaningConfig, name: str) -> bool:
    value = getattr(settings, name)
    return value is not None and value is not False


def _held_out(cleaning: Cleaning) -> Filter:
    texts = cleaning.held_out_texts
    return lambda pair: not texts.isdisjoint(hashes_of(pair))


def _min_characters(cleaning: Cleaning) -> Filter:
    least = cleaning.data.cleaning.min_characters or 0
    return lambda pair: min(len(pair.source.strip()), len(pair.target.strip())) < least


def _max_characters(cleaning: Cleaning) -> Filter:
    most = cleaning.data.cleaning.max_characters or 0
    return lambda pair: max(len(pair.source.strip()), len(pair.target.strip())) > most


def _max_length_ratio(cleaning: Cleaning) -> Filter:
    most = cleaning.data.cleaning.max_length_ratio or 1.0
    return lambda pair: pair_checks.length_ratio(pair.source, pair.target) > most


def _of_both(check: Callable[[str, str], bool]) -> Callable[[Cleaning], Filter]:
    """Return a filter that compares the two texts."""
    return lambda _cleaning: lambda pair: check(pair.source, pair.target)


def _on_a_side(check: Callable[[str], bool]) -> Callable[[Cleaning], Filter]:
    """Return a filter that checks each text."""
    return lambda _cleaning: lambda pair: check(pair.source) or check(pair.target)


def _by_language(check: Callable[[str, str], bool]) -> Callable[[Cleaning], Filter]:
    """Return a filter that checks each text given its language."""

    def make(cleaning: Cleaning) -> Filter:
        source, target = cleaning.data.source_language, cleaning.data.target_language
        return lambda pair: check(pair.source, source) or check(pair.target, target)

    return make


def _overlap(cleaning: Cleaning) -> Filter:
    form = OVERLAP[cleaning.data.cleaning.overlap or "exact"]
    sources, targets = cleaning.split_texts
    return lambda pair: (
        text_hash(form(pair.source)) in sources or text_hash(form(pair.target)) in targets
    )


def _duplicates(cleaning: Cleaning) -> Filter:
    seen, part = SeenTexts(), DUPLICATES[cleaning.data.cleaning.duplicates or "pair"]
    return lambda pair: not seen.add(part(pair))


CHANGES: dict[str, Callable[[str], str]] = {
    "strip_control": pair_checks.without_control_characters,
    "normalize_spaces": lambda text: " ".join(text.split()),
}
"""Changes to each text by key of `data.cleaning`, in order of application."""
FILTERS: dict[str, Callable[[Cleaning], Filter]] = {
    "empty_sides": _of_both(pair_checks.has_empty_side),
    "identical_sides": _of_both(pair_checks.has_identical_sides),
    "min_characters": _min_characters,
    "max_characters": _max_characters,
    "max_length_ratio": _max_length_ratio,
    "wrong_script": _by_language(pair_checks.in_wrong_script),
    "mojibake": _on_a_side(pair_checks.has_mojibake),
    "tokens": _on_a_side(pair_checks.holds_tokens),
    "tokenized": _by_language(pair_checks.looks_tokenized),
    "control_characters": _on_a_side(pair_checks.has_control_characters),
    "markup": _on_a_side(pair_checks.has_markup),
    "numbers": _of_both(pair_checks.numbers_differ),
    "language": _by_language(language_id.in_other_language),
    "overlap": _overlap,
    # Last, so that of several equal pairs one passes all other filters.
    "duplicates": _duplicates,
}
"""Constructors of filters by key of `data.cleaning`, in order of application."""
OVERLAP: dict[str, Callable[[str], str]] = {
    "exact": str.strip,
    "normalized": pair_checks.normalized,
}
"""Forms of text in which `overlap` compares."""
DUPLICATES: dict[str, Callable[[SentencePair], str]] = {
    "pair": lambda pair: f"{len(pair.source)} {pair.source}{pair.target}",
    "source": lambda pair: pair.source,
    "target": lambda pair: pair.target,
}
"""Text that duplicates share."""


@dataclass(frozen=True)
class TrainingCorpus:
    """Training corpus with its own cleaning."""

    key: str
    """Key below `data`: `train`, or `train.corpora.NAME`."""
    source: PairSource
    cleaning: Cleaning
    weight: float
    tag: str | None
    target_tag: str | None

    @property
    def languages(self) -> tuple[str, str]:
        """Languages of the source and the target side."""
        return self.cleaning.data.source_language, self.cleaning.data.target_language

    def cleaned(self) -> Iterator[SentencePair]:
        """Stream the cleaned pairs."""
        return self.cleaning.clean(self.source.pairs())

    def pinned(self, sums: Checksums) -> "TrainingCorpus":
        """Return the same corpus, which must match these checksums from now on."""
        return replace(self, source=replace(self.source, expected=sums))


def cleaned_pairs(corpora: Iterable[TrainingCorpus]) -> Iterator[SentencePair]:
    """Stream the cleaned pairs of all corpora, each pair once."""
    return (pair for corpus in corpora for pair in corpus.cleaned())
