"""Untranslated units of XLIFF 1.2 and 2, and of TMX."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mt.data.exchange_formats import (
    NATIVE_CODES,
    TMX_UNITS,
    XLIFF_UNITS,
    XmlElement,
    find_language,
    find_role,
    find_variants,
    is_untranslated,
    read_elements,
)
from mt.documents.html import add_characters, escape_text, escape_value, scan, visible_text
from mt.documents.inline import finish_string
from mt.documents.segments import (
    Group,
    Item,
    Options,
    RefusedTranslationError,
    Replacement,
    SegmentBuilder,
    make_join,
)
from mt.errors import DataError, listed
from mt.languages import base_language

_TRANSLATED = "units with a translation"
_STATE = re.compile(r"(\sstate=)([\"'])translated\2")
_NEEDS_REVIEW = r"\1\2needs-review-translation\2"
_SUBSTATE = r"\1\2translated\2 subState=\2mt:needs-review-translation\2"
"""States of XLIFF 1 and 2; 2 has none, but names of programs within `translated`."""
_SIZES = ("char", "glyph", "byte")
"""Units of length that can be measured, not such as the pixel."""


def read_xliff(source: str, options: Options) -> Iterator[Item]:
    """Yield the units without a translation; set their state and the target language of the file.

    A target is untranslated if it has no text beside tags, or if its state is initial, new or
    needs-translation. Raises DataError for a damaged file or one of other languages.
    """
    version = ""
    for element in read_elements(Path(options.name), XLIFF_UNITS, text=source):
        if element.name in XLIFF_UNITS:
            reason = _find_reason(element, options)
            if reason:
                yield Replacement(element.start, element.start, "", reason)
            else:
                yield from _fill_unit(source, element)
            continue
        if element.name == "xliff":
            version = element.attributes.get("version") or "1.2"
        if element.name != ("file" if version.startswith("1") else "xliff"):
            continue
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
            yield _set_attribute(source, element, names[1], options.target)
    if not version:
        raise DataError(f"{options.name}: is not XLIFF: it has no element `xliff`")


def _find_reason(unit: XmlElement, options: Options) -> str:
    """Return a noun phrase for the units that stay as this one does, or "" to translate it."""
    attributes = unit.attributes
    if not _is_translatable(unit, inherited=unit.around.get("translate") != "no"):
        return 'units with `translate="no"`'
    if attributes.get("approved") == "yes":
        return "approved units"
    locks = [value for name, value in attributes.items() if name.rpartition(":")[2] == "locked"]
    if not {"no", "false"}.issuperset(locks):
        return "locked units"
    for name, language in (("source", options.source), ("target", options.target)):
        for element in unit.children(name)[:1]:
            code = element.attributes.get("xml:lang")
            if code and base_language(code) != base_language(language):
                return "units in other languages"
    for target in unit.children("target")[:1]:
        if is_untranslated(unit, target) or not target.has_text():
            return ""
        segments = _find_segments(target)
        filled = [segment.attributes.get("mid") for segment in segments if segment.has_text()]
        parts = _find_segments(*unit.children("seg-source"))
        known = {segment.attributes.get("mid") for segment in parts} - {None}
        if len(filled) == len(segments) or not known.issuperset(filled):
            return _TRANSLATED
    return ""


def _find_segments(*elements: XmlElement) -> list[XmlElement]:
    """Return the segments into which XLIFF 1.2 divides the content of elements."""
    segments: list[XmlElement] = []
    for child in (child for element in elements for child in element.children()):
        is_segment = child.name == "mrk" and child.attributes.get("mtype") == "seg"
        segments += [child] if is_segment else _find_segments(child)
    return segments


def _is_translatable(element: XmlElement, *, inherited: bool = True) -> bool:
    """Test for no `translate="no"` on an element, or around it and not changed on it."""
    flag = element.attributes.get("translate")
    return inherited if flag is None else flag != "no"


def _places(source: str, element: XmlElement) -> tuple[int, int, int]:
    """Return the ends of the start tag, of the content and of an element."""
    tag = next(scan(source, element.start, xml=True))
    if tag.kind == "empty":
        return tag.end, tag.end, tag.end
    return tag.end, element.end, source.index(">", element.end) + 1


def _set_attribute(source: str, element: XmlElement, name: str, value: str) -> Replacement:
    """Return the change of a start tag that sets an attribute."""
    token = next(scan(source, element.start, xml=True))
    first = last = token.start + len(source[token.start : token.end].rstrip("/> \t\r\n"))
    written = f" {name}={escape_value(value, '')}"
    for attribute in token.attributes:
        if attribute.name == name:
            first, last = attribute.start, attribute.end
            written = escape_value(value, attribute.quote)
    tag = source[token.start : first] + written + source[last : token.end]
    return Replacement(token.start, token.end, tag)


def _open_tag(source: str, element: XmlElement, state: str = "") -> str:
    """Return the start tag of an element that gets a content, and a state if it is given."""
    tag = source[element.start : _places(source, element)[0]]
    if state:
        tag = _set_attribute(source, element, "state", state).text
    return tag.removesuffix("/>").removesuffix(">").rstrip() + ">"


def _fill_unit(source: str, unit: XmlElement) -> Iterator[Item]:
    """Yield the items that write the target of a unit, with the segments of the source."""
    texts, targets = unit.children("source"), unit.children("target")
    if not texts:
        return
    text, is_first = texts[0], unit.name == "trans-unit"
    attributes = {**unit.around, **unit.attributes}
    is_measured = "maxwidth" not in attributes or attributes.get("size-unit") in _SIZES
    state = "translated" if is_measured else "needs-review-translation"
    filled: dict[str | None, XmlElement] = {}
    prefix = source[text.start + 1 : source.index("source", text.start)]
    if targets:
        place = targets[0].start, _places(source, targets[0])[2]
        tag = _open_tag(source, targets[0], state if is_first else "")
        if not is_untranslated(unit, targets[0]):
            filled = {part.attributes.get("mid"): part for part in _find_segments(targets[0])}
    else:
        place = (_places(source, (unit.children("seg-source") or texts)[0])[2],) * 2
        tag = f'<{prefix}target state="{state}">' if is_first else f"<{prefix}target>"
        tag = _space_before(source, text.start) + tag
    segments = _find_segments(*unit.children("seg-source"))
    items: list[Item] = [] if segments else [*_read_content(source, text)]
    for segment in segments:
        text = unit.children("seg-source")[0]
        target = filled.get(segment.attributes.get("mid"))
        tag_end, _, end = _places(source, segment)
        if target is not None and target.has_text():
            translation = source[target.start : _places(source, target)[2]]
            items.append(Replacement(segment.start, end, translation))
            continue
        if target is not None and tag_end < end:
            items.append(Replacement(segment.start, tag_end, _open_tag(source, target)))
        if _is_translatable(segment):
            items += _read_content(source, segment)

    def check(content: str) -> str:
        """Return the content of the target; raise an error if it exceeds a size limit."""
        visible = visible_text(content)
        for name, limit in attributes.items():
            most = limit.rpartition(",")[2].strip()
            is_width = name == "maxwidth" and attributes.get("size-unit") in _SIZES
            is_byte = is_width and attributes.get("size-unit") == "byte"
            size = len(visible.encode() if is_byte else visible)
            is_limit = is_width or name.endswith(":sizeRestriction")
            if is_limit and most.isdecimal() and size > int(most):
                raise RefusedTranslationError(f"the translation has the size {size}, above {most}")
        return content

    around = tag, f"</{prefix}target>"
    for item in _write_copy(source, (unit, text), place, items, around, check):
        if isinstance(item, Replacement):
            yield item
        elif is_first:
            yield replace(item, mark=partial(_STATE.sub, _NEEDS_REVIEW, count=1))
        else:
            marked = partial(_STATE.sub, _SUBSTATE, count=1)
            change = _set_attribute(source, unit, "state", "translated")
            yield Group.of(source, (change, item), mark=marked)


def _space_before(source: str, tag_start: int) -> str:
    """Return the white space before a tag."""
    start = source.rfind(">", 0, tag_start) + 1
    space = source[start:tag_start]
    return space if not space.strip() else ""


def _write_copy(
    source: str,
    elements: tuple[XmlElement, XmlElement],
    place: tuple[int, int],
    items: Sequence[Item],
    around: tuple[str, str],
    check: Callable[[str], str] = str,
) -> Iterator[Group | Replacement]:
    """Yield the copy of an element of a unit with the items inside, and count what stays.

    The copy has tags around it, and is written at a place in the document.
    """
    unit, element = elements
    replacements = [item for item in items if isinstance(item, Replacement)]
    reasons = [item.reason_untranslated for item in replacements if item.reason_untranslated]
    has_texts = any(item.texts for item in items)
    if not has_texts and element.has_text() and not reasons:
        reasons = ["units without letters"]
    for reason in reasons:
        yield Replacement(unit.start, unit.start, "", reason)
    if has_texts:
        first, last, _ = _places(source, element)
        text = source[first:last]
        yield Group(*place, text, tuple(items), first, lambda copy: check(copy).join(around))


def _read_content(source: str, element: XmlElement) -> Iterator[Item]:
    """Yield the items of the content of an element."""
    builder = SegmentBuilder(source, make_join(escape_text), keeps_lines=True)
    _add_content(builder, element, inherited=True)
    return finish_string(builder)


def _add_content(builder: SegmentBuilder, element: XmlElement, *, inherited: bool) -> None:
    """Add the text and the tags of an element; its depth is limited by `read_elements`."""
    is_translatable = _is_translatable(element, inherited=inherited)
    source = builder.source
    start, end, _ = _places(source, element)
    for child in element.children():
        _add_text(builder, start, child.start)
        tag_end, content_end, child_end = _places(source, child)
        is_protected = child.attributes.get("mtype") == "protected" or not _is_translatable(
            child, inherited=is_translatable
        )
        if tag_end == child_end or is_protected or child.name in NATIVE_CODES:
            kind, key = find_role(child)
            around = source[child.start - 1] + source[child_end]
            if kind == "break" and any(map(str.isspace, around)):
                kind = "ordered"
            builder.add_tag(child.start, child_end, kind, key=key)
        else:
            builder.add_tag(child.start, tag_end, "open")
            _add_content(builder, child, inherited=is_translatable)
            builder.add_tag(content_end, child_end, "close")
        start = child_end
    _add_text(builder, start, end)


_PIECE = re.compile("&[^;]*;|[^&]+")


def _add_text(builder: SegmentBuilder, start: int, end: int) -> None:
    """Add a part of the document without elements."""
    source = builder.source
    for token in scan(source, start, xml=True):
        if token.start >= end:
            break
        if token.kind == "text":
            for piece in _PIECE.finditer(source, token.start, token.end):
                add_characters(builder, *piece.span())
        elif token.kind == "cdata":
            text = source[token.start : token.end][len("<![CDATA[") : -len("]]>")]
            builder.add_text(token.start, token.end, text)
        else:
            builder.add_tag(token.start, token.end, "single")


def read_tmx(source: str, options: Options) -> Iterator[Item]:
    """Yield the units without a text in the target language.

    The translation fills an empty variant, or a new one after the last. Raises DataError for a
    damaged file or one without a text in the source language.
    """
    codes: dict[str, None] = {}
    for unit in read_elements(Path(options.name), TMX_UNITS, text=source):
        if unit.name not in TMX_UNITS:
            continue
        filled, empty = find_variants(unit)
        codes |= dict.fromkeys(filled)
        code = find_language(tuple(filled), options.source)
        if code is None:
            yield Replacement(
                unit.start, unit.start, "", f"units without a text in `{options.source}`"
            )
        elif find_language(tuple(filled), options.target) is not None:
            yield Replacement(unit.start, unit.start, "", _TRANSLATED)
        else:
            text = filled[code].children("seg")[0]
            target = find_language(tuple(empty), options.target)
            if target is not None and (segments := empty[target].children("seg")):
                place = segments[0].start, _places(source, segments[0])[2]
                around = _open_tag(source, segments[0]), "</seg>"
            else:
                last = unit.children("tuv")[-1]
                language = escape_value(options.target, "")
                tag = f"{_space_before(source, last.start)}<tuv xml:lang={language}>"
                place = (_places(source, last)[2],) * 2
                around = f"{tag}<seg>", "</seg></tuv>"
            items = [*_read_content(source, text)]
            yield from _write_copy(source, (unit, text), place, items, around)
    if find_language(tuple(codes), options.source) is None:
        raise DataError(
            f"{options.name}: no text is in `{options.source}`; "
            f"there are {listed(sorted(codes)) or 'none'}"
        )
