"""Lines as the input of an engine: sentences, capitals, prefixes, parts of long sentences."""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise, repeat, zip_longest

from mt.config import DecodingConfig
from mt.config.data import Direction
from mt.data.normalization import MARKS, split_by_form
from mt.data.sentences import (
    Sentences,
    ends_sentence,
    is_in_capitals,
    split_sentences,
    whole_line,
    words_of,
)
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import change_words, copied_spans, inner_spans
from mt.errors import UserError
from mt.languages import base_language, in_lower_case, in_upper_case, joiner_of, script_of
from mt.runs import UNKNOWN_SHAPE, LineShape
from mt.special_ids import UNK

_WORD = re.compile(r"[^\W\d_]+")
_ALWAYS_CAPITAL = {"en": re.compile(r"\bi\b")}
"""Words in lower case that are written in capitals."""
_NO_WORD = re.compile("(?!)")
_INVISIBLE = re.compile(f"[{MARKS}]+")
_USUAL_CAPITALS = 0.1
"""Share of the training sentences in capitals from which on a model has learned them."""


@dataclass(frozen=True, slots=True)
class SearchInput:
    """Input of the engine for a sentence, or for a part of a long sentence."""

    text: str
    ids: Sequence[int]
    """Source tokens, EOS last."""
    prefix: tuple[int, ...] = ()
    """Forced beginning of the translation."""
    from_capitals: bool = False
    """True if the sentence is in capitals; `text` is in lower case."""


@dataclass(frozen=True, slots=True)
class PreparedLine:
    """Line as the engine receives it."""

    line: str
    text: str
    """The line with its invalid characters replaced."""
    sentences: tuple[str, ...]
    inputs: list[SearchInput]
    gaps: list[str]
    """Text of the translation before each input and after the last: white space, and sentences
    without words.
    """
    notes: tuple[str, ...]
    cut: str
    """Note on a sentence that is translated in parts, or empty."""
    is_foreign: bool
    """True if a sentence is not translated because most of its letters are unknown."""
    unknown: list[str]
    """Characters unknown to the tokenizer."""


@dataclass(frozen=True, slots=True)
class _Line:
    line: str
    text: str
    notes: tuple[str, ...]
    sentences: Sentences
    texts: tuple[str, ...]
    """The sentences; those in capitals in lower case."""
    is_foreign: bool


@dataclass(frozen=True, slots=True)
class Prefix:
    """Forced beginning of a translation."""

    ids: tuple[int, ...] = ()
    """Target tokens; empty: nothing is forced."""
    notes: tuple[str, ...] = ()
    """Notes for the user on changes to the prefix."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Division of lines into inputs of the engine."""

    tokenizer: Tokenizer
    decoding: DecodingConfig
    longest_source: int
    """Largest number of tokens of an input, including EOS."""
    direction: Direction
    splits_sentences: bool
    shape: LineShape

    def prepare(self, window: Sequence[tuple[str, str]]) -> list[PreparedLine]:
        """Repair lines, split them into sentences, and encode these and the prefixes."""
        lines = [self._read(line, prefix) for line, prefix in window]
        texts = [*chain.from_iterable(line.texts for line in lines)]
        encoded = iter(self.tokenizer.encode_source(texts))
        prefixes = encode_prefixes([prefix for _, prefix in window], self.tokenizer)
        return [
            self._prepared(line, prefix, list(islice(encoded, len(line.texts))))
            for line, prefix in zip(lines, prefixes, strict=True)
        ]

    def _read(self, line: str, prefix: str) -> _Line:
        text, notes = repair_unicode(line)
        sentences = self._sentences(text, repair_unicode(prefix)[0])
        if self.decoding.repair == "off" or prefix:
            return _Line(line, text, notes, sentences, sentences.texts, is_foreign=False)
        head = sentences.texts[:1]
        sentences = sentences.divide(lambda text: inner_spans(text, is_first=(text,) == head))
        words = {text: words_of(text) for text in sentences.texts}
        foreign = {text for text in words if self._is_foreign(words[text])}
        kept = {text: [(0, len(text))] for text in words if words[text] and text not in foreign}
        sentences = sentences.divide(lambda text: kept.get(text, []))
        texts = tuple([self._read_capitals(text, words[text]) for text in sentences.texts])
        return _Line(line, text, notes, sentences, texts, bool(foreign))

    def _is_foreign(self, words: Sequence[str]) -> bool:
        """Test for words most letters of which are of scripts that the vocabulary lacks."""
        letters, vocabulary = "".join(words), self.tokenizer.source
        known = vocabulary.characters
        if known.issuperset(letters):
            return False
        forms = {
            letter: {letter, letter.lower(), *unicodedata.normalize("NFKD", letter)}
            for letter in letters
            if script_of(letter) not in vocabulary.scripts
        }
        foreign = {letter for letter, variants in forms.items() if known.isdisjoint(variants)}
        return 2 * sum(letter in foreign for letter in letters) > len(letters)

    def _sentences(self, text: str, prefix: str) -> Sentences:
        """Return the sentences of a line; its prefix must not go beyond the first."""
        form = self.tokenizer.normalize_source(text)
        forced = split_sentences(prefix, self.direction.target).texts if prefix else ()
        if self.splits_sentences and len(forced) < 2:
            sentences = split_sentences(form, self.direction.source, self.shape)
        else:
            sentences = whole_line(form, keep_space=self.decoding.split_sentences == "off")
        if form == text:
            return sentences
        return _cut(text, split_by_form(text, self.tokenizer.normalize_source), sentences)

    def _read_capitals(self, text: str, words: Sequence[str]) -> str:
        """Return a sentence in lower case if it is in capitals, and these are the exception.

        A single word, which may be an abbreviation, stays, and so do letters that the tokenizer has
        as capitals alone.
        """
        if len(words) < 2 or not is_in_capitals(words) or self.shape.capitals >= _USUAL_CAPITALS:
            return text
        lowered = self._lowered(text)
        known = self.tokenizer.source.characters
        return lowered if known.issuperset("".join(words_of(lowered)).lower()) else text

    def _lowered(self, text: str) -> str:
        """Return a sentence in lower case, its first letter and words such as `I` excepted."""
        language = base_language(self.direction.source)
        always = _ALWAYS_CAPITAL.get(language, _NO_WORD)
        is_first = True

        def lower(piece: str) -> str:
            nonlocal is_first
            piece = always.sub(lambda word: word[0].upper(), in_lower_case(piece, language))
            first = _WORD.search(piece) if is_first else None
            if first is None:
                return piece
            is_first = False
            letter = in_upper_case(piece[first.start()], language)
            return piece[: first.start()] + letter + piece[first.start() + 1 :]

        return change_words(text, lower)

    def _prepared(self, line: _Line, prefix: Prefix, encoded: list[list[int]]) -> PreparedLine:
        """Return a line with its inputs and the white space of its translation.

        The usual gap between sentences of the source language becomes that of the target language.
        """
        usual, joiner = joiner_of(self.direction.source), joiner_of(self.direction.target)
        repairs = self.decoding.repair == "on" and not prefix.ids
        inputs: list[SearchInput] = []
        gaps: list[str] = []
        cut = copied = ""
        all_gaps: Iterable[str] = line.sentences.gaps
        if self.tokenizer.source.is_normal:
            all_gaps = map(_visible_gap, all_gaps)
        *before, after = all_gaps
        rows = zip(line.sentences.texts, line.texts, encoded, before, strict=True)
        for index, (sentence, text, ids, gap) in enumerate(rows):
            parts = [(text, ids)]
            if len(ids) > self.longest_source:
                splitter = LineSplitter(
                    self.longest_source, self._count_tokens, self.shape, repairs
                )
                texts = splitter.split(text)
                parts = [*zip(texts, self.tokenizer.encode_source(texts), strict=True)]
                cut = f"{len(ids)} tokens, the model supports up to {self.longest_source}: "
                cut += f"translated in {len(parts)} parts"
            if index and usual != joiner and (gap == usual or (usual and _is_other_space(gap))):
                gap = joiner
            for part, tokens in parts:
                if repairs and not words_of(part):  # an address without a place to cut it
                    copied += gap + part
                    gap = " "
                    continue
                gaps.append(copied + gap)
                copied, gap = "", joiner
                forced = () if inputs else prefix.ids
                inputs.append(SearchInput(part, tokens, forced, from_capitals=text != sentence))
        if prefix.ids:
            gaps[:1] = [""] if inputs else []  # the translation begins with its prefix
        has_unknown = line.is_foreign or any(UNK in part.ids for part in inputs)
        return PreparedLine(
            line=line.line,
            text=line.text,
            sentences=line.sentences.texts,
            inputs=inputs,
            gaps=[*map(in_one_line, [*gaps, copied + after])],
            notes=line.notes + prefix.notes,
            cut=cut,
            is_foreign=line.is_foreign,
            unknown=unknown_characters(line.text, self.tokenizer) if has_unknown else [],
        )

    def _count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer.encode_source(texts)]


def _cut(line: str, parts: Iterable[tuple[str, str]], sentences: Sentences) -> Sentences:
    """Return the sentences of a line, cut as those of its normal form.

    `parts` of the line and the form are from `split_by_form`. Invisible marks between sentences are
    in the gaps.
    """
    spans: list[tuple[int, int]] = []
    place = end = position = 0
    for part, form in parts:
        spans += [(place, place + len(part))] * len(form)
        place += len(part)
    texts, gaps = [], []
    for gap, text in zip(sentences.gaps, sentences.texts, strict=False):
        start, stop = spans[position + len(gap)][0], spans[position + len(gap + text) - 1][1]
        if start < end:  # in one part with the sentence before
            return whole_line(line)
        gaps.append(line[end:start])
        texts.append(line[start:stop])
        end, position = stop, position + len(gap + text)
    return Sentences(tuple(texts), (*gaps, line[end:]))


def _marks_end(text: str, start: int) -> int:
    """Return the end of a run of marks."""
    return next((i for i in range(start, len(text)) if text[i].isalnum()), len(text))


def _visible_gap(gap: str) -> str:
    """Return a gap without invisible marks, unless it has a text."""
    visible = _INVISIBLE.sub("", gap) if gap else gap
    return gap if visible.strip() else visible


def _is_other_space(gap: str) -> bool:
    return not gap.isascii() and {*map(unicodedata.category, gap)} == {"Zs"}


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


def in_one_line(text: str) -> str:
    """Return a text with a space in place of each line end."""
    return text.replace("\r\n", " ").replace("\r", " ").replace("\n", " ")


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


@dataclass(frozen=True, slots=True)
class LineSplitter:
    """Division of a line into parts of at most `longest` tokens, including EOS.

    Lines are cut at sentence ends, then clause ends, then spaces, then between characters.
    Neighbouring segments are joined as long as they fit. White space at the cuts is dropped. Only a
    single character that has more than `longest` tokens exceeds the limit, and with `keep_copied` a
    long address, which is a part by itself.
    """

    longest: int
    count_tokens: CountTokens
    shape: LineShape = UNKNOWN_SHAPE
    keep_copied: bool = False

    def split(self, line: str) -> list[str]:
        """Return the parts of a line."""
        return [part for part in map(str.strip, self._split(line, _CUTS)) if part]

    def _split(self, text: str, cuts: Sequence[re.Pattern[str]]) -> Iterator[str]:
        """Yield the parts of a text: cut by the first of `cuts`, long segments by the next ones."""
        if not cuts:
            yield from self._between_characters(text)
            return
        ends = [match.end() for match in cuts[0].finditer(text)]
        if cuts[0] is _SENTENCE_END:
            ends = [end for end in ends if ends_sentence(text, end, self.shape)]
        segments = [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
        for part in self._pack(list(filter(None, segments))):
            if self._fits(part):
                yield part
            else:
                yield from self._split(part, cuts[1:])

    def _fits(self, text: str) -> bool:
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
            while end > start + 1 and not self._fits("".join(segments[start:end])):
                end -= 1
            while end < len(segments) and self._fits("".join(segments[start : end + 1])):
                end += 1
            yield "".join(segments[start:end])
            start = end

    def _between_characters(self, text: str) -> Iterator[str]:
        while text:
            length = self._fitting_length(text)
            for start, end in copied_spans(text) if self.keep_copied else ():
                if start < length < end:
                    is_first = not words_of(text[:start])
                    length = _marks_end(text, end) if is_first else start
                    break
            yield text[:length]
            text = text[length:]

    def _fitting_length(self, text: str) -> int:
        """Return the number of characters that fit, at least one; keep combining marks attached."""
        fitting = 1
        while 2 * fitting <= len(text) and self._fits(text[: 2 * fitting]):
            fitting *= 2
        longer = range(fitting + 1, min(2 * fitting, len(text) + 1))
        fitting += bisect_left(longer, True, key=lambda length: not self._fits(text[:length]))
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
_CUTS = (_SENTENCE_END, _CLAUSE_END, _SPACE)


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
    for count, (line, prefix) in enumerate(zip_longest(lines, prefixes)):
        if line is None:
            raise UserError(f"{count} lines, but at least {count + 1} prefixes: {_ONE_EACH}")
        if prefix is None:
            raise UserError(f"at least {count + 1} lines, but {count} prefixes: {_ONE_EACH}")
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
    first = len(tokenizer.target_prefix)

    def encode(lines: Sequence[str]) -> list[list[int]]:
        return [ids[first:] for ids in tokenizer.encode_target(lines)]

    encoded = encode([text.rstrip() for text, _ in repaired])
    prefixes = []
    for (text, changes), ids in zip(repaired, encoded, strict=True):
        notes = [f"prefix: {change}" for change in changes]
        if UNK in ids:
            unknown = name_characters([_first_unknown(text.rstrip(), tokenizer)])
            notes.append(f"prefix: ends before {unknown}, unknown to the tokenizer")
            known = tokenizer.decode_target(ids[: ids.index(UNK)])
            [ids] = encode([known.rstrip()])
        prefixes.append(Prefix(tuple(ids[:-1]), tuple(notes)))
    return prefixes


def _first_unknown(text: str, tokenizer: Tokenizer) -> str:
    """Return the first character of `text` that is unknown to the target vocabulary.

    The length of the known text does not give its place, because normalization changes lengths.
    """
    encode, ends = tokenizer.encode_target, range(1, len(text))
    return text[bisect_left(ends, True, key=lambda end: UNK in encode([text[:end]])[0])]
