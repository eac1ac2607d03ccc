"""HTML pages, and the scanner of HTML and XML that keeps the place of each tag and attribute."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from html import unescape
from typing import Literal

from mt.documents.segments import Segment, SegmentBuilder, has_letters, make_join
from mt.documents.tags import TagKind


@dataclass(frozen=True, slots=True)
class Attribute:
    """Attribute of a tag, and the place of its value without quotes."""

    name: str
    start: int
    end: int
    quote: str


@dataclass(frozen=True, slots=True)
class MarkupToken:
    """Text, tag, CDATA section, or other markup such as a comment or a script."""

    kind: Literal["text", "open", "close", "empty", "cdata", "other"]
    start: int
    end: int
    name: str = ""
    """Name of a tag, without prefix in XML and in lower case in HTML."""
    attributes: tuple[Attribute, ...] = ()

    def value(self, source: str, name: str) -> str | None:
        """Return the value of an attribute, or None."""
        for attribute in self.attributes:
            if attribute.name == name:
                return unescape(source[attribute.start : attribute.end])
        return None


_RAW_TEXT = {"script", "style", "textarea", "title", "iframe", "noembed", "noframes", "xmp"}
"""Elements of HTML without tags inside."""
_START = {False: re.compile(r"<(?=[A-Za-z!?/])"), True: re.compile("<")}
_COMMENT = re.compile(r"<!--(?:>|->|.*?--!?>)", re.DOTALL)
_DOCTYPE = re.compile(
    r"(?:<\?[^>]*>|<!--.*?-->|\s)*+(<!DOCTYPE[^>\[]*\[.*?\]\s*>)", re.DOTALL | re.IGNORECASE
)
"""Document type with declarations; only comments and instructions stand before it."""
_NAME = re.compile(r"</?([^\s/>]+)")
_ATTRIBUTE = re.compile(r"[\s/]*(=?[^\s/>=]+)(?:\s*=\s*(?:([\"'])|([^\s>]*)))?")
_TAG_END = re.compile(r"[\s/]*>")


def scan(source: str, start: int = 0, *, xml: bool = False) -> Iterator[MarkupToken]:
    """Yield the tokens of a text from a place on as a browser reads it; together they cover it.

    Markup without an end reaches to the end of the text. XML must be well-formed.
    """
    doctype = _DOCTYPE.match(source, start)
    end = start
    while True:
        opening = _START[xml].search(source, end)
        start = opening.start() if opening else len(source)
        if start > end:
            yield MarkupToken("text", end, start)
        if not opening:
            return
        if doctype and start == doctype.start(1):
            token = MarkupToken("other", *doctype.span(1))
        else:
            token = _read_markup(source, start, xml=xml)
        yield token
        end = token.end
        if not xml and token.kind == "open" and token.name in _RAW_TEXT:
            closing = re.compile(rf"</{token.name}(?=[\s/>])", re.IGNORECASE)
            close = closing.search(source, end)
            raw_end = close.start() if close else len(source)
            if raw_end > end:
                yield MarkupToken("text" if token.name == "title" else "other", end, raw_end)
            end = raw_end


def _read_markup(source: str, start: int, *, xml: bool) -> MarkupToken:
    if source.startswith("<!--", start):
        comment = _COMMENT.match(source, start)
        return MarkupToken("other", start, comment.end() if comment else len(source))
    if source.startswith("<![CDATA[", start):
        end = source.find("]]>", start)
        return MarkupToken("cdata", start, len(source) if end < 0 else end + 3)
    second = source[start + 1 : start + 2]
    after = source[start + 2 : start + 3]
    if second in {"!", "?"} or (second == "/" and not (xml or after.isalpha())):
        is_instruction = second == "?" and (xml or source.startswith(("<?php", "<?="), start))
        mark = "?>" if is_instruction else ">"
        end = source.find(mark, start + 2)
        return MarkupToken("other", start, len(source) if end < 0 else end + len(mark))
    return _read_tag(source, start, xml=xml)


def _read_tag(source: str, start: int, *, xml: bool) -> MarkupToken:
    match = _NAME.match(source, start)
    if match is None:
        return MarkupToken("other", start, len(source))
    name, position = match[1], match.end()
    name = name.rpartition(":")[2] if xml else name.lower()
    attributes = []
    while not (end := _TAG_END.match(source, position)):
        match = _ATTRIBUTE.match(source, position)
        if match is None:  # the text ends inside the tag
            return MarkupToken("other", start, len(source))
        position = match.end()
        value = match.span(3)
        quote = match[2] or ""
        if quote:
            close = source.find(quote, position)
            if close < 0:
                return MarkupToken("other", start, len(source))
            value, position = (position, close), close + 1
        attribute = match[1] if xml else match[1].lower()
        attributes.append(Attribute(attribute, *value, quote))
    if source[start + 1] == "/":
        return MarkupToken("close", start, end.end(), name)
    kind: Literal["open", "empty"] = "empty" if "/" in end[0] else "open"
    return MarkupToken(kind, start, end.end(), name, tuple(attributes))


_REFERENCE = re.compile(r"&(?:#[xX]?[0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")


def add_characters(builder: SegmentBuilder, start: int, end: int) -> None:
    """Add a text with character references; references without a meaning become tags."""
    source = builder.source
    for match in _REFERENCE.finditer(source, start, end):
        if unescape(match[0]) == match[0]:
            builder.add_text(start, match.start(), unescape(source[start : match.start()]))
            builder.add_tag(match.start(), match.end(), "single")
            start = match.end()
    builder.add_text(start, end, unescape(source[start:end]))


def escape_text(text: str) -> str:
    """Escape text of an element of HTML or XML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("\xa0", "&#160;")


def escape_value(text: str, quote: str) -> str:
    """Escape the value of an attribute; with an empty `quote`, put it into quotes."""
    used = quote or '"'
    text = escape_text(text).replace(used, "&quot;" if used == '"' else "&#39;")
    return text if quote else f'"{text}"'


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
    builder = SegmentBuilder(source, make_join(escape_text))
    self_closing = source.lstrip().startswith("<?xml")
    tokens = scan(source)
    for token in tokens:
        if token.kind == "text":
            add_characters(builder, token.start, token.end)
        elif token.kind in {"cdata", "other"}:
            builder.add_tag(token.start, token.end, "single")
        elif is_protected(source, token) and (token.kind == "open" or not self_closing):
            end = _skip_element(token, tokens, self_closing=self_closing)
            if token.name not in INLINE:
                yield from builder.finish()
            builder.add_tag(token.start, end, "single")
            if token.name not in INLINE:
                yield from builder.finish()
        else:
            attributes = tuple(read_attributes(source, token))
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


def _skip_element(first: MarkupToken, tokens: Iterator[MarkupToken], *, self_closing: bool) -> int:
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


def read_attributes(source: str, token: MarkupToken) -> Iterator[Segment]:
    """Yield the attributes of a tag that are shown to readers."""
    if (token.value(source, "translate") or "").lower() == "no":
        return
    for attribute in token.attributes:
        raw = source[attribute.start : attribute.end]
        text = " ".join(unescape(raw).split())
        if attribute.name in _ATTRIBUTES and has_letters(text):
            join = make_join(partial(escape_value, quote=attribute.quote))
            yield Segment(attribute.start, attribute.end, text, raw, join)
