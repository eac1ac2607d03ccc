"""Sentences of a line: the cuts of sentencex, less those inside a sentence of the corpus."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import sentencex

from mt.data.verbatim import without_copied
from mt.languages import FINAL_MARKS, LETTERS, base_language
from mt.runs import UNKNOWN_STATISTICS, LineStatistics

_FEWEST_LETTERS = 3
"""Letters of a sentence before a full stop: `M.`, `Dr.` and `5.` belong to a neighbour."""
_OPENING = string.whitespace + '"([«»„“”¿¡-–—'
_BEFORE_SENTENCE = " \t\"'«»„“”‘’‹›「『（([{¿¡-–—*#>•"
_BEFORE_TOKEN, _INSIDE_TOKEN = re.compile(r"[\s\"(\[{«„“‘]"), re.compile(r"[/.–-]")
_ORDINAL = re.compile(r"(?:\d{1,3}\.[/–-]?)*(?:\d{1,3}|[IVX]{2,}\b)")
_ITEM = re.compile(r"\s*\d{1,3}[.)]\s")
_RUN_ON = re.compile(r"(\w*)[.!?…]$")
_FEWEST_PLACES, _INNER_SHARE = 3, 0.6
_FEWEST_NUMBERS, _ORDINAL_SHARE = 20, 0.1
"""Least number of places of numbers, and least share inside sentences where ordinals are such."""
_COUNTED_LINES = 1000
FINAL_MARK = re.compile(rf"[{FINAL_MARKS}][\"'”’»)\]）」』]*$")
"""Mark at the end of a sentence, before closing marks."""
_UNMARKED_SHARE = 0.01
"""Share of the sentences without a final mark from which on a text often lacks it."""
_START_SHARE = 0.01
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

    def divide(self, find_spans: Callable[[str], list[tuple[int, int]]]) -> "Sentences":
        """Return the parts of each sentence in the spans found, with the rest in the gaps."""
        texts, gaps = [], [""]
        for gap, text in zip(self.gaps, self.texts, strict=False):
            end = 0
            gaps[-1] += gap
            for first, last in find_spans(text):
                gaps[-1] += text[end:first]
                texts.append(text[first:last])
                gaps.append("")
                end = last
            gaps[-1] += text[end:]
        gaps[-1] += self.gaps[-1]
        return Sentences(tuple(texts), tuple(gaps))


def split_sentences(
    line: str, language: str, shape: LineStatistics = UNKNOWN_STATISTICS
) -> Sentences:
    """Split a line into its sentences; a blank line has none.

    Languages without rules in sentencex are split as English. Of its cuts, those count where
    `ends_sentence` is true. A piece with few letters, such as a title, or with none, such as the
    number of a list, belongs to the next sentence. A sentence also begins with a word of
    `shape.starts` that follows a word in lower case without a mark.
    """
    cuts, letters, end, before = [0], 0, 0, ""
    for segment in sentencex.segment(base_language(language), line):
        fewest = _FEWEST_LETTERS if before.rstrip().endswith(".") else 1
        if letters >= fewest and ends_sentence(line, end, shape):
            cuts.append(end)
            letters = 0
        letters += sum(map(str.isalpha, segment))
        end, before = end + len(segment), segment
    if letters == 0:
        cuts[1:] = cuts[1:-1]
    pieces = [line[start:stop] for start, stop in pairwise([*cuts, len(line)])]
    if shape.starts:
        starts = "|".join(map(re.escape, shape.starts))
        before_start = rf"\b\w++(?=\s+(?:{starts})\s)"
        whole, pieces = pieces, []
        for piece in whole:
            words = re.finditer(before_start, piece)
            ends = [word.end() for word in words if word[0][0].islower()]
            pieces += [piece[start:stop] for start, stop in pairwise([0, *ends, len(piece)])]
    texts: list[str] = []
    gaps = [""]
    for sentence in map(whole_line, pieces):
        texts += sentence.texts
        gaps[-1] += sentence.gaps[0]
        gaps += sentence.gaps[1:]
    return Sentences(tuple(texts), tuple(gaps))


def ends_sentence(text: str, end: int, shape: LineStatistics = UNKNOWN_STATISTICS) -> bool:
    """Return False for a place behind a mark and its white space where the sentence continues.

    It continues before a small letter, unless the corpus begins sentences so; without white space
    between letters that have capitals, unless these are as in `it.The`; and behind a full stop
    before a number that is no item of a list, or after a single letter, a word of `shape.inner`, or
    a number that may be an ordinal.
    """
    before, after = text[max(0, end - 60) : end], text[end : end + 20].lstrip(_OPENING)
    if _is_small(after[:1]):
        return shape.small > 1 / 2
    run_on = _RUN_ON.search(before)
    if run_on and _has_capital(run_on[1][-1:] + after[:1]):
        next_two = text[end : end + 2]
        return _is_small(run_on[1][:1]) and next_two[:1].isupper() and _is_small(next_two[1:])
    before = before.rstrip()
    if not before.endswith("."):
        return True
    if _ORDINAL.match(after) and not (_ITEM.match(text) and _ITEM.match(after)):
        return False
    word = _word_before_point(before)
    inner, places = shape.inner.get(word, (word == "0", 1))
    if word == "0":
        return inner < _ORDINAL_SHARE * places
    return not inner and not (len(word) == 1 and _has_capital(word))


def starts_sentence(text: str, place: int) -> bool:
    """Test for a place at the start of a sentence, where a capital says nothing."""
    before = text[:place].rstrip(_BEFORE_SENTENCE)
    return not before or before[-1] in f":\n{FINAL_MARKS}"


def _word_before_point(text: str) -> str:
    """Return the word at the end of a text, before a full stop; `0` for possible ordinals."""
    token = _BEFORE_TOKEN.split(text[:-1])[-1]
    return "0" if _ORDINAL.fullmatch(token) else _INSIDE_TOKEN.split(token)[-1]


def _is_small(letter: str) -> bool:
    """Test for a letter that is another at the start of a sentence; no Georgian one is."""
    return letter != letter.title()


def _has_capital(letters: str) -> bool:
    return letters.lower() != letters.title()


def _inner_words(lines: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the words with a full stop that are mostly inside of lines, before a capital or digit.

    The values are these places and all. The numbers, `0`, are there if they have enough places.
    Kiss and Strunk (2006), "Unsupervised Multilingual Sentence Boundary Detection".
    """
    inner, places = Counter[str](), Counter[str]()
    for line in lines:
        words = line.split() if "." in line[:-1] else line.rsplit(None, 1)[-1:]
        for text, following in pairwise([*words, ""]):
            if text.endswith(".") and (word := _word_before_point(text)):
                places[word] += 1
                inner[word] += following[:1].isalnum() and not _is_small(following[:1])
    return {
        word: (inner[word], count)
        for word, count in places.most_common()
        if (inner[word] >= max(_FEWEST_PLACES, _INNER_SHARE * count))
        or (word == "0" and count >= _FEWEST_NUMBERS)
    }


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
    return LETTERS.findall(without_copied(text))


def is_in_capitals(words: Sequence[str]) -> bool:
    """Test for words of capitals that all have another form in lower case."""
    letters = "".join(words)
    return letters.isupper() and not any(letter == letter.lower() for letter in letters)


def line_shape(lines: Sequence[str], language: str) -> LineStatistics:
    """Return the shape of lines, without the blank ones.

    The words that begin a sentence are sought only if lines often lack a final mark: frequent
    first words that elsewhere are in lower case. Words inside sentences are sought only in lines of
    single sentences.
    """
    counted = lines[:: max(1, len(lines) // _COUNTED_LINES)]
    split = [split_sentences(line, language).texts for line in counted]
    texts = [text for sentences in split for text in sentences]
    mean = len(texts) / max(1, sum(map(bool, split))) if texts else 1.0
    capitals = sum(is_in_capitals(words_of(text)) for text in texts) / max(1, len(texts))
    small = sum(_is_small(text[:1]) for text in texts) / max(1, len(texts))
    shape = LineStatistics(mean, capitals=capitals, small=small)
    if shape.is_of_single_sentences:
        shape = replace(shape, inner=_inner_words(lines))
    if sum(not FINAL_MARK.search(text) for text in texts) < _UNMARKED_SHARE * len(texts):
        return shape
    firsts, inner = Counter[str](), Counter[str]()
    for text in texts:
        first, *rest = text.split()
        firsts[first] += 1
        inner.update(rest)
    starts = [
        word
        for word, count in firsts.items()
        if word != word.lower()
        and count >= _START_SHARE * len(texts)
        and inner[word.lower()] >= _LOWER_TIMES * max(inner[word], _NEVER)
    ]
    return replace(shape, starts=tuple(sorted(starts)))
