"""Texts of strings, such as messages, cells and fields, with the inline markup that they may hold.

The markup is HTML, reStructuredText, or the part of Markdown that is similar.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from html import unescape

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
from mt.documents.icu import finish_message, has_branches
from mt.documents.segments import (
    Embedded,
    Item,
    Pieces,
    RefusedTranslationError,
    Replacement,
    SegmentBuilder,
)
from mt.documents.tags import TagKind

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
_PAIRS = ("link", "target", "mark")
_MARKS = ("`", "*", "[", "![", "|", ":")
_OPENINGS = {"`", "[", "![", "*", "**"}
_CLOSING = re.compile(r"\s*<[^<>`]+>`__?|\]\([^()\s]*\)")
_BEFORE_MARKUP = re.compile(r"[\s\"'(\[{<\-/:‘“’«¡¿‐–—…，。、！？：；（【《「『]\Z|\A\Z")
_BEHIND_MARKUP = re.compile(r"[\s\"')\]}>\-/\\:.,;!?’”»‐–—…，。、！？：；）】》」』]|\Z")


def embed(
    start: int,
    end: int,
    raw: str | None,
    text: str,
    escape: Callable[[str], str],
    syntax: Syntax = GENERAL,
) -> Iterator[Embedded | Replacement]:
    """Yield the item for a text that the document has in another form, `raw`, if it has letters.

    `syntax` is that of its placeholders. A translation is refused if it changes the markup.
    """

    def check(result: str) -> str:
        if _list_markup(result) != _list_markup(text):
            raise RefusedTranslationError("the markup would change")
        return escape(result)

    items = []
    for item in _read_lines(text, syntax):
        if isinstance(item, Replacement):
            yield replace(item, start=start, end=start)
        else:
            items.append(item)
    if items:
        yield Embedded(start, end, raw, text, tuple(items), check)


def _read_lines(text: str, syntax: Syntax) -> Iterator[Item]:
    """Yield the lines of a text; a line that begins in lower case continues the last one."""
    is_message = has_branches(text)
    join = partial(_join, _find_escapes(text, quotes=syntax.quotes and not is_message))
    builder = SegmentBuilder(text, join, keeps_lines=True, syntax=syntax)
    if is_message:
        builder.add_text(0, len(text))
        yield from finish_message(builder)
        return
    end = 0
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
    found = [(match, (match[2] or "").lower()) for match in _ANY_TAG.finditer(text)]
    paired = {name for match, name in found if match[1]} & {
        name for match, name in found if not match[1]
    }
    return [
        match for match, name in found if not name or match[3] or name in KNOWN or name in paired
    ]


def _add_text(builder: SegmentBuilder, start: int, end: int) -> Iterator[Item]:
    """Add a part of the text without HTML; yield the segments of lines that end in it."""
    text = builder.source
    for match in _INLINE.finditer(text, start, end):
        if match["single"]:
            yield from _add_lines(builder, start, match.start())
            builder.add_tag(*match.span(), "single")
        else:
            name = next(name for name in _PAIRS if match[name])
            opening, closing = match.span(name), match.span(f"{name}_end")
            yield from _add_lines(builder, start, match.start())
            builder.add_tag(*opening, "open")
            _add_characters(builder, opening[1], closing[0])
            builder.add_tag(*closing, "close")
        start = match.end()
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


def _find_escapes(source: str, *, quotes: bool) -> dict[int, str]:
    """Return the references that a text has for characters; with `quotes`, apostrophes double."""
    references = {"<": "&lt;"} if _find_tags(source) else {}
    if quotes:
        references["'"] = "''"
    for match in REFERENCE.finditer(source):
        if len(character := unescape(match[0])) == 1:
            references[character] = match[0]
    return str.maketrans(references)


def _join(escapes: dict[int, str], pieces: Pieces) -> str:
    """Return text and markup, with a space or reference where the markup needs one."""
    result, opened, is_behind = "", "", False
    for piece, is_markup in pieces:
        written = piece if is_markup else piece.translate(escapes)
        is_end = is_markup and _CLOSING.fullmatch(piece) is not None
        is_mark = is_end or (is_markup and piece.startswith(_MARKS) and not piece.endswith("]"))
        is_closing = is_end or (is_mark and piece == opened)
        is_opening = is_mark and not is_closing and piece in _OPENINGS
        is_before = is_mark and not is_closing
        joins = is_before and not _BEFORE_MARKUP.search(result)
        follows = is_behind and not is_closing and not _BEHIND_MARKUP.match(written)
        result += f" {written}" if joins or follows else written
        is_behind = is_mark and not is_opening
        opened = piece if is_opening else "" if is_mark else opened
    return result


def _list_markup(text: str) -> list[str]:
    """Return the tags, without their attributes, and the other markup of a text, sorted."""
    names = [f"<{match[1]}{match[2]}" for match in _find_tags(text)]
    marks = [
        match["single"] or match["link_end"] or match["target_end"] or match["mark_end"]
        for match in _INLINE.finditer(text)
    ]
    return sorted(names + [mark.strip() for mark in marks])
