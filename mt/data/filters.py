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
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from importlib.metadata import version
from itertools import chain, repeat
from typing import Any

import numpy as np
from ftfy.badness import is_bad

from mt.config.data import CleaningConfig, Direction
from mt.data.pairs import PairSource, SentencePair
from mt.data.processes import map_pairs
from mt.data.words import numbers_differ
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
_LEAST_SCRIPT_SHARE = 0.3
"""Good text of any script contains names, formulas and code in Latin letters."""
_BLANK = re.compile("[\\s\x00\xad\u200b-\u200f\u2060-\u2064\ufeff]*")
_NO_WORDS = {"true", "false", "null", "none", "nan", "n/a", "inf"}
_METADATA = re.compile(r"\d|[@/\\_=]|\w\.\w")
"""Digits, and marks of addresses, paths and names of files and variables."""
_LONGEST_CODE = len("zho_Hant-TW")
_LOST = "\ufffd", "锟斤拷"
"""U+FFFD, and two of them read as GBK."""
_FEWEST_SORTED = 50_000
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters other than tab, and two line ends."""
_MARKUP = re.compile(
    r"</?[A-Za-z][\w:-]*(?:\s[^<>]*)?/?>|&(?:#\d{2,6}|#[xX][0-9A-Fa-f]{2,5}|[A-Za-z]{2,8});"
)
_TOKENS = re.compile(r"▁|\S@@(?:\s|$)|\s##\w")
_ESCAPES = re.compile(
    r"-[LR][RSC]B-|&(?:apos|quot|#39|#91|#93|#124);|@[-/,.]@|``\s|\s''(?:\s|$)"
    r"|\w (?:n't|'(?:s|m|re|ve|ll|d)|n 't|'t)(?= |$)"
)
_MARK = re.compile(r"(?<=[^\s.,?!;:])( ?)([.,?!;:](?= |$)|[。、，．！？；：])")
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
_BLOCK_PAIRS = 1000
_DEPENDENT = ("held_out", "duplicates")
"""Filters that judge a pair by others; which pairs are held out is known after the first pass."""
_RULES = 2
"""Part of the fingerprint; raised whenever the same config would clean differently."""
Filter = Callable[[SentencePair], bool]
"""Returns True for a pair to remove."""


def is_blank(text: str) -> bool:
    """Return True for a text of white space and invisible characters alone."""
    return _BLANK.fullmatch(text) is not None


def is_metadata(text: str) -> bool:
    """Return True for a number, date, address, file name, code, id or truth value as a whole text.

    Some words are as well, such as `it`, the code of Italian: one such text proves nothing.
    """
    cell = text.strip()
    letters, digits = sum(map(str.isalpha, cell)), sum(map(str.isdigit, cell))
    if letters <= digits and (not letters or " " not in cell or re.search(r"\d\D+\d", cell)):
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


def in_wrong_script(text: str, language: str) -> bool:
    """Return True if the `script_share` of the language is below 0.3.

    Traditional characters are wrong in `zh-Hans`, simplified ones in `zh-Hant`.
    """
    share = script_share(text, language)
    return share is not None and (share < _LEAST_SCRIPT_SHARE or in_other_variant(text, language))


def has_mojibake(text: str) -> bool:
    """Return True for U+FFFD, and for UTF-8 decoded as Latin-1, Windows-1252 or the like."""
    if text.isascii():
        return False
    # U+0085 alone is a line end.
    return any(lost in text for lost in _LOST) or bool(is_bad(text.replace("\x85", " ")))


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
    counted = ".," if base_language(language) == "fr" else ".,?!;:。、，．！？；："
    spaces = [space for space, mark in _MARK.findall(text) if mark in counted]
    if spaces.count(" ") > spaces.count(""):
        return True
    gaps = 0 if text.isascii() else len(_GAP.findall(text))
    if gaps < 2:
        return False
    return count_in(text, "Han") + count_in(text, "Kana") < _WORD_CHARACTERS * (gaps + 1)


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


PAIR_FACTOR = 0x9E3779B97F4A7C15
"""Multiplier of one side's hash in the hash of a pair; odd, so that no bit is lost."""


def hash_pair(pair: SentencePair) -> tuple[int, int]:
    """Return the hashes of both sides of a pair, normalized."""
    return hash_text(normalized(pair.source)), hash_text(normalized(pair.target))


class SeenHashes:
    """Set of 64-bit hashes, most of them in a sorted array: a set takes 106 bytes for each."""

    def __init__(self) -> None:
        self._sorted, self._new = array("Q"), set[int]()

    def add(self, hashed: int) -> bool:
        """Add a hash; return True if it is new."""
        place = bisect_left(self._sorted, hashed)
        is_sorted = place < len(self._sorted) and self._sorted[place] == hashed
        if is_sorted or hashed in self._new:
            return False
        self._new.add(hashed)
        if len(self._new) > max(_FEWEST_SORTED, len(self._sorted) // 4):
            new = np.fromiter(self._new, np.uint64, len(self._new))
            merged = np.concatenate((np.frombuffer(self._sorted, np.uint64), new))
            merged.sort()
            self._sorted, self._new = array("Q", merged.tobytes()), set()
        return True


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """Cleaned pair, and the filter that removes it."""

    original: SentencePair
    pair: SentencePair
    removed_by: str | None
    """Key of the filter, or None for a pair that remains."""


@dataclass(frozen=True)
class Cleaning:
    """Cleaning of a stream of pairs, in order, the same in every pass.

    Only `duplicates` needs memory for the corpus, about 100 bytes a pair; `overlap` and held-out
    splits need as much for each text of a validation or test pair.
    """

    settings: CleaningConfig
    direction: Direction
    held_out: tuple[PairSource, ...] = ()
    """Splits of the same corpora. Pairs with one of their texts, normalized, are removed."""
    splits: tuple[PairSource, ...] = ()
    """The other splits, for `overlap`."""
    verdicts: bytes | None = field(default=None, compare=False, repr=False)
    """Numbers of the filters of all pairs, 0 for none, if they are known from an earlier pass."""

    @property
    def is_on(self) -> bool:
        """True if a key of `data.cleaning` is set, or a split is held out."""
        return self.settings != CleaningConfig() or bool(self.held_out)

    def make_filters(self) -> dict[str, Filter]:
        """Return the filters in use by name, in order of application; none has seen a pair."""
        settings, (source, target) = self.settings, self.direction
        form = OVERLAP[settings.overlap or "exact"]
        part = DUPLICATES[settings.duplicates or "pair"]
        fewest, most = settings.min_characters or 0, settings.max_characters or 0
        ratio = settings.max_length_ratio or 0
        seen = SeenHashes()

        def on_a_side(check: Callable[[str], bool]) -> Filter:
            return lambda pair: check(pair.source) or check(pair.target)

        def by_language(check: Callable[[str, str], bool]) -> Filter:
            return lambda pair: check(pair.source, source) or check(pair.target, target)

        filters: dict[str, Filter] = {
            "held_out": lambda pair: not self.held_out_texts.isdisjoint(hash_pair(pair)),
            "identical_sides": lambda pair: has_identical_sides(pair.source, pair.target),
            "min_characters": on_a_side(lambda text: len(text.strip()) < fewest),
            "max_characters": on_a_side(lambda text: len(text.strip()) > most),
            "max_length_ratio": lambda pair: length_ratio(pair.source, pair.target) > ratio,
            "wrong_script": by_language(in_wrong_script),
            "mojibake": on_a_side(has_mojibake),
            "tokens": on_a_side(holds_tokens),
            "tokenized": by_language(looks_tokenized),
            "markup": on_a_side(has_markup),
            "control_characters": on_a_side(lambda text: _CONTROL.search(text) is not None),
            "numbers": lambda pair: numbers_differ(pair.source, pair.target),
            "language": by_language(in_other_language),
            "overlap": on_a_side(lambda text: hash_text(form(text)) in self.split_texts),
            # Last, so that of several equal pairs one passes all other filters.
            "duplicates": lambda pair: not seen.add(hash_text(part(pair))),
        }
        in_use = settings.model_dump() | dict.fromkeys(settings.broken_text, True)
        in_use["held_out"] = self.held_out
        in_use["control_characters"] = settings.control_characters == "reject"
        return {name: takes for name, takes in filters.items() if in_use.get(name)}

    @cached_property
    def fingerprint(self) -> str | None:
        """Checksum of everything that affects the result; None if the cleaning is off."""
        if not self.is_on:
            return None
        settings = self.settings
        parts = [
            *(_RULES, settings.model_dump(mode="json", exclude_defaults=True)),
            *self.direction,
            sorted(self.split_texts) if settings.overlap else None,
            model_version() if settings.language else None,
            sorted(self.held_out_texts),
        ]
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

    def judge(
        self, pairs: Iterable[SentencePair], verdicts: bytearray | None = None
    ) -> Iterator[JudgedPair]:
        """Stream all pairs of a corpus from the first, each with the filter that removes it.

        Those of `judge_alone` run in all cores. The number of the filter, but for `held_out`, is
        added to `verdicts`. Raises `DataError` if a filter needs a package that is not installed.
        """
        filters = self.make_filters()
        held_out, names = filters.pop("held_out", None), [None, *filters]
        duplicates = filters.pop("duplicates", None)
        # A corpus with other pairs than before fails at its end.
        known = zip(pairs, chain(self.verdicts or b"", repeat(0)), strict=False)
        judged = self._judge_blocks(pairs) if filters and self.verdicts is None else known
        for pair, verdict in judged:
            changed, number = self.changed(pair), verdict
            if duplicates and not number and self.verdicts is None and duplicates(changed):
                number = len(names) - 1
            if verdicts is not None:
                verdicts.append(number)
            # A repeated pair shares its text, so it is held out with the first one.
            is_held_out = held_out and held_out(changed)
            yield JudgedPair(pair, changed, "held_out" if is_held_out else names[number])

    def _judge_blocks(self, pairs: Iterable[SentencePair]) -> Iterator[tuple[SentencePair, int]]:
        judge = replace(self, held_out=()).judge_alone
        for block, results in map_pairs(judge, pairs, _BLOCK_PAIRS):
            yield from zip((SentencePair(*pair) for pair in block), results, strict=True)

    def judge_alone(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        """Return a number for each pair: of the filter in use that removes it, from 1, or 0.

        Filters that judge a pair by others are left out.
        """
        filters = [f for name, f in self.make_filters().items() if name not in _DEPENDENT]
        changed = [self.changed(SentencePair(*pair)) for pair in pairs]
        return bytes(
            next((number for number, takes in enumerate(filters, 1) if takes(pair)), 0)
            for pair in changed
        )

    def clean(
        self,
        pairs: Iterable[SentencePair],
        removed: Counter[str] | None = None,
        verdicts: bytearray | None = None,
    ) -> Iterator[SentencePair]:
        """Stream the remaining pairs of a corpus from the first.

        `removed` counts the other ones by filter; `verdicts` as in `judge`.
        """
        if not self.is_on:
            yield from pairs
            return
        for judged in self.judge(pairs, verdicts):
            if judged.removed_by is None:
                yield judged.pair
            elif removed is not None:
                removed[judged.removed_by] += 1

    def changed(self, pair: SentencePair) -> SentencePair:
        """Return a pair with the configured changes of its text."""
        settings = self.settings
        if settings.control_characters == "strip":  # line ends such as U+2028 become spaces
            texts = (
                _CONTROL.sub(lambda match: " " if match[0].isspace() else "", text)
                for text in (pair.source, pair.target)
            )
            pair = SentencePair(*texts)
        if settings.normalize_spaces:
            pair = SentencePair(" ".join(pair.source.split()), " ".join(pair.target.split()))
        return pair


OVERLAP: dict[str, Callable[[str], str]] = {"exact": str.strip, "normalized": normalized}
DUPLICATES: dict[str, Callable[[SentencePair], str]] = {
    "pair": lambda pair: f"{len(pair.source)} {pair.source}{pair.target}",
    "source": lambda pair: pair.source,
    "target": lambda pair: pair.target,
}
