"""Glossary: terms with their translations, found in texts of their languages.

Words are compared without case. Two words are forms of one word if they are equal up to endings of
one row of `_ENDINGS` for their language, after a stem of three letters or more. In languages
without a row, a word of five letters or more may go on for up to two letters. Words with digits,
and scripts without spaces between words, have one form. An upper-case letter after the first one
makes a word a name: it is found as it is written, or in a word in capitals.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mt.config.data import Direction
from mt.data.corpus_files import read_chunks
from mt.data.verbatim import copied_parts, verbatim_spans
from mt.errors import DataError
from mt.files import require_file
from mt.languages import UNSPACED, base_language, in_lower_case, in_upper_case

Span = tuple[int, int]
"""Start and end of a part of a text, in characters."""
LONGEST = 200
"""Characters of a term."""
_ROWS = {
    "en": "- s es ed ing|e es ed ing|y ies ied",
    "de": "- e en em er es ern s n se sen ses nen|um en a|us en i",
    "nl": "- e en s n es|um a",
    "sv da nb nn no": "- a e ar er or n en et r t s na ne ene ens ets erna arna orna ers ernes",
    "fr": "- e s es x|al aux ale ales|er e es ons ez ent é ée és ées|eux euse euses",
    "es gl": "- s es|o a os as|z ces|ón ones|ar a an as o|er ir e en es",
    "pt": "- s es|o a os as|m ns|ão ões ães ãos|l is|ar a am as o|er ir e em es",
    "it": "o a i e|e i|co chi ca che|go ghi ga ghe|à|ù|are a ano i o|ere ire e ono",
    "ro": "- ul i ii lui a e ele elor le lor uri urile urilor u ă ei",
    "ru uk be bg mk sr": (
        "- а о у е ы и і я ю ё ь й ї є ой ей ёй ою ею єю ом ем ём єм ам ям ами ями ах ях ов ев ёв "
        "ів їв ів ию ья ью ьи ий ый ая яя ое ее ые ие ого его ому ему ым им ых их ыми ими ую юю "
        "ия ии ию ией ием иям иями иях ей ев ове ові еві та то те ът ят"
    ),
    "pl cs sk sl hr bs": (
        "- a ą á e ę é ě i í o u ů y ý ov ów ův ou om em ém ím ým am um ami emi imi ymi mi ach ech "
        "ích ých ich ych ej ego emu ého ému ího ím owi owie ovi ové ie ia iu iem iami iach ii a go "
        "mu oma ama ima og oga ome omu oj ih im"
    ),
    "el": (
        "- ας α ες ης η ος ο ου ε οι ους ων ι ια ιου ιων ιδες ιδων εις εως εων υ ματος ματα ματων "
        "μα εα ηδες αδες αδων οντας ει ουν ω"
    ),
    "lv lt": "- a ā ai ą as ā es e ē ei ę ė ės i ī į is io iu ių ys o os oje u ū ų us ui um am iem",
    "fi et": "- a ä n na nä ta tä t ssa ssä sta stä lla llä lta ltä lle ksi en an än in ien ista d",
    "hu": "- t k a e ja je ban ben ból ből ba be ra re nak nek val vel on en ön hoz hez ok ek ak",
    "ar fa ur": "- ه ة ها هم ات ان ين ون ی ي های",
    "hi mr ne": "- ा े ी ो ों ें ियाँ ियों याँ",
    "ka": "- ი ს მა ის ად ით ები ების ებს ში ზე",
}
_ENDINGS = {
    code: [["" if end == "-" else end for end in row.split()] for row in rows.split("|")]
    for codes, rows in _ROWS.items()
    for code in codes.split()
}
"""Groups of endings that one word may have, by language."""
_TURKIC = re.compile(
    "(?:l[ae]r)?(?:[ıiuü]m|[ıiuü]n|[ıiuü]m[ıiuü]z|[ıiuü]n[ıiuü]z|m|n|m[ıiuü]z|n[ıiuü]z|s?[ıiuü])?"
    "(?:n?[dt][ae]n?|n?[ıiuü]n|[yn]?[ıiuüae]|y?l[ae])?(?:ki)?"
)
"""Number, possessor and case of a noun, in this order."""
_SOFTENED = dict(zip("bcçdgğ", "pççtkk", strict=True))
_FEWEST_LETTERS = 3
"""Letters of a stem."""
_PLAIN_STEM, _PLAIN_ENDING = 5, 2
_HANGUL_STEM, _HANGUL_ENDING = 2, 3
"""Syllables of a Korean noun, and of the particles after it."""
_UMLAUTS = str.maketrans("äöü", "aou")
_GREEK_ACCENTS = dict.fromkeys(map(ord, "\u0301\u0344"))
_OTHER_HAN = "\U00020000-\U000323af"
_JOINED = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a"
    "\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u0df3\u0f3e-\u0f7e"
    "\u200c\u200d\u00ad\u2060"
)
"""Marks inside words that are no letters for regular expressions."""
_UNSPACED = re.compile(f"[{UNSPACED}{_OTHER_HAN}]")
_PIECE = re.compile(rf"[{UNSPACED}{_OTHER_HAN}]|(?:[^\W{UNSPACED}{_OTHER_HAN}]|[{_JOINED}])+|\S")
"""Character of a script without spaces, word, or mark."""
_UNSEEN = re.compile("[\u00ad\u2060]")
_MARKUP = re.compile(r"</?[A-Za-z!][^<>]*>|&(?:[A-Za-z]+|#\d+|#x[\da-fA-F]+);")
_Keys = frozenset[str]


@dataclass(frozen=True, slots=True)
class Term:
    """Source term and the translations that are allowed, the preferred one first."""

    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """Term in a text."""

    term: Term
    start: int
    end: int
    text: str
    """The term as the text has it."""


def read_terms(path: Path | None) -> tuple[Term, ...]:
    """Read terms from UTF-8 with a tab between source term, target term and an optional note.

    Rows with the same source term are its translations. Blank lines are skipped. Raises DataError
    with the line of a row that is no term, and for a file without one; None has no terms.
    """
    if path is None:
        return ()
    content = b"".join(read_chunks(require_file(path))).removeprefix(b"\xef\xbb\xbf")
    rows: list[tuple[str, str]] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        place = f"{path}: line {number}"
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise DataError(f"{place} is not UTF-8; convert it with iconv") from None
        if not text.strip(" "):
            continue
        cells = text.split("\t")
        if not 2 <= len(cells) <= 3:
            count = f"{len(cells)} column{'s' * (len(cells) > 1)}"
            raise DataError(f"{place} has {count}; write source term, tab, target term")
        rows.append(_check_row(cells[0], cells[1], place))
    if not rows:
        raise DataError(f"{path}: has no term; write source term, tab, target term in each line")
    return _join_rows(rows)


def as_terms(
    pairs: Mapping[str, str | Sequence[str]] | Iterable[Sequence[str]], name: str = "glossary"
) -> tuple[Term, ...]:
    """Return terms given as a mapping, or as pairs of source and target term.

    A mapping may have a list of translations. Raises DataError for a row that is no term.
    """
    rows: list[tuple[str, str]] = []
    given: Iterable[Any] = pairs
    if isinstance(pairs, Mapping):
        given = (
            (source, target)
            for source, targets in pairs.items()
            for target in (targets if isinstance(targets, list | tuple) else [targets])
        )
    for number, pair in enumerate(given, start=1):
        place = f"{name}: row {number}"
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not (is_pair and all(isinstance(term, str) for term in pair)):
            raise DataError(f"{place} is no pair of a source term and a target term")
        rows.append(_check_row(pair[0], pair[1], place))
    return _join_rows(rows)


def _join_rows(rows: Iterable[tuple[str, str]]) -> tuple[Term, ...]:
    targets: dict[str, dict[str, None]] = {}
    for source, target in rows:
        targets.setdefault(source, {})[target] = None
    return tuple(Term(source, tuple(of_source)) for source, of_source in targets.items())


def _check_row(source: str, target: str, place: str) -> tuple[str, str]:
    """Return both terms with single spaces; raise DataError for a term that cannot be one."""
    terms = []
    for side, cell in (("source", source), ("target", target)):
        term = " ".join(cell.split())
        name = f"{place}: the {side} term"
        if not term:
            raise DataError(f"{name} is empty")
        bad = [c for c in cell if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}]
        if bad:
            raise DataError(f"{name} has the control character U+{ord(bad[0]):04X}; delete it")
        if len(term) > LONGEST:
            raise DataError(f"{name} has {len(term)} characters, at most {LONGEST} are possible")
        if markup := _MARKUP.search(term):
            raise DataError(f"{name} has the markup `{markup[0]}`; write text alone")
        if copied := [part for part in copied_parts(term) if any(map(str.isalnum, part))]:
            raise DataError(
                f"{name} has `{copied[0]}`, an address or placeholder, which comes through "
                "unchanged; leave it out"
            )
        if not any(map(str.isalpha, term)):
            raise DataError(f"{name} `{term}` has no letter; numbers and marks need no term")
        terms.append(term)
    return terms[0], terms[1]


@functools.lru_cache(maxsize=1 << 16)
def _fold(piece: str, language: str) -> str:
    """Return a word without case, in one form of its characters."""
    folded = in_lower_case(_UNSEEN.sub("", piece), language)
    folded = unicodedata.normalize("NFKC", folded).casefold()
    if language == "el":
        folded = unicodedata.normalize("NFD", folded).translate(_GREEK_ACCENTS)
    return "'" if folded == "’" else folded


@functools.lru_cache(maxsize=1 << 16)
def _find_keys(word: str, language: str, *, is_term: bool) -> _Keys:
    """Return a key for each stem that a folded word may have; forms of a word share one."""
    if not all(c.isalpha() or unicodedata.category(c)[0] == "M" for c in word):
        return frozenset({word})
    return frozenset({word, *_list_stems(word, language, is_term=is_term)})


def _list_stems(word: str, language: str, *, is_term: bool) -> Iterator[str]:
    length, ends = len(word), range(0)
    if "\uac00" <= word[0] <= "\ud7a3":
        ends = range(max(_HANGUL_STEM, length - _HANGUL_ENDING), length)
    elif language in {"tr", "az"}:
        for end in range(_FEWEST_LETTERS - 1, length + 1):
            if _TURKIC.fullmatch(word, end):
                yield word[: end - 1] + _SOFTENED.get(word[end - 1], word[end - 1]) + "-"
    elif language not in _ENDINGS:
        ends = range(max(_PLAIN_STEM, length - _PLAIN_ENDING), length)
    yield from () if is_term else (word[:end] for end in ends)
    for group, endings in enumerate(_ENDINGS.get(language, ())):
        for ending in endings:
            stem = word[: length - len(ending)]
            if len(stem) >= _FEWEST_LETTERS and word.endswith(ending):
                yield f"{stem}-{group}"
                if language == "de" and ending in {"e", "er", "en", "ern"}:
                    yield f"{stem.translate(_UMLAUTS)}-{group}"


class _Pieces:
    """Pieces of a text, and their keys where they are asked for."""

    def __init__(self, text: str, language: str, *, is_term: bool = False) -> None:
        self.spans = [piece.span() for piece in _PIECE.finditer(text)]
        self.words = [text[start:end] for start, end in self.spans]
        self.folded = [_fold(word, language) for word in self.words]
        self._language, self._is_term = language, is_term
        self._keys: dict[int, _Keys] = {}

    def __len__(self) -> int:
        return len(self.words)

    def keys(self, index: int) -> _Keys:
        """Return the keys of a piece."""
        if index not in self._keys:
            word = self.folded[index]
            self._keys[index] = _find_keys(word, self._language, is_term=self._is_term)
        return self._keys[index]

    def compare(self, text: "_Pieces", first: int) -> int | None:
        """Return how these pieces stand in a text from a place on.

        0: as they are written, 1: in other case, 2: in another form; None: they do not.
        """
        last = first + len(self.words)
        if first < 0 or last > len(text.words):
            return None
        worst = 0
        for index, (word, other) in enumerate(zip(self.words, text.words[first:last], strict=True)):
            if word == other:
                continue
            rank = 1
            if self.folded[index] != text.folded[first + index]:
                if self.keys(index).isdisjoint(text.keys(first + index)):
                    return None
                rank = 2
            is_name = word[1:] != word[1:].lower()
            if is_name and not (other.startswith(word) or (other.isupper() and len(other) > 1)):
                return None
            worst = max(worst, rank)
        return worst


@functools.lru_cache(maxsize=1 << 12)
def _split_term(term: str, language: str) -> _Pieces:
    return _Pieces(term, language, is_term=True)


@dataclass(frozen=True, slots=True)
class TermCounts:
    """Terms that are in the sources of some translations, and in these."""

    matched: int = 0
    """Terms of the sources, each as often as it occurs."""
    used: int = 0
    """Terms of these that the translations have as the glossary does."""
    inflected: int = 0
    """Terms that they have in another form."""

    def as_text(self) -> str:
        """Return the share of the terms that are used in one line."""
        if not self.matched:
            return "terms: none is in the sources"
        found = self.used + self.inflected
        share = f"{100 * found / self.matched:.1f} %"
        return (
            f"terms: {found} of {self.matched} used ({share}), {self.inflected} of them inflected"
        )


@dataclass(frozen=True)
class _Index:
    """Places at which terms may be found."""

    by_text: dict[str, list[int]] = field(default_factory=dict)
    """Terms of scripts without spaces, by their text."""
    lengths: dict[str, set[int]] = field(default_factory=dict)
    """Numbers of pieces of these terms, by their first character."""
    by_key: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Other terms and the place in them of their rarest word, by its keys."""


@dataclass(frozen=True, eq=False)
class Glossary:
    """Terms of a direction, to be found in source texts and checked in translations."""

    terms: tuple[Term, ...]
    direction: Direction

    @property
    def _source(self) -> str:
        return base_language(self.direction.source)

    @property
    def _target(self) -> str:
        return base_language(self.direction.target)

    @cached_property
    def _split(self) -> list[_Pieces]:
        return [_Pieces(term.source, self._source, is_term=True) for term in self.terms]

    @cached_property
    def _index(self) -> _Index:
        index = _Index()
        counts = Counter(word for pieces in self._split for word in {*pieces.folded})
        for number, pieces in enumerate(self._split):
            if all(map(_UNSPACED.match, pieces.words)):
                index.by_text.setdefault("".join(pieces.folded), []).append(number)
                index.lengths.setdefault(pieces.folded[0], set()).add(len(pieces))
                continue
            rarest = min(range(len(pieces)), key=lambda place: counts[pieces.folded[place]])
            for key in pieces.keys(rarest):
                index.by_key.setdefault(key, []).append((number, rarest))
        return index

    def find(self, text: str) -> list[Match]:
        """Return the terms in a text, in order: the longest at each place, without overlaps.

        Of several at one place, the one that is written as in the text goes first, then the first
        row. A term is not found inside a number, an address or a placeholder.
        """
        pieces = _Pieces(text, self._source)
        found = [*self._find_unspaced(pieces), *self._find_words(pieces)]
        if not found:
            return []
        copied = verbatim_spans(text)
        matches: list[Match] = []
        end = 0
        for first, count, _, number in sorted(found, key=lambda row: (row[0], -row[1], *row[2:])):
            start, stop = pieces.spans[first][0], pieces.spans[first + count - 1][1]
            is_inside = any(
                a < stop and start < b and not start <= a < b <= stop for a, b in copied
            )
            is_inside = is_inside or (start, stop) in copied
            # Vowel signs belong to the letter before them.
            is_cut = stop < len(text) and unicodedata.category(text[stop])[0] == "M"
            if start >= end and not is_inside and not is_cut:
                matches.append(Match(self.terms[number], start, stop, text[start:stop]))
                end = stop
        return matches

    def _find_unspaced(self, pieces: _Pieces) -> Iterator[tuple[int, int, int, int]]:
        """Yield first piece, number of pieces, rank and number of each term."""
        for first, folded in enumerate(pieces.folded):
            for count in self._index.lengths.get(folded, ()):
                if first + count > len(pieces):
                    continue
                text = "".join(pieces.folded[first : first + count])
                for number in self._index.by_text.get(text, ()):
                    rank = self._split[number].compare(pieces, first)
                    if rank is not None:
                        yield first, count, rank, number

    def _find_words(self, pieces: _Pieces) -> Iterator[tuple[int, int, int, int]]:
        for place in range(len(pieces)):
            candidates = {
                candidate
                for key in pieces.keys(place)
                for candidate in self._index.by_key.get(key, ())
            }
            for number, rarest in candidates:
                rank = self._split[number].compare(pieces, place - rarest)
                if rank is not None:
                    yield place - rarest, len(self._split[number]), rank, number

    def locate(self, matches: Sequence[Match], translation: str) -> list[tuple[Span, bool] | None]:
        """Return the place in a translation of a target term of each match.

        The second value is True for another form of the term; None: the translation lacks it. No
        two matches share a place.
        """
        pieces = _Pieces(translation, self._target)
        taken: set[int] = set()
        places: list[tuple[Span, bool] | None] = [None] * len(matches)
        for is_other in (False, True):
            for index, match in enumerate(matches):
                if places[index] is None:
                    span = self._take(match.term, pieces, taken, is_other=is_other)
                    places[index] = span and (span, is_other)
        return places

    def count(self, sources: Iterable[str], translations: Iterable[str]) -> TermCounts:
        """Count the terms of sources that their translations have."""
        places = [
            place
            for source, translation in zip(sources, translations, strict=True)
            for place in self.locate(self.find(source), translation)
        ]
        forms = [is_other for _, is_other in filter(None, places)]
        return TermCounts(len(places), forms.count(False), forms.count(True))

    def _take(self, term: Term, pieces: _Pieces, taken: set[int], *, is_other: bool) -> Span | None:
        for target in term.targets:
            wanted = _split_term(target, self._target)
            for first in range(len(pieces) - len(wanted) + 1):
                place = range(first, first + len(wanted))
                rank = wanted.compare(pieces, first)
                if rank is not None and (rank == 2) == is_other and taken.isdisjoint(place):
                    taken.update(place)
                    return pieces.spans[first][0], pieces.spans[place[-1]][1]
        return None

    def write_target(self, match: Match, *, is_first: bool = False) -> str:
        """Return the preferred target term of a match in the case that its place asks for.

        It is in capitals if the text is and the term is not. It begins with a capital if it
        `is_first` in its sentence, or if the text does and the source term does not.
        """
        target, language = match.term.targets[0], self.direction.target
        source = match.term.source
        if _is_in_capitals(match.text) and not _is_in_capitals(source):
            return in_upper_case(target, language)
        is_name = target[1:] != target[1:].lower()
        if not is_name and (is_first or (match.text[0].isupper() and source[0].islower())):
            return in_upper_case(target[0], language) + target[1:]
        return target

    def split(self, translation: str) -> list[Span]:
        """Return the places of the words, marks and characters without spaces of a translation."""
        return _Pieces(translation, self._target).spans


def _is_in_capitals(text: str) -> bool:
    return text.isupper() and sum(map(str.isalpha, text)) > 1
