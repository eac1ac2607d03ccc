"""Glossary: terms with their translations, found in texts of their languages.

Words are compared without case. A word of five letters or more has other forms: the words that
begin with it and are at most two characters longer. They may lack its last vowel if five letters
are before it. Shorter words, words with digits, and characters of scripts without spaces have one
form. A word with a capital after its first letter is a name: it is found as it is written, or in
capitals.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from mt.config.data import Direction
from mt.data.corpus_files import LineReader
from mt.data.verbatim import copied_parts, copied_spans
from mt.errors import DataError
from mt.files import require_file
from mt.languages import UNSPACED, in_lower_case, in_upper_case
from mt.tables import make_printable

Span = tuple[int, int]
"""Start and end of a part of a text, in characters."""
_STEM, _LONGER = 5, 2
"""Fewest letters of a stem, and most characters by which a form is longer than its word."""
_VOWELS = frozenset("aeiouyаеиоуыэюяьіїєαεηιουωაეიოუ")
_SAME, _OTHER_CASE, _OTHER_FORM, _OTHER_WORD = range(4)
_UNSPACED = f"{UNSPACED}\U00020000-\U000323af"
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06ed\u0900-\u0963\u0966-\u0df3\u0f71-\u0f84\u00ad\u200c\u200d"
)
"""Marks inside words that are no letters for regular expressions."""
WORD = re.compile(rf"[{_UNSPACED}]|(?:[^\W{_UNSPACED}]|[{_MARKS}])+|\S")
"""Word, mark, or character of a script without spaces."""
_NO_TEXT = re.compile(
    r"</?[A-Za-z!][^<>]*>|&(?:[A-Za-z]+|#\d+|#x[\da-fA-F]+);"
    "|[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
)
"""Markup, or a control character."""


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
    is_first: bool
    """True if no word of the text is before it."""


def read_terms(path: Path | None) -> tuple[Term, ...]:
    """Read terms from UTF-8 with a tab between source term, target term and an optional note.

    Rows with the same source term are its translations. Blank lines are skipped. Raises DataError
    with the line of a row that is no term, and for a file without one; None has no terms.
    """
    if path is None:
        return ()
    lines = enumerate(LineReader(require_file(path)), start=1)
    rows = [(f"{path}: line {at}", line.split("\t")) for at, line in lines if line.strip(" ")]
    if not rows:
        raise DataError(f"{path}: has no term; write source term, tab, target term in each line")
    return _check_rows(rows)


def as_terms(rows: Mapping[str, str | Sequence[str]]) -> tuple[Term, ...]:
    """Return terms by a mapping of source terms to a target term or several.

    Raises DataError for a row that is no term.
    """
    pairs = [
        (f"glossary: `{make_printable(source)}`", (source, target))
        for source, targets in rows.items()
        for target in ([targets] if isinstance(targets, str) else targets or [""])
    ]
    return _check_rows(pairs)


def _check_rows(rows: Iterable[tuple[str, Sequence[str]]]) -> tuple[Term, ...]:
    """Return the terms of rows with single spaces; raise DataError for any other row."""
    terms: dict[str, dict[str, None]] = {}
    for place, row in rows:
        if not 2 <= len(row) <= 3:
            raise DataError(
                f"{place}: has {len(row) - 1} tabs; write source term, tab, target term, and "
                "perhaps a tab and a note"
            )
        for side, cell in zip(("source", "target"), row, strict=False):
            name = f"{place}: the {side} term"
            copied = [part for part in copied_parts(cell) if any(map(str.isalnum, part))]
            if odd := copied or _NO_TEXT.findall(cell):
                raise DataError(
                    f"{name} has `{make_printable(odd[0])}`; leave out markup, placeholders, "
                    "addresses and control characters"
                )
            if not any(map(str.isalpha, cell)):
                fault = f"`{cell}` has no letter" if cell.strip() else "is empty"
                raise DataError(f"{name} {fault}; numbers and marks alone need no row")
        source, target = (" ".join(cell.split()) for cell in row[:2])
        terms.setdefault(source, {})[target] = None
    return tuple(Term(source, tuple(targets)) for source, targets in terms.items())


class _Piece(NamedTuple):
    """Word, mark, or character of a script without spaces."""

    start: int
    end: int
    text: str
    folded: str
    """The text without case, in one form of its characters."""


def _split(text: str, language: str) -> list[_Piece]:
    return [
        _Piece(*piece.span(), piece[0], _fold(piece[0], language)) for piece in WORD.finditer(text)
    ]


@functools.lru_cache(maxsize=1 << 16)
def _fold(piece: str, language: str) -> str:
    lower = unicodedata.normalize("NFKC", in_lower_case(piece, language)).casefold()
    return unicodedata.normalize("NFC", lower).replace("\u00ad", "").replace("’", "'") or piece


@functools.lru_cache(maxsize=1 << 17)
def _find_stem(word: str) -> str | None:
    """Return the start that the forms of a folded word have; None if it has one form.

    Accents are no letters, and a syllable of Korean has two or three.
    """
    letters = unicodedata.normalize("NFD", word)
    if not all(c.isalpha() or unicodedata.category(c)[0] == "M" for c in letters):
        return None
    count = sum(not unicodedata.combining(c) for c in letters)
    last = unicodedata.normalize("NFD", word[-1])[0]
    is_vowel = last in _VOWELS or unicodedata.category(last)[0] == "M"
    if is_vowel and count > _STEM:
        return word[:-1]
    return word if count >= _STEM else None


@functools.lru_cache(maxsize=1 << 16)
def _find_start(word: str) -> str:
    """Return a beginning that the forms of a folded word have in common."""
    letters = unicodedata.normalize("NFD", word)
    start = "".join(c for c in letters if not unicodedata.combining(c))[:_STEM]
    return start if _find_stem(word) else word


def _compare(word: _Piece, other: _Piece) -> int:
    """Return how a word of a text differs from one of a term: not, in case, in form, altogether."""
    if word.text == other.text:
        return _SAME
    stem, most = _find_stem(word.folded), len(word.folded) + _LONGER
    is_near = stem is not None and other.folded.startswith(stem) and len(other.folded) <= most
    is_form = is_near and _find_stem(other.folded) is not None
    if word.folded != other.folded and not is_form:
        return _OTHER_WORD
    is_name = word.text[1:] != word.text[1:].lower()
    if is_name and not other.text.isupper():
        return _OTHER_WORD
    return _OTHER_CASE if word.folded == other.folded else _OTHER_FORM


@dataclass(frozen=True, eq=False)
class Glossary:
    """Terms of a direction, to be found in source texts and checked in translations."""

    terms: tuple[Term, ...]
    direction: Direction

    @functools.cached_property
    def _index(self) -> dict[int, dict[tuple[str, ...], list[tuple[int, list[_Piece]]]]]:
        """Numbers and words of the terms, by the number of their words and the starts of these."""
        index: dict[int, dict[tuple[str, ...], list[tuple[int, list[_Piece]]]]] = {}
        for number, term in enumerate(self.terms):
            words = _split(term.source, self.direction.source)
            table = index.setdefault(len(words), {})
            starts = tuple(_find_start(word.folded) for word in words)
            table.setdefault(starts, []).append((number, words))
        return index

    def find(self, text: str) -> list[Match]:
        """Return the terms in a text, in order: the longest first, without overlaps.

        Of several at one place, the one that is written as in the text goes first, then the first
        row. A term is not found inside a number, an address or a placeholder.
        """
        pieces = _split(text, self.direction.source) if self.terms else []
        starts, candidates = tuple(_find_start(piece.folded) for piece in pieces), []
        for count, table in self._index.items():
            for first in range(len(pieces) - count + 1):
                own = pieces[first : first + count]
                for number, words in table.get(starts[first : first + count], ()):
                    if (rank := max(map(_compare, words, own))) < _OTHER_WORD:
                        start = own[0].start
                        candidates.append((start - own[-1].end, start, rank, number))
        copied = copied_spans(text) if candidates else []
        matches: list[Match] = []
        for length, start, _, number in sorted(candidates):
            end = start - length
            overlaps = any(start < other.end and other.start < end for other in matches)
            is_inside = any(a < end and start < b and not start <= a < b <= end for a, b in copied)
            # Vowel signs belong to the letter before them.
            is_cut = unicodedata.category(text[end : end + 1] or " ")[0] == "M"
            if not (overlaps or is_inside or is_cut):
                is_first = not any(map(str.isalnum, text[:start]))
                matches.append(Match(self.terms[number], start, end, text[start:end], is_first))
        return sorted(matches, key=lambda match: match.start)

    def locate(self, matches: Sequence[Match], translation: str) -> list[tuple[Span, bool] | None]:
        """Return the place in a translation of a target term of each match.

        The second value is True for another form of the term; None: the translation lacks it. No
        two matches share a place.
        """
        pieces = _split(translation, self.direction.target) if matches else []
        places: list[tuple[Span, bool] | None] = [None] * len(matches)
        taken: set[int] = set()
        for worst, index in product((_OTHER_CASE, _OTHER_FORM), range(len(matches))):
            if places[index]:
                continue
            targets = matches[index].term.targets
            runs = (
                range(first, first + len(words))
                for words in (_split(target, self.direction.target) for target in targets)
                for first in range(len(pieces) - len(words) + 1)
                if max(map(_compare, words, pieces[first:])) <= worst
            )
            run = next(filter(taken.isdisjoint, runs), None)
            if run:
                taken.update(run)
                span = pieces[run[0]].start, pieces[run[-1]].end
                places[index] = span, worst == _OTHER_FORM
        return places

    def write_target(self, match: Match, *, starts_sentence: bool) -> str:
        """Return the preferred target term of a match in the case that its place asks for.

        It is in capitals if the text is and the term is not. It begins with a capital if it starts
        the sentence, or if the text does inside a sentence and the source term does not.
        """
        source, target, language = match.term.source, match.term.targets[0], self.direction.target
        if match.text.isupper() and not source.isupper() and sum(map(str.isalpha, source)) > 1:
            return in_upper_case(target, language)
        is_name = target[1:] != target[1:].lower()
        is_raised = match.text[0].isupper() and source[0].islower() and not match.is_first
        if not is_name and (starts_sentence or is_raised):
            return in_upper_case(target[0], language) + target[1:]
        return target
