"""Segments of an HTML page: blocks of text with their inline tags, and some attributes."""

import functools
from collections.abc import Iterator
from html import unescape

from mt.documents.markup import MarkupToken, add_characters, escape_text, escape_value, scan
from mt.documents.segments import Segment, SegmentBuilder, escaping, has_letters
from mt.documents.tags import TagKind

INLINE = frozenset(
    {
        "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del",
        "dfn", "em", "font", "i", "img", "ins", "kbd", "mark", "math", "q", "s", "samp",
        "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
    }
)  # fmt: skip
"""Elements inside a sentence; all others begin and end a block."""
VOID = frozenset(
    {
        "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param",
        "source", "track", "wbr",
    }
)  # fmt: skip
"""Elements without content or end tag."""
PROTECTED = frozenset({"code", "math", "pre", "script", "style", "textarea"})
"""Elements whose content is not translated."""
_ATTRIBUTES = frozenset({"alt", "title", "placeholder"})


def read_html(source: str) -> Iterator[Segment]:
    """Yield the segments of a page, or of a part of one."""
    builder = SegmentBuilder(source, escaping(escape_text))
    self_closing = source.lstrip().startswith("<?xml")
    tokens = scan(source)
    for token in tokens:
        if token.kind == "text":
            add_characters(builder, token.start, token.end)
        elif token.kind in {"cdata", "other"}:
            builder.add_tag(token.start, token.end, "single")
        elif is_protected(source, token) and (token.kind == "open" or not self_closing):
            end = _element_end(token, tokens, self_closing=self_closing)
            if token.name not in INLINE:
                yield from builder.finish()
            builder.add_tag(token.start, end, "single")
            if token.name not in INLINE:
                yield from builder.finish()
        else:
            attributes = tuple(attribute_segments(source, token))
            if token.name in INLINE:
                empty = token.name in VOID or (token.kind == "empty" and self_closing)
                is_close = token.kind == "close"
                kind: TagKind = "close" if is_close else "single" if empty else "open"
                builder.add_tag(token.start, token.end, kind, attributes)
            else:
                yield from builder.finish()
                yield from attributes
    yield from builder.finish()


def is_protected(source: str, token: MarkupToken) -> bool:
    """Test for the start tag of an element whose content is not translated."""
    if token.kind not in {"open", "empty"} or token.name in VOID:
        return False
    value = token.value(source, "translate")
    return token.name in PROTECTED or (value or "").lower() == "no"


def _element_end(first: MarkupToken, tokens: Iterator[MarkupToken], *, self_closing: bool) -> int:
    """Read the tokens of an element and return its end, or that of the text if it has none."""
    depth, end = 1, first.end
    for token in tokens:
        end = token.end
        if token.name == first.name:
            if token.kind == "open" or (token.kind == "empty" and not self_closing):
                depth += 1
            elif token.kind == "close":
                depth -= 1
        if not depth:
            break
    return end


def attribute_segments(source: str, token: MarkupToken) -> Iterator[Segment]:
    """Yield the attributes of a tag that are shown to readers."""
    if (token.value(source, "translate") or "").lower() == "no":
        return
    for each in token.attributes:
        raw = source[each.start : each.end]
        text = " ".join(unescape(raw).split())
        if each.name in _ATTRIBUTES and has_letters(text):
            join = escaping(functools.partial(escape_value, quote=each.quote))
            yield Segment(each.start, each.end, text, raw, join)
