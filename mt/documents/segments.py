"""Segments of a document: text to translate, with the inline tags that return to it."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

TagKind = Literal["open", "close", "single", "break"]
"""Kind of an inline tag; a break is a line end or `<br>`, in place of the white space around it."""
Pieces = list[tuple[str, bool]]
"""Text and markup in order; True marks markup."""
SPACE = " \t\r\n\f"


@dataclass(frozen=True, slots=True)
class Tag:
    """Inline tag of a segment."""

    offset: int
    """Place in the text of the segment."""
    kind: TagKind
    markup: str
    start: int = 0
    """Place in the document."""
    attributes: tuple["Segment", ...] = ()
    """Attributes inside the markup that are translated."""


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

    @property
    def texts(self) -> tuple[str, ...]:
        """Text of the segment, then of the attributes in its tags."""
        return (self.text, *(each.text for tag in self.tags for each in tag.attributes))

    def render(self, translations: Iterator[str]) -> str:
        """Return the markup with one translation for each of `texts`."""
        translation = next(translations)
        edits = [
            [(each.start, each.end, each.render(translations)) for each in tag.attributes]
            for tag in self.tags
        ]
        if translation == self.text or not translation.strip():
            return _edited(self.raw, self.start, [edit for inside in edits for edit in inside])
        pieces: Pieces = []
        place = 0
        spans = place_tags(self, translation)
        for tag, span, inside in zip(self.tags, spans, edits, strict=True):
            if span is None:
                continue
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
    def texts(self) -> tuple[str, ...]:
        """No text to translate."""
        return ()

    def render(self, _: Iterator[str]) -> str:
        """Return the text."""
        return self.text


Item = Segment | Replacement
"""Change of a document. The items of a document are in order and do not overlap."""


def _edited(markup: str, start: int, edits: Sequence[tuple[int, int, str]]) -> str:
    """Replace parts of `markup`, which stands at `start` in the document."""
    parts, place = [], 0
    for first, last, text in edits:
        parts += [markup[place : first - start], text]
        place = last - start
    return "".join([*parts, markup[place:]])


_WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WITHOUT_SPACES_BETWEEN = re.compile(f"[{_WITHOUT_SPACES}]")
_WORD = re.compile(
    rf"[{_WITHOUT_SPACES}]|[^\W{_WITHOUT_SPACES}]+(?:['’.-][^\W{_WITHOUT_SPACES}]+)*|[^\w\s]"
)
"""Word or punctuation mark; a single character in scripts without spaces between words."""


def place_tags(segment: Segment, translation: str) -> list[tuple[int, int] | None]:
    """Return the part of the translation that each tag replaces: white space of a break, or none.

    Tags stay in order, so they stay nested. A tag goes to the word boundary in proportion to its
    place in the source; a pair encloses a word if it does in the source. None is a line end
    without words before or after it, which is left out.
    """
    words = [match.span() for match in _WORD.finditer(translation)]
    count = len(words)
    source = [match.span() for match in _WORD.finditer(segment.text)]
    starts, ends = [start for start, _ in source], [end for _, end in source]
    places: list[tuple[int, int] | None] = []
    opened: list[tuple[int, int]] = []
    word = offset = last_break = 0
    for tag in segment.tags:
        is_open = tag.kind == "open"
        before = bisect_right(ends, tag.offset) if is_open else bisect_left(starts, tag.offset)
        share = before * count / max(len(source), 1)
        wanted = {"open": int(share), "close": -int(-share // 1)}.get(tag.kind, round(share))
        if tag.kind == "single" and tag.offset < len(segment.text):
            wanted = min(wanted, max(count - 1, 0))
        if tag.kind == "close" and opened:
            first, source_first = opened.pop()
            is_empty = before == source_first
            wanted = first if is_empty else max(wanted, min(first + 1, count))
        word = max(word, wanted)
        if is_open:
            opened.append((word, before))
        needs_space = tag.kind == "break" or (tag.kind == "single" and tag.markup.endswith(" "))
        while needs_space and 0 < word < count and _is_joined(translation, words[word][0]):
            word += 1
        left = words[word - 1][1] if word else 0
        right = words[word][0] if word < count else len(translation)
        span = left, right
        if tag.kind == "break":
            is_outer = word in {last_break, count}
            if is_outer and "<" not in tag.markup:
                places.append(None)
                continue
            last_break = word
            span = (left, left) if is_outer else span
        else:
            spaced = segment.text[max(tag.offset - 1, 0) : tag.offset] in {"", " "}
            to_right = is_open or (tag.kind == "single" and spaced)
            span = (right, right) if to_right else (left, left)
        places.append((max(offset, span[0]), max(offset, span[1])))
        offset = max(offset, span[1])
    return places


def _is_joined(text: str, place: int) -> bool:
    """Test for two words without white space, in a script that has it between words."""
    around = text[place - 1 : place + 1]
    return not (around[0].isspace() or _WITHOUT_SPACES_BETWEEN.search(around))


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

        Attributes of other tags are segments of their own.
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
        events[0].text = (events[0].text or "").lstrip(SPACE)
        if events[-1].text is not None:
            events[-1].text = events[-1].text.rstrip(SPACE)
        text = ""
        tags: list[Tag] = []
        for each in events:
            if each.text is None:
                markup = each.markup or self.source[each.start : each.end]
                tags.append(Tag(len(text), each.kind, markup, each.start, each.attributes))
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
        return Segment(start, end, text, self.source[start:end], self.join, tuple(tags))
