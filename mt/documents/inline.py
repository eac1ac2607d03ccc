"""Markup inside texts: HTML, reStructuredText, and a part of Markdown.

It is found in one order: elements of HTML, marks of the others between them, and in each line pairs
of tags that text stands for. A message of ICU MessageFormat stays as it is if it has branches:
`{count, plural, one {# file} other {# files}}`.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import unescape
from itertools import accumulate

from mt.data.exchange_formats import TEXT_TAG, is_break
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
    SegmentBuilder,
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
    if has_branches(text):
        yield Replacement(start, start, "", ICU)
        return
    if syntax.quotes:
        escapes["'"] = "''"
    for match in REFERENCE.finditer(text):
        if len(character := unescape(match[0])) == 1:
            escapes[character] = match[0]
    join = partial(_join, str.maketrans(escapes))
    builder = SegmentBuilder(text, join, keeps_lines=True, syntax=syntax)
    items = tuple(_read_lines(builder))

    def check(result: str) -> str:
        if _list_markup(result) != _list_markup(text):
            raise RefusedTranslationError("the markup would change")
        return escape(result)

    if items:
        yield Group(start, end, text, items, write=check, raw=raw)


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
            yield from finish_string(builder)
            yield from attributes
        else:
            builder.add_tag(token.start, end, kind, attributes)
    yield from _add_text(builder, end, len(text))
    yield from finish_string(builder)


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
        yield from finish_string(builder)
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


ICU = "ICU messages with branches"
_BRANCHES = re.compile(r"\{\s*[^\s{},'#|]+\s*,\s*(?:plural|selectordinal|select)\s*,")
_VOID = {"br", "hr", "img", "input", "wbr"}
_KEY = re.compile(
    r"(?P<shortcut>(?:\t|\\t)\S+\Z)|\([&_]\w\)(?:\.{3}|…)?|(?<![^\s(\[])[&_](?=[^\W_]+(?![\w;.(]))"
    r"|(?<!\w)[^\W\d_]++&(?=[a-z]\w*+(?!;))"
)
"""Keys behind a tab, as in `Save\tCtrl+S`, or mark of an accelerator."""
_TAG = "\ufffc"


def has_branches(text: str) -> bool:
    """Test for a message of ICU with a text for each value of an argument, which is kept."""
    return _BRANCHES.search(text) is not None


def finish_string(builder: SegmentBuilder) -> Iterator[Item]:
    """Yield the items of a block.

    Tags in its text become inline tags, as do the mark of an accelerator (`&Open`, `_Open`) and the
    keys behind a tab.
    """
    if has_branches("".join(fragment.text or _TAG for fragment in builder.fragments)):
        start = builder.fragments[0].start
        yield Replacement(start, start, "", ICU)
        builder.fragments = []
    else:
        _pair_tags(builder)
        yield from builder.finish()


def _cut(
    fragments: Sequence[Fragment], starts: Sequence[int], start: int, end: int
) -> Iterator[Fragment]:
    """Yield the fragments of a part of a text, whose places are `starts`.

    A piece of an escape has the place of its start, the last piece all of it.
    """
    index = max(bisect_right(starts, start) - 1, 0)
    while start < end:
        fragment, place, next_place = fragments[index], starts[index], starts[index + 1]
        index += 1
        if fragment.text is None or (start <= place and next_place <= end):
            yield fragment
        else:
            last = min(end, next_place) - place
            text = fragment.text[start - place : last]
            if len(fragment.text) == fragment.end - fragment.start:
                first = fragment.start + start - place
                yield replace(fragment, start=first, end=fragment.start + last, text=text)
            else:
                stop = fragment.end if end >= next_place else fragment.start
                yield replace(fragment, end=stop, text=text)
        start = max(start, next_place)


def _pair_tags(builder: SegmentBuilder) -> None:
    """Make tags of the pairs and empty tags in the text; keep unpaired tags in order."""
    texts = [_TAG if part.text is None else part.text for part in builder.fragments]
    starts, block = [*accumulate(map(len, texts), initial=0)], "".join(texts)
    cut = partial(_cut, builder.fragments, starts)
    halves: list[tuple[int, int, TagKind, str]] = [
        (place, place + 1, fragment.kind, fragment.key)
        for place, fragment in zip(starts, builder.fragments, strict=False)
        if fragment.text is None and fragment.kind in {"open", "close"}
    ]
    keys = [*_KEY.finditer(block)]
    has_accelerator = len([key for key in keys if not key["shortcut"]]) == 1
    singles: list[tuple[int, int, TagKind, str]] = [
        (*key.span(), "single", "") for key in keys if key["shortcut"] or has_accelerator
    ]
    for match in TEXT_TAG.finditer(block):
        name = (match["name"] or match["inner"] or match["code"]).lower()
        is_close = bool(match["close"] or match["close_brace"])
        if match["empty"] or (match["name"] and name in _VOID and not is_close):
            around = block[max(match.start() - 1, 0)] + block[match.end() : match.end() + 1]
            is_bare = is_break(match[0]) and not any(map(str.isspace, around))
            singles.append((*match.span(), "break" if is_bare else "ordered", ""))
        else:
            halves.append((*match.span(), "close" if is_close else "open", name))
    halves.sort()
    unpaired = find_unpaired([(kind, key) for _, _, kind, key in halves])
    changed: list[tuple[int, int, TagKind, str]] = []
    for index, (start, end, kind, key) in enumerate(halves):
        is_text = block[start] != _TAG
        if index not in unpaired and is_text:
            changed.append((start, end, kind, key))
        elif index in unpaired and (not is_text or "=" in block[start:end]):
            changed.append((start, end, "ordered", key))
    fragments: list[Fragment] = []
    done = 0
    for start, end, kind, key in sorted([*changed, *singles]):
        fragments += cut(done, start)
        pieces, text = list(cut(start, end)), block[start:end]
        tag = replace(pieces[0], end=pieces[-1].end, text=None, kind=kind, key=key)
        head = text.rstrip("&") if text[0].isalpha() else ""  # as in `E&xit`
        is_written = unescape(builder.source[tag.start : tag.end]) == text or _TAG in text
        if head or not is_written:
            tag.markup = builder.join([(text[len(head) :], "text")])
        fragments.append(tag)
        if head:
            fragments.append(Fragment(tag.start, tag.end, head))
            tag.end = tag.start
        done = end
    builder.fragments = [*fragments, *cut(done, len(block))]
