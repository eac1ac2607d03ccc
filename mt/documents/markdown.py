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

from mt.documents.html import VOID, MarkupToken, is_protected, read_attributes, read_html, scan
from mt.documents.segments import (
    Pieces,
    Segment,
    SegmentBuilder,
    has_letters,
    make_join,
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
    parser = _build_parser()
    front = _FRONT_MATTER.match(source)
    begin = front.end() if front else 0
    lines = [begin, *(match.end() for match in _LINE_END.finditer(source, begin)), len(source)]
    env: dict[str, Any] = {}
    cells = _CellFinder()
    before = None
    for token in parser.parse(source[begin:], env):
        if token.type == "inline" and token.map:
            is_cell = before is not None and before.type in {"td_open", "th_open"}
            find = cells.find if is_cell else _find_in_line
            places = _locate_lines(token, source, lines, find)
            if places is not None:
                around = lines[token.map[0] + 1 : token.map[1] + 1]
                rule = any(_RULE.match(source, start) for start in around)
                pipe = r"\|" if is_cell else "&#124;" if rule else "|"
                yield from _MarkdownBlock(
                    source, token.content, places, parser, env, pipe
                ).read_segment()
        elif token.type == "html_block" and token.map and not token.level:
            start, end = (lines[index] for index in token.map)
            for segment in read_html(source[start:end]):
                yield _shift(segment, start)
        before = token


def _build_parser() -> "MarkdownIt":
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
        parser.inline.ruler.at(name, _record(name, rule))
    return parser


@dataclass(slots=True)
class _RecordedMarkup:
    """Markup that an inline rule has found in the content of a block."""

    start: int
    end: int
    rule: str
    token: "Token"
    label_end: int = -1


def _record(
    name: str, rule: "Callable[[StateInline, bool], bool]"
) -> "Callable[[StateInline, bool], bool]":
    """Return a rule that appends its pieces to `env["recorded"]`."""

    def wrapped(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - as it is called
        start, first = state.pos, len(state.tokens)
        # The text of an image is parsed on its own.
        recorded = state.env.pop("recorded", None) if name == "image" else state.env.get("recorded")
        is_match = rule(state, silent)
        if name == "image" and recorded is not None:
            state.env["recorded"] = recorded
        if not is_match:
            return False
        if silent or recorded is None or len(state.tokens) == first:
            return True
        last = state.tokens[-1]
        if name in {"emphasis", "strikethrough"}:  # a token for each mark
            end = state.pos
            for token in reversed(state.tokens[first:]):
                if end > start:
                    length = len(token.content)
                    recorded.append(_RecordedMarkup(end - length, end, name, token))
                    end -= length
        elif name in {"link", "image"}:
            label = start + (1 if name == "link" else 2)
            end = state.md.helpers.parseLinkLabel(state, label - 1, name == "link")
            recorded.append(_RecordedMarkup(start, state.pos, name, last, end))
        else:
            recorded.append(_RecordedMarkup(start, state.pos, name, last))
        return True

    return wrapped


_LineStart = tuple[int, int]
"""Start of a line in the content of a block, and its place in the document."""


def _locate_lines(
    token: "Token", source: str, lines: list[int], find: Callable[[str, str, int], int]
) -> list[_LineStart] | None:
    """Return the place of each line of a block, or None if one is not found."""
    assert token.map, "blocks have lines"
    places, start = [], 0
    for index, content in enumerate(token.content.split("\n"), start=token.map[0]):
        if index + 1 >= len(lines):
            return None
        text = source[lines[index] : lines[index + 1]].replace("\0", "\ufffd")
        offset = find(text, content.strip(), index)
        if offset < 0:
            return None
        space = len(content) - len(content.lstrip())
        places.append((start, lines[index] + offset - space))
        start += len(content) + 1
    return places


_HEADING_END = re.compile(r"[ \t]+#+$")


def _find_in_line(line: str, content: str, _: int) -> int:
    """Find the content of a line after the marks of its block."""
    line = line.rstrip()
    if not line.endswith(content):
        line = _HEADING_END.sub("", line).rstrip()
    return len(line) - len(content) if line.endswith(content) else -1


class _CellFinder:
    """Finds the cells of a table from left to right."""

    def __init__(self) -> None:
        self._line = -1
        self._end = 0
        """End of the last cell in the line."""

    def find(self, line: str, content: str, index: int) -> int:
        """Find the next cell of a line, given with its index."""
        if index != self._line:
            self._line, self._end = index, 0
        cell = re.compile(rf"(?<![^|\s]){re.escape(content)}(?=\s*(?:\||$))")
        match = cell.search(line, self._end)
        if not content or not match:
            return -1
        self._end = match.end()
        return match.start()


@dataclass(frozen=True, slots=True)
class _MarkdownBlock:
    """Inline content of a block."""

    source: str
    content: str
    places: list[_LineStart]
    parser: "MarkdownIt"
    env: dict[str, Any]
    pipe: str
    """Markup of `|`, which makes a table of a line before a rule and cells in a table."""

    def read_segment(self) -> Iterator[Segment]:
        """Yield the segment of the block."""
        builder = SegmentBuilder(self.source, make_join(str))
        parts = self._read_parts(self.content)
        for part in parts:
            first, last = self._locate(part.start), self._locate(part.end)
            if part.text is not None:
                builder.add_text(first, last, part.text)
            else:
                attributes = tuple(self._read_attributes(part.start, part.end))
                builder.add_tag(first, last, part.kind, attributes, markup=part.markup)
        for segment in builder.finish():
            tags = [part for part in parts if part.text is None]
            before = [tag for tag in tags if self._locate(tag.end) <= segment.start]
            after = [tag for tag in tags if self._locate(tag.start) >= segment.end]
            outer = [
                [tag.markup or self.content[tag.start : tag.end] for tag in side]
                for side in (before, after)
            ]
            yield replace(segment, join=partial(self._join, before=outer[0], after=outer[1]))

    def _locate(self, position: int) -> int:
        """Return the place in the document of a position in the content."""
        line = bisect_right(self.places, position, key=lambda line: line[0]) - 1
        start, place_in_document = self.places[line]
        return place_in_document + position - start

    def _read_attributes(self, start: int, end: int) -> Iterator[Segment]:
        """Yield the alternative text of an image or the attributes of a tag of HTML."""
        markup = self.content[start:end]
        if "\n" in markup:
            return
        if markup.startswith("!["):
            alt = markup[2 : max(markup.find("]("), markup.find("][")) if "](" in markup else 2]
            if has_letters(alt) and not _SPECIAL.search(alt):
                alt_start = self._locate(start + 2)
                join = make_join(lambda text: _escape(text).replace("|", self.pipe))
                yield Segment(alt_start, alt_start + len(alt), " ".join(alt.split()), alt, join)
        elif markup.startswith("<"):
            for token in scan(markup):
                for attribute in map(self._escape_pipes, read_attributes(markup, token)):
                    yield _shift(attribute, self._locate(start))

    def _escape_pipes(self, segment: Segment) -> Segment:
        """Return an attribute that ends no cell of a table."""
        pipe = "|" if self.pipe == "|" else "&#124;"
        return replace(segment, join=lambda pieces: segment.join(pieces).replace("|", pipe))

    def _read_parts(self, content: str) -> "list[_InlinePart]":
        """Return the text and markup of a block in order."""
        recorded = self.env["recorded"] = list[_RecordedMarkup]()
        self.parser.inline.parse(content, self.parser, self.env, [])
        del self.env["recorded"]
        markup = sorted(
            (part for record in recorded for part in _read_recorded(record, content)),
            key=lambda part: part.start,
        )
        parts: list[_InlinePart] = []
        end = 0
        for part in markup:
            parts += _read_plain(content, end, part.start)
            parts.append(part)
            end = part.end
        return _merge_protected([*parts, *_read_plain(content, end, len(content))], content)

    def _join(self, pieces: Pieces, before: list[str], after: list[str]) -> str:
        """Join text and markup; escape text, and set off emphasis, only if it reads wrong else.

        `before` and `after` are the tags around the segment.
        """
        pieces = [*((tag, True) for tag in before), *pieces, *((tag, True) for tag in after)]
        intended = _normalize(
            _InlinePart(0, 0, None if is_markup else piece, markup=piece)
            for piece, is_markup in pieces
        )
        joined = ""
        for spaced, escaped in ((False, False), (False, True), (True, False), (True, True)):
            written = self._write(pieces, spaced=spaced, escaped=escaped)
            joined = "".join(written[len(before) : len(written) - len(after)])
            # The marks of the block after a line break are no inline content.
            inline = "".join(_BREAK.sub("  \n", text) for text in written)
            if intended == _normalize(
                replace(part, markup=part.markup or inline[part.start : part.end])
                for part in self._read_parts(inline)
            ):
                break
        return joined

    def _write(self, pieces: Pieces, *, spaced: bool, escaped: bool) -> list[str]:
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
class _InlinePart:
    """Text or inline markup in the content of a block."""

    start: int
    end: int
    text: str | None = None
    kind: TagKind = "single"
    markup: str | None = None
    """Markup beside a changed text, if not that of the content."""


def _read_recorded(record: _RecordedMarkup, content: str) -> Iterator[_InlinePart]:
    token, start, end = record.token, record.start, record.end
    if token.type == "softbreak":
        yield _InlinePart(start, end, " ")
    elif token.type == "hardbreak":
        before = len(content[:start].rstrip(" ")) if content[start] == "\n" else start
        yield _InlinePart(before, end, kind="break")
    elif token.type == "text_special":
        yield _InlinePart(start, end, token.content)
    elif record.rule in {"emphasis", "strikethrough"}:
        # Strong emphasis is a token with the markup and one without content beside it.
        if token.nesting > 0:
            yield _InlinePart(end - len(token.markup), end, kind="open")
        elif token.nesting < 0:
            yield _InlinePart(start, start + len(token.markup), kind="close")
    elif record.rule == "link":
        markup = None
        if content[record.label_end + 1 : end] in {"", "[]"}:  # the text is the label
            label = _ANY_SPACE.sub(" ", content[start + 1 : record.label_end])
            markup = f"][{label}]"
        yield _InlinePart(start, start + 1, kind="open")
        yield _InlinePart(record.label_end, end, kind="close", markup=markup)
    elif record.rule == "html_inline":
        tag = next(scan(content[start:end]))
        yield _InlinePart(start, end, kind=_find_kind(tag))
    else:
        yield _InlinePart(start, end)


def _find_kind(tag: MarkupToken) -> TagKind:
    if tag.name == "br":
        return "break"
    if tag.name not in VOID and (tag.kind == "open" or tag.kind == "close"):
        return tag.kind
    return "single"


def _read_plain(content: str, start: int, end: int) -> Iterator[_InlinePart]:
    """Yield plain text, and the marks of extensions of Markdown in it."""
    for match in _EXTENSION.finditer(content, start, end):
        if start < match.start():
            yield _InlinePart(start, match.start(), content[start : match.start()])
        yield _InlinePart(match.start(), match.end())
        start = match.end()
    if start < end:
        yield _InlinePart(start, end, content[start:end])


def _merge_protected(parts: list[_InlinePart], content: str) -> list[_InlinePart]:
    """Make one tag of each element of HTML whose content is not translated."""
    merged: list[_InlinePart] = []
    name, depth = "", 0
    for part in parts:
        is_html = part.text is None and content[part.start] == "<"
        tag = next(scan(content[part.start : part.end])) if is_html else None
        if not depth:
            merged.append(part)
            if tag and tag.kind == "open" and is_protected(content[part.start :], tag):
                name, depth = tag.name, 1
            continue
        merged[-1] = _InlinePart(merged[-1].start, part.end)
        if tag and tag.name == name and tag.kind == "open":
            depth += 1
        elif tag and tag.name == name and tag.kind == "close":
            depth -= 1
    return merged


def _normalize(parts: Iterable[_InlinePart]) -> list[str]:
    """Return the text, without white space, and the markup of a block."""
    normalized = [""]
    for part in parts:
        if part.text is not None:
            normalized[-1] += _ANY_SPACE.sub("", part.text)
        else:
            markup = part.markup or ""
            normalized += ["\n" if _BREAK.match(markup) else markup.strip(), ""]
    return normalized


def _shift(segment: Segment, by: int) -> Segment:
    """Return a segment of a part of the document that starts at `by`."""
    return replace(
        segment,
        start=segment.start + by,
        end=segment.end + by,
        tags=tuple(replace(tag, start=tag.start + by) for tag in segment.tags),
        attributes=tuple(_shift(attribute, by) for attribute in segment.attributes),
    )
