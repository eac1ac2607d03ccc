"""Lines as the input of an engine: sentences, capitals, prefixes, parts of long sentences."""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise, zip_longest
from operator import add

from mt.config import DecodingConfig
from mt.config.data import Direction
from mt.data.normalization import INVISIBLE, split_by_form
from mt.data.sentences import Sentences, is_in_capitals, split_sentences, whole_line, words_of
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import change_words, copied_spans, inner_spans
from mt.errors import UserError
from mt.languages import LETTERS, base_language, in_lower_case, in_upper_case, joiner_of, script_of
from mt.runs import UNKNOWN_STATISTICS, LineStatistics
from mt.special_ids import UNK

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
    shape: LineStatistics

    def prepare(self, window: Sequence[tuple[str, str]]) -> list[PreparedLine]:
        """Repair lines, split them into sentences, and encode these and the prefixes."""
        lines = [self._split(line, prefix) for line, prefix in window]
        texts = [*chain.from_iterable(line.texts for line in lines)]
        encoded = iter(self.tokenizer.encode_source(texts))
        prefixes = encode_prefixes([prefix for _, prefix in window], self.tokenizer)
        return [
            self._assemble(line, prefix, list(islice(encoded, len(line.texts))))
            for line, prefix in zip(lines, prefixes, strict=True)
        ]

    def _split(self, line: str, prefix: str) -> _Line:
        """Return the sentences of a line, and what is translated of each.

        The translation of a line is not split where its prefix has several sentences.
        """
        text, notes = repair_unicode(line)
        form = self.tokenizer.normalize_source(text)
        begun = split_sentences(repair_unicode(prefix)[0], self.direction.target).texts
        if self.splits_sentences and len(begun) < 2:
            sentences = split_sentences(form, self.direction.source, self.shape)
        else:
            sentences = whole_line(form, keep_space=self.decoding.split_sentences == "off")
        if form != text:
            parts = split_by_form(text, self.tokenizer.normalize_source)
            sentences = _cut(text, parts, sentences)
        if self.decoding.repair == "off" or prefix:
            return _Line(line, text, notes, sentences, sentences.texts, is_foreign=False)
        first = sentences.texts[:1]
        sentences = sentences.divide(lambda text: inner_spans(text, is_first=(text,) == first))
        words = {text: words_of(text) for text in sentences.texts}
        foreign = {text for text in words if self._is_foreign(words[text])}
        spans = {text: [(0, len(text))] for text in words if words[text] and text not in foreign}
        sentences = sentences.divide(lambda text: spans.get(text, []))
        texts = tuple([self._lower_capitals(text, words[text]) for text in sentences.texts])
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

    def _lower_capitals(self, text: str, words: Sequence[str]) -> str:
        """Return a sentence in lower case if it is in capitals, and these are the exception.

        Its first letter and the English `I` are not changed, nor is a single word, which may be an
        abbreviation, nor a sentence with letters that the tokenizer has as capitals alone.
        """
        if len(words) < 2 or not is_in_capitals(words) or self.shape.capitals >= _USUAL_CAPITALS:
            return text
        language = base_language(self.direction.source)
        is_first = True

        def lower(piece: str) -> str:
            nonlocal is_first
            piece = in_lower_case(piece, language)
            if language == "en":
                piece = re.sub(r"\bi\b", "I", piece)
            first = LETTERS.search(piece) if is_first else None
            if first is None:
                return piece
            is_first = False
            letter = in_upper_case(piece[first.start()], language)
            return piece[: first.start()] + letter + piece[first.start() + 1 :]

        lowered = change_words(text, lower)
        known = self.tokenizer.source.characters
        return lowered if known.issuperset("".join(words_of(lowered)).lower()) else text

    def _assemble(self, line: _Line, prefix: Prefix, encoded: list[list[int]]) -> PreparedLine:
        """Return a line with its inputs and the white space of its translation.

        The usual gap between sentences of the source language becomes that of the target language.
        """
        language, encode = self.direction.source, self.tokenizer.encode_source
        usual, joiner = joiner_of(language), joiner_of(self.direction.target)
        repairs = self.decoding.repair == "on" and not prefix.ids
        splitter = LineSplitter(
            self.longest_source,
            lambda texts: [*map(len, encode(texts))],
            language,
            self.shape,
            keep_copied=repairs,
        )
        inputs: list[SearchInput] = []
        gaps: list[str] = []
        cut = copied = ""
        all_gaps = [*line.sentences.gaps]
        if self.tokenizer.source.is_normal:  # without invisible marks in gaps that have no text
            visible = [INVISIBLE.sub("", gap) for gap in all_gaps]
            all_gaps = [g if v.strip() else v for g, v in zip(all_gaps, visible, strict=True)]
        *before, after = all_gaps
        rows = zip(line.sentences.texts, line.texts, encoded, before, strict=True)
        for index, (sentence, text, ids, gap) in enumerate(rows):
            parts = [(text, ids)]
            if len(ids) > self.longest_source:
                texts = splitter.split(text)
                parts = [*zip(texts, encode(texts), strict=True)]
                cut = f"translated in parts: {len(parts)} of {len(ids)} tokens, the model supports "
                cut += f"up to {self.longest_source}"
            is_space = not gap.isascii() and {*map(unicodedata.category, gap)} == {"Zs"}
            if index and usual != joiner and (gap == usual or (usual and is_space)):
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


_OTHER_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_MOST_NAMED = 10


def repair_unicode(line: str) -> tuple[str, tuple[str, ...]]:
    """Return a line that UTF-8 can encode, and notes on the changes.

    Lone surrogates, and invalid bytes kept by `surrogateescape`, become U+FFFD.
    """
    with suppress(UnicodeEncodeError):
        line.encode()
        return line, ()
    notes = []
    text = _OTHER_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", line)
    if text != line:
        notes.append("lone surrogates are read as U+FFFD")
    # Bytes that begin a character together become one U+FFFD, as in any UTF-8 decoder.
    repaired = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if repaired != text:
        notes.append("bytes that are not UTF-8 are read as U+FFFD")
    return repaired, tuple(notes)


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


@dataclass(frozen=True, slots=True)
class LineSplitter:
    """Division of a line into parts of at most `longest` tokens, including EOS.

    Lines are cut at sentence ends, then clause ends, then spaces, then between characters.
    Neighbouring segments are joined as long as they fit. White space at the cuts is dropped. Only a
    single character that has more than `longest` tokens exceeds the limit, and with `keep_copied` a
    long address, which is a part by itself.
    """

    longest: int
    count_tokens: Callable[[Sequence[str]], list[int]]
    """Return the number of tokens of each text, including EOS."""
    language: str
    shape: LineStatistics = UNKNOWN_STATISTICS
    keep_copied: bool = False

    def split(self, line: str) -> list[str]:
        """Return the parts of a line."""
        sentences = split_sentences(line, self.language, self.shape)
        ends = accumulate(map(len, map(add, sentences.gaps, sentences.texts)))
        parts = self._join_fitting(line, ends, _CUTS)
        return [part for part in map(str.strip, parts) if part]

    def _join_fitting(
        self, text: str, ends: Iterable[int], cuts: Sequence[re.Pattern[str]]
    ) -> Iterator[str]:
        """Yield parts of a text up to `ends`, joined while they fit; cut long ones by `cuts`."""
        segments = [
            text[start:end] for start, end in pairwise([0, *ends, len(text)]) if start < end
        ]
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
            part = "".join(segments[start:end])
            if self._fits(part):
                yield part
            elif cuts:
                ends = [match.end() for match in cuts[0].finditer(part)]
                yield from self._join_fitting(part, ends, cuts[1:])
            else:
                yield from self._cut_between_characters(part)
            start = end

    def _fits(self, text: str) -> bool:
        return self.count_tokens([text.strip()])[0] <= self.longest

    def _cut_between_characters(self, text: str) -> Iterator[str]:
        while text:
            length = self._fitting_length(text)
            for start, end in copied_spans(text) if self.keep_copied else ():
                if start < length < end:
                    if words_of(text[:start]):
                        length = start
                    else:  # with the marks behind it
                        rest = range(end, len(text))
                        length = next((at for at in rest if text[at].isalnum()), len(text))
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
# A match begins at the start of a run of marks and never backtracks (`++`): retrying each mark and
# length of a run without a space after it would take quadratic time.
_CLAUSE_END = re.compile(rf"[，；：、]++{_CLOSING}\s*+|(?<![,;:،؛])[,;:،؛]++{_CLOSING}\s++")
_CUTS = (_CLAUSE_END, re.compile(r"\s+"))


def pair_with_prefixes(
    lines: Iterable[str], prefixes: Iterable[str] | None
) -> Iterator[tuple[str, str]]:
    """Yield each line with its prefix, or ""; raise UserError if one side ends before the other."""
    for count, (line, prefix) in enumerate(zip_longest(lines, prefixes or ())):
        if line is None or (prefix is None and prefixes is not None):
            more, fewer = ("prefixes", "lines") if line is None else ("lines", "prefixes")
            raise UserError(f"{count} {fewer} and more {more}: each line has one, may be empty")
        yield line, prefix or ""


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
            # The length of the known text does not give its place: the normal form has another.
            ends = range(1, len(text.rstrip()))
            first_unknown = bisect_left(ends, True, key=lambda end: UNK in encode([text[:end]])[0])
            unknown = name_characters([text[first_unknown]])
            notes.append(f"prefix: ends before {unknown}, unknown to the tokenizer")
            known = tokenizer.decode_target(ids[: ids.index(UNK)])
            [ids] = encode([known.rstrip()])
        prefixes.append(Prefix(tuple(ids[:-1]), tuple(notes)))
    return prefixes
