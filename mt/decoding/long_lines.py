"""Splitting a line that is too long for the model, and joining the translations of its parts.

The best cut is a sentence end, then a clause mark, then a space, then any place between two
characters; a worse one is used only inside a stretch that the better ones leave too long.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from mt.languages import written_without_spaces

CountPieces = Callable[[Sequence[str]], list[int]]
"""Returns the number of pieces of each text, end mark included."""


def joiner(language: str) -> str:
    """Return what stands between two sentences in a language: a space, or nothing."""
    return "" if written_without_spaces(language) else " "


def split_line(line: str, longest: int, *, count_pieces: CountPieces) -> list[str]:
    """Cut a line into parts of at most `longest` pieces each, end mark included.

    Neighbours at the same kind of cut are packed together as far as they fit. White space at the
    cuts is dropped, all else is in exactly one part, in order. Only a single character that takes
    more pieces than `longest` by itself is longer.
    """
    splitter = _Splitter(longest, count_pieces)
    return [part for part in map(str.strip, splitter.split(line, _CUTS)) if part]


class _Splitter:
    """What every level of cutting needs: the limit, and the measure."""

    def __init__(self, longest: int, count_pieces: CountPieces) -> None:
        self.longest = longest
        self.count_pieces = count_pieces

    def split(self, text: str, cuts: Sequence["FindCuts"]) -> Iterator[str]:
        """Yield the parts of a text, cut by the first of `cuts`, where need be by the next ones."""
        if not cuts:
            yield from self._between_characters(text)
            return
        for part in self._pack(_segments(text, cuts[0])):
            if self.fits(part):
                yield part
            else:
                yield from self.split(part, cuts[1:])

    def fits(self, text: str) -> bool:
        """Say whether a text is short enough."""
        return self.count_pieces([text.strip()])[0] <= self.longest

    def _pack(self, segments: list[str]) -> Iterator[str]:
        """Join neighbours as far as they fit; a segment too long by itself stays alone."""
        # The end mark counts once. The sum over the segments is near the truth, but not it:
        # pieces may reach across a border, so the count of the joined text decides.
        sizes = [size - 1 for size in self.count_pieces([text.strip() for text in segments])]
        start = 0
        while start < len(segments):
            sums = itertools.accumulate(sizes[start : start + self.longest], initial=1)
            end = start + max(1, sum(total <= self.longest for total in sums) - 1)
            while end > start + 1 and not self.fits("".join(segments[start:end])):
                end -= 1
            while end < len(segments) and self.fits("".join(segments[start : end + 1])):
                end += 1
            yield "".join(segments[start:end])
            start = end

    def _between_characters(self, text: str) -> Iterator[str]:
        while text:
            length = self._longest_beginning(text)
            yield text[:length]
            text = text[length:]

    def _longest_beginning(self, text: str) -> int:
        """Return how many characters fit, at least one; a letter keeps its combining marks."""
        fitting, beyond = 1, 2
        while beyond <= len(text) and self.fits(text[:beyond]):
            fitting, beyond = beyond, 2 * beyond
        beyond = min(beyond, len(text) + 1)
        while beyond - fitting > 1:
            middle = (fitting + beyond) // 2
            if self.fits(text[:middle]):
                fitting = middle
            else:
                beyond = middle
        whole = fitting
        while whole > 1 and _belongs_to_the_one_before(text[whole : whole + 1]):
            whole -= 1
        return whole if whole > 1 else fitting


def _belongs_to_the_one_before(character: str) -> bool:
    return character != "" and unicodedata.category(character).startswith("M")


FindCuts = Callable[[str], Iterator[int]]
"""Yields the places in a text where a segment ends and the next begins, rising."""

_CLOSING = r"""["'”’»›)\]}）］｝】」』》〉〕]*+"""
_SPACED_END = "[.!?…؟۔।॥]"
_SPACED_CLAUSE_END = "[,;:،؛]"
# A match begins where a run of marks does, and never gives back what it took (`++`): tried again
# from each mark and for each length, a run without a space after it takes quadratic time.
_SENTENCE_END = re.compile(
    rf"[。！？｡]++{_CLOSING}\s*+|(?<!{_SPACED_END})(?P<spaced>{_SPACED_END}++){_CLOSING}\s++"
)
_CLAUSE_END = re.compile(
    rf"[，；：、]++{_CLOSING}\s*+|(?<!{_SPACED_CLAUSE_END}){_SPACED_CLAUSE_END}++{_CLOSING}\s++"
)
_SPACE = re.compile(r"\s+")
_NO_SENTENCE_BEFORE_POINT = re.compile(r"\W*(\w|\d{1,2}|\S*\w\.\w\S*)")
"""An initial, an ordinal (3. Mai), or an abbreviation with a point inside (z.B., e.g.)."""


def _sentence_ends(text: str) -> Iterator[int]:
    for match in _SENTENCE_END.finditer(text):
        if match["spaced"] != "." or _point_ends_sentence(text, match):
            yield match.end()


def _point_ends_sentence(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - 40) : match.start()].split()
    after = text[match.end() : match.end() + 1]
    return not after.islower() and not (before and _NO_SENTENCE_BEFORE_POINT.fullmatch(before[-1]))


def _clause_ends(text: str) -> Iterator[int]:
    return (match.end() for match in _CLAUSE_END.finditer(text))


def _spaces(text: str) -> Iterator[int]:
    return (match.end() for match in _SPACE.finditer(text))


_CUTS: tuple[FindCuts, ...] = (_sentence_ends, _clause_ends, _spaces)


def _segments(text: str, find_cuts: FindCuts) -> list[str]:
    places = [0, *find_cuts(text), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places) if start < end]
