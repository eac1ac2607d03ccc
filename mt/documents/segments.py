"""Segments of a document: text to translate, with the inline tags that return to it."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from mt.documents.tags import Links, Tag, TagKind, place_tags

Format = Literal["text", "markdown", "html", "srt", "vtt", "po", "xliff", "tmx", "jsonl", "tsv"]
FORMATS: tuple[str, ...] = get_args(Format)
Pieces = list[tuple[str, bool]]
"""Text and markup in order; True marks markup."""
SPACE = " \t\r\n\f"


@dataclass(frozen=True, slots=True)
class Text:
    """Text to translate."""

    text: str
    has_tags: bool = False
    """True if `TranslatedText.links` decide about the places of tags."""


@dataclass(frozen=True, slots=True)
class TranslatedText:
    """Translation of a text of a document."""

    text: str
    """One line."""
    links: Links = ()
    """Aligned parts of the text and its translation; without any, tags return in proportion."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Text to translate, and the place in the document where its translation goes."""

    start: int
    end: int
    text: str
    """Plain text without tags, entities and line ends."""
    raw: str
    """Text with its markup, written as it is if the translation equals `text` or is blank."""
    join: Callable[[Pieces], str]
    """Function that writes text and markup in the syntax of the document."""
    tags: tuple[Tag, ...] = ()
    attributes: tuple["Segment", ...] = ()
    """Attributes inside the tags that are translated."""

    @property
    def texts(self) -> tuple[Text, ...]:
        """Text of the segment, then of the attributes in its tags."""
        has_tags = not all(tag.is_line_end for tag in self.tags)
        return (Text(self.text, has_tags), *(Text(each.text) for each in self.attributes))

    def render(self, translations: Iterator[TranslatedText]) -> str:
        """Return the markup with one translation for each of `texts`."""
        translated = next(translations)
        translation = translated.text
        edits = [(each.start, each.end, each.render(translations)) for each in self.attributes]
        if translation == self.text or not translation.strip():
            return _edited(self.raw, self.start, edits)
        pieces: Pieces = []
        place = 0
        starts = [start for start, _, _ in edits]
        for tag, span in place_tags(self.text, self.tags, translation, translated.links):
            first = bisect_left(starts, tag.start)
            inside = edits[first : bisect_left(starts, tag.start + len(tag.markup), first)]
            markup = _edited(tag.markup, tag.start, inside)
            if tag.kind != "break" and translation[max(span[0] - 1, 0) : span[0]] not in {"", " "}:
                markup = markup.rstrip(" ")
            pieces += [(translation[place : span[0]], False), (markup, True)]
            place = span[1]
        pieces.append((translation[place:], False))
        return self.join([piece for piece in pieces if piece[0]])


@dataclass(frozen=True, slots=True)
class Replacement:
    """Text that replaces a part of the document, whatever the translations are."""

    start: int
    end: int
    text: str

    @property
    def texts(self) -> tuple[Text, ...]:
        """No text to translate."""
        return ()

    def render(self, _: Iterator[TranslatedText]) -> str:
        """Return the text."""
        return self.text


Item = Segment | Replacement
"""Change of a document. The items of a document are in order and do not overlap."""


@dataclass(frozen=True, slots=True)
class Options:
    """Name of the document, languages of the model, and options of some formats."""

    name: str
    """Name for messages."""
    source: str
    target: str
    column: str | None = None
    """Field of JSON lines; name or number of a column of TSV."""
    fuzzy: bool = False
    """Mark the entries of gettext files that are filled as fuzzy."""


Reader = Callable[[str, Options], Iterator[Item]]
"""Function that yields the items of a document; raises DataError with the line if damaged."""


def _edited(markup: str, start: int, edits: Sequence[tuple[int, int, str]]) -> str:
    """Replace parts of `markup`, which stands at `start` in the document."""
    parts, place = [], 0
    for first, last, text in edits:
        parts += [markup[place : first - start], text]
        place = last - start
    return "".join([*parts, markup[place:]])


def escaping(escape: Callable[[str], str]) -> Callable[[Pieces], str]:
    """Return a function that joins pieces and escapes those that are text."""
    return lambda pieces: "".join(
        piece if is_markup else escape(piece) for piece, is_markup in pieces
    )


def has_letters(text: str) -> bool:
    """Test for a letter; text without letters is not translated."""
    return any(map(str.isalpha, text))


_SPACES = re.compile(f"[{SPACE}]+")
_NEAR = 8
"""Number of tags that are looked at for one without text."""
_BREAKS = re.compile(r"\A[ \t]+|[ \t]*[\r\n][ \t\r\n]*")


@dataclass(slots=True)
class _Event:
    start: int
    end: int
    text: str | None
    kind: TagKind = "single"
    attributes: tuple[Segment, ...] = ()
    markup: str | None = None


def _pairs(events: Sequence[_Event]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the opening and the closing tag of each pair."""
    opened: list[int] = []
    for number, each in enumerate(events):
        if each.text is None and each.kind == "open":
            opened.append(number)
        elif each.text is None and each.kind == "close" and opened:
            yield opened.pop(), number


@dataclass(slots=True)
class SegmentBuilder:
    """Collects text and inline tags of a block."""

    source: str
    """The document."""
    join: Callable[[Pieces], str]
    keeps_lines: bool = False
    """Return line ends as breaks, and keep other white space; else it is collapsed as in HTML."""
    _events: list[_Event] = field(default_factory=list)

    def add_text(self, start: int, end: int, text: str | None = None) -> None:
        """Add a part of the document, with its text if that is escaped."""
        self._events.append(_Event(start, end, self.source[start:end] if text is None else text))

    def add_tag(
        self,
        start: int,
        end: int,
        kind: TagKind,
        attributes: tuple[Segment, ...] = (),
        *,
        markup: str | None = None,
    ) -> None:
        """Add an inline tag with the segments of its attributes.

        `markup` stands in place of the part of the document beside a changed text.
        """
        self._events.append(_Event(start, end, None, kind, attributes, markup))

    def finish(self) -> Iterator[Segment]:
        """Yield the segment of the block, if it has letters, without the tags at its ends.

        A pair with one tag at an end is a part of it. Attributes of tags outside are segments of
        their own.
        """
        events, self._events = self._events, []
        filled = [number for number, each in enumerate(events) if (each.text or "").strip(SPACE)]
        if not filled or not any(has_letters(events[number].text or "") for number in filled):
            for each in events:
                yield from each.attributes
            return
        # A tag with other markup than the document's cannot stay outside.
        first, last = (
            filled[0],
            max(filled[-1], *(n for n, each in enumerate(events) if each.markup), 0),
        )
        inside = range(first, last + 1)
        for pair in _pairs(events):
            if len({number in inside for number in pair}) > 1:
                first, last = min(first, pair[0]), max(last, pair[1])
        for each in events[:first]:
            yield from each.attributes
        yield self._segment(events[first : last + 1])
        for each in events[last + 1 :]:
            yield from each.attributes

    def _segment(self, events: list[_Event]) -> Segment:
        raw = self.source[events[0].start : events[0].end]
        start = events[0].start + len(raw) - len(raw.lstrip(SPACE))
        raw = self.source[events[-1].start : events[-1].end]
        end = events[-1].end - len(raw) + len(raw.rstrip(SPACE))
        if events[0].text is not None:
            events[0].text = events[0].text.lstrip(SPACE)
        if events[-1].text is not None:
            events[-1].text = events[-1].text.rstrip(SPACE)
        text = ""
        tags: list[Tag] = []
        for each in events:
            if each.text is None:
                markup = each.markup or self.source[each.start : each.end]
                tags.append(Tag(len(text), each.kind, markup, each.start))
                if each.kind == "break" and text[-1:] not in {"", " "}:
                    text += " "
                continue
            place = 0
            for space in (_BREAKS if self.keeps_lines else _SPACES).finditer(each.text):
                text += each.text[place : space.start()]
                is_break = self.keeps_lines and space[0].strip(" \t") != ""
                if is_break:
                    tags.append(Tag(len(text), "break", space[0]))
                if not text.endswith(" "):
                    text += space[0] if self.keeps_lines and not is_break else " "
                # No closure over `text`: appending to it would take quadratic time.
                elif not is_break and len(text) in [
                    tag.offset for tag in tags[-_NEAR:] if tag.kind == "single"
                ]:  # white space on both sides of a tag stays on both sides
                    tags[-1] = replace(tags[-1], markup=tags[-1].markup + " ")
                place = space.end()
            text += each.text[place:]
        attributes = tuple(attribute for each in events for attribute in each.attributes)
        raw = self.source[start:end]
        return Segment(start, end, text, raw, self.join, tuple(tags), attributes)
