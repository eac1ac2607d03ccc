"""Markup inside texts: HTML, reStructuredText, a part of Markdown, and ICU MessageFormat.

A message of ICU has arguments such as `{name}`, and branches for the values of one:
`{count, plural, one {# file} other {# files}}`. Texts in branches are translated, all else is kept.
https://unicode-org.github.io/icu/userguide/format_parse/messages/
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import unescape

from mt.data.formats import TEXT_TAG, is_break
from mt.data.placeholders import GENERAL, Syntax
from mt.documents.html import (
    BLOCK,
    KNOWN,
    REFERENCE,
    VOID,
    MarkupToken,
    is_protected,
    read_attributes,
    scan,
    skip_element,
)
from mt.documents.segments import (
    Fragment,
    Group,
    Item,
    Pieces,
    RefusedTranslationError,
    Replacement,
    Segment,
    SegmentBuilder,
    make_join,
)
from mt.documents.tags import TagKind, find_unpaired

_ANY_TAG = re.compile(
    r"<!--.*?-->|<(/?)([A-Za-z0-9][\w:.-]*)(?:[^<>\"']|\"[^\"]*\"|'[^']*')*?(/?)>", re.DOTALL
)
_NEW_TEXT = re.compile(r"\n[ \t]*|(?<!\S)\|(?=\s)")
"""Border of texts: a line end that lower case does not follow, or a bar, as between plurals."""
_ROLE = r":[\w.+:-]+:`(?:\\.|[^`\\])+`"
_INLINE = re.compile(
    rf"(?P<single>{_ROLE}|``\S(?:.*?\S)?``(?!`)|(?<![\w`])`[^`\s<>](?:[^`<>]*[^`\s<>])?`_{{0,2}}(?!\w)"
    r"|::(?=\s*\Z)|(?<![\w|%])\|[^|\s](?:[^|\n]*[^|\s])?\|_{0,2}(?![\w|])|\[[#*\w][\w-]*\]_(?!\w))"
    r"|(?<![\w`])(?P<link>`)[^`<>]*[^`<>\s](?P<link_end>\s*<[^<>`]+>`__?)"
    r"|(?P<target>!?\[)[^\[\]]+(?P<target_end>\]\([^()\s]*\))"
    r"|(?<![\w*])(?P<mark>\*\*?)(?=[^\s*])[^*]*[^\s*](?P<mark_end>(?P=mark))(?![\w*])",
    re.DOTALL,
)
"""Role, literal, interpreted text or reference, substitution, footnote; link; emphasis."""
_MARKS = ("`", "*", "[", "![", "|", ":", "](")
_BEFORE_MARKUP = re.compile(r"[\s\"'(\[{<\-/:‘“’«¡¿‐–—…，。、！？：；（【《「『]\Z|\A\Z")
_BEHIND_MARKUP = re.compile(r"[\s\"')\]}>\-/\\:.,;!?’”»‐–—…，。、！？：；）】》」』]|\Z")


def embed(
    start: int,
    end: int,
    raw: str | None,
    text: str,
    escape: Callable[[str], str],
    syntax: Syntax = GENERAL,
) -> Iterator[Group | Replacement]:
    """Yield the item for a text that the document has in another form, `raw`, if it has letters.

    `syntax` is that of its placeholders. A translation is refused if it changes the markup.
    """
    escapes = {"<": "&lt;"} if _find_tags(text) else {}
    is_message = has_branches(text)
    if syntax.quotes and not is_message:
        escapes["'"] = "''"
    for match in REFERENCE.finditer(text):
        if len(character := unescape(match[0])) == 1:
            escapes[character] = match[0]
    join = partial(_join, str.maketrans(escapes))
    builder = SegmentBuilder(text, join, keeps_lines=True, syntax=syntax)
    if is_message:
        builder.add_text(0, len(text))
        found = finish_message(builder)
    else:
        found = _read_lines(builder)
    items: list[Item] = []
    for item in found:
        if isinstance(item, Replacement):
            yield replace(item, start=start, end=start)
        else:
            items.append(item)

    def check(result: str) -> str:
        if _list_markup(result) != _list_markup(text):
            raise RefusedTranslationError("the markup would change")
        return escape(result)

    if items:
        yield Group(start, end, text, tuple(items), write=check, raw=raw)


def _read_lines(builder: SegmentBuilder) -> Iterator[Item]:
    """Yield the lines of a text; a line that begins in lower case continues the last one."""
    text, end = builder.source, 0
    tags = _find_tags(text)
    paired = {match[2].lower() for match in tags if match[1]}
    for match in tags:
        if match.start() < end:
            continue
        yield from _add_text(builder, end, match.start())
        token = next(scan(text, match.start()))
        if match[2] and not match[2][0].isalpha():  # such as `<0>`
            token = MarkupToken("close" if match[1] else "open", *match.span(), match[2])
        end = token.end
        kind: TagKind = "single"
        attributes = tuple(read_attributes(text, token))
        if token.kind == "open" and is_protected(text, token):
            end, _ = skip_element(text, token, scan(text, end), is_xml=False)
            attributes = ()
        elif (token.name not in VOID or token.name in paired) and token.kind in {"open", "close"}:
            kind = "open" if token.kind == "open" else "close"
        if token.name in BLOCK and not (token.name in VOID and token.name in paired):
            yield from finish_message(builder)
            yield from attributes
        else:
            builder.add_tag(token.start, end, kind, attributes)
    yield from _add_text(builder, end, len(text))
    yield from finish_message(builder)


def _find_tags(text: str) -> list[re.Match[str]]:
    """Return comments and tags: of HTML, with an end tag, or without content (`<x/>`)."""
    tags = [(match, (match[2] or "").lower()) for match in _ANY_TAG.finditer(text)]
    opened = {name for match, name in tags if not match[1]}
    known = {"", *KNOWN, *(name for match, name in tags if match[1] and name in opened)}
    return [match for match, name in tags if match[3] or name in known]


def _add_text(builder: SegmentBuilder, start: int, end: int) -> Iterator[Item]:
    """Add a part of the text without HTML; yield the segments of lines that end in it."""
    for match in _INLINE.finditer(builder.source, start, end):
        yield from _add_lines(builder, start, match.start())
        start = match.end()
        if match["single"]:
            builder.add_tag(*match.span(), "single")
            continue
        name = next(name for name in ("link", "target", "mark") if match[name])
        opening, closing = match.span(name), match.span(f"{name}_end")
        builder.add_tag(*opening, "open")
        _add_characters(builder, opening[1], closing[0])
        builder.add_tag(*closing, "close")
    yield from _add_lines(builder, start, end)


def _add_lines(builder: SegmentBuilder, start: int, end: int) -> Iterator[Item]:
    for match in _NEW_TEXT.finditer(builder.source, start, end):
        if match[0] != "|" and builder.source[match.end() : match.end() + 1].islower():
            continue
        _add_characters(builder, start, match.start())
        yield from finish_message(builder)
        start = match.end()
    _add_characters(builder, start, end)


def _add_characters(builder: SegmentBuilder, start: int, end: int) -> None:
    text = REFERENCE.sub(lambda match: unescape(match[0]), builder.source[start:end])
    builder.add_text(start, end, text.replace("''", "'") if builder.syntax.quotes else text)


def _join(escapes: dict[int, str], pieces: Pieces) -> str:
    """Return text and markup, with a space or reference where the markup needs one."""
    result, is_behind = "", False
    for piece, kind in pieces:
        written = piece.translate(escapes) if kind == "text" else piece
        is_mark = piece.startswith(_MARKS) and not piece.endswith("]")
        is_mark = kind != "text" and (is_mark or piece.endswith(("`_", "`__")))
        joins = is_mark and kind != "close" and not _BEFORE_MARKUP.search(result)
        is_apart = is_behind and not (is_mark and kind == "close")
        follows = is_apart and not _BEHIND_MARKUP.match(written)
        result += f" {written}" if joins or follows else written
        is_behind = is_mark and kind != "open"
    return result


def _list_markup(text: str) -> list[str]:
    """Return the tags, without their attributes, and the other markup of a text, sorted."""
    names = [f"<{match[1]}{match[2]}" for match in _find_tags(text)]
    marks = [
        match["single"] or match["link_end"] or match["target_end"] or match["mark_end"]
        for match in _INLINE.finditer(text)
    ]
    return sorted(names + [mark.strip() for mark in marks])


BROKEN = "ICU messages that do not parse"
_COMPLEX = {"plural", "selectordinal", "select"}
_VOID = {"br", "hr", "img", "input", "wbr"}
_KEY = re.compile(
    r"(?P<shortcut>(?:\t|\\t)\S+\Z)|\([&_]\w\)(?:\.{3}|…)?|(?<![^\s(\[])[&_](?=[^\W_]+(?![\w;.(]))"
    r"|(?<!\w)[^\W\d_]++&(?=[a-z]\w*+(?!;))"
)
"""Keys behind a tab, as in `Save\tCtrl+S`, or mark of an accelerator."""
_DEEPEST = 20
_TAG = "\ufffc"


def has_branches(text: str) -> bool:
    """Test for an argument with branches."""
    return "{" in text and any(head[1] in _COMPLEX for head in _HEAD.finditer(text))


def is_broken(text: str) -> bool:
    """Test for an argument with branches in a text that does not parse."""
    builder = SegmentBuilder(text, make_join(str))
    builder.add_text(0, len(text))
    return has_branches(text) and any(
        isinstance(item, Replacement) for item in finish_message(builder)
    )


def finish_message(builder: SegmentBuilder) -> Iterator[Item]:
    """Yield the items of a block, which may be a message of ICU MessageFormat.

    Tags in its text become inline tags, as do the mark of an accelerator (`&Open`, `_Open`) and the
    keys behind a tab. A message is translated as a whole or not at all, and stays as it is if it
    does not parse.
    """
    _pair_tags(builder)
    message = _Message(builder)
    if not has_branches(message.text):
        yield from builder.finish()
        return
    try:
        text = message.read_text(0)
    except _SyntaxError:
        start = builder.fragments[0].start
        yield Replacement(start, start, "", kept=BROKEN)
    else:
        segments = tuple((text if message.has_branches else builder).finish())
        if segments:
            yield Group.of(builder.source, segments)
    builder.fragments = []


class _SyntaxError(Exception):
    """Text that is no message of ICU MessageFormat, or has escapes inside its syntax."""


class _Block:
    """Text of a block, with a character for each tag."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self.fragments = fragments
        self.starts: list[int] = []
        """Place in the text of each fragment."""
        length, texts = 0, []
        for fragment in fragments:
            self.starts.append(length)
            texts.append(_TAG if fragment.text is None else fragment.text)
            length += len(texts[-1])
        self.text = "".join(texts)

    def locate(self, place: int) -> int | None:
        """Return the place in the document, None inside an escape."""
        if place == len(self.text):
            return self.fragments[-1].end
        index = bisect_right(self.starts, place) - 1
        fragment, inside = self.fragments[index], place - self.starts[index]
        if any(
            piece.start == piece.end and piece.text != ""
            for piece in self.fragments[max(index - 1, 0) : index + 1]
        ):
            return None
        is_plain = len(fragment.text or "") == fragment.end - fragment.start
        return fragment.start + inside if is_plain or not inside else None

    def cut(self, start: int, end: int) -> Iterator[Fragment]:
        """Yield the fragments of a part of the text.

        A piece of an escape has the place of its start, the last piece all of it.
        """
        index = max(bisect_right(self.starts, start) - 1, 0)
        while start < end:
            fragment, place = self.fragments[index], self.starts[index]
            index += 1
            length = len(_TAG if fragment.text is None else fragment.text)
            if fragment.text is None or (start <= place and place + length <= end):
                yield fragment
            else:
                last = min(end - place, length)
                text = fragment.text[start - place : last]
                if length == fragment.end - fragment.start:
                    first = fragment.start + start - place
                    yield replace(fragment, start=first, end=fragment.start + last, text=text)
                else:
                    stop = fragment.end if last == length else fragment.start
                    yield replace(fragment, end=stop, text=text)
            start = max(start, place + length)


def _pair_tags(builder: SegmentBuilder) -> None:
    """Make tags of the pairs and empty tags in the text; keep unpaired tags in order."""
    block = _Block(builder.fragments)
    halves: list[tuple[int, int, TagKind, str]] = [
        (place, place + 1, fragment.kind, fragment.key)
        for place, fragment in zip(block.starts, builder.fragments, strict=True)
        if fragment.text is None and fragment.kind in {"open", "close"}
    ]
    keys = [*_KEY.finditer(block.text)]
    has_accelerator = len([key for key in keys if not key["shortcut"]]) == 1
    singles: list[tuple[int, int, TagKind, str]] = [
        (*key.span(), "single", "") for key in keys if key["shortcut"] or has_accelerator
    ]
    for match in TEXT_TAG.finditer(block.text):
        name = (match["name"] or match["inner"] or match["code"]).lower()
        is_close = bool(match["close"] or match["close_brace"])
        if match["empty"] or (match["name"] and name in _VOID and not is_close):
            around = (
                block.text[max(match.start() - 1, 0)] + block.text[match.end() : match.end() + 1]
            )
            is_bare = is_break(match[0]) and not any(map(str.isspace, around))
            singles.append((*match.span(), "break" if is_bare else "ordered", ""))
        else:
            halves.append((*match.span(), "close" if is_close else "open", name))
    halves.sort()
    unpaired = find_unpaired([(kind, key) for _, _, kind, key in halves])
    changed: list[tuple[int, int, TagKind, str]] = []
    for index, (start, end, kind, key) in enumerate(halves):
        is_text = block.text[start] != _TAG
        if index not in unpaired and is_text:
            changed.append((start, end, kind, key))
        elif index in unpaired and (not is_text or "=" in block.text[start:end]):
            changed.append((start, end, "ordered", key))
    fragments: list[Fragment] = []
    done = 0
    for start, end, kind, key in sorted([*changed, *singles]):
        fragments += block.cut(done, start)
        pieces, text = list(block.cut(start, end)), block.text[start:end]
        tag = replace(pieces[0], end=pieces[-1].end, text=None, kind=kind, key=key)
        head = text.rstrip("&") if text[0].isalpha() else ""  # as in `E&xit`
        if head or block.locate(start) is None or block.locate(end) is None:
            tag.markup = builder.join([(text[len(head) :], "text")])
        fragments.append(tag)
        if head:
            fragments.append(Fragment(tag.start, tag.end, head))
            tag.end = tag.start
        done = end
    builder.fragments = [*fragments, *block.cut(done, len(block.text))]


_PART = re.compile(
    r"(?P<simple>\{\s*[^\s{},'#|]+\s*(?:,\s*\w+\s*)?\}|\{\{[^{}]*\}\})|(?P<open>\{)|(?P<close>\})"
    r"|(?P<quoted>'(?=[{}#])(?>(?:[^']++|'')*)(?:'|\Z))|(?P<apostrophe>'')|(?P<number>#)"
)
"""Argument without branches, brace, quoted text, apostrophe, or number of a plural."""
_HEAD = re.compile(r"\{\s*[^\s{},'#|]+\s*,\s*(\w+)\s*,(?:\s*offset:\s*\d+)?\s*")
_STYLE = re.compile(r"(?>(?:[^{}']++|'[^']*'|\{[^{}]*\})*)\}")
_SELECTOR = re.compile(r"\s*(?:(?P<end>\})|(?:=\d+|[^\s{}=,'#|]+)\s*\{)")
_SYNTAX = re.compile(r"[{}#]|<(?=[/A-Za-z])")


class _Message(_Block):
    """Message of ICU MessageFormat."""

    def __init__(self, outer: SegmentBuilder) -> None:
        super().__init__(outer.fragments)
        self.outer = outer
        self.place = 0
        self.has_branches = False
        self.doubles = any(quote in self.text for quote in ("''", "'{", "'}"))
        """Apostrophes are doubled."""

    def read_text(self, depth: int, *, plural: bool = False) -> SegmentBuilder:
        """Read up to the brace that ends a branch, or the end; arguments become tags."""
        outer, done = self.outer, self.place
        join, keeps = partial(self.join, plural=plural), outer.keeps_lines
        builder = SegmentBuilder(outer.source, join, keeps, syntax=outer.syntax)
        if depth > _DEEPEST:
            raise _SyntaxError
        while part := _PART.search(self.text, self.place):
            start, self.place = part.span()
            segments: tuple[Segment | Replacement, ...] = ()
            if part["close"]:
                self.place = start
                break
            if part["open"]:
                self.place = start
                segments = tuple(self.read_argument(depth, plural=plural))
            elif not plural and part[0].startswith(("#", "'#")):
                self.place = start + 1
                continue
            builder.fragments += self.cut(done, start)
            done = self.place
            if part["apostrophe"]:
                builder.add_text(self.find(start), self.find(done), "'")
            else:
                builder.add_tag(self.find(start), self.find(done), "ordered", segments)
        if (part is not None) != (depth > 0):
            raise _SyntaxError
        builder.fragments += self.cut(done, self.place if part else len(self.text))
        return builder

    def read_argument(self, depth: int, *, plural: bool) -> Iterator[Segment | Replacement]:
        """Read an argument of several parts, and yield the texts in its branches."""
        kind = self.skip(_HEAD)[1]
        if kind not in _COMPLEX:
            self.skip(_STYLE)
            return
        self.has_branches = True
        selector = self.skip(_SELECTOR)
        if selector["end"]:
            raise _SyntaxError
        while not selector["end"]:
            self.find(self.place)
            text = self.read_text(depth + 1, plural=plural or kind != "select")
            yield from text.finish()
            self.find(self.place)
            self.place += 1
            selector = self.skip(_SELECTOR)

    def skip(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Read what must be next; raise _SyntaxError if it is not."""
        match = pattern.match(self.text, self.place)
        if not match:
            raise _SyntaxError
        self.place = match.end()
        return match

    def find(self, place: int) -> int:
        """Return the place in the document; raise _SyntaxError inside an escape."""
        located = self.locate(place)
        if located is None:
            raise _SyntaxError
        return located

    def join(self, pieces: Pieces, *, plural: bool) -> str:
        """Join pieces; refuse text that would be syntax."""
        written: Pieces = []
        following = [piece for piece, _ in pieces[1:]] + ["}"]
        for (text, kind), after in zip(pieces, following, strict=True):
            marks = _SYNTAX.findall(text) if kind == "text" else []
            if syntax := next((mark for mark in marks if plural or mark != "#"), ""):
                raise RefusedTranslationError(f"`{syntax}` is syntax of MessageFormat")
            if self.doubles and kind == "text":
                text = text.replace("'", "''")
            elif kind == "text" and text.endswith("'") and after[:1] in "{}#'":
                text = text[:-1] + "’"  # an apostrophe would quote the syntax
            written.append((text, kind))
        return self.outer.join(written)
