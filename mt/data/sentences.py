"""Sentences of a line, found by the rules of sentencex for the language."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache

import sentencex

from mt.data.verbatim import without_copied
from mt.languages import FINAL_MARKS, base_language
from mt.runs import LineShape

_FEWEST_LETTERS = 2
"""Letters of a sentence before a full stop: `M.`, `5.` and `...` belong to a neighbour."""

_FINAL_MARK = re.compile(rf"[{FINAL_MARKS}][\"'”’»)\]）」』]*$")
_UNMARKED_SHARE = 0.01
"""Share of the sentences without a final mark from which on a text often lacks it."""
_WORD = re.compile(r"[^\W\d_]+")
_START_SHARE = 0.001
_LOWER_TIMES = 50
"""Least ratio of lower case to upper case inside sentences, for a word that is no name."""
_NEVER = 0.1
"""Count of a word that does not occur in upper case."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of a line and the white space around them; in turn they give the line again."""

    texts: tuple[str, ...]
    gaps: tuple[str, ...]
    """White space before each sentence, and after the last."""

    def without(self, left_out: Set[str]) -> "Sentences":
        """Return the sentences with some of them moved into the gaps."""
        if not left_out:
            return self
        texts: list[str] = []
        gaps = [self.gaps[0]]
        for text, gap in zip(self.texts, self.gaps[1:], strict=True):
            if text in left_out:
                gaps[-1] += text + gap
            else:
                texts.append(text)
                gaps.append(gap)
        return Sentences(tuple(texts), tuple(gaps))


def split_sentences(line: str, language: str, starts: tuple[str, ...] = ()) -> Sentences:
    """Split a line into its sentences; a blank line has none.

    Languages without rules in sentencex are split as English. A piece with too few letters, such
    as the number of a list, belongs to the next sentence. A sentence also begins with a word of
    `starts` that follows a word in lower case without a mark.
    """
    segments = sentencex.segment(base_language(language), line)
    pieces = _join_short(segments) if len(segments) > 1 else [line]
    if starts:
        pieces = [part for piece in pieces for part in _split_unmarked(piece, starts)]
    if len(pieces) == 1:
        return whole_line(pieces[0])
    texts: list[str] = []
    gaps = [""]
    for sentence in map(whole_line, pieces):
        texts += sentence.texts
        gaps[-1] += sentence.gaps[0]
        gaps += sentence.gaps[1:]
    return Sentences(tuple(texts), tuple(gaps))


def _join_short(segments: Sequence[str]) -> list[str]:
    """Join segments with too few letters with the next one, or at the end with the last."""
    pieces: list[str] = []
    begun: list[str] = []
    letters = 0
    for segment in segments:
        begun.append(segment)
        letters += sum(map(str.isalpha, segment))
        if letters >= (_FEWEST_LETTERS if segment.rstrip().endswith(".") else 1):
            pieces.append("".join(begun))
            begun, letters = [], 0
    pieces[-1:] = ["".join([*pieces[-1:], *begun])]
    return pieces


def _split_unmarked(piece: str, starts: tuple[str, ...]) -> Iterator[str]:
    """Split a piece before words of `starts` that follow a word in lower case."""
    begin = 0
    for before in _compile_starts(starts).finditer(piece):
        if before[0][0].islower():
            yield piece[begin : before.end()]
            begin = before.end()
    yield piece[begin:]


@cache
def _compile_starts(starts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b\w++(?=\s+(?:{'|'.join(map(re.escape, starts))})\s)")


def whole_line(line: str, *, keep_space: bool = False) -> Sentences:
    """Return a line as one sentence, or none if it is blank.

    With `keep_space`, the white space around it is a part of the sentence.
    """
    text = line.strip()
    if not text:
        return Sentences((), ("" if keep_space else line,))
    if keep_space:
        return Sentences((line,), ("", ""))
    before, _, after = line.partition(text)
    return Sentences((text,), (before, after))


def words_of(text: str) -> list[str]:
    """Return the runs of letters of a text outside its copied parts."""
    return _WORD.findall(without_copied(text))


def is_in_capitals(words: Sequence[str]) -> bool:
    """Test for words of capitals that all have another form in lower case."""
    letters = "".join(words)
    return letters.isupper() and not any(letter == letter.lower() for letter in letters)


def ends_with_mark(text: str) -> bool:
    """Test for a mark at the end of a sentence, before closing marks."""
    return _FINAL_MARK.search(text) is not None


def line_shape(lines: Sequence[str], language: str) -> LineShape:
    """Return the shape of lines, without the blank ones.

    The words that begin a sentence are sought only if lines often lack a final mark: frequent
    first words that elsewhere are in lower case.
    """
    split = [split_sentences(line, language).texts for line in lines]
    texts = [text for sentences in split for text in sentences]
    mean = len(texts) / max(1, sum(map(bool, split))) if texts else 1.0
    capitals = sum(is_in_capitals(words_of(text)) for text in texts) / max(1, len(texts))
    if sum(not ends_with_mark(text) for text in texts) < _UNMARKED_SHARE * len(texts):
        return LineShape(mean, capitals=capitals)
    firsts, others = Counter[str](), Counter[str]()
    for text in texts:
        first, *rest = text.split()
        firsts[first] += 1
        others.update(rest)
    starts = [
        word
        for word, count in firsts.items()
        if word != word.lower()
        and count >= _START_SHARE * len(texts)
        and others[word.lower()] >= _LOWER_TIMES * max(others[word], _NEVER)
    ]
    return LineShape(mean, tuple(sorted(starts)), capitals)
