"""HTML pages, and the scanner of HTML and XML that keeps the place of each tag and attribute."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html import unescape
from typing import Literal

from mt.data.placeholders import GENERAL
from mt.data.sentences import FINAL_MARK
from mt.documents.segments import (
    SPACE,
    Fragment,
    Options,
    Replacement,
    Segment,
    SegmentBuilder,
    has_letters,
    make_join,
)
from mt.documents.tags import TagKind
from mt.languages import base_language


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


_RAW_TEXT = ("script", "style", "textarea", "title", "iframe", "noembed", "noframes", "xmp")
"""Elements of HTML without tags inside."""
_RAW_END = re.compile(rf"</({'|'.join(_RAW_TEXT)})(?=[\s/>])", re.IGNORECASE)
_START = re.compile(r"<(?=[A-Za-z!?/])")
_COMMENT = re.compile(r"<!--(?:>|->|.*?--!?>)", re.DOTALL)
_NAME = re.compile(r"</?([^\s/>]+)")
_ATTRIBUTE = re.compile(r"[\s/]*(=?[^\s/>=]+)(?:\s*=\s*(?:([\"'])|([^\s>]*)))?")
_TAG_END = re.compile(r"[\s/]*>")


def scan(source: str, start: int = 0, *, xml: bool = False) -> Iterator[MarkupToken]:
    """Yield the tokens of a text from a place on as a browser reads it; together they cover it.

    Markup without an end reaches to the end of the text. XML must be well-formed.
    """
    end = start
    while end < len(source):
        opening = None if xml else _START.search(source, end)
        start = source.find("<", end) if xml else opening.start() if opening else -1
        if start != end:
            yield MarkupToken("text", end, len(source) if start < 0 else start)
        if start < 0:
            return
        token = _read_markup(source, start, xml=xml)
        yield token
        end = token.end
        if not xml and token.kind == "open" and token.name in _RAW_TEXT:
            ends = _RAW_END.finditer(source, end)
            closing = next((close for close in ends if close[1].lower() == token.name), None)
            raw_end = closing.start() if closing else len(source)
            if raw_end > end:
                yield MarkupToken("text" if token.name == "title" else "other", end, raw_end)
            end = raw_end


def _read_markup(source: str, start: int, *, xml: bool) -> MarkupToken:
    """Return the token at `<`; markup without an end reaches to the end of the text."""
    rest = MarkupToken("other", start, len(source))
    if source.startswith("<!--", start):
        comment = _COMMENT.match(source, start)
        return MarkupToken("other", start, comment.end()) if comment else rest
    if source.startswith("<![CDATA[", start):
        end = source.find("]]>", start)
        return MarkupToken("cdata", start, len(source) if end < 0 else end + 3)
    second, after = source[start + 1 : start + 2], source[start + 2 : start + 3]
    if second in {"!", "?"} or (second == "/" and not (xml or after.isalpha())):
        is_instruction = second == "?" and (xml or source.startswith(("<?php", "<?="), start))
        mark = "?>" if is_instruction else ">"
        end = source.find(mark, start + 2)
        return rest if end < 0 else MarkupToken("other", start, end + len(mark))
    match = _NAME.match(source, start)
    if match is None:
        return rest
    name, position = match[1], match.end()
    name = name.rpartition(":")[2] if xml else name.lower()
    attributes = []
    while not (tag_end := _TAG_END.match(source, position)):
        match = _ATTRIBUTE.match(source, position)
        if match is None:  # the text ends inside the tag
            return rest
        position = match.end()
        value, quote = match.span(3), match[2] or ""
        if quote:
            close = source.find(quote, position)
            if close < 0:
                return rest
            value, position = (position, close), close + 1
        attribute = match[1] if xml else match[1].lower()
        attributes.append(Attribute(attribute, *value, quote))
    if second == "/":
        return MarkupToken("close", start, tag_end.end(), name)
    kind: Literal["open", "empty"] = "empty" if "/" in tag_end[0] else "open"
    return MarkupToken(kind, start, tag_end.end(), name, tuple(attributes))


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


_INLINE = """
a abbr acronym b bdi bdo big br cite code data del dfn em font i img ins kbd mark math nobr q
rb rp rt rtc ruby s samp small span strike strong sub sup time tt u var wbr
"""
INLINE = frozenset(_INLINE.split())
"""Elements inside a sentence."""
_BLOCK = """
address area article aside base blockquote body caption center col colgroup dd details dialog
dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head
header hgroup hr html legend li link main menu meta nav noframes noscript ol optgroup option p
pre script search section style summary table tbody td template textarea tfoot th thead title
tr ul
"""
BLOCK = frozenset(_BLOCK.split())
"""Elements that begin and end a block. All others are inside a sentence."""
_COMPOUND = frozenset(
    {"audio", "canvas", "datalist", "map", "object", "picture", "select", "svg", "video"}
)
"""Elements with texts of their own, of which none belongs to the sentence around them."""
KNOWN = INLINE | BLOCK | _COMPOUND | {"button", "embed", "input", "label", "output", "slot"}
"""Names of elements of HTML."""
_VOID = "area base br col embed hr img input link meta param source track wbr"
VOID = frozenset(_VOID.split())
"""Elements without content or end tag."""
_PROTECTED = "code kbd math pre rp rt rtc samp script style textarea tt var"
PROTECTED = frozenset(_PROTECTED.split())
"""Elements whose content is not translated."""
_UNTRANSLATED_CLASSES = frozenset({"notranslate", "skiptranslate"})
_ICON_CLASSES = frozenset({"icons", "symbols"})
"""Words of the class of an inline element whose text is the name of an icon."""
_LANGUAGES = frozenset({"lang", "xml:lang"})
_READING_ENDS = {"rt": "rb rp rt rtc ruby", "rp": "rb rp rt rtc ruby", "rtc": "ruby"}
"""Tags that end a reading, whose own end tag may be missing."""
_ATTRIBUTES = frozenset({"alt", "title", "placeholder", "aria-label"})
_LABELLED = frozenset({"option", "optgroup", "track"})
_BUTTONS = frozenset({"button", "reset", "submit"})
_DESCRIPTIONS = frozenset({"title", "description", "image:alt"})
"""Names of the metadata that are sentences for readers, behind a prefix."""
_HEAD = 1000
"""Characters in which an XML declaration begins."""
_AddText = Callable[[SegmentBuilder, int, int], None]


def read_html(
    source: str,
    options: Options,
    add_text: _AddText = add_characters,
    start: int = 0,
    end: int | None = None,
) -> Iterator[Segment | Replacement]:
    """Yield the segments of a page, or of a part of one, and what is in other languages.

    `add_text` adds the text between two tags to a builder.
    """
    is_xml = source[:_HEAD].lstrip().startswith("<?xml")
    builder = SegmentBuilder(source, make_join(escape_text))
    tokens = scan(source, start)
    line = ""
    while (token := next(tokens, None)) and (end is None or token.start < end):
        if token.kind == "text":
            add_text(builder, token.start, token.end)
            line = source[token.start : token.end].strip(SPACE) or line
            continue
        kind: TagKind = "close" if token.kind == "close" else "single"
        tag_end = token.end
        inner = tuple(read_attributes(source, token, options))
        if token.kind == "open" or (token.kind == "empty" and not is_xml):
            is_kept = is_protected(source, token, options)
            if is_kept or token.name in _COMPOUND:
                tag_end, tokens = skip_element(source, token, tokens, is_xml=is_xml)
                if not is_kept:
                    inner += tuple(read_html(source, options, add_text, token.end, tag_end))
                elif is_foreign(source, token, options):
                    noun = find_foreign(source[token.end : tag_end])
                    inner = (Replacement(token.start, token.start, "", noun),)
                else:
                    inner = ()
            elif token.name not in VOID:
                kind = "open"
        if token.name == "br":
            if not line or FINAL_MARK.search(line):
                yield from _finish(builder)
            kind, line = "break", ""
        if token.name in BLOCK:
            yield from _finish(builder)
            yield from inner
            line = ""
        else:
            builder.add_tag(token.start, tag_end, kind, inner)
    yield from _finish(builder)


def _finish(builder: SegmentBuilder) -> Iterator[Segment | Replacement]:
    """Yield the segments of a block; a link or button without text beside it has one of its own."""
    parents, has_text, opened = [0], [False], [0]
    owners: list[int] = []
    for fragment in builder.fragments:
        name = _NAME.match(builder.source, fragment.start) if fragment.text is None else None
        is_half = name and name[1].lower() not in INLINE - {"a"}
        owners.append(0)
        if fragment.text is not None:
            has_text[opened[-1]] |= any(map(str.isalnum, fragment.text))
        elif is_half and fragment.kind == "open":
            owners[-1] = len(parents)
            parents.append(opened[-1])
            has_text.append(False)
            opened.append(owners[-1])
        elif is_half and fragment.kind == "close" and opened[1:]:
            owners[-1] = opened.pop()
    for index in range(1, len(parents)):
        has_text[index] |= has_text[parents[index]]
    groups: list[list[Fragment]] = [[]]
    for fragment, owner in zip(builder.fragments, owners, strict=True):
        is_border = owner and not has_text[parents[owner]]
        groups += [[fragment], []] if is_border else []
        if not is_border:
            groups[-1].append(fragment)
    for builder.fragments in groups:
        yield from builder.finish()


def is_protected(source: str, token: MarkupToken, options: Options | None = None) -> bool:
    """Test for the start tag of an element whose content is not translated."""
    if token.kind not in {"open", "empty"} or token.name in VOID:
        return False
    value = (token.value(source, "translate") or "").lower()
    classes = (token.value(source, "class") or "").split()
    words = "-".join(classes).replace("_", "-").split("-")
    return (
        value == "no"
        or not _UNTRANSLATED_CLASSES.isdisjoint(classes)
        or (token.name in PROTECTED and value != "yes")
        or (token.name in INLINE and not _ICON_CLASSES.isdisjoint(words))
        or is_foreign(source, token, options)
    )


def is_foreign(source: str, token: MarkupToken, options: Options | None) -> bool:
    """Test for the start tag of an element in another language than the source."""
    codes = {token.value(source, name) for name in _LANGUAGES} - {None, "", "und", "mul"}
    language = base_language(options.source) if options else "und"
    return language != "und" and any(base_language(code or "") != language for code in codes)


def find_foreign(markup: str) -> str:
    """Return the noun for markup in another language that has letters outside tags, else ""."""
    return "texts in other languages" if has_letters(visible_text(markup)) else ""


def visible_text(markup: str) -> str:
    """Return the text outside tags, with characters in place of references."""
    texts = (markup[token.start : token.end] for token in scan(markup) if token.kind == "text")
    return unescape("".join(texts))


def skip_element(
    source: str, first: MarkupToken, tokens: Iterator[MarkupToken], *, is_xml: bool
) -> tuple[int, Iterator[MarkupToken]]:
    """Return the end of an element, or that of the text without one, and the tokens behind it."""
    depth, end = 1, first.end
    reading_ends = _READING_ENDS.get(first.name, "").split()
    for token in tokens:
        if token.name in reading_ends:
            end = token.end if token.kind == "close" and token.name == first.name else token.start
            return end, scan(source, end)
        end = token.end
        if token.name == first.name:
            if token.kind == "open" or (token.kind == "empty" and not is_xml):
                depth += 1
            elif token.kind == "close":
                depth -= 1
        if not depth:
            break
    return end, tokens


def read_attributes(
    source: str, token: MarkupToken, options: Options | None = None
) -> Iterator[Segment | Replacement]:
    """Yield the attributes of a tag that are shown to readers, and the change of its language."""
    is_kept = (token.value(source, "translate") or "").lower() == "no"
    if is_kept or is_foreign(source, token, options):
        return
    shown = set(_ATTRIBUTES)
    if token.name in _LABELLED:
        shown.add("label")
    elif token.name == "input" and (token.value(source, "type") or "").lower() in _BUTTONS:
        shown.add("value")
    elif token.name == "meta":
        kind = (token.value(source, "name") or token.value(source, "property") or "").lower()
        prefix, _, name = kind.partition(":")
        if kind == "description" or (prefix in {"og", "twitter"} and name in _DESCRIPTIONS):
            shown.add("content")
    for attribute in token.attributes:
        raw = source[attribute.start : attribute.end]
        text = " ".join(unescape(raw).split())
        if attribute.name in _LANGUAGES and options and text:
            target = options.target
            if target != "und" and base_language(text) != base_language(target):
                code = escape_value(target.replace("_", "-"), attribute.quote)
                yield Replacement(attribute.start, attribute.end, code)
        elif attribute.name in shown and has_letters(text):
            join = make_join(partial(escape_value, quote=attribute.quote))
            if attribute.quote and GENERAL.hidden.search(raw):
                builder = SegmentBuilder(source, join)
                builder.add_text(attribute.start, attribute.end, unescape(raw))
                yield from builder.finish()
            else:
                yield Segment(attribute.start, attribute.end, text, raw, join)
