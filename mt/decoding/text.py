"""Text processing around an engine: invalid characters, long lines, prefixes, repetition."""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat, zip_longest

from mt.data.tokenizer import Tokenizer
from mt.errors import UserError
from mt.special_ids import UNK

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Python's `surrogateescape` keeps bytes that are not UTF-8 as U+DC80 to U+DCFF.
_BYTE = re.compile("[\udc80-\udcff]")
_OTHER_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_MOST_NAMED = 10


def repair_unicode(line: str) -> tuple[str, tuple[str, ...]]:
    """Return a line that UTF-8 can encode, and notes on the changes.

    Lone surrogates, and invalid bytes kept by `surrogateescape`, become U+FFFD.
    """
    if _SURROGATE.search(line) is None:
        return line, ()
    notes = []
    if _OTHER_SURROGATE.search(line):
        line = _OTHER_SURROGATE.sub(_REPLACEMENT, line)
        notes.append("lone surrogates are read as U+FFFD")
    if _BYTE.search(line):
        # Bytes that begin a character together become one U+FFFD, as in any UTF-8 decoder.
        line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        notes.append("bytes that are not UTF-8 are read as U+FFFD")
    return line, tuple(notes)


def unknown_characters(line: str, tokenizer: Tokenizer) -> list[str]:
    """Return the characters of a line that the source vocabulary lacks, in order."""
    characters = list(dict.fromkeys(line))
    encoded = tokenizer.encode_source(characters)
    return [character for character, ids in zip(characters, encoded, strict=True) if UNK in ids]


def name_characters(characters: list[str]) -> str:
    """Format characters for a message: visible ones in backquotes, and all code points."""
    names = [
        f"`{character}` (U+{ord(character):04X})"
        if character.isprintable() and not character.isspace()
        else f"U+{ord(character):04X}"
        for character in characters[:_MOST_NAMED]
    ]
    more = len(characters) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


CountTokens = Callable[[Sequence[str]], list[int]]
"""Return the number of tokens of each text, including EOS."""


def split_line(line: str, longest: int, *, count_tokens: CountTokens) -> list[str]:
    """Split a line into parts of at most `longest` tokens, including EOS.

    Lines are cut at sentence ends, then clause ends, then spaces, then between characters.
    Neighbouring segments are joined as long as they fit. White space at the cuts is dropped. Only a
    single character that has more than `longest` tokens exceeds the limit.
    """
    splitter = _Splitter(longest, count_tokens)
    return [part for part in map(str.strip, splitter.split(line, _CUTS)) if part]


class _Splitter:
    def __init__(self, longest: int, count_tokens: CountTokens) -> None:
        self.longest = longest
        self.count_tokens = count_tokens

    def split(self, text: str, cuts: Sequence[re.Pattern[str]]) -> Iterator[str]:
        """Yield the parts of a text: cut by the first of `cuts`, long segments by the next ones."""
        if not cuts:
            yield from self._between_characters(text)
            return
        ends = [match.end() for match in cuts[0].finditer(text) if _is_cut(match)]
        segments = [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
        for part in self._pack(list(filter(None, segments))):
            if self.fits(part):
                yield part
            else:
                yield from self.split(part, cuts[1:])

    def fits(self, text: str) -> bool:
        return self.count_tokens([text.strip()])[0] <= self.longest

    def _pack(self, segments: list[str]) -> Iterator[str]:
        """Join neighbours as long as they fit; a segment that is too long stays alone."""
        # EOS counts once. The sum over the segments is only an estimate, because tokens may reach
        # across a cut: the count of the joined text decides.
        sizes = [size - 1 for size in self.count_tokens([text.strip() for text in segments])]
        start = 0
        while start < len(segments):
            sums = accumulate(sizes[start : start + self.longest], initial=1)
            end = start + max(1, sum(total <= self.longest for total in sums) - 1)
            while end > start + 1 and not self.fits("".join(segments[start:end])):
                end -= 1
            while end < len(segments) and self.fits("".join(segments[start : end + 1])):
                end += 1
            yield "".join(segments[start:end])
            start = end

    def _between_characters(self, text: str) -> Iterator[str]:
        while text:
            length = self._fitting_length(text)
            yield text[:length]
            text = text[length:]

    def _fitting_length(self, text: str) -> int:
        """Return the number of characters that fit, at least one; keep combining marks attached."""
        fitting = 1
        while 2 * fitting <= len(text) and self.fits(text[: 2 * fitting]):
            fitting *= 2
        longer = range(fitting + 1, min(2 * fitting, len(text) + 1))
        fitting += bisect_left(longer, True, key=lambda length: not self.fits(text[:length]))
        whole = fitting
        while whole > 1 and unicodedata.category(text[whole : whole + 1] or " ").startswith("M"):
            whole -= 1
        return whole if whole > 1 else fitting


_CLOSING = r"""["'”’»›)\]}）］｝】」』》〉〕]*+"""
_SPACED_END = "[.!?…؟۔।॥]"
_SPACED_CLAUSE_END = "[,;:،؛]"
# A match begins at the start of a run of marks and never backtracks (`++`): retrying each mark and
# length of a run without a space after it would take quadratic time.
_SENTENCE_END = re.compile(
    rf"[。！？｡]++{_CLOSING}\s*+|(?<!{_SPACED_END})(?P<spaced>{_SPACED_END}++){_CLOSING}\s++"
)
_CLAUSE_END = re.compile(
    rf"[，；：、]++{_CLOSING}\s*+|(?<!{_SPACED_CLAUSE_END}){_SPACED_CLAUSE_END}++{_CLOSING}\s++"
)
_SPACE = re.compile(r"\s+")
_NO_SENTENCE_BEFORE_POINT = re.compile(r"\W*(\w|\d{1,2}|\S*\w\.\w\S*)")
"""An initial, an ordinal (3. Mai), or an abbreviation with a point inside (z.B., e.g.)."""


_CUTS = (_SENTENCE_END, _CLAUSE_END, _SPACE)


def _is_cut(match: re.Match[str]) -> bool:
    """Return False for a point that does not end a sentence."""
    if match.re is not _SENTENCE_END or match["spaced"] != ".":
        return True
    text = match.string
    before = text[max(0, match.start() - 40) : match.start()].split()
    after = text[match.end() : match.end() + 1]
    return not after.islower() and not (before and _NO_SENTENCE_BEFORE_POINT.fullmatch(before[-1]))


@dataclass(frozen=True, slots=True)
class Prefix:
    """Forced beginning of a translation."""

    ids: tuple[int, ...] = ()
    """Target tokens; empty: nothing is forced."""
    notes: tuple[str, ...] = ()
    """Notes for the user on changes to the prefix."""


def pair_with_prefixes(
    lines: Iterable[str], prefixes: Iterable[str] | None
) -> Iterator[tuple[str, str]]:
    """Pair each line with its prefix, or with an empty one without `prefixes`.

    Raises UserError if their numbers differ: at once if both have a length, otherwise at the end
    of the shorter one.
    """
    if prefixes is None:
        return zip(lines, repeat(""), strict=False)
    if isinstance(lines, Sized) and isinstance(prefixes, Sized) and len(lines) != len(prefixes):
        raise UserError(f"{len(lines)} lines, but {len(prefixes)} prefixes: {_ONE_EACH}")
    return _pairs(lines, prefixes)


_ONE_EACH = "each line has one, which may be empty"


def _pairs(lines: Iterable[str], prefixes: Iterable[str]) -> Iterator[tuple[str, str]]:
    for number, (line, prefix) in enumerate(zip_longest(lines, prefixes)):
        if line is None:
            raise UserError(f"{number} lines, but at least {number + 1} prefixes: {_ONE_EACH}")
        if prefix is None:
            raise UserError(f"at least {number + 1} lines, but {number} prefixes: {_ONE_EACH}")
        yield line, prefix


def encode_prefixes(texts: Sequence[str], tokenizer: Tokenizer) -> list[Prefix]:
    """Return the target tokens of each prefix, encoded as a text of its own.

    White space at the end is dropped, because the first token of the next word includes the space
    before it. A prefix ends before the first character unknown to the tokenizer, which cannot be
    generated.
    """
    if not any(texts):
        return [Prefix()] * len(texts)
    repaired = [repair_unicode(text) for text in texts]
    encoded = tokenizer.encode_target([text.rstrip() for text, _ in repaired])
    prefixes = []
    for (text, changes), ids in zip(repaired, encoded, strict=True):
        notes = [f"prefix: {change}" for change in changes]
        if UNK in ids:
            unknown = name_characters([_first_unknown(text.rstrip(), tokenizer)])
            notes.append(f"prefix: ends before {unknown}, unknown to the tokenizer")
            known = tokenizer.decode_target(ids[: ids.index(UNK)])
            [ids] = tokenizer.encode_target([known.rstrip()])
        prefixes.append(Prefix(tuple(ids[:-1]), tuple(notes)))
    return prefixes


def _first_unknown(text: str, tokenizer: Tokenizer) -> str:
    """Return the first character of `text` that is unknown to the target vocabulary.

    The length of the known text does not give its place: `tokenizer.normalization` may change
    lengths.
    """
    encode, ends = tokenizer.encode_target, range(1, len(text))
    return text[bisect_left(ends, True, key=lambda end: UNK in encode([text[:end]])[0])]


BLOCKED_NGRAM = 3
"""`no_repeat_ngram` of the second search for a translation that repeats itself."""
_COPIES = 4
_FEWEST_TOKENS = 8
_LONGEST_PERIOD = 50
_DISTINCT_SHARE = 1 / 3


def repeats_itself(
    translation: Sequence[int], source: Sequence[int], *, finished: bool = True
) -> bool:
    """Return True if a translation, in tokens, is a loop of the search.

    A loop repeats a sequence of tokens at least four times in a row, over at least eight tokens. An
    unfinished translation is also a loop if two of three tokens are repetitions. A source that
    repeats itself at least half as much excuses both.
    """
    repetition = longest_repetition(translation)
    if repetition >= _FEWEST_TOKENS and repetition > 2 * longest_repetition(source):
        return True
    if finished or len(translation) < _FEWEST_TOKENS:
        return False
    share = _distinct_share(translation)
    return share < _DISTINCT_SHARE and 2 * share < _distinct_share(source)


def longest_repetition(tokens: Sequence[int]) -> int:
    """Return the length of the longest stretch of at least four copies of one sequence, or 0.

    An incomplete last copy counts.
    """
    if len(tokens) - len(set(tokens)) < _COPIES - 1:
        return 0
    longest = 0
    for period in range(1, min(len(tokens) // _COPIES, _LONGEST_PERIOD) + 1):
        equal = 0
        for token, earlier in zip(tokens[period:], tokens, strict=False):
            equal = equal + 1 if token == earlier else 0
            if equal >= (_COPIES - 1) * period:
                longest = max(longest, equal + period)
    return longest


def _distinct_share(tokens: Sequence[int]) -> float:
    return len(set(tokens)) / max(1, len(tokens))
