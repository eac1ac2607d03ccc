"""Given translations: of terms, by a glossary, and of whole texts, by a translation memory.

A term is found as whole words, in the forms that its row lists. It is also found in capitals, and
with a capital at the start of a sentence.
"""

import logging
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import add
from pathlib import Path

from mt.config.data import Direction
from mt.data.corpus_files import COMPRESSED, LineReader
from mt.data.exchange_formats import UnitPairs, join_lines, read_tmx
from mt.data.normalization import normalize_source
from mt.data.pairs import UNVERIFIED, Checksums
from mt.data.placeholders import TaggedText
from mt.data.sentences import starts_sentence
from mt.data.verbatim import copied_parts, copied_spans
from mt.data.words import WORD, find_inner_places
from mt.errors import DataError, UserError
from mt.files import require_file
from mt.languages import in_upper_case, is_language
from mt.tables import clip, make_printable

_logger = logging.getLogger(__name__)
_NO_TEXT = re.compile(
    r"</?[A-Za-z!][^<>]*>|&(?:[A-Za-z]+|#\d+|#x[\da-fA-F]+);"
    "|[\0-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Markup, a control character, or an invisible one."""
_LETTER = re.compile(r"[^\W\d_]")
_SAME_LETTERS = str.maketrans({"’": "'", "\u2010": "-", "\u2011": "-", "\u00ad": None})
_HEADERS = {"source", "target", "term", "translation"}
_WRITTEN, _CAPITALS, _CAPITAL = range(3)
"""Cases of a term in a text: as in its row, in capitals, or with one at the start of a sentence."""


@dataclass(frozen=True, slots=True)
class Term:
    """A form of a source term and the translations that are allowed, the preferred one first."""

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

    `|` separates the forms of a term. Rows with the same source term are its translations. Blank
    lines are skipped, and with a warning a first line with the names of the columns. Raises
    DataError that lists all rows that are no terms, or for a file without one; None has no terms.
    """
    if path is None:
        return ()
    lines = enumerate(LineReader(require_file(path)), start=1)
    rows = [(f"line {at}", line.split("\t")) for at, line in lines if line.strip(" ")]
    if rows and all(
        cell.strip().lower() in _HEADERS or is_language(cell) for cell in rows[0][1][:2]
    ):
        at, header = rows.pop(0)
        _logger.warning("%s: %s has names of columns, not a term: %s", path, at, " ".join(header))
    if not rows:
        raise DataError(f"{path}: has no term; write source term, tab, target term in each line")
    return _check_rows(str(path), rows)


def as_terms(rows: Mapping[str, str]) -> tuple[Term, ...]:
    """Return terms by a mapping of source terms to target terms, both with `|` between forms.

    Raises DataError that lists all rows that are no terms.
    """
    return _check_rows("glossary", [(f"`{make_printable(row[0])}`", row) for row in rows.items()])


def _check_rows(name: str, rows: Iterable[tuple[str, Sequence[str]]]) -> tuple[Term, ...]:
    """Return the terms of rows with single spaces; raise DataError for all other rows."""
    terms: dict[str, dict[str, None]] = {}
    faults = list[str]()
    for place, row in rows:
        left, right, *note = [[" ".join(x.split()) for x in cell.split("|")] for cell in (*row, "")]
        copied = [part for cell in row[:2] for part in copied_parts(cell) if _LETTER.search(part)]
        if odd := [*copied, *_NO_TEXT.findall("\n".join(row[:2]))]:
            no = "leave out markup, placeholders, addresses and control characters"
            faults.append(f"{place} has `{make_printable(odd[0])}`; {no}")
        elif len(note) not in {1, 2} or not all(map(_LETTER.search, left + right)):
            faults.append(f"{place} is not a source term, tab and target term, with letters")
        for index, source in enumerate(left):
            # As many forms on both sides are pairs.
            paired = right[index : index + 1] if len(left) == len(right) else []
            terms.setdefault(source, {}).update(dict.fromkeys([*paired, *right]))
    if faults:
        raise DataError(f"{name}: {'; '.join(faults)}")
    return tuple(Term(source, tuple(targets)) for source, targets in terms.items())


def _split(text: str) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
    """Return the places and the normal forms of words; a space is part of the word behind it."""
    spans = [word.span() for word in WORD.finditer(text)]
    spaces = [" " if start and text[start - 1].isspace() else "" for start, _ in spans]
    forms = [unicodedata.normalize("NFKC", text[a:b]).translate(_SAME_LETTERS) for a, b in spans]
    return spans, tuple(map(add, spaces, forms))


@dataclass(frozen=True, eq=False)
class Glossary:
    """Terms of a direction, to be found in source texts and in translations."""

    terms: tuple[Term, ...]
    direction: Direction

    @cached_property
    def _index(self) -> dict[int, dict[tuple[str, ...], list[tuple[int, int]]]]:
        """Cases and numbers of the terms, by the number of their words and the words."""
        index: dict[int, dict[tuple[str, ...], list[tuple[int, int]]]] = {}
        for number, term in enumerate(self.terms):
            upper = in_upper_case(term.source, self.direction.source)
            spelled = {upper[0] + term.source[1:]: _CAPITAL, term.source: _WRITTEN}
            if sum(map(str.isalpha, term.source)) > 1:
                spelled.setdefault(upper, _CAPITALS)
            for text, case in spelled.items():
                words = _split(text)[1]
                index.setdefault(len(words), {}).setdefault(words, []).append((case, number))
        return index

    def find(self, text: str) -> list[Match]:
        """Return the terms in a text, in order: the longest first, without overlaps.

        Of several at one place, the one that is written as in the text goes first, then the first
        row. A term is not found inside a number, an address or a placeholder.
        """
        spans, words = _split(text) if self.terms else ([], ())
        candidates = list[tuple[int, int, int, int]]()
        for count, table in self._index.items():
            for first in range(len(words) - count + 1):
                key = (words[first].removeprefix(" "), *words[first + 1 : first + count])
                start, end = spans[first][0], spans[first + count - 1][1]
                for case, number in table.get(key, ()):
                    if case != _CAPITAL or starts_sentence(text, start):
                        candidates.append((start - end, start, case, number))
        copied, inner = (copied_spans(text), find_inner_places(text)) if candidates else ([], set())
        matches: list[Match] = []
        for length, start, _, number in sorted(candidates):
            end = start - length
            overlaps = any(start < other.end and other.start < end for other in matches)
            is_inside = any(a < end and start < b and not start <= a < b <= end for a, b in copied)
            if not (overlaps or is_inside or inner & {start, end}):
                matches.append(Match(self.terms[number], start, end, text[start:end]))
        return sorted(matches, key=lambda match: match.start)

    def write_target(self, match: Match, text: str, place: int) -> str:
        """Return the preferred target term of a match in the case of a place in a text.

        It is in capitals if the match is and its term is not. It begins with a capital if the text
        has one there at the start of a sentence, and the term none behind its first letter.
        """
        target = match.term.targets[0]
        upper = partial(in_upper_case, language=self.direction.target)
        if match.text.isupper() and not match.term.source.isupper() and len(match.text) > 1:
            return upper(target)
        is_raised = text[place].isupper() and starts_sentence(text, place)
        return upper(target[0]) + target[1:] if is_raised and target[1:].islower() else target


def read_memory(path: Path, direction: Direction) -> dict[str, str]:
    """Return translations of whole texts from TMX, or from TSV with source, tab and target.

    The key is the normal form of the source; of several targets the last one is taken, and the log
    has their number. Raises UserError for another suffix, DataError for a damaged file or for TMX
    without texts in both languages.
    """
    from mt.data.sources import TsvPairs  # deferred, since it imports Arrow

    targets, replaced = dict[str, str](), dict[str, str]()
    path, sums = require_file(path), Checksums(UNVERIFIED, UNVERIFIED)
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    if plain.suffix.lower() == ".tmx":
        pairs = UnitPairs(sums, path, *direction, read_tmx).read()
    elif plain.suffix.lower() == ".tsv":
        pairs = TsvPairs(sums, path, (0, 1), direction).read()
    else:
        raise UserError(f"{path}: unknown suffix; a translation memory is .tmx or .tsv")
    for pair in pairs:
        source, target = normalize_source(pair.source).strip(), join_lines(pair.target)
        if source and target:
            if targets.get(source, target) != target:
                replaced[source] = targets[source]
            targets[source] = target
    if replaced:
        source, other = next(iter(replaced.items()))
        texts = [clip(make_printable(text), 60) for text in (source, targets[source], other)]
        message = "%s: %d texts have several targets, the last is taken: `%s` is `%s`, not `%s`"
        _logger.warning(message, path, len(replaced), *texts)
    return targets


def find_whole(memory: Mapping[str, str], text: str) -> str | None:
    """Return the target of a text, with the spaces around the text; None without one."""
    is_whole = not isinstance(text, TaggedText)
    target = memory.get(normalize_source(text).strip()) if is_whole else None
    return target and text.replace(text.strip(" \t"), target)
