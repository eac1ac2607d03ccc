"""Cleaning of training corpora: checks of pairs, and changes and filters by `data.cleaning` key.

The checks judge a pair by its characters; each returns True for a defect. Precision comes before
recall: good text should pass. Languages are identified with py3langid (Lui and Baldwin 2012),
without which the functions that do so raise `DataError`.
"""

import functools
import hashlib
import json
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

from ftfy.badness import is_bad

from mt.config.data import CleaningConfig, Direction
from mt.data.numbers import numbers_differ
from mt.data.pairs import PairSource, SentencePair
from mt.errors import DataError, install_hint
from mt.languages import (
    base_language,
    count_in,
    in_letters,
    in_other_variant,
    letters_in,
    script_share,
    scripts_of,
)

_ALLOWANCE = 10
"""Added to both lengths of a ratio, since a greeting may be three times as long as another."""

MIN_SCRIPT_SHARE = 0.3
"""Good text of any script contains names, formulas and code in Latin letters."""

_BLANK = re.compile("[\\s\x00\xad\u200b-\u200f\u2060-\u2064\ufeff]*")
_NO_WORDS = {"true", "false", "null", "none", "nan", "n/a", "inf"}
_SEVERAL_NUMBERS = re.compile(r"\d\D+\d")
_METADATA = re.compile(r"\d|[@/\\_=]|\w\.\w")
"""Digits, and marks of addresses, paths and names of files and variables."""
_LONGEST_CODE = len("zho_Hant-TW")
_LOST = re.compile("\ufffd|锟斤拷")
"""U+FFFD, and two of them read as GBK."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_MARKUP = re.compile(
    r"</?[A-Za-z][\w:-]*(?:\s[^<>]*)?/?>|&(?:#\d{2,6}|#[xX][0-9A-Fa-f]{2,5}|[A-Za-z]{2,8});"
)
_TOKENS = re.compile(r"▁|\S@@(?:\s|$)|\s##\w")
_ESCAPES = re.compile(
    r"-[LR][RSC]B-|&(?:apos|quot|#39|#91|#93|#124);|@[-/,.]@|``\s|\s''(?:\s|$)"
    r"|\w (?:n't|'(?:s|m|re|ve|ll|d)|n 't|'t)(?= |$)"
)
_MARK = re.compile(r"(?<=[^\s.,?!;:])( ?)(?:[.,?!;:](?= |$)|[。、，．！？；：])")
_FRENCH_MARK = re.compile(r"(?<=[^\s.,?!;:])( ?)[.,](?= |$)")
"""Punctuation after a word, and the space before it."""
_IDEOGRAPHIC = letters_in("Han", "Kana")
_GAP = re.compile(f"(?<=[{_IDEOGRAPHIC}]) +(?=[{_IDEOGRAPHIC}])")
_WORD_CHARACTERS = 3
"""Upper bound of the mean word length in segmented Chinese or Japanese."""
_LEAST_LENGTH = 30
"""In letters; shorter texts are not judged."""
_GROUP = 10
_UNLIKELY = 0.01
"""Probability of the expected language below which a text is in another one."""
NO_LANGUAGE = "zxx"
"""Label of the identifier for text without words."""
HELD_OUT = "held_out"
"""Name of the filter that removes pairs with a text of a held-out split; it comes first."""
_RULES = 2
"""Part of the fingerprint; raised whenever the same config would clean differently."""
Filter = Callable[[SentencePair], bool]
"""Returns True for a pair to remove."""
_FIRST_SLOTS = 1 << 10
_FREE = 0


def is_blank(text: str) -> bool:
    """Return True for a text of white space and invisible characters alone."""
    return _BLANK.fullmatch(text) is not None


def is_metadata(text: str) -> bool:
    """Return True for a number, date, address, file name, code, id or truth value as a whole text.

    Some words are as well, such as `it`, the code of Italian: one such text proves nothing.
    """
    cell = text.strip()
    letters, digits = sum(map(str.isalpha, cell)), sum(map(str.isdigit, cell))
    if letters <= digits and (not letters or " " not in cell or _SEVERAL_NUMBERS.search(cell)):
        return True
    if cell.lower() in _NO_WORDS:
        return True
    if not cell.isascii() or " " in cell:
        return False
    is_code = len(cell) <= _LONGEST_CODE and bool(scripts_of(cell))
    return is_code or _METADATA.search(cell) is not None


def has_empty_side(source: str, target: str) -> bool:
    """Return True if a side is blank."""
    return is_blank(source) or is_blank(target)


def has_identical_sides(source: str, target: str) -> bool:
    """Return True if both sides are the same text; one without letters may be its translation."""
    return source.strip() == target.strip() and any(map(str.isalpha, source))


@functools.lru_cache(maxsize=1 << 14)  # several checks need it for the same texts
def weighted_length(text: str) -> int:
    """Return the length of a text without white space, counted as by `in_letters`."""
    return in_letters("".join(text.split()))


def length_ratio(source: str, target: str) -> float:
    """Return the ratio of the longer to the shorter `weighted_length`, with 10 added to both."""
    lengths = weighted_length(source) + _ALLOWANCE, weighted_length(target) + _ALLOWANCE
    return max(lengths) / min(lengths)


def in_wrong_script(text: str, language: str, *, min_share: float = MIN_SCRIPT_SHARE) -> bool:
    """Return True if the `script_share` of the language is below `min_share`.

    Traditional characters are wrong in `zh-Hans`, simplified ones in `zh-Hant`.
    """
    share = script_share(text, language)
    return share is not None and (share < min_share or in_other_variant(text, language))


def has_mojibake(text: str) -> bool:
    """Return True for U+FFFD, and for UTF-8 decoded as Latin-1, Windows-1252 or the like."""
    # U+0085 alone is a line end.
    return not text.isascii() and bool(_LOST.search(text) or is_bad(text.replace("\x85", " ")))


def holds_tokens(text: str) -> bool:
    """Return True for subword marks: `▁` of SentencePiece, `@@` of BPE, `##` of WordPiece."""
    return _TOKENS.search(text) is not None


def looks_tokenized(text: str, language: str) -> bool:
    """Return True for the output of a word tokenizer.

    Signs are escapes such as `&apos;` and `-LRB-`, a space before a clitic, more punctuation with
    a space before it than without, and spaces between words of Chinese or Japanese. French has
    spaces before `!?;:`, so only points and commas count there.
    """
    if _ESCAPES.search(text):
        return True
    french = base_language(language) == "fr"
    spaces = (_FRENCH_MARK if french else _MARK).findall(text)
    if spaces.count(" ") > spaces.count(""):
        return True
    gaps = 0 if text.isascii() else len(_GAP.findall(text))
    if gaps < 2:
        return False
    return count_in(text, "Han") + count_in(text, "Kana") < _WORD_CHARACTERS * (gaps + 1)


def has_control_characters(text: str) -> bool:
    """Return True for control characters other than tab, and for U+2028 and U+2029."""
    return _CONTROL.search(text) is not None


def without_control_characters(text: str) -> str:
    """Remove the characters of `has_control_characters`; line ends such as U+2028 become spaces."""
    return _CONTROL.sub(lambda match: " " if match[0].isspace() else "", text)


def has_markup(text: str) -> bool:
    """Return True for a tag or character reference of HTML or XML."""
    return _MARKUP.search(text) is not None


def normalized(text: str) -> str:
    """Return a text without case, white space, punctuation, control characters and width.

    A text of punctuation alone is only stripped.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    encoded = folded.encode("utf-8", "surrogatepass").translate(None, _ASCII_PUNCTUATION)
    rest = encoded.decode("utf-8", "surrogatepass")
    if not rest.isalnum():  # the translation is slow
        rest = folded.translate(_WITHOUT_PUNCTUATION)
    return rest or text.strip()


class _WithoutPunctuation(dict[int, int | None]):
    """Translation table without punctuation, white space and control characters."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code))[0] in "PZC" else code
        return self[code]


_WITHOUT_PUNCTUATION = _WithoutPunctuation()
_ASCII_PUNCTUATION = bytes(code for code in range(128) if _WITHOUT_PUNCTUATION[code] is None)
"""Also white space and control characters."""


def identify(text: str) -> tuple[str, float]:
    """Return the most probable language (ISO 639-1) and its probability."""
    language, probability = load_identifier().classify(text)
    return language, probability


def language_of(texts: Sequence[str]) -> str | None:
    """Return the language of most texts, judged ten at a time; None without a majority."""
    groups = [" ".join(texts[start : start + _GROUP]) for start in range(0, len(texts), _GROUP)]
    counts = Counter(identify(group)[0] for group in groups)
    language, count = next(iter(counts.most_common(1)), (None, 0))
    return language if 2 * count > len(groups) and language != NO_LANGUAGE else None


def in_other_language(text: str, language: str) -> bool:
    """Return True if a text is clearly not in `language`; False if it cannot be judged."""
    if not can_be_judged(text, language):
        return False
    expected = base_language(language)
    if identify(text)[0] == expected:  # faster than the probabilities of all languages
        return False
    return bool(dict(load_identifier().rank(text))[expected] < _UNLIKELY)


def can_be_judged(text: str, language: str) -> bool:
    """Return True if the text is long enough and the language supported."""
    known = base_language(language) in known_languages()
    return known and weighted_length(text) >= _LEAST_LENGTH


def model_version() -> str:
    """Return the version of the package, which is that of its model."""
    known_languages()
    return version("py3langid")


@functools.cache
def known_languages() -> frozenset[str]:
    """Return the codes of the supported languages."""
    return frozenset(load_identifier().labels)


@functools.cache
def load_identifier() -> Any:
    """Return py3langid's model, loaded once; raise `DataError` if it is not installed."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # an optional package
    except ModuleNotFoundError as error:
        raise DataError(
            f"language identification needs py3langid: {install_hint('langid')}"
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def hash_text(text: str) -> int:
    """Return a 64-bit hash of a text, the same on every machine, never 0."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def hash_pair(pair: SentencePair) -> tuple[int, int]:
    """Return the hashes of both sides of a pair, normalized."""
    return hash_text(normalized(pair.source)), hash_text(normalized(pair.target))


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
        hashed = hash_text(text)
        slot = _slot(self._slots, hashed)
        if self._slots[slot] == hashed:
            return False
        self._slots[slot] = hashed
        self._count += 1
        if 3 * self._count > 2 * len(self._slots):
            grown = array("Q", [_FREE]) * (2 * len(self._slots))
            for hashed in self._slots:
                if hashed != _FREE:
                    grown[_slot(grown, hashed)] = hashed
            self._slots = grown
        return True


def _slot(slots: "array[int]", hashed: int) -> int:
    """Return the slot of a hash, or the free slot for it."""
    last = len(slots) - 1  # a power of two less one
    slot = hashed & last
    while slots[slot] not in {_FREE, hashed}:
        slot = (slot + 1) & last
    return slot


@dataclass(frozen=True, slots=True)
class JudgedPair:
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

    settings: CleaningConfig
    direction: Direction
    held_out: tuple[PairSource, ...] = ()
    """Splits of the same corpora. Pairs with one of their texts, normalized, are removed."""
    splits: tuple[PairSource, ...] = ()
    """The other splits, for `overlap`."""

    @property
    def is_on(self) -> bool:
        """True if a key of `data.cleaning` is set, or a split is held out."""
        return self.settings != CleaningConfig() or bool(self.held_out)

    @property
    def filters(self) -> tuple[str, ...]:
        """Names of the filters in use, in order of application."""
        names = tuple(name for name in FILTERS if _is_on(self.settings, name))
        return (HELD_OUT, *names) if self.held_out else names

    @cached_property
    def fingerprint(self) -> str | None:
        """Checksum of everything that affects the result; None if the cleaning is off."""
        if not self.is_on:
            return None
        settings = self.settings
        overlap = sorted(self.split_texts) if settings.overlap else []
        parts = [
            *(_RULES, settings.model_dump(mode="json", exclude_defaults=True)),
            *self.direction,
            *(overlap, []),
            model_version() if settings.language else None,
        ]
        if self.held_out:
            parts.append(sorted(self.held_out_texts))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @cached_property
    def held_out_texts(self) -> set[int]:
        """Hashes of the texts of the held-out splits, normalized."""
        pairs = (pair for split in self.held_out for pair in split.pairs())
        return {hashed for pair in pairs for hashed in hash_pair(pair)}

    @cached_property
    def split_texts(self) -> set[int]:
        """Hashes of both sides of the splits that are not held out, for `overlap`."""
        form = OVERLAP[self.settings.overlap or "exact"]
        texts = set[int]()
        for split in self.splits:
            for pair in map(self.changed, split.pairs()):
                texts |= {hash_text(form(pair.source)), hash_text(form(pair.target))}
        return texts - {hash_text("")}

    def judge(self, pairs: Iterable[SentencePair]) -> Iterator[JudgedPair]:
        """Stream all pairs of a corpus from the first, each with the filter that removes it.

        Raises `DataError` if a filter needs a package that is not installed.
        """
        constructors = {HELD_OUT: _held_out, **FILTERS}
        filters = {name: constructors[name](self) for name in self.filters}
        for pair in pairs:
            changed = self.changed(pair)
            taken_by = next((name for name, takes in filters.items() if takes(changed)), None)
            yield JudgedPair(pair, changed, taken_by)

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
        settings = self.settings
        if settings.control_characters == "strip":
            pair = SentencePair(*map(without_control_characters, (pair.source, pair.target)))
        if settings.normalize_spaces:
            pair = SentencePair(" ".join(pair.source.split()), " ".join(pair.target.split()))
        return pair


def _is_on(settings: CleaningConfig, name: str) -> bool:
    if name in BROKEN_TEXT:
        return name in settings.broken_text
    if name == "control_characters":
        return settings.control_characters == "reject"
    return getattr(settings, name) not in (None, False)


def _held_out(cleaning: Cleaning) -> Filter:
    texts = cleaning.held_out_texts
    return lambda pair: not texts.isdisjoint(hash_pair(pair))


def _min_characters(cleaning: Cleaning) -> Filter:
    least = cleaning.settings.min_characters or 0
    return lambda pair: min(len(pair.source.strip()), len(pair.target.strip())) < least


def _max_characters(cleaning: Cleaning) -> Filter:
    most = cleaning.settings.max_characters or 0
    return lambda pair: max(len(pair.source.strip()), len(pair.target.strip())) > most


def _max_length_ratio(cleaning: Cleaning) -> Filter:
    most = cleaning.settings.max_length_ratio or 1.0
    return lambda pair: length_ratio(pair.source, pair.target) > most


def _of_both(check: Callable[[str, str], bool]) -> Callable[[Cleaning], Filter]:
    """Return a filter that compares the two texts."""
    return lambda _cleaning: lambda pair: check(pair.source, pair.target)


def _on_a_side(check: Callable[[str], bool]) -> Callable[[Cleaning], Filter]:
    """Return a filter that checks each text."""
    return lambda _cleaning: lambda pair: check(pair.source) or check(pair.target)


def _by_language(check: Callable[[str, str], bool]) -> Callable[[Cleaning], Filter]:
    """Return a filter that checks each text given its language."""

    def make(cleaning: Cleaning) -> Filter:
        source, target = cleaning.direction
        return lambda pair: check(pair.source, source) or check(pair.target, target)

    return make


def _overlap(cleaning: Cleaning) -> Filter:
    form = OVERLAP[cleaning.settings.overlap or "exact"]
    texts = cleaning.split_texts
    return lambda pair: (
        hash_text(form(pair.source)) in texts or hash_text(form(pair.target)) in texts
    )


def _duplicates(cleaning: Cleaning) -> Filter:
    seen, part = SeenTexts(), DUPLICATES[cleaning.settings.duplicates or "pair"]
    return lambda pair: not seen.add(part(pair))


BROKEN_TEXT: dict[str, Callable[[Cleaning], Filter]] = {
    "mojibake": _on_a_side(has_mojibake),
    "tokens": _on_a_side(holds_tokens),
    "tokenized": _by_language(looks_tokenized),
    "markup": _on_a_side(has_markup),
}
"""Constructors of filters by name in `data.cleaning.broken_text`."""
FILTERS: dict[str, Callable[[Cleaning], Filter]] = {
    "identical_sides": _of_both(has_identical_sides),
    "min_characters": _min_characters,
    "max_characters": _max_characters,
    "max_length_ratio": _max_length_ratio,
    "wrong_script": _by_language(in_wrong_script),
    **BROKEN_TEXT,
    "control_characters": _on_a_side(has_control_characters),
    "numbers": _of_both(numbers_differ),
    "language": _by_language(in_other_language),
    "overlap": _overlap,
    # Last, so that of several equal pairs one passes all other filters.
    "duplicates": _duplicates,
}
"""Constructors of filters by name, in order of application."""
OVERLAP: dict[str, Callable[[str], str]] = {"exact": str.strip, "normalized": normalized}
DUPLICATES: dict[str, Callable[[SentencePair], str]] = {
    "pair": lambda pair: f"{len(pair.source)} {pair.source}{pair.target}",
    "source": lambda pair: pair.source,
    "target": lambda pair: pair.target,
}
