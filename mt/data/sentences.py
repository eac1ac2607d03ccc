"""Sentences of a line, found by the rules of sentencex for the language."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sentencex

from mt.languages import base_language

_FEWEST_LETTERS = 2
"""Letters of a sentence before a full stop: `M.`, `5.` and `...` belong to a neighbour."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of a line and the white space around them; in turn they give the line again."""

    texts: tuple[str, ...]
    gaps: tuple[str, ...]
    """White space before each sentence, and after the last."""

    def without(self, is_left_out: Callable[[str], bool]) -> "Sentences":
        """Return the sentences with some of them moved into the gaps."""
        texts: list[str] = []
        gaps = [self.gaps[0]]
        for text, gap in zip(self.texts, self.gaps[1:], strict=True):
            if is_left_out(text):
                gaps[-1] += text + gap
            else:
                texts.append(text)
                gaps.append(gap)
        return Sentences(tuple(texts), tuple(gaps))


def split_sentences(line: str, language: str) -> Sentences:
    """Split a line into its sentences; a blank line has none.

    Languages without rules in sentencex are split as English. A piece with too few letters, such
    as the number of a list, belongs to the next sentence.
    """
    pieces = [""]
    for piece in sentencex.segment(base_language(language), line):
        if _is_sentence(pieces[-1]):
            pieces.append(piece)
        else:
            pieces[-1] += piece
    if len(pieces) > 1 and not _is_sentence(pieces[-1]):
        pieces[-2:] = ["".join(pieces[-2:])]
    texts: list[str] = []
    gaps = [""]
    for found in map(whole_line, pieces):
        texts += found.texts
        gaps[-1] += found.gaps[0]
        gaps += found.gaps[1:]
    return Sentences(tuple(texts), tuple(gaps))


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


def _is_sentence(piece: str) -> bool:
    letters = sum(map(str.isalpha, piece))
    return letters >= (_FEWEST_LETTERS if piece.rstrip().endswith(".") else 1)


def sentences_per_line(lines: Sequence[str], language: str) -> float:
    """Return the mean number of sentences of the lines that are not blank; 1 if all are."""
    counts = [len(split_sentences(line, language).texts) for line in lines]
    written = [count for count in counts if count]
    return sum(written) / len(written) if written else 1.0
