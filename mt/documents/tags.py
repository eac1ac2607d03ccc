"""Places of inline tags in a translation, by the alignment of words or in proportion."""

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Literal

from icu4py.breakers import LineBreaker

from mt.data.placeholders import GENERAL
from mt.data.words import find_inner_places, is_unspaced
from mt.languages import UNSPACED

if TYPE_CHECKING:
    from mt.decoding.alignment import Link, Span

TagKind = Literal["open", "close", "single", "ordered", "break"]
"""Kind of an inline tag.

A break is a line end or `<br>`, in place of the white space around it. An ordered tag is a single
one that stays in order with other ordered tags, as its role is unknown.
"""


@dataclass(frozen=True, slots=True)
class Tag:
    """Inline tag of a segment."""

    offset: int
    """Place in the text of the segment."""
    kind: TagKind
    markup: str
    start: int = 0
    """Place in the document."""

    @property
    def is_line_end(self) -> bool:
        """True for a break that is a line end."""
        is_tag = "<" in self.markup or "br" in self.markup.lower()  # or `&lt;br&gt;`
        return self.kind == "break" and not is_tag

    @property
    def is_single(self) -> bool:
        """True for a tag between words that is neither half of a pair nor a break."""
        return self.kind in {"single", "ordered"}


_WORD = re.compile(
    rf"{GENERAL.pattern.pattern}"
    rf"|[{UNSPACED}]|[^\W{UNSPACED}]+(?:['’.-][^\W{UNSPACED}]+)*|[^\w\s]"
)
"""Placeholder, word or mark; a single character in scripts without spaces between words."""
_Placed = tuple[Tag, int]
"""Tag and the number of words before it in the translation."""


class _Words:
    """Words of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spans = [match.span() for match in _WORD.finditer(text)]
        self.starts = [start for start, _ in self.spans]
        self.ends = [end for _, end in self.spans]
        self.count = len(self.spans)

    def before(self, tag: Tag) -> int:
        """Return the number of words before a tag; one around it is after an opening tag only."""
        if tag.kind == "open":
            return bisect_right(self.ends, tag.offset)
        return bisect_left(self.starts, tag.offset)

    @cached_property
    def line_ends(self) -> set[int]:
        """Places where a line can end by the rules of Unicode, outside words."""
        ends = accumulate(map(len, LineBreaker(self.text, "en")))
        return {*ends} - find_inner_places(self.text)

    def within(self, span: "Span") -> range:
        """Return the numbers of the words with a character in a part of the text."""
        return range(bisect_right(self.ends, span[0]), bisect_left(self.starts, span[1]))

    def allow(self, tag: Tag, index: int) -> bool:
        """Test for a place before a word where a tag can be.

        No line ends beside a letter of a script with spaces between words, if there is none.
        """
        if not 0 < index < self.count or self.text[self.starts[index] - 1].isspace():
            return True
        around = self.text[self.starts[index] - 1 : self.starts[index] + 1]
        is_joined = not any(map(is_unspaced, around))
        if tag.kind != "break":
            return not (is_joined and tag.is_single and tag.markup.endswith(" "))
        return not is_joined and self.starts[index] in self.line_ends


def place_tags(
    text: str, tags: Sequence[Tag], translation: str, links: "Sequence[Link]" = ()
) -> "list[tuple[Tag, Span]]":
    """Return the tags in their order in the translation, with the part that each one replaces.

    This part is the white space of a break, and empty for other tags. A line end without words
    before or after it is left out.

    With links, a pair of tags encloses the words that are aligned with those inside it, and another
    tag is beside the word that is aligned with its neighbour. Without, or if the tags do not form
    pairs or ordered tags would change their order, all tags stay in order, at the word boundaries
    in proportion to their place in the source.
    """
    source, target = _Words(text), _Words(translation)
    nodes = _build_tree(tags, source) if links else None
    placed: list[_Placed] = []
    if nodes is not None:
        alignment = _Alignment(source, target, links)
        placed = list(alignment.place(nodes, range(source.count), range(target.count)))
    if nodes is None or _find_ordered(tags) != _find_ordered(tag for tag, _ in placed):
        placed = list(_place_in_proportion(tags, source, target))
    spans: list[tuple[Tag, Span]] = []
    offset = last_break = 0
    for tag, word in placed:
        left = target.ends[word - 1] if word else 0
        right = target.starts[word] if word < target.count else len(target.text)
        span = left, left
        if tag.kind == "break":
            is_outer = word in {last_break, target.count}
            if is_outer and tag.is_line_end:
                continue
            last_break = word
            span = (left, left) if is_outer else (left, right)
        elif tag.kind == "open" or (tag.is_single and _follows_space(tag, source)):
            span = right, right
        span = max(offset, span[0]), max(offset, span[1])
        spans.append((tag, span))
        offset = span[1]
    return spans


def _find_ordered(tags: Iterable[Tag]) -> list[Tag]:
    """Return the ordered tags, with the breaks among them."""
    ordered = [tag for tag in tags if tag.kind in {"ordered", "break"} and not tag.is_line_end]
    return ordered if any(tag.kind == "ordered" for tag in ordered) else []


def find_unpaired(halves: Sequence[tuple[TagKind, str]]) -> set[int]:
    """Return the indices of opening and closing tags without the other half.

    Each is given by kind and key. The halves of a pair have the same key, and are on the same side
    of both tags of a pair with an empty key, an element. Of pairs that overlap, one is unpaired.
    """
    unpaired: set[int] = set()
    opened: list[int] = []
    by_key: dict[str, list[int]] = {"": [-1]}
    for index, (kind, key) in enumerate(halves):
        partners = by_key.setdefault(key, [])
        if kind == "open":
            opened.append(index)
            partners.append(index)
        elif not partners or partners[-1] < max(by_key[""][-1], 0):
            unpaired.add(index)
        else:
            while opened[-1] != partners[-1]:
                unpaired.add(opened[-1])
                by_key[halves[opened.pop()][1]].pop()
            opened.pop()
            partners.pop()
    return unpaired.union(opened)


def _follows_space(tag: Tag, source: _Words) -> bool:
    return source.text[max(tag.offset - 1, 0) : tag.offset] in {"", " "}


def _place_in_proportion(tags: Sequence[Tag], source: _Words, target: _Words) -> Iterator[_Placed]:
    """Yield the tags in order; a pair encloses a word if it does in the source."""
    opened: list[tuple[int, int]] = []
    word = 0
    for tag in tags:
        before = source.before(tag)
        share = before * target.count / max(source.count, 1)
        position = round(share)
        if tag.kind == "open":
            position = int(share)
        elif tag.kind == "close":
            position = math.ceil(share)
        if tag.is_single and tag.offset < len(source.text):
            position = min(position, max(target.count - 1, 0))
        if tag.kind == "close" and opened:
            first, source_first = opened.pop()
            is_empty = before == source_first
            position = first if is_empty else max(position, min(first + 1, target.count))
        word = max(word, position)
        if tag.kind == "open":
            opened.append((word, before))
        while not target.allow(tag, word):
            word += 1
        yield tag, word


@dataclass(slots=True)
class _Node:
    """Tag, or pair of tags with the tags inside."""

    tag: Tag
    start: int
    """Number of source words before it."""
    end: int
    """Number of source words before the closing tag of a pair."""
    close: Tag | None = None
    inside: list["_Node"] = field(default_factory=list)


_DEEPEST = 50


def _build_tree(tags: Sequence[Tag], source: _Words) -> list[_Node] | None:
    """Return the outer tags with those inside, None if they form no pairs or are nested deeply."""
    outer: list[_Node] = []
    opened: list[_Node] = []
    for tag in tags:
        before = source.before(tag)
        if tag.kind == "close":
            if not opened:
                return None
            node = opened.pop()
            node.close, node.end = tag, before
            continue
        node = _Node(tag, before, before)
        (opened[-1].inside if opened else outer).append(node)
        if tag.kind == "open":
            opened.append(node)
            if len(opened) > _DEEPEST:
                return None
    return None if opened else outer


class _Alignment:
    """Places of tags by the alignment of words."""

    def __init__(self, source: _Words, target: _Words, links: "Sequence[Link]") -> None:
        self.source, self.target = source, target
        votes: list[Counter[int]] = [Counter() for _ in range(target.count)]
        for link in links:
            for word in target.within(link.target):
                votes[word].update(source.within(link.source))
        self.words: list[list[int]] = [[] for _ in range(source.count)]
        """Target words aligned with each source word; each is aligned with one at most."""
        for word, counts in enumerate(votes):
            if counts:
                self.words[counts.most_common(1)[0][0]].append(word)

    def place(self, nodes: Sequence[_Node], within: range, room: range) -> Iterator[_Placed]:
        """Yield the tags of the nodes among some source words; their places are in `room`."""
        spans = self.enclose(nodes, room)
        inner = {word for words in spans.values() for word in words[1:]}
        boundaries = [word for word in range(room.start, room.stop + 1) if word not in inner]
        places: dict[tuple[TagKind, bool], list[int]] = {}
        for index, node in enumerate(nodes):
            if index in spans:
                continue
            kind = node.tag.kind, node.tag.markup.endswith(" ")
            if kind not in places:
                places[kind] = [word for word in boundaries if self.target.allow(node.tag, word)]
            if places[kind] or not node.tag.is_line_end:
                boundary = self.find_boundary(node, within, room)
                word = _find_nearest(places[kind] or boundaries, boundary)
                spans[index] = range(word, word)
        ordered = [index for index in spans if nodes[index].tag.kind == "ordered"]
        in_order = sorted((spans[index] for index in ordered), key=lambda words: words.start)
        spans |= zip(ordered, in_order, strict=True)
        for index in sorted(spans, key=lambda index: (spans[index].start, spans[index].stop)):
            node, words = nodes[index], spans[index]
            yield node.tag, words.start
            if node.close is not None:
                yield from self.place(node.inside, range(node.start, node.end), words)
                yield node.close, words.stop

    def enclose(self, nodes: Sequence[_Node], room: range) -> dict[int, range]:
        """Return the words of each pair, by index: those aligned with the words inside it.

        Of several groups with words of another pair in between, it is the largest, the first
        of equal ones. Words between those of a group belong to it. A pair whose words are not
        aligned gets a free word, as long as there are any.
        """
        owners = sorted(
            (word, index)
            for index, node in enumerate(nodes)
            for words in self.words[node.start : node.end]
            for word in words
            if word in room
        )
        spans: dict[int, range] = {}
        sizes: dict[int, int] = {}
        for index, group in groupby(owners, key=lambda owner: owner[1]):
            words = [word for word, _ in group]
            if len(words) > sizes.get(index, 0):
                sizes[index] = len(words)
                spans[index] = range(words[0], words[-1] + 1)
        taken = {word for span in spans.values() for word in span}
        free = [word for word in room if word not in taken]
        for index, node in enumerate(nodes):
            if node.start < node.end and index not in spans and free:
                word = _find_nearest(free, self.scale(node.start, room))
                free.remove(word)
                spans[index] = range(word, word + 1)
        return spans

    def find_boundary(self, node: _Node, within: range, room: range) -> int:
        """Return the boundary beside the word that is aligned with a neighbour of a tag."""
        if node.tag.is_line_end:
            return self.scale(node.start, room)
        if node.start <= within.start:
            return room.start
        if node.start >= within.stop:
            return room.stop
        before = [word + 1 for word in self.words[node.start - 1] if word in room]
        after = [word for word in self.words[node.start] if word in room]
        if before and (not after or not _follows_space(node.tag, self.source)):
            return before[-1]
        return after[0] if after else self.scale(node.start, room)

    def scale(self, source_word: int, room: range) -> int:
        """Return the target word in proportion to a source word, within `room`."""
        word = round(source_word * self.target.count / max(self.source.count, 1))
        return min(max(word, room.start), room.stop)


def _find_nearest(ordered: Sequence[int], target: int) -> int:
    """Return the number that is nearest to `target`, the first of equal ones."""
    index = bisect_left(ordered, target)
    return min(ordered[max(0, index - 1) : index + 1], key=lambda word: abs(word - target))
