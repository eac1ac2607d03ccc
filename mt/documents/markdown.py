"""Segments of a Markdown file: CommonMark with tables, strikethrough and marks of dialects.

A translation is parsed again: if its markup reads otherwise, the block keeps its source.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mt.documents.html import (
    add_characters,
    find_foreign,
    is_foreign,
    read_attributes,
    read_html,
    scan,
)
from mt.documents.markdown_parser import build_parser, find_tag_kind, read_parts
from mt.documents.segments import (
    Fragment,
    Options,
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
_ANCHOR_LINK = re.compile(r"\]\(<?#\w|\bhref=[\"']?#\w")
_DIRECTIVE = re.compile(r"\{(?!(?:code|math|mermaid|toctree|(?:literal)?include|image)\b)[a-z]")


def read_markdown(source: str, options: Options) -> Iterator[Segment | Replacement]:
    """Yield the segments of a file, block by block, and what is not translated."""
    front = _FRONT_MATTER.match(source)
    begin, end = front.end() if front else 0, len(source)
    if has_letters(source[:begin]):
        yield Replacement(0, 0, "", "blocks of front matter")
    lines = [begin, *(match.end() for match in _LINE_END.finditer(source, begin)), end]
    page = _Page(source, lines, build_parser(), options)
    before = None
    for token in page.parser.parse(source[begin:], page.env):
        if token.map:
            yield from page.read_block(token, before)
        before = token
    for label, reference in page.env.get("references", {}).items():
        if label.startswith("^") and re.fullmatch(r"\W*[^\W\d_][^/]*", reference["href"]):
            yield Replacement(end, end, "", "footnotes of one word")
        elif reference["href"] != "#" and has_letters(reference["title"]):
            yield Replacement(end, end, "", "titles of links")
    for _ in _ANCHOR_LINK.finditer(source, begin):
        yield Replacement(end, end, "", "links to anchors, which headings may change")


_Frame = tuple[str, str]
"""Text before and after the content of a block of its kind."""
_CELL: _Frame = ("| ", " |\n|-|")
_LINED: _Frame = ("", "\n===")
_FRAMES = {"paragraph_open": ("", ""), "td_open": _CELL, "th_open": _CELL, "=": _LINED, "-": _LINED}
_FOOTNOTE = re.compile(r"[\s>]*\[\^[^\]\s]+\]:")
_NUMBERED = re.compile(r"\n[ >]*\d{1,9}[.)](?=\s)")
"""Line of a paragraph that some readers take for an item of a list, below a footnote."""
_RULE = re.compile(r"[\s>]*[-:| ]+[\r\n]*$", re.MULTILINE)


@dataclass(slots=True)
class _Page:
    """File that is read block by block."""

    source: str
    lines: list[int]
    """Starts of lines, and the end."""
    parser: "MarkdownIt"
    options: Options
    env: dict[str, Any] = field(default_factory=dict)
    end: int = 0
    """End of the last block."""

    def read_block(self, token: "Token", before: "Token | None") -> Iterator[Segment | Replacement]:
        """Yield the segments of a block, given with the token before it."""
        start, end = (self.lines[min(index, len(self.lines) - 1)] for index in token.map or ())
        start = max(start, self.end)
        kept = ""
        if token.type == "inline":
            above = self.source[self.lines[max(token.map[0] - 1, 0)] : start] if token.map else ""
            if _FOOTNOTE.match(above) and _NUMBERED.search(token.content):
                kept = "paragraphs below footnotes"
            elif block := self._find_inline(token, before):
                yield from block.read_segment()
            else:
                kept = "blocks of an unknown form"
        elif token.type == "html_block" or (token.type == "line" and token.content[0] == "<"):
            yield from self._read_html(token, start, end)
        elif token.type == "fence" and _DIRECTIVE.match(token.info):
            kept = "directives in fences"
        elif token.type == "line" and token.content[0] not in "{<$\\":
            kept = "lines of marks"
        if kept and has_letters(token.content):
            yield Replacement(start, start, "", kept)

    def _find_inline(self, token: "Token", before: "Token | None") -> "_Content | None":
        """Return the block of a token with inline content, or None if its lines are not found."""
        assert token.map, "inline content has lines"
        kind = before.markup or before.type if before else ""
        frame = _FRAMES.get(kind, ("# ", ""))
        places, start = [], 0
        for index, content in enumerate(token.content.split("\n"), start=token.map[0]):
            text = content.strip()
            if index + 1 >= len(self.lines) or not text:
                return None
            first, last = self.lines[index], self.lines[index + 1]
            if frame == _CELL:
                written = re.escape(text).replace(r"\|", r"\\\|")
                cell = re.compile(rf"(?<![^|\s]){written}(?=[ \t]*(?:\||$))", re.MULTILINE)
                match = cell.search(self.source, max(first, self.end), last)
                place = match.start() if match else -1
            else:
                line = self.source[first:last].replace("\0", "\ufffd")
                place = line.rfind(text)
                place += first if place >= 0 else 0
            if place < 0:
                return None
            place -= len(content) - len(content.lstrip())
            places.append((start, place))
            if frame == _CELL:  # without the escapes of `|`
                for escapes, bar in enumerate(re.finditer(r"\|", content), start=1):
                    places.append((start + bar.end(), place + bar.end() + escapes))
            start += len(content) + 1
        self.end = places[-1][1] + len(token.content) - places[-1][0]
        around = self.lines[token.map[0] + 1 : token.map[1] + 1]
        has_rule = any(_RULE.match(self.source, start) for start in around)
        pipe = r"\|" if frame == _CELL else "&#124;" if has_rule else "|"
        return _Content(self, token.content, places, frame, pipe)

    def _read_html(self, token: "Token", start: int, end: int) -> Iterator[Segment | Replacement]:
        """Yield the segments of a block of HTML or a tag of MDX on a line of its own."""
        first = token.content.partition("\n")[0].strip()
        start = max(self.source.find(first, start, end), start)
        text = self.source[start:end]
        is_html = token.type == "html_block"
        found = (
            read_html(text, self.options, self._add_text)
            if is_html
            else read_attributes(first, next(scan(first)), self.options)
        )
        is_quoted = token.level > 0 and text.split() != token.content.split()
        for segment in found:
            if isinstance(segment, Segment) and segment.raw.startswith("{"):  # of MDX
                continue
            if is_quoted:
                yield Replacement(start, start, "", "texts of HTML in quotations")
            else:
                yield _shift(segment, start)

    def _add_text(self, builder: SegmentBuilder, start: int, end: int) -> None:
        """Add the text between two tags of HTML, which is Markdown."""
        for part in read_parts(self.parser, builder.source[start:end], self.env, self.options):
            first, last = start + part.start, start + part.end
            if part.text is None:
                builder.add_tag(first, last, part.kind, markup=part.markup)
            elif part.text == builder.source[first:last]:
                add_characters(builder, first, last)
            else:
                builder.add_text(first, last, part.text)


def _shift(segment: Segment | Replacement, by: int) -> Segment | Replacement:
    """Return a change of a part of the document that starts at `by`."""
    start, end = segment.start + by, segment.end + by
    if isinstance(segment, Replacement):
        return replace(segment, start=start, end=end)
    return replace(
        segment,
        start=start,
        end=end,
        tags=tuple(replace(tag, start=tag.start + by) for tag in segment.tags),
        attributes=tuple(_shift(attribute, by) for attribute in segment.attributes),
    )


_ALT_END = re.compile(r"\]\(|\]\[|\]$")
_LINK_TITLE = re.compile(r"\s[\"'(][^\n]*[\"')]\s*\)\Z")


@dataclass(frozen=True, slots=True)
class _Content:
    """Inline content of a block."""

    page: _Page
    content: str
    places: list[tuple[int, int]]
    """Starts of lines, and of the rests of cells after `|`, in the content and the document."""
    frame: _Frame
    pipe: str
    """Markup of `|`, which makes a table of a line before a rule and cells in a table."""

    def read_segment(self) -> Iterator[Segment | Replacement]:
        """Yield the segment of the block, or those of attributes, and what is not translated."""
        builder = SegmentBuilder(self.page.source, make_join(str))
        page = self.page
        parts = read_parts(page.parser, self.content, page.env, page.options)
        pipe = self.pipe if self.frame == _CELL else "|"
        written: list[tuple[int, int, tuple[str, bool]]] = []
        for part in parts:
            first, last = self._locate(part.start), self._locate(part.end)
            content = self.content[part.start : part.end]
            markup = (part.markup or content).replace("|", pipe)
            written.append((first, last, (markup, part.text is None)))
            if part.text is not None:
                builder.add_text(first, last, part.text)
                continue
            attributes = tuple(self._read_attributes(part.start, content))
            if kept := _find_untranslated(content, page.options, is_read=bool(attributes)):
                yield Replacement(self.places[0][1], self.places[0][1], "", kept)
            changed = markup if part.markup else None
            builder.add_tag(first, last, part.kind, attributes, markup=changed)
        for segment in builder.finish():
            if isinstance(segment, Replacement) or segment.join is not builder.join:  # of a tag
                yield segment
                continue
            before: Pieces = []
            after: Pieces = []
            for first, last, piece in written:
                if last <= segment.start:
                    before.append(piece)
                elif first >= segment.end:
                    after.append(piece)
                elif not piece[1]:  # with the white space around the segment
                    before += [(" ", False)] * (first < segment.start)
                    after += [(" ", False)] * (last > segment.end)
            yield replace(segment, join=partial(self._join, before=before, after=after))

    def _locate(self, position: int) -> int:
        """Return the place in the document of a position in the content."""
        line = bisect_right(self.places, position, key=lambda line: line[0]) - 1
        start, place_in_document = self.places[line]
        return place_in_document + position - start

    def _read_attributes(self, start: int, markup: str) -> Iterator[Segment | Replacement]:
        """Yield the alternative text of an image or the attributes of a tag of HTML."""
        if markup.startswith("![") and markup[2:3] != "[":
            alt = _ALT_END.split(markup[2:], maxsplit=1)[0]
            parts = read_parts(self.page.parser, alt, self.page.env)
            text = "".join(part.text or "" for part in parts)
            is_plain = all(part.text is not None for part in parts) and "\n" not in alt
            is_label = markup[2 + len(alt) :] in {"]", "][]"}
            if is_plain and not is_label and has_letters(text):
                first, last = self._locate(start + 2), self._locate(start + 2 + len(alt))
                join = make_join(
                    lambda text: _SPECIAL.sub(r"\\\g<0>", text).replace("|", self.pipe)
                )
                raw = self.page.source[first:last]
                yield Segment(first, last, " ".join(text.split()), raw, join)
        elif markup.startswith("<"):
            pipe = "|" if self.pipe == "|" else "&#124;"
            options = self.page.options
            if is_foreign(markup, next(scan(markup)), options):
                return
            for tag in scan(markup):
                for change in read_attributes(markup, tag, options):
                    shifted = _shift(change, self._locate(start + change.start) - change.start)
                    if isinstance(shifted, Replacement):
                        yield shifted
                    elif shifted.raw[:1] != "{" and "\n" not in shifted.raw:
                        yield replace(shifted, join=partial(_join_with_bars, shifted.join, pipe))

    def _join(self, pieces: Pieces, before: Pieces, after: Pieces) -> str:
        """Join text and markup; escape text, and set off markup, only if it reads wrong else.

        `before` and `after` are in the block around the segment. Raises RefusedTranslationError if
        the markup reads wrong in any case.
        """
        pieces = [*before, *pieces, *after]
        is_risky = any(not is_markup and re.search(r"[`\\]", piece) for piece, is_markup in pieces)
        kinds, _ = self._read_block("x")
        parts = _find_kinds(pieces)
        expected = list[str]()
        for part in parts:  # one may hold several, such as `**3**`
            is_whole = part.text is None and part.kind == "single"
            expected.append(self._read_inline(part.markup or "") if is_whole else _normalize(part))
        for spaces, escapes in sorted(_WAYS, key=lambda way: is_risky and not way[1]):
            written = self._write(parts, spaces, escapes, len(parts) - len(after))
            # The marks of the block after a line break are no inline content.
            inline = "".join(_BREAK.sub("  \n", text) for text in written)
            read_kinds, content = self._read_block(inline)
            if kinds == read_kinds and "".join(expected) == self._read_inline(content):
                return "".join(written[len(before) : len(written) - len(after)])
        raise RefusedTranslationError("its inline markup would read otherwise")

    def _read_block(self, content: str) -> tuple[list[str], str]:
        """Return the kinds of the tokens of a block with this content, and the content read."""
        tokens = self.page.parser.parse(content.join(self.frame), {})
        inline = next((token.content for token in tokens if token.type == "inline"), "")
        return [token.type for token in tokens], inline

    def _read_inline(self, content: str) -> str:
        """Return the text and markup of inline content as `_normalize` writes them."""
        content = content.strip(" ")
        parts = read_parts(self.page.parser, content, self.page.env)
        return "".join(_normalize(part, content[part.start : part.end]) for part in parts)

    def _write(self, parts: list[Fragment], spaces: int, escapes: int, last: int) -> list[str]:
        """Write text and markup; white space between two is in the first from `last` on."""
        written: list[str] = []
        at_start = not _BLOCK_START.match(self.content)
        ending = "break"
        for index, part in enumerate(parts):
            text, kind = part.markup or "", part.kind if part.text is None else "text"
            if part.text is not None:
                text = _SPECIAL.sub(r"\\\g<0>", part.text) if escapes else part.text
                if escapes > 1:  # an escaped bracket may begin a formula
                    text = text.replace(r"\[", "&#91;").replace(r"\]", "&#93;")
                text = text.replace("|", self.pipe)
                if at_start and (start := _BLOCK_START.match(text)):
                    text = f"{text[: start.end()]}\\{text[start.end() :]}"
            at_start = kind == "break"
            if _needs_space(written[-1] if written else "", ending, text, kind, spaces):
                if index >= last:
                    written[-1] += " "
                else:
                    text = f" {text}"
            written.append(text)
            ending = "bounded" if kind == "single" and _BOUNDED.match(text) else kind
        return written


def _join_with_bars(join: Callable[[Pieces], str], pipe: str, pieces: Pieces) -> str:
    return join(pieces).replace("|", pipe)


_WAYS = [(spaces, escapes) for escapes in range(3) for spaces in range(3)]
"""Spaces between text and markup, or between all; escapes."""
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~!#${}=^+@:%]")


def _find_kinds(pieces: Pieces) -> list[Fragment]:
    """Return text and markup with the kind of each."""
    parts: list[Fragment] = []
    opened: list[str] = []
    for piece, is_markup in pieces:
        kind: TagKind = "single"
        mark = piece.rstrip(" ")
        if is_markup and _EMPHASIS.fullmatch(mark):
            kind = "close" if opened[-1:] == [mark] else "open"
            opened = opened[:-1] if kind == "close" else [*opened, mark]
        elif is_markup and _BREAK.match(piece):
            kind = "break"
        elif is_markup and piece[0] == "<":
            kind = find_tag_kind(piece)
        elif is_markup and (piece[0] == "]" or piece.endswith("[")):
            kind = "close" if piece[0] == "]" else "open"
        parts.append(Fragment(0, 0, None if is_markup else piece, kind, markup=piece))
    return parts


def _needs_space(before: str, ending: str, text: str, kind: str, spaces: int) -> bool:
    """Test for white space between two pieces, of the kinds `ending` and `kind`.

    An address or formula is `bounded`.
    """
    is_outside = ending not in {"open", "break"} and kind not in {"close", "break"}
    is_spaced = before[-1:].isspace() or text[:1].isspace() or not text
    if not is_outside or is_spaced or ending == kind == "text":
        return False
    if ending == "bounded":
        return kind != "text" or text[0] not in _CLOSING or text[1:2] not in {"", " "}
    if kind == "single" and _BOUNDED.match(text):
        return before[-1] not in "(*_~\"'"
    return spaces > 1 or (spaces == 1 and "text" not in {ending, kind})


_BOUNDED = re.compile(r"\s*(?:\$|[A-Za-z][A-Za-z0-9.+-]*://|www\.)")
"""Address or formula, which needs white space or ASCII punctuation around it."""
_CLOSING = "?!.,:;)*_~'\""
_BLOCK_START = re.compile(
    r"(?=(?:[-+*](?:\s|$)|#{1,6}(?:\s|$)|>|~~~|```|:::|:\s|\|\s|!!!|\?\?\?|///|\$\$|[-=_*+](?:\s*[-=_*+]){2}|=+$))"
    r"|\d{1,9}(?=[.)](?:\s|$))"
)
_EMPHASIS = re.compile(r"[*_~]+|==|\^\^|\+\+")
_BREAK = re.compile(r"(?: +|\\)(?:\r\n?|\n)[\s>]*")


def _normalize(part: Fragment, content: str = "") -> str:
    """Return text without white space, or markup between lines."""
    if part.text is not None:
        return "".join(part.text.split())
    written = part.markup or content
    markup = written.strip(" ").replace(r"\|", "|")
    if _EMPHASIS.fullmatch(markup):
        markup = f"{part.kind} {markup}"
    return "\n\n" if _BREAK.match(written) else f"\n{markup}\n"


def _find_untranslated(markup: str, options: Options, *, is_read: bool) -> str:
    """Return a noun for the text in markup that is not translated, if any."""
    if markup[0] == "<" and is_foreign(markup, next(scan(markup)), options):
        return find_foreign(markup)
    if markup.startswith(("[[", "![[")):
        return "wiki links" if has_letters(markup.partition("](")[0]) else ""
    if markup.startswith("![") and not is_read and has_letters(_ALT_END.split(markup[2:])[0]):
        return "alternative texts"
    title = _LINK_TITLE.search(markup) if markup.startswith(("](", "![")) else None
    return "titles of links" if title and has_letters(title[0]) else ""
