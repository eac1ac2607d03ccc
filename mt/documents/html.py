"""HTML pages, and the scanner of HTML and XML that keeps the place of each tag and attribute."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from typing import Literal

from mt.data.placeholders import GENERAL
from mt.documents.segments import SPACE, Fragment, Segment, SegmentBuilder, has_letters, make_join
from mt.documents.tags import TagKind
from mt.languages import FINAL_MARKS


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
    r"(?>(?:<\?[^>]*>|<!--.*?-->|\s++)*)(<!DOCTYPE[^>\[]*\[.*?\]\s*>)", re.DOTALL | re.IGNORECASE
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


REFERENCE = re.compile(r"&(?:#[xX]?[0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")


def add_characters(builder: SegmentBuilder, start: int, end: int) -> None:
    """Add a text with character references; references without a meaning become tags."""
    source = builder.source
    for match in REFERENCE.finditer(source, start, end):
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
        "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "br", "cite", "code", "data", "del",
        "dfn", "em", "font", "i", "img", "ins", "kbd", "mark", "math", "nobr", "q", "rb", "rp",
        "rt", "rtc", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time",
        "tt", "u", "var", "wbr",
    }
)  # fmt: skip
"""Elements inside a sentence."""
_BLOCK = frozenset(
    {
        "address", "area", "article", "aside", "base", "blockquote", "body", "caption", "center",
        "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset",
        "figcaption", "figure", "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4",
        "h5", "h6", "head", "header", "hgroup", "hr", "html", "legend", "li", "link", "main",
        "menu", "meta", "nav", "noframes", "noscript", "ol", "optgroup", "option", "p", "pre",
        "script", "search", "section", "style", "summary", "table", "tbody", "td", "template",
        "textarea", "tfoot", "th", "thead", "title", "tr", "ul",
    }
)  # fmt: skip
"""Elements that begin and end a block. All others are inside a sentence if text is beside them."""
_COMPOUND = frozenset(
    {"audio", "canvas", "datalist", "map", "object", "picture", "select", "svg", "video"}
)
"""Elements with texts of their own, of which none belongs to the sentence around them."""
KNOWN = INLINE | _BLOCK | _COMPOUND | {"button", "embed", "input", "label", "output", "slot"}
"""Names of elements of HTML."""
VOID = frozenset(
    {
        "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param",
        "source", "track", "wbr",
    }
)  # fmt: skip
"""Elements without content or end tag."""
PROTECTED = frozenset(
    {
        "code", "kbd", "math", "pre", "rp", "rt", "rtc", "samp", "script", "style", "textarea",
        "tt", "var",
    }
)  # fmt: skip
"""Elements whose content is not translated."""
_UNTRANSLATED_CLASSES = {"notranslate", "skiptranslate"}
_OPENING = re.compile(r"<([A-Za-z][^\s/>]*)")
_READING_END = {
    "rt": re.compile(r"</rt\s*>|(?=</?(?:rb|rp|rt|rtc|ruby)[\s/>])", re.IGNORECASE),
    "rp": re.compile(r"</rp\s*>|(?=</?(?:rb|rp|rt|rtc|ruby)[\s/>])", re.IGNORECASE),
    "rtc": re.compile(r"</rtc\s*>|(?=</ruby[\s/>])", re.IGNORECASE),
}
"""End of a reading; its end tag may be missing."""
_LINK = re.compile(r"</?a[\s>]", re.IGNORECASE)
LAST_MARK = re.compile(rf"[{FINAL_MARKS}]\W*$")
_ATTRIBUTES = frozenset({"alt", "title", "placeholder", "aria-label"})
_LABELLED = frozenset({"option", "optgroup", "track"})
_BUTTONS = frozenset({"button", "reset", "submit"})
_DESCRIPTIONS = re.compile(r"description|(?:og|twitter):(?:title|description|image:alt)")
"""Names of the metadata that are sentences for readers."""


def read_html(source: str) -> Iterator[Segment]:
    """Yield the segments of a page, or of a part of one."""
    is_xml = source.lstrip().startswith("<?xml")
    return _read_part(source, 0, len(source), find_inline(source, is_xml=is_xml), is_xml=is_xml)


def _read_part(
    source: str, start: int, end: int, inline: set[int], *, is_xml: bool
) -> Iterator[Segment]:
    """Yield the segments of a page or of the content of an element.

    `inline` has the places of the tags of other elements than `INLINE` inside a sentence.
    """
    builder = SegmentBuilder(source, make_join(escape_text))
    finish = partial(_finish, builder)
    tokens = scan(source, start)
    line = ""
    while (token := next(tokens, None)) and token.start < end:
        if token.kind == "text":
            add_characters(builder, token.start, token.end)
            line = source[token.start : token.end].strip(SPACE) or line
            continue
        is_inline = (
            token.kind in {"cdata", "other"} or token.name in INLINE or token.start in inline
        )
        is_element = token.kind == "open" or (token.kind == "empty" and not is_xml)
        kind: TagKind = "single"
        tag_end = token.end
        inner = tuple(read_attributes(source, token))
        if is_element and is_protected(source, token):
            tag_end, tokens = skip_element(source, token, tokens, is_xml=is_xml)
            inner = ()
        elif token.name == "br":
            if not line or LAST_MARK.search(line):
                yield from finish()
            kind, line = "break", ""
        elif is_inline and is_element and token.name in _COMPOUND:
            tag_end, tokens = skip_element(source, token, tokens, is_xml=is_xml)
            inner += tuple(_read_part(source, token.end, tag_end, set(), is_xml=is_xml))
        elif token.kind == "close":
            kind = "close"
        elif is_element and token.name not in VOID:
            kind = "open"
        if is_inline:
            builder.add_tag(token.start, tag_end, kind, inner)
        else:
            yield from finish()
            yield from inner
            line = ""
    yield from finish()


def _finish(builder: SegmentBuilder) -> Iterator[Segment]:
    """Yield the segments of a block; each link of a list of links, such as a menu, has its own."""
    fragments, depth = builder.fragments, 0
    groups: list[list[Fragment]] = []
    for fragment in fragments:
        if depth <= 0:
            groups.append([])
        groups[-1].append(fragment)
        is_half = fragment.text is None and fragment.kind in {"open", "close"}
        if is_half and _LINK.match(builder.source, fragment.start):
            depth += 1 if fragment.kind == "open" else -1
        elif not depth and any(map(str.isalnum, fragment.text or "")):
            groups = [fragments]
            break
    for builder.fragments in groups:
        yield from builder.finish()


@dataclass(slots=True)
class _Run:
    """Content of an element, or of a page, up to the next border of a block."""

    name: str = ""
    start: int = 0
    has_letters: bool = False
    tags: set[int] = field(default_factory=set)
    """Places of tags that are inside a sentence if there are letters beside them."""


def find_inline(source: str, *, is_xml: bool = False) -> set[int]:
    """Return the places of the tags of elements that are inside a sentence because text is there.

    These are elements that are neither inline nor blocks by their name, such as a button: without
    a block inside, and with letters beside them up to the borders of blocks.
    """
    inline: set[int] = set()
    names = {match[1].lower() for match in _OPENING.finditer(source)}
    if names <= INLINE | _BLOCK:
        return inline
    runs = [_Run()]
    tokens = scan(source)
    while token := next(tokens, None):
        run = runs[-1]
        if token.kind == "text":
            run.has_letters |= has_letters(source[token.start : token.end])
        elif token.name in INLINE or token.kind in {"cdata", "other"}:
            continue
        elif token.kind == "close" and token.name == run.name:
            runs.pop()
            inline |= run.tags if run.has_letters else set()
            runs[-1].tags |= run.tags | {run.start, token.start}
        elif token.kind == "close" or token.name in _BLOCK:
            inline.update(*(run.tags for run in runs if run.has_letters))
            runs = [_Run()]
        elif token.name in _COMPOUND and token.kind == "open":
            run.tags.add(token.start)
            _, tokens = skip_element(source, token, tokens, is_xml=is_xml)
        elif token.name in VOID or token.kind == "empty":
            run.tags.add(token.start)
        else:
            runs.append(_Run(token.name, token.start))
    return inline.union(*(run.tags for run in runs if run.has_letters))


def is_protected(source: str, token: MarkupToken) -> bool:
    """Test for the start tag of an element whose content is not translated."""
    if token.kind not in {"open", "empty"} or token.name in VOID:
        return False
    value = (token.value(source, "translate") or "").lower()
    classes = (token.value(source, "class") or "").split()
    is_marked = value == "no" or not _UNTRANSLATED_CLASSES.isdisjoint(classes)
    return is_marked or (token.name in PROTECTED and value != "yes")


def skip_element(
    source: str, first: MarkupToken, tokens: Iterator[MarkupToken], *, is_xml: bool
) -> tuple[int, Iterator[MarkupToken]]:
    """Return the end of an element, or that of the text without one, and the tokens behind it."""
    if first.name in _READING_END:
        closing = _READING_END[first.name].search(source, first.end)
        end = closing.end() if closing else len(source)
        return end, scan(source, end)
    depth, end = 1, first.end
    for token in tokens:
        end = token.end
        if token.name == first.name:
            if token.kind == "open" or (token.kind == "empty" and not is_xml):
                depth += 1
            elif token.kind == "close":
                depth -= 1
        if not depth:
            break
    return end, tokens


def read_attributes(source: str, token: MarkupToken) -> Iterator[Segment]:
    """Yield the attributes of a tag that are shown to readers."""
    if (token.value(source, "translate") or "").lower() == "no":
        return
    for attribute in token.attributes:
        raw = source[attribute.start : attribute.end]
        text = " ".join(unescape(raw).split())
        if has_letters(text) and _is_shown(source, token, attribute.name):
            join = make_join(partial(escape_value, quote=attribute.quote))
            if attribute.quote and GENERAL.hidden.search(raw):
                builder = SegmentBuilder(source, join)
                builder.add_text(attribute.start, attribute.end, unescape(raw))
                yield from builder.finish()
            else:
                yield Segment(attribute.start, attribute.end, text, raw, join)


def _is_shown(source: str, token: MarkupToken, name: str) -> bool:
    """Test for the name of an attribute that readers see."""
    if name == "label":
        return token.name in _LABELLED
    if name == "value":
        return token.name == "input" and (token.value(source, "type") or "").lower() in _BUTTONS
    if name == "content":
        kind = token.value(source, "name") or token.value(source, "property") or ""
        return token.name == "meta" and _DESCRIPTIONS.fullmatch(kind.lower()) is not None
    return name in _ATTRIBUTES
