"""Segments of a Markdown file: CommonMark with tables, strikethrough and front matter.

markdown-it-py finds blocks and inline markup. Its inline rules are wrapped to record their place,
which it does not keep.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mt.documents.html import VOID, attribute_segments, is_protected, read_html, scan
from mt.documents.segments import (
    Pieces,
    Segment,
    SegmentBuilder,
    escaping,
    has_letters,
)
from mt.documents.tags import TagKind
from mt.errors import DataError, install_hint

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?=\S).*?\r?\n(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_LINE_END = re.compile(r"\r\n?|\n")
_EXTENSION = re.compile(r"\[\^[^\]\s]+\]:?|\[[ xX]\](?=\s)")
"""Footnote mark or box of a task list, which are no part of CommonMark."""


def read_markdown(source: str) -> Iterator[Segment]:
    """Yield the segments of a file, block by block."""
    parser = _parser()
    front = _FRONT_MATTER.match(source)
    begin = front.end() if front else 0
    lines = [begin, *(match.end() for match in _LINE_END.finditer(source, begin)), len(source)]
    env: dict[str, Any] = {}
    cells = _Cells()
    before = None
    for token in parser.parse(source[begin:], env):
        if token.type == "inline" and token.map:
            is_cell = before is not None and before.type in {"td_open", "th_open"}
            find = cells.find if is_cell else _line_place
            places = _places(token, source, lines, find)
            if places is not None:
                around = lines[token.map[0] + 1 : token.map[1] + 1]
                rule = any(_RULE.match(source, start) for start in around)
                pipe = r"\|" if is_cell else "&#124;" if rule else "|"
                yield from _Block(source, token.content, places, parser, env, pipe).segments()
        elif token.type == "html_block" and token.map and not token.level:
            start, end = (lines[number] for number in token.map)
            for segment in read_html(source[start:end]):
                yield _moved(segment, start)
        before = token


def _parser() -> "MarkdownIt":
    try:
        from markdown_it import MarkdownIt, rules_inline  # an optional package
    except ModuleNotFoundError as error:
        hint = install_hint("documents")
        raise DataError(f"reading Markdown needs markdown-it-py: {hint}") from error
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.inline.ruler2.disable("fragments_join")  # it would merge the recorded tokens
    for name, rule in {
        "newline": rules_inline.newline,
        "escape": rules_inline.escape,
        "backticks": rules_inline.backtick,
        "strikethrough": rules_inline.strikethrough.tokenize,
        "emphasis": rules_inline.emphasis.tokenize,
        "link": rules_inline.link,
        "image": rules_inline.image,
        "autolink": rules_inline.autolink,
        "html_inline": rules_inline.html_inline,
        "entity": rules_inline.entity,
    }.items():
        parser.inline.ruler.at(name, _recorded(name, rule))
    return parser


@dataclass(slots=True)
class _Piece:
    """Markup that an inline rule has found in the content of a block."""

    start: int
    end: int
    rule: str
    token: "Token"
    label_end: int = -1


def _recorded(
    name: str, rule: "Callable[[StateInline, bool], bool]"
) -> "Callable[[StateInline, bool], bool]":
    """Return a rule that appends its pieces to `env["pieces"]`."""

    def wrapped(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - as it is called
        start, first = state.pos, len(state.tokens)
        # The text of an image is parsed on its own.
        pieces = state.env.pop("pieces", None) if name == "image" else state.env.get("pieces")
        found = rule(state, silent)
        if name == "image" and pieces is not None:
            state.env["pieces"] = pieces
        if not found:
            return False
        if silent or pieces is None or len(state.tokens) == first:
            return True
        last = state.tokens[-1]
        if name in {"emphasis", "strikethrough"}:  # a token for each mark
            end = state.pos
            for token in reversed(state.tokens[first:]):
                if end > start:
                    length = len(token.content)
                    pieces.append(_Piece(end - length, end, name, token))
                    end -= length
        elif name in {"link", "image"}:
            label = start + (1 if name == "link" else 2)
            end = state.md.helpers.parseLinkLabel(state, label - 1, name == "link")
            pieces.append(_Piece(start, state.pos, name, last, end))
        else:
            pieces.append(_Piece(start, state.pos, name, last))
        return True

    return wrapped


_Place = tuple[int, int]
"""Start of a line in the content of a block, and its place in the document."""


def _places(
    token: "Token", source: str, lines: list[int], find: Callable[[str, str, int], int]
) -> list[_Place] | None:
    """Return the place of each line of a block, or None if one is not found."""
    assert token.map, "blocks have lines"
    places, start = [], 0
    for number, content in enumerate(token.content.split("\n"), start=token.map[0]):
        if number + 1 >= len(lines):
            return None
        text = source[lines[number] : lines[number + 1]].replace("\0", "\ufffd")
        found = find(text, content.strip(), number)
        if found < 0:
            return None
        space = len(content) - len(content.lstrip())
        places.append((start, lines[number] + found - space))
        start += len(content) + 1
    return places


_HEADING_END = re.compile(r"[ \t]+#+$")


def _line_place(line: str, content: str, _: int) -> int:
    """Find the content of a line after the marks of its block."""
    line = line.rstrip()
    if not line.endswith(content):
        line = _HEADING_END.sub("", line).rstrip()
    return len(line) - len(content) if line.endswith(content) else -1


class _Cells:
    """Finds the cells of a table from left to right."""

    def __init__(self) -> None:
        self._number, self._place = -1, 0

    def find(self, line: str, content: str, number: int) -> int:
        """Find the next cell of a line."""
        if number != self._number:
            self._number, self._place = number, 0
        cell = re.compile(rf"(?<![^|\s]){re.escape(content)}(?=\s*(?:\||$))")
        found = cell.search(line, self._place)
        if not content or not found:
            return -1
        self._place = found.end()
        return found.start()


@dataclass(frozen=True, slots=True)
class _Block:
    """Inline content of a block."""

    source: str
    content: str
    places: list[_Place]
    parser: "MarkdownIt"
    env: dict[str, Any]
    pipe: str
    """Markup of `|`, which makes a table of a line before a rule and cells in a table."""

    def segments(self) -> Iterator[Segment]:
        """Yield the segment of the block."""
        builder = SegmentBuilder(self.source, escaping(str))
        events = self._events(self.content)
        for each in events:
            first, last = self._place(each.start), self._place(each.end)
            if each.text is not None:
                builder.add_text(first, last, each.text)
            else:
                inside = tuple(self._attributes(each.start, each.end))
                builder.add_tag(first, last, each.kind, inside, markup=each.markup)
        for segment in builder.finish():
            tags = [each for each in events if each.text is None]
            before = [each for each in tags if self._place(each.end) <= segment.start]
            after = [each for each in tags if self._place(each.start) >= segment.end]
            outer = [
                [each.markup or self.content[each.start : each.end] for each in side]
                for side in (before, after)
            ]
            yield replace(segment, join=partial(self._join, before=outer[0], after=outer[1]))

    def _place(self, position: int) -> int:
        line = bisect_right(self.places, position, key=lambda place: place[0]) - 1
        start, place = self.places[line]
        return place + position - start

    def _attributes(self, start: int, end: int) -> Iterator[Segment]:
        """Yield the alternative text of an image or the attributes of a tag of HTML."""
        markup = self.content[start:end]
        if "\n" in markup:
            return
        if markup.startswith("!["):
            alt = markup[2 : max(markup.find("]("), markup.find("][")) if "](" in markup else 2]
            if has_letters(alt) and not _SPECIAL.search(alt):
                place = self._place(start + 2)
                join = escaping(lambda text: _escape(text).replace("|", self.pipe))
                yield Segment(place, place + len(alt), " ".join(alt.split()), alt, join)
        elif markup.startswith("<"):
            for token in scan(markup):
                for each in map(self._without_pipes, attribute_segments(markup, token)):
                    yield _moved(each, self._place(start))

    def _without_pipes(self, segment: Segment) -> Segment:
        """Return an attribute that ends no cell of a table."""
        pipe = "|" if self.pipe == "|" else "&#124;"
        return replace(segment, join=lambda pieces: segment.join(pieces).replace("|", pipe))

    def _events(self, content: str) -> "list[_Event]":
        """Return the text and markup of a block in order."""
        pieces = self.env["pieces"] = list[_Piece]()
        self.parser.inline.parse(content, self.parser, self.env, [])
        del self.env["pieces"]
        found = sorted(
            (event for piece in pieces for event in _piece_events(piece, content)),
            key=lambda event: event.start,
        )
        events: list[_Event] = []
        place = 0
        for event in found:
            events += _plain(content, place, event.start)
            events.append(event)
            place = event.end
        return _merged([*events, *_plain(content, place, len(content))], content)

    def _join(self, pieces: Pieces, before: list[str], after: list[str]) -> str:
        """Join text and markup; escape text, and set off emphasis, only if it reads wrong else.

        `before` and `after` are the tags around the segment.
        """
        pieces = [*((tag, True) for tag in before), *pieces, *((tag, True) for tag in after)]
        wanted = _reading(
            _Event(0, 0, None if is_markup else piece, markup=piece) for piece, is_markup in pieces
        )
        joined = ""
        for spaced, escaped in ((False, False), (False, True), (True, False), (True, True)):
            written = self._written(pieces, spaced=spaced, escaped=escaped)
            joined = "".join(written[len(before) : len(written) - len(after)])
            # The marks of the block after a line break are no inline content.
            inline = "".join(_BREAK.sub("  \n", text) for text in written)
            events = self._events(inline)
            if wanted == _reading(
                replace(each, markup=each.markup or inline[each.start : each.end])
                for each in events
            ):
                break
        return joined

    def _written(self, pieces: Pieces, *, spaced: bool, escaped: bool) -> list[str]:
        written: list[str] = []
        opened: list[str] = []
        at_start = not _BLOCK_START.match(self.content)
        for text, is_markup in pieces:
            if is_markup:
                at_start = bool(_BREAK.match(text))
                if spaced and _EMPHASIS.fullmatch(text):
                    if opened[-1:] == [text]:
                        text = f"{opened.pop()} "
                    else:
                        opened.append(text)
                        text = f" {text}"
            else:
                if escaped:
                    text = _escape(text)
                text = text.replace("|", self.pipe)
                if at_start and (start := _BLOCK_START.match(text)):
                    text = f"{text[: start.end()]}\\{text[start.end() :]}"
                at_start = False
            written.append(text)
        return written


_BLOCK_START = re.compile(r"(?=(?:[-+*]|#{1,6})(?:\s|$)|>|~~~|```)|\d{1,9}(?=[.)](?:\s|$))")
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~!#]")
_RULE = re.compile(r"[\s>]*[-:| ]+[\r\n]*$", re.MULTILINE)
_EMPHASIS = re.compile(r"[*_~]+")
_BREAK = re.compile(r"(?: +|\\)(?:\r\n?|\n)[\s>]*")
_ANY_SPACE = re.compile(r"\s+")


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text)


@dataclass(frozen=True, slots=True)
class _Event:
    """Text or inline markup in the content of a block."""

    start: int
    end: int
    text: str | None = None
    kind: TagKind = "single"
    markup: str | None = None
    """Markup beside a changed text, if not that of the content."""


def _piece_events(piece: _Piece, content: str) -> Iterator[_Event]:
    token, start, end = piece.token, piece.start, piece.end
    if token.type == "softbreak":
        yield _Event(start, end, " ")
    elif token.type == "hardbreak":
        before = len(content[:start].rstrip(" ")) if content[start] == "\n" else start
        yield _Event(before, end, kind="break")
    elif token.type == "text_special":
        yield _Event(start, end, token.content)
    elif piece.rule in {"emphasis", "strikethrough"}:
        # Strong emphasis is a token with the markup and one without content beside it.
        if token.nesting > 0:
            yield _Event(end - len(token.markup), end, kind="open")
        elif token.nesting < 0:
            yield _Event(start, start + len(token.markup), kind="close")
    elif piece.rule == "link":
        markup = None
        if content[piece.label_end + 1 : end] in {"", "[]"}:  # the text is the label
            label = _ANY_SPACE.sub(" ", content[start + 1 : piece.label_end])
            markup = f"][{label}]"
        yield _Event(start, start + 1, kind="open")
        yield _Event(piece.label_end, end, kind="close", markup=markup)
    elif piece.rule == "html_inline":
        tag = next(scan(content[start:end]))
        kinds: dict[str, TagKind] = {"open": "open", "close": "close"}
        kind = "single" if tag.name in VOID else kinds.get(tag.kind, "single")
        kind = "break" if tag.name == "br" else kind
        yield _Event(start, end, kind=kind)
    else:
        yield _Event(start, end)


def _plain(content: str, start: int, end: int) -> Iterator[_Event]:
    """Yield plain text, and the marks of extensions of Markdown in it."""
    for match in _EXTENSION.finditer(content, start, end):
        if start < match.start():
            yield _Event(start, match.start(), content[start : match.start()])
        yield _Event(match.start(), match.end())
        start = match.end()
    if start < end:
        yield _Event(start, end, content[start:end])


def _merged(events: list[_Event], content: str) -> list[_Event]:
    """Make one tag of each element of HTML whose content is not translated."""
    merged: list[_Event] = []
    name, depth = "", 0
    for each in events:
        is_html = each.text is None and content[each.start] == "<"
        tag = next(scan(content[each.start : each.end])) if is_html else None
        if not depth:
            merged.append(each)
            if tag and tag.kind == "open" and is_protected(content[each.start :], tag):
                name, depth = tag.name, 1
            continue
        merged[-1] = _Event(merged[-1].start, each.end)
        if tag and tag.name == name:
            depth += {"open": 1, "close": -1}.get(tag.kind, 0)
    return merged


def _reading(events: Iterable[_Event]) -> list[str]:
    """Return the text, without white space, and the markup of a block."""
    reading = [""]
    for each in events:
        if each.text is not None:
            reading[-1] += _ANY_SPACE.sub("", each.text)
        else:
            markup = each.markup or ""
            reading += ["\n" if _BREAK.match(markup) else markup.strip(), ""]
    return reading


def _moved(segment: Segment, by: int) -> Segment:
    """Return a segment of a part of the document that starts at `by`."""
    return replace(
        segment,
        start=segment.start + by,
        end=segment.end + by,
        tags=tuple(replace(tag, start=tag.start + by) for tag in segment.tags),
        attributes=tuple(_moved(each, by) for each in segment.attributes),
    )
