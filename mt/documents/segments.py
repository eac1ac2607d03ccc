"""Segments of a document: text to translate, with the inline tags that return to it."""

import io
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mt.data.placeholders import GENERAL, Syntax, TaggedText, describe_changes, is_in_order
from mt.data.words import is_unspaced
from mt.documents.tags import Tag, TagKind, place_tags
from mt.languages import UNSPACED

if TYPE_CHECKING:
    from mt.decoding.alignment import Link

Format = Literal["text", "markdown", "html", "srt", "vtt", "po", "xliff", "tmx", "jsonl", "tsv"]
Pieces = list[tuple[str, Literal["text"] | TagKind]]
"""Text and markup in order, with the kind of each."""
SPACE = " \t\r\n\f"


@dataclass(frozen=True, slots=True)
class TranslatedLine:
    """Translation of a text of a document, one line."""

    text: str
    links: Sequence["Link"] = ()
    """Aligned parts of the text and its translation; without any, tags return in proportion."""
    needs_review: bool = False
    """True for a missing term of a glossary, or little confidence."""


class RefusedTranslationError(Exception):
    """Translation that a document cannot take; its item keeps the source."""


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
    attributes: "tuple[Segment | Replacement, ...]" = ()
    """Attributes, or other texts inside the tags, that change."""
    syntax: Syntax = GENERAL
    """Syntax of its placeholders; the translation must have the same."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Text of the segment, then of the attributes in its tags.

        `TranslatedLine.links` decide about the places of the tags of a TaggedText.
        """
        is_tagged = not all(tag.is_line_end for tag in self.tags)
        return (
            TaggedText(self.text) if is_tagged else self.text,
            *(text for attribute in self.attributes for text in attribute.texts),
        )

    def render(self, translations: Iterator[TranslatedLine]) -> str:
        """Return the markup with one translation for each of `texts`.

        Raises RefusedTranslationError, with the reason, for a translation that would damage it.
        """
        translated = next(translations)
        translation = translated.text
        edits = [
            (attribute.start, attribute.end, attribute.render(translations))
            for attribute in self.attributes
        ]
        if translation == self.text or not translation.strip():
            if not (translation.strip() or edits):
                raise RefusedTranslationError("the translation is empty")
            return _apply_edits(self.raw, self.start, edits)
        starts = [start for start, _, _ in edits]

        def find_edits(tag: Tag) -> list[tuple[int, int, str]]:
            first = bisect_left(starts, tag.start)
            return edits[first : bisect_left(starts, tag.start + len(tag.markup), first)]

        in_order = iter([tag.markup for tag in self.tags if is_in_order(tag.markup)])
        pieces: Pieces = []
        written = 0
        checked = ""
        for tag, span in place_tags(self.text, self.tags, translation, translated.links):
            inside = find_edits(tag)
            markup = next(in_order) if is_in_order(tag.markup) else tag.markup
            markup = _apply_edits(markup, tag.start, inside)
            if tag.kind != "break" and translation[max(span[0] - 1, 0) : span[0]] not in {"", " "}:
                markup = markup.rstrip(" ")
            if tag.is_single:  # no part of a word, unless it is in the source
                if _is_letter(translation, span[1]) > _is_letter(self.text, tag.offset):
                    markup += " "
                is_joined = _is_letter(translation, span[0] - 1)
                if is_joined > _is_letter(self.text, tag.offset - 1) and markup[0] != "<":
                    markup = f" {markup}"
            pieces += [(translation[written : span[0]], "text"), (markup, tag.kind)]
            checked += pieces[-2][0] + ("" if inside else markup)
            written = span[1]
        pieces.append((translation[written:], "text"))
        marks = [(tag.offset, tag.offset, tag.markup) for tag in self.tags if not find_edits(tag)]
        changes = describe_changes(
            _apply_edits(self.text, 0, marks), checked + pieces[-1][0], self.syntax
        )
        if changes:
            raise RefusedTranslationError(f"the translation {changes}")
        return self.join([piece for piece in pieces if piece[0]])


@dataclass(frozen=True, slots=True)
class Replacement:
    """Text that replaces a part of the document, whatever the translations are."""

    start: int
    end: int
    text: str
    reason_untranslated: str = ""
    """Plural noun for texts that are not offered for translation, such as "fuzzy messages"."""
    note: str = ""
    """Change that the user should know, for the log."""

    texts: ClassVar[tuple[str, ...]] = ()

    def render(self, _: Iterator[TranslatedLine]) -> str:
        """Return the text."""
        return self.text


@dataclass(frozen=True, slots=True)
class Group:
    """Changes of a text that are made together, or not at all if a translation is refused."""

    start: int
    end: int
    """Place of the text in the document."""
    text: str
    items: "tuple[Item, ...]"
    """Changes of the text."""
    offset: int = 0
    """Place of the text where the places of the items count from the start of the document."""
    write: Callable[[str], str] = str
    """Function that writes the changed text in the form of the document."""
    raw: str | None = None
    """Part of the document, if it stays where no translation changes the text."""
    mark: Callable[[str], str] = str
    """Function that marks the changed part of the document for review."""

    @staticmethod
    def of(source: str, items: "Sequence[Item]", **named: Any) -> "Group":
        """Return the group of some changes of the document itself."""
        start, end = items[0].start, items[-1].end
        return Group(start, end, source[start:end], tuple(items), start, **named)

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of all changes."""
        return tuple(text for item in self.items for text in item.texts)

    def render(self, translations: Iterator[TranslatedLine]) -> str:
        """Return the changed part of the document; raise the errors of its items."""
        lines = [*islice(translations, len(self.texts))]
        given = iter(lines)
        edits = [(item.start, item.end, item.render(given)) for item in self.items]
        text = _apply_edits(self.text, self.offset, edits)
        if self.raw is not None and text == self.text:
            return self.raw
        written = self.write(text)
        return self.mark(written) if any(line.needs_review for line in lines) else written


Item = Segment | Replacement | Group
"""Change of a document. The items of a document are in order and do not overlap."""


@dataclass(frozen=True, slots=True)
class Options:
    """Name of the document, languages of the model, and the format options of `DocumentJob`."""

    name: str
    source: str
    target: str
    column: str | None = None
    fuzzy: bool = False


def count_untranslated(items: Iterable[Item]) -> Counter[str]:
    """Count the texts that are not offered for translation by their noun."""
    counts = Counter[str]()
    for item in items:
        if isinstance(item, Segment):
            counts.update(count_untranslated(item.attributes))
        elif isinstance(item, Replacement) and item.reason_untranslated:
            counts[item.reason_untranslated] += 1
    return counts


def format_untranslated(counts: Mapping[str, int]) -> str:
    """Return counts of texts that stay as they are, such as "2 fuzzy messages"."""
    return ", ".join(f"{count} {noun}" for noun, count in counts.items())


Reader = Callable[[str, Options], Iterator[Item]]
"""Function that yields the items of a document; raises DataError with the line if damaged."""


def _apply_edits(markup: str, start: int, edits: Sequence[tuple[int, int, str]]) -> str:
    """Replace parts of `markup`, which stands at `start` in the document."""
    parts, copied = [], 0
    for first, last, text in edits:
        parts += [markup[copied : first - start], text]
        copied = last - start
    return "".join([*parts, markup[copied:]])


def make_join(escape: Callable[[str], str]) -> Callable[[Pieces], str]:
    """Return a function that joins pieces and escapes those that are text."""
    return lambda pieces: "".join(
        escape(piece) if kind == "text" else piece for piece, kind in pieces
    )


def read_lines(source: str, newline: str) -> Iterator[tuple[int, str]]:
    """Yield the place of each line, and the line with its end; `newline` is as in `open`."""
    start = 0
    for line in io.StringIO(source, newline):
        yield start, line
        start += len(line)


def has_letters(text: str) -> bool:
    """Test for a letter; text without letters is not translated."""
    return any(map(str.isalpha, text))


def _is_letter(text: str, place: int) -> bool:
    """Test for a letter or digit of a script with spaces between words."""
    character = text[max(place, 0) : place + 1]
    return character.isalnum() and not is_unspaced(character)


_SPACES = re.compile(f"[{SPACE}]+")
_LETTERS = re.compile(rf"[^\W\d_{UNSPACED}]+")
_BARS = f"{SPACE}\u00a0\u3000|•·»›→"
_STATEMENT = re.compile(r"\{%|<%(?!=)|\{\{~?(?:[#^/]|else\b|end\b)")
"""Statement of a template, such as `{% if %}`: its place among the others is its meaning."""
_BREAKS = re.compile(r"\A[ \t]+|[ \t]*[\r\n][ \t\r\n]*")


@dataclass(slots=True)
class Fragment:
    """Text or inline tag of a block."""

    start: int
    end: int
    text: str | None
    kind: TagKind = "single"
    attributes: tuple[Segment | Replacement, ...] = ()
    markup: str | None = None
    key: str = ""
    """Key of an opening or closing tag that both halves of a pair have; "" for an element."""


def _find_pairs(fragments: Sequence[Fragment]) -> Iterator[tuple[int, int]]:
    """Yield the indices of the opening and the closing tag of each pair."""
    opened: list[int] = []
    for index, fragment in enumerate(fragments):
        if fragment.text is None and fragment.kind == "open":
            opened.append(index)
        elif fragment.text is None and fragment.kind == "close" and opened:
            yield opened.pop(), index


def merge_pairs(fragments: list[Fragment], source: str) -> list[Fragment]:
    """Return the fragments with one tag in place of a pair around signs, as of `<sup>1</sup>`.

    There are no letters inside such a pair, so that no translation needs its content. Letters on
    both sides, as in `H<sub>2</sub>O`, belong to the tag.
    """
    closings = dict(_find_pairs(fragments))
    if not closings:
        return fragments
    texts = [(part.text or "").strip(SPACE) for part in fragments]
    sign_counts = [*accumulate(map(bool, texts), initial=0)]
    is_other = (
        has_letters(text) or part.kind in {"ordered", "break"}
        for text, part in zip(texts, fragments, strict=True)
    )
    other_counts = [*accumulate(is_other, initial=0)]
    merged: list[Fragment] = []
    index = 0
    while index < len(fragments):
        part, last = fragments[index], closings.get(index, index)
        if sign_counts[index] < sign_counts[last] and other_counts[index] == other_counts[last]:
            inside = fragments[index : last + 1]
            attributes = tuple(attribute for part in inside for attribute in part.attributes)
            markup = None
            if any(part.markup for part in inside):
                markup = "".join(part.markup or source[part.start : part.end] for part in inside)
            part = Fragment(part.start, inside[-1].end, None, "single", attributes, markup)
            index = last
            before, after = merged[-1:], fragments[last + 1 : last + 2]
            head_text, tail_text = (
                (near[0].text or "") if near else "" for near in (before, after)
            )
            head, tail = _LETTERS.match(head_text[::-1]), _LETTERS.match(tail_text)
            if head and tail and not markup:
                part.start, part.end = part.start - head.end(), part.end + tail.end()
                before[0].text, before[0].end = head_text[: -head.end()], part.start
                after[0].text, after[0].start = tail_text[tail.end() :], part.end
        merged.append(part)
        index += 1
    return merged


@dataclass(slots=True)
class SegmentBuilder:
    """Collects text and inline tags of a block."""

    source: str
    """The document."""
    join: Callable[[Pieces], str]
    keeps_lines: bool = False
    """Return line ends as breaks, and keep other white space; else it is collapsed as in HTML."""
    syntax: Syntax = GENERAL
    fragments: list[Fragment] = field(default_factory=list)

    def add_text(self, start: int, end: int, text: str | None = None) -> None:
        """Add a part of the document, with its text if that is escaped."""
        self.fragments.append(
            Fragment(start, end, self.source[start:end] if text is None else text)
        )

    def add_tag(
        self,
        start: int,
        end: int,
        kind: TagKind,
        attributes: tuple[Segment | Replacement, ...] = (),
        *,
        markup: str | None = None,
        key: str = "",
    ) -> None:
        """Add an inline tag; `markup` stands in place of the document's beside a changed text."""
        last = self.fragments[-1] if self.fragments else None
        if (
            last and kind == "close" and last.kind == "open" and last.end == start
        ) and last.text is last.markup is markup is None:
            self.fragments.pop()  # an element without content is one tag
            attributes = last.attributes + attributes
            start, kind, key = last.start, "single", ""
        self.fragments.append(Fragment(start, end, None, kind, attributes, markup, key))

    def finish(self) -> Iterator[Segment | Replacement]:
        """Yield the segment of the block, if it has letters, without the tags at its ends.

        A pair with one tag at an end is a part of it. Attributes of tags outside are segments of
        their own.
        """
        merged = merge_pairs(self.fragments, self.source)
        fragments = [part for fragment in merged for part in self.split(fragment)]
        self.fragments = []
        filled = [index for index, part in enumerate(fragments) if (part.text or "").strip(_BARS)]
        if not any(has_letters(fragments[index].text or "") for index in filled):
            filled = []
        # A tag with other markup than the document's cannot stay outside.
        changed = [index for index, part in enumerate(fragments) if filled and part.markup]
        inside = range(min(filled + changed, default=0), max(filled + changed, default=-1) + 1)
        first, last = inside.start, inside.stop
        for pair in _find_pairs(fragments):
            if len({index in inside for index in pair}) > 1:
                first, last = min(first, pair[0]), max(last, pair[1] + 1)
        for part in fragments[:first]:
            yield from part.attributes
        if filled:
            yield self.build_segment(fragments[first:last])
        for part in fragments[last:]:
            yield from part.attributes

    def split(self, fragment: Fragment) -> Iterator[Fragment]:
        """Yield a text with its hidden placeholders as tags, but for those with escapes."""
        text, start, copied = fragment.text, fragment.start, 0
        for match in self.syntax.hidden.finditer(text or ""):
            place = self.source.find(match[0], start, fragment.end)
            if text is None or place < 0:
                break
            yield Fragment(start, place, text[copied : match.start()])
            start, copied = place + len(match[0]), match.end()
            kind: TagKind = "ordered" if _STATEMENT.match(match[0]) else "single"
            yield Fragment(place, start, None, kind)
        yield replace(fragment, start=start, text=text[copied:]) if text and copied else fragment

    def build_segment(self, fragments: list[Fragment]) -> Segment:
        """Return the segment of some fragments without the white space around it."""
        first, last = fragments[0], fragments[-1]
        start = first.end - len(self.source[first.start : first.end].lstrip(SPACE))
        end = last.start + len(self.source[last.start : last.end].rstrip(SPACE))
        if first.text is not None:
            first.text = first.text.lstrip(SPACE)
        if last.text is not None:
            last.text = last.text.rstrip(SPACE)
        text = ""
        tags: list[Tag] = []
        for fragment in fragments:
            if fragment.text is None:
                markup = fragment.markup or self.source[fragment.start : fragment.end]
                tags.append(Tag(len(text), fragment.kind, markup, fragment.start))
                if fragment.kind == "break" and text[-1:] not in {"", " "}:
                    text += " "
                continue
            copied = 0
            for space in (_BREAKS if self.keeps_lines else _SPACES).finditer(fragment.text):
                text += fragment.text[copied : space.start()]
                is_break = self.keeps_lines and space[0].strip(" \t") != ""
                if is_break:
                    tags.append(Tag(len(text), "break", space[0]))
                if not text.endswith(" "):
                    text += space[0] if self.keeps_lines and not is_break else " "
                # No closure over `text`: appending to it would take quadratic time.
                elif not is_break and len(text) in [
                    tag.offset for tag in tags[-8:] if tag.is_single
                ]:  # white space on both sides of a tag stays on both sides
                    tags[-1] = replace(tags[-1], markup=tags[-1].markup + " ")
                copied = space.end()
            text += fragment.text[copied:]
        attributes = tuple(attribute for fragment in fragments for attribute in fragment.attributes)
        raw = self.source[start:end]
        return Segment(start, end, text, raw, self.join, tuple(tags), attributes, self.syntax)
