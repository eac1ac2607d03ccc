"""Untranslated units of XLIFF 1.2 and 2, and of TMX."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Union

from mt.data.formats import (
    NATIVE_CODES,
    UNTRANSLATED,
    find_language,
    named_codes,
    read_units,
)
from mt.documents.html import MarkupToken, add_characters, escape_text, escape_value, scan
from mt.documents.segments import Item, Options, Replacement, SegmentBuilder, escaping
from mt.documents.tags import TagKind
from mt.errors import DataError
from mt.languages import base_language

_KINDS: dict[str, TagKind] = {
    "bpt": "open", "bx": "open", "sc": "open", "ept": "close", "ex": "close", "ec": "close",
}  # fmt: skip
"""Kind of inline elements that are half of a pair."""
_PREFIX = re.compile("<([^\\s/>:]+:)")


@dataclass(slots=True)
class _Element:
    """Element of an XML file; `close` is `open` if it is empty, None if it is not read yet."""

    open: MarkupToken
    is_translated: bool
    """No `translate="no"` on it or around it."""
    close: MarkupToken | None = None
    content: list[Union["_Element", MarkupToken]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Place after the element."""
        return (self.close or self.open).end

    @property
    def inside(self) -> tuple[int, int]:
        """Place of the content."""
        is_empty = self.close is None or self.close is self.open
        return self.open.end, self.open.end if is_empty or not self.close else self.close.start

    def children(self, name: str) -> "list[_Element]":
        """Return the children with this name."""
        return [
            each for each in self.content if isinstance(each, _Element) and each.open.name == name
        ]


def _elements(source: str, name: str, units: frozenset[str]) -> Iterator[_Element]:
    """Yield each element around units when it starts, and each unit when it is complete.

    Raises DataError with the line if the document is not XML.
    """
    for _ in read_units(Path(name), units, utf8=[source.encode()]):
        pass
    around: list[_Element] = []
    depth = 0
    """Number of open elements from a unit on."""
    for token in scan(source, xml=True):
        if token.kind in {"open", "empty"}:
            flag = token.value(source, "translate")
            inherited = not around or around[-1].is_translated
            element = _Element(token, inherited if flag is None else flag != "no")
            if depth:
                around[-1].content.append(element)
            elif token.name not in units:
                yield element
            depth += bool(depth) or token.name in units
            around.append(element)
        elif depth and token.kind != "close":
            around[-1].content.append(token)
        if token.kind in {"close", "empty"}:
            element = around.pop()
            element.close = token
            if depth:
                depth -= 1
                if not depth:
                    yield element


def read_xliff(source: str, options: Options) -> Iterator[Item]:
    """Yield the units without a translation; set their state and the target language of the file.

    A target is untranslated if it is empty, or if its state is initial, new or needs-translation.
    Raises DataError for a damaged file or one of other languages.
    """
    version = ""
    for element in _elements(source, options.name, frozenset({"trans-unit", "segment"})):
        tag = element.open
        if tag.name in {"trans-unit", "segment"}:
            if element.is_translated and tag.value(source, "approved") != "yes":
                yield from _unit(source, element)
            continue
        if tag.name == "xliff":
            version = tag.value(source, "version") or "1.2"
        if tag.name == ("file" if version.startswith("1") else "xliff"):
            yield from _languages(source, tag, options)
    if not version:
        raise DataError(f"{options.name}: is not XLIFF: it has no element `xliff`")


def _languages(source: str, tag: MarkupToken, options: Options) -> Iterator[Replacement]:
    """Check the languages of a file; add the target language if it is missing."""
    is_first = tag.name == "file"
    names = ("source-language", "target-language") if is_first else ("srcLang", "trgLang")
    for name, wanted in zip(names, (options.source, options.target), strict=True):
        code = tag.value(source, name)
        if code and base_language(code) != base_language(wanted):
            raise DataError(
                f"{options.name}: `{name}` is `{code}`, but the model translates from "
                f"`{options.source}` to `{options.target}`"
            )
    if tag.value(source, names[1]) is None:
        text = _tag_with(source[tag.start : tag.end], names[1], options.target)
        yield Replacement(tag.start, tag.end, text)


def _tag_with(text: str, name: str, value: str) -> str:
    """Return a start tag with an attribute set."""
    for each in next(scan(text, xml=True)).attributes:
        if each.name == name:
            return text[: each.start] + escape_value(value, each.quote) + text[each.end :]
    end = len(text.rstrip("/> \t\r\n"))
    return f"{text[:end]} {name}={escape_value(value, '')}{text[end:]}"


def _unit(source: str, unit: _Element) -> Iterator[Item]:
    """Yield the items that write the target of a unit."""
    is_first = unit.open.name == "trans-unit"
    texts, targets = unit.children("source"), unit.children("target")
    if not texts:
        return
    state_of = unit if not is_first else targets[0] if targets else None
    state = state_of.open.value(source, "state") if state_of else None
    if targets and state not in UNTRANSLATED and source[slice(*targets[0].inside)].strip():
        return
    text = texts[0]
    if targets:
        start, end = targets[0].open.start, targets[0].end
        tag = source[start : targets[0].open.end].removesuffix("/>").removesuffix(">").rstrip()
        before, tag = "", f"{tag}>"
    else:
        start = end = (unit.children("seg-source") or texts)[0].end
        before, tag = _space_before(source, text.open.start), f"<{_prefix(source, text)}target>"
    if is_first:
        tag = _tag_with(tag, "state", "translated")
    closing = f"</{_prefix(source, text)}target>"
    items = list(_content(source, text, (start, end), (before + tag, closing)))
    if items and not is_first:
        tag = _tag_with(source[unit.open.start : unit.open.end], "state", "translated")
        yield Replacement(unit.open.start, unit.open.end, tag)
    yield from items


def _prefix(source: str, element: _Element) -> str:
    """Return the prefix of the name of an element with its colon, or an empty string."""
    match = _PREFIX.match(source, element.open.start)
    return match[1] if match else ""


def _space_before(source: str, place: int) -> str:
    """Return the white space before a tag."""
    start = source.rfind(">", 0, place) + 1
    space = source[start:place]
    return space if not space.strip() else ""


def _content(
    source: str, element: _Element, place: tuple[int, int], around: tuple[str, str]
) -> Iterator[Item]:
    """Yield the items that write a translated copy of the content, with tags around it.

    There are none if the content has no letters.
    """
    builder = SegmentBuilder(source, escaping(escape_text), keeps_lines=True)
    _add(builder, source, element)
    first, last = element.inside
    for segment in builder.finish():  # one or none
        yield Replacement(*place, around[0] + source[first : segment.start])
        end = place[1]
        yield replace(segment, start=end, end=end)
        yield Replacement(end, end, source[segment.end : last] + around[1])


def _add(builder: SegmentBuilder, source: str, element: _Element) -> None:
    """Add the text and the tags of an element; its depth is limited by `read_units`."""
    for each in element.content:
        if isinstance(each, MarkupToken):
            if each.kind == "text":
                add_characters(builder, each.start, each.end)
            elif each.kind == "cdata":
                text = source[each.start : each.end][len("<![CDATA[") : -len("]]>")]
                builder.add_text(each.start, each.end, text)
            else:
                builder.add_tag(each.start, each.end, "single")
        elif each.close is each.open or each.open.name in NATIVE_CODES or not each.is_translated:
            builder.add_tag(each.open.start, each.end, _KINDS.get(each.open.name, "single"))
        else:
            builder.add_tag(each.open.start, each.open.end, "open")
            _add(builder, source, each)
            builder.add_tag(each.inside[1], each.end, "close")


def read_tmx(source: str, options: Options) -> Iterator[Item]:
    """Yield the units without a text in the target language, which is added after the last text.

    Raises DataError for a damaged file or one without a text in the source language.
    """
    codes: dict[str, None] = {}
    for unit in _elements(source, options.name, frozenset({"tu"})):
        variants: dict[str, _Element] = {}
        for each in unit.children("tuv"):
            code = each.open.value(source, "xml:lang") or each.open.value(source, "lang")
            variants.setdefault(code or "", each)
        codes |= dict.fromkeys(variants)
        code = find_language(variants, options.source)
        if code is None or find_language(variants, options.target) is not None:
            continue
        variant, last = variants[code], unit.children("tuv")[-1]
        language = escape_value(options.target, "")
        for text in variant.children("seg")[:1]:
            opening = f"{_space_before(source, last.open.start)}<tuv xml:lang={language}><seg>"
            yield from _content(source, text, (last.end, last.end), (opening, "</seg></tuv>"))
    if find_language(dict.fromkeys(codes, ""), options.source) is None:
        raise DataError(
            f"{options.name}: no text is in `{options.source}`; "
            f"there are {named_codes(codes) or 'none'}"
        )
