"""Segments of a Markdown file: CommonMark with tables, strikethrough and marks of dialects.

A translation is parsed again: if its markup reads otherwise, the block
keeps its source.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mt.documents.html import is_protected, read_attributes, read_html, scan
from mt.documents.markdown_parser import (
    ALT_END,
    WEB_ADDRESS,
    WEB_HOST,
    HeadingLinks,
    RecordedMarkup,
    build_parser,
    find_tag_kind,
    find_untranslated,
    is_directive,
    trim_address,
)
from mt.documents.segments import (
    Pieces,
    RefusedTranslationError,
    Replacement,
    Segment,
    SegmentBuilder,
    has_letters,
    make_join,
)
from mt.documents.tags import TagKind

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?=\S).*?\r?\n(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_LINE_END = re.compile(r"\r\n?|\n")
_SHOWN_VALUE = re.compile(
    r"^(?:title|subtitle|description|summary|excerpt|sidebar_label|tagline)[ \t]*[:=](.*)",
    re.MULTILINE,
)
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}


def read_markdown(source: str) -> Iterator[Segment | Replacement]:
    """Yield the segments of a file, block by block, and what is not translated."""
    parser = build_parser()
    front = _FRONT_MATTER.match(source)
    begin = front.end() if front else 0
    for value in _SHOWN_VALUE.finditer(source, 0, begin):
        if has_letters(value[1]):
            yield Replacement(0, 0, "", "titles and descriptions in front matter")
    lines = [begin, *(match.end() for match in _LINE_END.finditer(source, begin)), len(source)]
    env: dict[str, Any] = {}
    page = _Page(source, lines, parser, env)
    before = None
    links = HeadingLinks()
    for token in parser.parse(source[begin:], env):
        if token.map:
            links.add(token.content, is_heading=before is not None and before.tag in _HEADINGS)
            yield from page.read_block(token, before)
        before = token
    end = len(source)
    for label, reference in env.get("references", {}).items():
        links.add(f"]({reference['href']})")
        if label.startswith("^") and re.fullmatch(r"\W*[^\W\d_][^/]*", reference["href"]):
            yield Replacement(end, end, "", "footnotes of one word")
        elif reference["href"] != "#" and has_letters(reference["title"]):
            yield Replacement(end, end, "", "titles of links")
    for _ in range(links.count_dead(source)):
        yield Replacement(end, end, "", "anchors of headings in links")


@dataclass(slots=True)
class _Page:
    """File that is read block by block."""

    source: str
    lines: list[int]
    """Starts of lines, and the end."""
    parser: "MarkdownIt"
    env: dict[str, Any]
    cells: "_CellFinder" = field(default_factory=lambda: _CellFinder())
    end: int = 0
    """End of the last segment."""

    def read_block(self, token: "Token", before: "Token | None") -> Iterator[Segment | Replacement]:
        """Yield the segments of a block, given with the token before it."""
        start, end = (self.lines[min(index, len(self.lines) - 1)] for index in token.map or ())
        start = max(start, self.end)
        kept = ""
        if token.type == "inline":
            frame = _find_frame(before, token)
            find: _Find = self.cells.find if frame == _CELL else _find_in_line
            if token.meta:
                find = partial(_find_after, before=frame[0])
            places = _locate_lines(token, self.source, self.lines, find)
            if places is not None:
                for item in self._read_inline(token, frame, places):
                    self.end = item.end
                    yield item
            elif has_letters(token.content):
                kept = "blocks of an unknown form"
        elif token.type in {"html_block", "jsx"}:
            yield from self._read_html(token, start, end)
        elif token.type == "fence" and is_directive(token.info) and has_letters(token.content):
            kept = "directives in fences"
        elif token.type == "abbreviation":
            kept = "abbreviations"
        if kept:
            yield Replacement(start, start, "", kept)

    def _read_inline(
        self, token: "Token", frame: "_Frame", places: "list[_LineStart]"
    ) -> Iterator[Segment | Replacement]:
        assert token.map, "blocks have lines"
        around = self.lines[token.map[0] + 1 : token.map[1] + 1]
        rule = any(_RULE.match(self.source, start) for start in around)
        pipe = r"\|" if frame == _CELL else "&#124;" if rule else "|"
        block = _MarkdownBlock(
            self.source, token.content, places, self.parser, self.env, frame, pipe
        )
        return block.read_segment()

    def _read_html(self, token: "Token", start: int, end: int) -> Iterator[Segment | Replacement]:
        """Yield the segments of a block of HTML or a tag of MDX on a line of its own."""
        first = token.content.partition("\n")[0].strip()
        line = _LINE_END.split(self.source[start:end], maxsplit=1)[0]
        start += max(line.rfind(first), 0)
        text = self.source[start:end]
        is_jsx = token.type == "jsx"
        found = read_attributes(first, next(scan(first))) if is_jsx else read_html(text)
        lines = [line.strip() for line in text.splitlines()]
        is_quoted = lines != [line.strip() for line in token.content.splitlines()]
        for segment in found:
            if segment.raw.startswith("{"):  # an expression of MDX
                continue
            if is_quoted and token.level:
                yield Replacement(start, start, "", "texts of HTML in quotations")
            else:
                yield _shift(segment, start)


_Frame = tuple[str, str]
"""Text before and after the content of a block of its kind."""
_CELL: _Frame = ("| ", " |\n|-|")


def _find_frame(before: "Token | None", token: "Token") -> _Frame:
    if token.meta:
        frame: _Frame = token.meta["frame"]
        return frame
    if before is None or before.type == "paragraph_open":
        return "", ""
    if before.type in {"td_open", "th_open"}:
        return _CELL
    return ("", "\n===") if before.markup in {"=", "-"} else ("# ", "")


_LineStart = tuple[int, int]
"""Start of a line in the content of a block, and its place in the document."""
_Find = Callable[[str, str, int], int]
"""Function that returns the place of a content in a line, given with its index, or -1."""


def _locate_lines(
    token: "Token", source: str, lines: list[int], find: _Find
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
        place = lines[index] + offset - space
        places.append((start, place))
        if isinstance(getattr(find, "__self__", None), _CellFinder):  # without the escapes of `|`
            for escapes, pipe in enumerate(re.finditer(r"\|", content), start=1):
                places.append((start + pipe.end(), place + pipe.end() + escapes))
        start += len(content) + 1
    return places


_HEADING_END = re.compile(r"[ \t]+#+$")


def _find_in_line(line: str, content: str, _: int) -> int:
    """Find the content of a line after the marks of its block."""
    line = line.rstrip()
    if not line.endswith(content):
        line = _HEADING_END.sub("", line).rstrip()
    return len(line) - len(content) if line.endswith(content) else -1


def _find_after(line: str, content: str, _: int, before: str) -> int:
    """Find the title after the marks of a line."""
    start = line.find(before + content)
    return start + len(before) if start >= 0 else -1


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
        written = re.escape(content).replace(r"\|", r"\\\|")
        cell = re.compile(rf"(?<![^|\s]){written}(?=\s*(?:\||$))")
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
    frame: _Frame
    pipe: str
    """Markup of `|`, which makes a table of a line before a rule and cells in a table."""

    def read_segment(self) -> Iterator[Segment | Replacement]:
        """Yield the segment of the block."""
        builder = SegmentBuilder(self.source, make_join(str))
        parts = self._read_parts(self.content)
        for part in parts:
            first, last = self._locate(part.start), self._locate(part.end)
            if part.text is not None:
                builder.add_text(first, last, part.text)
                continue
            content = self.content[part.start : part.end]
            attributes = tuple(self._read_attributes(part.start, part.end))
            if kept := find_untranslated(content, is_read=bool(attributes)):
                yield Replacement(self.places[0][1], self.places[0][1], "", kept)
            markup = self._write_pipes(part.markup or "") or None
            builder.add_tag(first, last, part.kind, attributes, markup=markup)
        for segment in builder.finish():
            if segment.join is not builder.join:  # an attribute
                yield segment
                continue
            before: Pieces = []
            after: Pieces = []
            for part in parts:
                first, last = self._locate(part.start), self._locate(part.end)
                content = part.markup or self.content[part.start : part.end]
                piece = self._write_pipes(content), part.text is None
                if last <= segment.start:
                    before.append(piece)
                elif first >= segment.end:
                    after.append(piece)
                elif part.text is not None:  # with the white space around the segment
                    before += [(" ", False)] * (first < segment.start)
                    after += [(" ", False)] * (last > segment.end)
            yield replace(segment, join=partial(self._join, before=before, after=after))

    def _write_pipes(self, markup: str) -> str:
        return markup.replace("|", self.pipe) if self.frame == _CELL else markup

    def _locate(self, position: int) -> int:
        """Return the place in the document of a position in the content."""
        line = bisect_right(self.places, position, key=lambda line: line[0]) - 1
        start, place_in_document = self.places[line]
        return place_in_document + position - start

    def _read_attributes(self, start: int, end: int) -> Iterator[Segment]:
        """Yield the alternative text of an image or the attributes of a tag of HTML."""
        markup = self.content[start:end]
        if markup.startswith("![") and markup[2:3] != "[":
            alt = ALT_END.split(markup[2:], maxsplit=1)[0]
            parts = self._read_parts(alt)
            text = "".join(part.text or "" for part in parts)
            is_plain = all(part.text is not None for part in parts) and "\n" not in alt
            is_label = markup[2 + len(alt) :] in {"]", "][]"}
            if is_plain and not is_label and has_letters(text):
                first = self._locate(start + 2)
                last = self._locate(start + 2 + len(alt))
                join = make_join(lambda text: _escape(text).replace("|", self.pipe))
                yield Segment(first, last, " ".join(text.split()), self.source[first:last], join)
        elif markup.startswith("<"):
            for token in scan(markup):
                for attribute in map(self._escape_pipes, read_attributes(markup, token)):
                    if attribute.raw[:1] != "{" and "\n" not in attribute.raw:
                        place = self._locate(start + attribute.start)
                        yield _shift(attribute, place - attribute.start)

    def _escape_pipes(self, segment: Segment) -> Segment:
        """Return an attribute that ends no cell of a table."""
        pipe = "|" if self.pipe == "|" else "&#124;"
        return replace(segment, join=lambda pieces: segment.join(pieces).replace("|", pipe))

    def _read_parts(self, content: str) -> "list[_InlinePart]":
        """Return the text and markup of a block in order."""
        recorded = self.env["recorded"] = list[RecordedMarkup]()
        self.parser.inline.parse(content, self.parser, self.env, [])
        del self.env["recorded"]
        markup = sorted(
            (part for record in recorded for part in _read_recorded(record, content)),
            key=lambda part: part.start,
        )
        parts: list[_InlinePart] = []
        end = 0
        for part in markup:
            if part.start < end:  # a word that begins inside other markup
                continue
            parts += _read_plain(content, end, part.start)
            parts.append(part)
            end = part.end
        return _merge_protected([*parts, *_read_plain(content, end, len(content))], content)

    def _join(self, pieces: Pieces, before: Pieces, after: Pieces) -> str:
        """Join text and markup; escape text, and set off markup, only if it reads wrong else.

        `before` and `after` are in the block around the segment. Raises RefusedTranslationError if
        the markup reads wrong in any case.
        """
        pieces = [*before, *pieces, *after]
        intended: list[_InlinePart] = []
        opened: list[tuple[str, str]] = []
        for piece, is_markup in pieces:
            kind = _find_markup_kind(piece, opened) if is_markup else "single"
            if is_markup:
                _write_mark(piece, kind, opened, swap=False)
            markup = piece.replace(r"\|", "|") if self.frame == _CELL else piece
            intended.append(_InlinePart(0, 0, None if is_markup else piece, kind, markup))
        kinds, _ = self._read_block("x")
        is_label = any(is_markup and piece[0] in "[]!" for piece, is_markup in pieces)
        risky = r"[`\\\[\]]" if is_label else r"[`\\]"  # which other readers read differently
        is_risky = any(not is_markup and re.search(risky, piece) for piece, is_markup in pieces)
        for way in sorted(_WAYS, key=lambda way: is_risky and not way.escapes):
            written = self._write(pieces, way, len(pieces) - len(after))
            # The marks of the block after a line break are no inline content.
            inline = "".join(_BREAK.sub("  \n", text) for text in written)
            read_kinds, content = self._read_block(inline)
            if kinds == read_kinds and _normalize(intended) == _normalize(
                replace(part, markup=part.markup or content[part.start : part.end])
                for part in self._read_parts(content)
            ):
                return "".join(written[len(before) : len(written) - len(after)])
        raise RefusedTranslationError("its inline markup would read otherwise")

    def _read_block(self, content: str) -> tuple[list[str], str]:
        """Return the kinds of the tokens of a block with this content, and the content read."""
        tokens = self.parser.parse(content.join(self.frame), {})
        inline = next((token.content for token in tokens if token.type == "inline"), "")
        return [token.type for token in tokens], inline

    def _write(self, pieces: Pieces, way: "_Way", last: int) -> list[str]:
        """Write text and markup; white space between two is in the first from `last` on."""
        written: list[str] = []
        opened: list[tuple[str, str]] = []
        at_start = not _BLOCK_START.match(self.content)
        ending = "break"
        is_bounded = False
        for index, (text, is_markup) in enumerate(pieces):
            kind = "text"
            if is_markup:
                kind = _find_markup_kind(text, opened)
                at_start = kind == "break"
                text = _write_mark(text, kind, opened, swap=way.swaps)
            else:
                if way.escapes:
                    text = _ESCAPED[way.escapes].sub(r"\\\g<0>", text)
                    if way.escapes > 1:  # an escaped bracket may begin a formula
                        text = text.replace(r"\[", "&#91;").replace(r"\]", "&#93;")
                text = text.replace("|", self.pipe)
                for character, reference in (('"', "&quot;"), ("'", "&#39;")):
                    if self.frame[0].endswith(character):
                        text = text.replace(character, reference)
                if at_start and (start := _BLOCK_START.match(text)):
                    text = f"{text[: start.end()]}\\{text[start.end() :]}"
                at_start = False
            if ending != "break" and _needs_space(
                written[-1], ending, text, kind, way.spaces, is_bounded=is_bounded
            ):
                if index >= last:
                    written[-1] += " "
                else:
                    text = f" {text}"
            written.append(text)
            ending = kind
            is_bounded = _is_bounded(text) if kind == "single" else is_bounded and kind == "close"
        return written


@dataclass(frozen=True, slots=True)
class _Way:
    """Way to write a translation with its markup."""

    spaces: int = 0
    """White space at markup: 1, between markup and markup; 2, between markup and text too."""
    escapes: int = 0
    """Escapes in text: 1, of the marks of CommonMark; 2, of those of dialects too."""
    swaps: bool = False
    """Write `_` for `*` in emphasis inside emphasis, and the reverse."""


_WAYS = [
    *(_Way(spaces, escapes) for spaces in range(3) for escapes in range(2)),
    *(_Way(spaces, escapes, swaps=True) for spaces in range(3) for escapes in range(2)),
    _Way(2, 2),
    _Way(2, 2, swaps=True),
]


def _find_markup_kind(markup: str, opened: list[tuple[str, str]]) -> TagKind:
    """Return the kind of a tag; `opened` has the marks of emphasis that are not closed yet."""
    if _BREAK.match(markup):
        return "break"
    if _EMPHASIS.fullmatch(markup.rstrip(" ")):
        return "close" if opened and opened[-1][0] == markup.rstrip(" ") else "open"
    if markup.endswith("["):
        return "open"
    if markup.startswith("]"):
        return "close"
    if markup.startswith("<"):
        return find_tag_kind(markup)
    return "single"


def _write_mark(text: str, kind: str, opened: list[tuple[str, str]], *, swap: bool) -> str:
    """Return the mark of emphasis as it is written, any other markup as it is."""
    mark = text.rstrip(" ")
    if not _EMPHASIS.fullmatch(mark):
        return text
    written = mark
    if kind == "close":
        written = opened.pop()[1]
    else:
        if swap and opened and opened[-1][1][0] == mark[0]:
            written = mark.translate({ord("*"): "_", ord("_"): "*"})
        opened.append((mark, written))
    return written + text[len(mark) :]


def _needs_space(
    before: str, ending: str, text: str, kind: str, spaces: int, *, is_bounded: bool
) -> bool:
    """Test for white space between two pieces, of the kinds `ending` and `kind`.

    `is_bounded` is true after an address or formula, with the marks of emphasis around it.
    """
    if not text or before[-1:].isspace() or text[0].isspace() or "break" in {ending, kind}:
        return False
    outside = ending in {"text", "close", "single"} and kind in {"text", "open", "single"}
    if not outside or ending == kind == "text":
        return False
    if is_bounded:
        return kind != "text" or text[0] not in _CLOSING or text[1:2] not in {"", " "}
    if kind == "single" and _is_bounded(text):
        return before[-1] not in "(*_~\"'"
    return spaces > 1 or (spaces == 1 and "text" not in {ending, kind})


def _is_bounded(markup: str) -> bool:
    """Test for an address or formula, which needs white space or ASCII punctuation around it."""
    return markup.lstrip()[0] == "$" or WEB_ADDRESS.match(markup.lstrip()) is not None


_CLOSING = "?!.,:;)*_~'\""
_BLOCK_START = re.compile(
    r"(?=(?:[-+*](?:\s|$)|#{1,6}(?:\s|$)|>|~~~|```|:::|:\s|\|\s|!!!|\?\?\?|///|\$\$|[-=_*+](?:\s*[-=_*+]){2}|=+$))"
    r"|\d{1,9}(?=[.)](?:\s|$))"
)
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~!#]")
_ESCAPED = [_SPECIAL, re.compile(r"[\\`*_\[\]<>&~!#$]"), re.compile(r"[\\`*_\[\]<>&~!#${}=^+@:%]")]
_RULE = re.compile(r"[\s>]*[-:| ]+[\r\n]*$", re.MULTILINE)
_EMPHASIS = re.compile(r"[*_~]+|==|\^\^|\+\+")
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


def _read_recorded(record: RecordedMarkup, content: str) -> Iterator[_InlinePart]:
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
    elif record.rule == "span" and "inner" in token.meta:
        first, last = token.meta["inner"]
        yield _InlinePart(start, first, kind="open")
        yield _InlinePart(last, end, kind="close")
    else:
        is_tag = record.rule in {"html_inline", "span"}
        kind: TagKind = find_tag_kind(content[start:end]) if is_tag else "single"
        yield _InlinePart(start, end, kind=kind)


def _read_plain(content: str, start: int, end: int) -> Iterator[_InlinePart]:
    """Yield plain text, and the addresses of pages in it that begin with `www`."""
    for match in WEB_HOST.finditer(content, start, end):
        yield _InlinePart(start, match.start(), content[start : match.start()])
        start = match.start() + len(trim_address(match[0]))
        yield _InlinePart(match.start(), start)
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
            markup = (part.markup or "").strip(" ")
            if _EMPHASIS.fullmatch(markup):
                markup = f"{part.kind} {markup.replace('_', '*')}"
            normalized += ["\n" if _BREAK.match(part.markup or "") else markup, ""]
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
