"""Untranslated units of XLIFF 1.2 and 2, and of TMX."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mt.data.formats import (
    NATIVE_CODES,
    TMX_UNITS,
    XLIFF_UNITS,
    XmlElement,
    find_language,
    find_variants,
    is_untranslated,
    read_elements,
)
from mt.documents.html import add_characters, escape_text, escape_value, scan
from mt.documents.segments import Item, Options, Replacement, SegmentBuilder, make_join
from mt.documents.tags import TagKind
from mt.errors import DataError, listed
from mt.languages import base_language

_KINDS: dict[str, TagKind] = {
    "bpt": "open", "bx": "open", "sc": "open", "ept": "close", "ex": "close", "ec": "close",
}  # fmt: skip
"""Kind of inline elements that are half of a pair."""
_PREFIX = re.compile("<([^\\s/>:]+:)")


def read_xliff(source: str, options: Options) -> Iterator[Item]:
    """Yield the units without a translation; set their state and the target language of the file.

    A target is untranslated if it is empty, or if its state is initial, new or needs-translation.
    Raises DataError for a damaged file or one of other languages.
    """
    version = ""
    for element in read_elements(Path(options.name), XLIFF_UNITS, text=source):
        if element.name in XLIFF_UNITS:
            inherited = element.around.get("translate") != "no"
            is_translatable = _is_translatable(element, inherited=inherited)
            if is_translatable and element.attributes.get("approved") != "yes":
                yield from _fill_unit(source, element)
            continue
        if element.name == "xliff":
            version = element.attributes.get("version") or "1.2"
        if element.name == ("file" if version.startswith("1") else "xliff"):
            yield from _set_languages(source, element, options)
    if not version:
        raise DataError(f"{options.name}: is not XLIFF: it has no element `xliff`")


def _is_translatable(element: XmlElement, *, inherited: bool) -> bool:
    """Test for no `translate="no"` on an element, or around it and not changed on it."""
    flag = element.attributes.get("translate")
    return inherited if flag is None else flag != "no"


def _set_languages(source: str, element: XmlElement, options: Options) -> Iterator[Replacement]:
    """Check the languages of a file; add the target language if it is missing."""
    is_first = element.name == "file"
    names = ("source-language", "target-language") if is_first else ("srcLang", "trgLang")
    for name, language in zip(names, (options.source, options.target), strict=True):
        code = element.attributes.get(name)
        if code and base_language(code) != base_language(language):
            raise DataError(
                f"{options.name}: `{name}` is `{code}`, but the model translates from "
                f"`{options.source}` to `{options.target}`"
            )
    if names[1] not in element.attributes:
        end = _places(source, element)[0]
        tag = _set_attribute(source[element.start : end], names[1], options.target)
        yield Replacement(element.start, end, tag)


def _places(source: str, element: XmlElement) -> tuple[int, int, int]:
    """Return the ends of the start tag, of the content and of an element."""
    tag = next(scan(source, element.start, xml=True))
    if tag.kind == "empty":
        return tag.end, tag.end, tag.end
    return tag.end, element.end, source.index(">", element.end) + 1


def _set_attribute(tag: str, name: str, value: str) -> str:
    """Return a start tag with an attribute set."""
    for attribute in next(scan(tag, xml=True)).attributes:
        if attribute.name == name:
            quoted = escape_value(value, attribute.quote)
            return tag[: attribute.start] + quoted + tag[attribute.end :]
    end = len(tag.rstrip("/> \t\r\n"))
    return f"{tag[:end]} {name}={escape_value(value, '')}{tag[end:]}"


def _fill_unit(source: str, unit: XmlElement) -> Iterator[Item]:
    """Yield the items that write the target of a unit."""
    is_first = unit.name == "trans-unit"
    texts, targets = unit.children("source"), unit.children("target")
    if not texts:
        return
    text, closing = texts[0], f"</{_prefix(source, texts[0])}target>"
    if targets:
        target = targets[0]
        tag_end, content_end, end = _places(source, target)
        if not is_untranslated(unit, target) and source[tag_end:content_end].strip():
            return
        start, before = target.start, ""
        tag = source[start:tag_end].removesuffix("/>").removesuffix(">").rstrip() + ">"
    else:
        start = end = _places(source, (unit.children("seg-source") or texts)[0])[2]
        before, tag = _space_before(source, text.start), f"<{_prefix(source, text)}target>"
    if is_first:
        tag = _set_attribute(tag, "state", "translated")
    items = list(_copy_content(source, text, (start, end), (before + tag, closing)))
    if items and not is_first:
        tag_end = _places(source, unit)[0]
        tag = _set_attribute(source[unit.start : tag_end], "state", "translated")
        yield Replacement(unit.start, tag_end, tag)
    yield from items


def _prefix(source: str, element: XmlElement) -> str:
    """Return the prefix of the name of an element with its colon, or an empty string."""
    match = _PREFIX.match(source, element.start)
    return match[1] if match else ""


def _space_before(source: str, tag_start: int) -> str:
    """Return the white space before a tag."""
    start = source.rfind(">", 0, tag_start) + 1
    space = source[start:tag_start]
    return space if not space.strip() else ""


def _copy_content(
    source: str, element: XmlElement, span: tuple[int, int], around: tuple[str, str]
) -> Iterator[Item]:
    """Yield the items that write a translated copy of the content at `span`, with tags around it.

    There are none if the content has no letters.
    """
    builder = SegmentBuilder(source, make_join(escape_text), keeps_lines=True)
    _add_content(builder, element, inherited=True)
    first, last, _ = _places(source, element)
    for segment in builder.finish():  # one or none
        yield Replacement(*span, around[0] + source[first : segment.start])
        end = span[1]
        yield replace(segment, start=end, end=end)
        yield Replacement(end, end, source[segment.end : last] + around[1])


def _add_content(builder: SegmentBuilder, element: XmlElement, *, inherited: bool) -> None:
    """Add the text and the tags of an element; its depth is limited by `read_elements`."""
    is_translatable = _is_translatable(element, inherited=inherited)
    start, end, _ = _places(builder.source, element)
    for child in element.children():
        _add_text(builder, start, child.start)
        tag_end, content_end, child_end = _places(builder.source, child)
        is_kept = child.name in NATIVE_CODES or not _is_translatable(
            child, inherited=is_translatable
        )
        if tag_end == child_end or is_kept:
            builder.add_tag(child.start, child_end, _KINDS.get(child.name, "single"))
        else:
            builder.add_tag(child.start, tag_end, "open")
            _add_content(builder, child, inherited=is_translatable)
            builder.add_tag(content_end, child_end, "close")
        start = child_end
    _add_text(builder, start, end)


def _add_text(builder: SegmentBuilder, start: int, end: int) -> None:
    """Add a part of the document without elements."""
    source = builder.source
    for token in scan(source, start, xml=True):
        if token.start >= end:
            break
        if token.kind == "text":
            add_characters(builder, token.start, token.end)
        elif token.kind == "cdata":
            text = source[token.start : token.end][len("<![CDATA[") : -len("]]>")]
            builder.add_text(token.start, token.end, text)
        else:
            builder.add_tag(token.start, token.end, "single")


def read_tmx(source: str, options: Options) -> Iterator[Item]:
    """Yield the units without a text in the target language, which is added after the last text.

    Raises DataError for a damaged file or one without a text in the source language.
    """
    codes: dict[str, None] = {}
    for unit in read_elements(Path(options.name), TMX_UNITS, text=source):
        if unit.name not in TMX_UNITS:
            continue
        variants = find_variants(unit)
        codes |= dict.fromkeys(variants)
        code = find_language(variants, options.source)
        if code is None or find_language(variants, options.target) is not None:
            continue
        last = unit.children("tuv")[-1]
        end = _places(source, last)[2]
        language = escape_value(options.target, "")
        for text in variants[code].children("seg")[:1]:
            opening = f"{_space_before(source, last.start)}<tuv xml:lang={language}><seg>"
            yield from _copy_content(source, text, (end, end), (opening, "</seg></tuv>"))
    if find_language(dict.fromkeys(codes, ""), options.source) is None:
        raise DataError(
            f"{options.name}: no text is in `{options.source}`; "
            f"there are {listed(sorted(codes)) or 'none'}"
        )
