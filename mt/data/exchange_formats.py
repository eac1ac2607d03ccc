"""Texts of TMX, XLIFF and gettext, for corpora and documents.

A file is a sequence of units, each a text in several languages. A language code of the config
matches case-insensitively and by prefix: `en` matches `EN` and `en-US`. As a corpus, tags inside a
text are removed, line breaks become spaces, and units without one of the sides are left out and
counted.
"""

import functools
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Literal, NoReturn, Union
from xml.parsers import expat

from mt.data.corpus_files import LONGEST_LINE, read_chunks, warn_of_long, warn_once
from mt.data.pairs import FileSource, SentencePair
from mt.errors import DataError, listed

_DEEPEST = 100
"""Largest nesting depth, far beyond that of real files."""
_LONGEST_TAG = 4 << 20
"""Bytes of a tag with its attributes, or of a comment."""
_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class XmlElement:
    """Element of an XML file."""

    name: str
    """Name without prefix."""
    attributes: dict[str, str]
    """Attributes by name with prefix, as in `xml:lang`."""
    around: Mapping[str, str]
    """Attributes of the elements around it, the nearest first; empty inside a unit."""
    start: int
    end: int = -1
    """Place of its end tag, or the end of an empty tag."""
    content: list[Union["XmlElement", str]] = field(default_factory=list)

    def children(self, name: str = "") -> list["XmlElement"]:
        """Return the child elements, or those with one name."""
        return [
            child
            for child in self.content
            if isinstance(child, XmlElement) and name in {"", child.name}
        ]

    def text(self) -> str:
        """Return the visible text, without tags and native code.

        A break becomes a space. A tag leaves no second space, and an unknown value no space before
        a mark.
        """

        def close(match: re.Match[str]) -> str:
            before, gap, after, mark = match.groups()
            if mark and not {_VALUE_GAP, _BREAK_GAP}.isdisjoint(gap):
                return after
            return " " if _BREAK_GAP in gap else before or gap.strip(_GAPS)[:1] or after

        text = self._marked_text()
        return text if set(_GAPS).isdisjoint(text) else _GAP.sub(close, text)

    def _marked_text(self) -> str:
        """Return the text with a gap, a character that XML excludes, in place of each tag."""
        shown = []
        for part in self.content:
            if isinstance(part, str):
                shown.append(_TEXT_BREAK.sub(_BREAK_GAP, part) if "<" in part else part)
                continue
            if part.name not in _STANDALONE:
                shown += [_CODE_GAP, part._marked_text(), _CODE_GAP]
                continue
            code = part.native_code()
            if part.name not in _HALVES and find_role(part)[0] == "break":
                shown.append(_BREAK_GAP)
            elif part.name not in {"x", "ph"} or _NATIVE_MARKUP.search(code):
                shown.append(_CODE_GAP)
            else:
                is_value = part.content or code.startswith(("%", "{", "$", "@"))
                shown.append(code if is_value else _VALUE_GAP)
            for subflow in part.children("sub"):
                shown += [_BREAK_GAP, subflow.text(), _BREAK_GAP]
        return "".join(shown)

    def native_code(self) -> str:
        """Return the code that a tag stands for: its content, or an attribute that shows it."""
        code = "".join(part for part in self.content if isinstance(part, str))
        shown = [self.attributes.get(name) for name in ("equiv-text", "disp", "equiv")]
        return unescape(code or next(filter(None, shown), ""))

    def has_text(self) -> bool:
        """Test for visible text outside native code, other than white space."""
        return any(
            _VISIBLE.search(part) is not None
            if isinstance(part, str)
            else part.name not in _STANDALONE and part.has_text()
            for part in self.content
        )


def read_elements(
    path: Path, units: frozenset[str], *, text: str | None = None
) -> Iterator[XmlElement]:
    """Stream units, the elements with these names; of nested ones the outermost.

    Yields each unit when it is complete, and before it each element around units at its start tag.
    `text` is the content of the file if it is read already, whatever encoding it declares; places
    are those in `text`. Without it, all places are 0, and the content of units with more than
    LONGEST_LINE characters of text and start tags is dropped, with a warning. Raises DataError with
    the line for invalid or extreme XML and for entities of its own.
    """
    parser = expat.ParserCreate(None if text is None else "utf-8")
    utf8 = b"" if text is None else text.encode()
    pieces = (utf8[start : start + _CHUNK_BYTES] for start in range(0, len(utf8), _CHUNK_BYTES))
    byte = character = fed = 0

    def place() -> int:
        """Return the number of characters before the current event; events are in order."""
        nonlocal byte, character
        if text is not None:
            character += len(utf8[byte : parser.CurrentByteIndex].decode())
            byte = parser.CurrentByteIndex
        return character

    longest = LONGEST_LINE if text is None else len(utf8)
    collector = _Collector(units, place, longest)
    parser.buffer_text = True
    parser.StartElementHandler = collector.start
    parser.EndElementHandler = collector.end
    parser.CharacterDataHandler = collector.text
    parser.EntityDeclHandler = _refuse_entity
    parser.SkippedEntityHandler = _refuse_entity
    try:
        for chunk in read_chunks(path) if text is None else pieces:
            parser.Parse(chunk, False)
            fed += len(chunk)
            # An unfinished tag is read again with each chunk.
            if text is None and fed - parser.CurrentByteIndex > _LONGEST_TAG:
                raise _UnfitXmlError(f"a tag or comment has more than {_LONGEST_TAG:,} bytes")
            yield from collector.ready
            collector.ready.clear()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise DataError(f"{path}: line {error.lineno}: is not XML ({reason})") from error
    except (_UnfitXmlError, LookupError, ValueError) as error:  # the last two: its encoding
        raise DataError(f"{path}: line {parser.CurrentLineNumber}: {error}") from error
    yield from collector.ready
    warn_of_long(path, "units", collector.long_units)


class _UnfitXmlError(Exception):
    """Reason to reject the file; the reader adds path and line."""


def _refuse_entity(name: str, *_: object) -> NoReturn:
    raise _UnfitXmlError(f"the entity `{name}` is not one of XML's own; such files are refused")


class _Collector:
    """Builds elements from the events of the parser."""

    def __init__(self, units: frozenset[str], place: Callable[[], int], longest: int) -> None:
        self._units, self._place, self._longest = units, place, longest
        self._open: list[XmlElement] = []
        self._around = ChainMap[str, str]()
        self._unit: XmlElement | None = None
        self._characters = self._count = 0
        self.ready: list[XmlElement] = []
        """Elements to yield."""
        self.long_units: list[int] = []
        """Numbers of the units that are too long, from 1."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) >= _DEEPEST:
            raise _UnfitXmlError(f"more than {_DEEPEST} elements stand inside each other")
        self._characters += len(name) + len("</>")
        for key, value in attributes.items():
            self._characters += len(key) + len(value) + len(' =""')
        local = name.rpartition(":")[2]
        if self._unit is not None:
            element = XmlElement(local, attributes, {}, self._place())
            if self._characters <= self._longest:
                self._open[-1].content.append(element)
        else:
            element = XmlElement(local, attributes, self._around, self._place())
            if local in self._units:
                self._unit = element
            else:
                self.ready.append(element)
                self._around = self._around.new_child(attributes)
                self._characters = 0
        self._open.append(element)

    def text(self, text: str) -> None:
        self._characters += len(text)
        if self._unit is not None and self._characters <= self._longest:
            self._open[-1].content.append(text)

    def end(self, _: str) -> None:
        element = self._open.pop()
        element.end = self._place()
        if element is not self._unit:
            if self._unit is None:
                self._around = self._around.parents
            return
        self._count += 1
        if self._characters > self._longest:
            self.long_units.append(self._count)
            element.attributes, element.content = {}, []
        self.ready.append(element)
        self._unit, self._characters = None, 0


Texts = Mapping[str, str]
"""Texts of a unit by language code; "" is a language without a code."""
_LINE_END = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")
NATIVE_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
"""Tags with markup of the document inside; other tags contain text or nothing."""
_HALVES: dict[str, Literal["open", "close"]] = {
    "bpt": "open", "bx": "open", "sc": "open", "sm": "open",
    "ept": "close", "ex": "close", "ec": "close", "em": "close",
}  # fmt: skip
"""Tags that are half of a pair by their name."""
_POSITIONS: dict[str, Literal["open", "close"]] = {
    "open": "open", "begin": "open", "close": "close", "end": "close",
}  # fmt: skip
_STANDALONE = NATIVE_CODES | {"x", *_HALVES}
_CODE_GAP, _VALUE_GAP, _BREAK_GAP = _GAPS = "\x01\x02\x03"
_GAP = re.compile(
    r"(?<!\s)(\s*+)([\x01-\x03](?>(?:\s*+[\x01-\x03])*))(\s*+)(?=([,.;:!?…)\]}»”、。，；：！？）」』】،؛؟।])?)"
)
"""Tags with the white space around them, and the mark that follows."""
_VISIBLE = re.compile(r"[^\s\u00ad\u200b-\u200f\u2060\ufeff]")
_NATIVE_MARKUP = re.compile(r"<[/!?A-Za-z][^<>]*>|\A\s*\{?\\[a-z]")
"""Tag of XML or HTML, or control word of RTF."""
_TEXT_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
_BREAK = re.compile(
    r"\s+|(?:\\[nrt])+|<(?:[\w.-]+:)?(?:br|lb)\b[^<>]*>"
    r"|(?:[\w.-]+[:_-])?(?:br|lb|pb|line[_-]?break|new[_-]?line|tab|nbsp)(?:_\d+)?",
    re.IGNORECASE,
)
TEXT_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[\w:.-]+)(?:\s[^<>]*)?(?P<empty>/?)>"
    r"|(?:(?P<two>\{\{(?=[#/]))|[{\[])(?P<close_brace>/?)#?(?P<inner>[\w:.-]+)(?(two)\}\}|[}\]])"
    r"|\[(?P<code>\w[\w-]*)(?:=[^\s\[\]][^\[\]]*"
    r"|(?>(?:\s+[\w-]+=(?:\"[^\"\[\]]*\"|'[^'\[\]]*'|[^\s\[\]\"']+))+)\s*/?)\]"
)
"""Markup that text stands for, such as `<0>`, `</b>`, `{/0}`, `[b]` and `[a href="b"]`."""
_HALF_NAME = re.compile(
    r"(.*?)(?:\b|(?<=_))(?:(start|open|begin)|close|end)(?:\b|(?=_))(.*?)(?:_\d+)?", re.IGNORECASE
)
"""Name of half of a pair, such as `START_LINK_1` and `x-bold-close`."""
_UNTRANSLATED = {"new", "needs-translation", "initial"}
"""States of an untranslated target in XLIFF 1.2 and of a segment in XLIFF 2."""
XLIFF_UNITS = frozenset({"trans-unit", "segment"})
TMX_UNITS = frozenset({"tu"})


def is_break(*names: str) -> bool:
    """Test for the native code, type or name of a tag that is a line break or a space."""
    return any(_BREAK.fullmatch(name) for name in names)


def find_role(tag: XmlElement) -> tuple[Literal["open", "close", "break", "ordered"], str]:
    """Return the role of a tag without text, and the key that both halves of a pair have.

    The name of the element decides, or a line break or half of a pair in its attributes and
    native code: `<x id="START_LINK"/>`, `<ph>&lt;b&gt;</ph>`, `<it pos="close"/>`.
    """
    get = tag.attributes.get
    if tag.name in _HALVES:
        key = get("rid") or get("i") or get("startRef") or get("id") or ""
        return _HALVES[tag.name], f"#{key}"
    code = tag.native_code()
    types = [get(name) or "" for name in ("id", "equiv", "ctype", "type", "subType")]
    position = get("pos") or ""
    if tag.name == "it" and position in _POSITIONS:
        return _POSITIONS[position], "it"
    for name in types:
        if match := _HALF_NAME.fullmatch(name):
            key = f"{match[1]}{match[3]}".lower().strip("_")
            return "open" if match[2] else "close", key or "?"
    if is_break(code, *types):
        return "break", ""
    if (match := TEXT_TAG.fullmatch(code.strip())) and not match["empty"]:
        name = match["name"] or match["inner"] or match["code"]
        return "close" if match["close"] or match["close_brace"] else "open", name.lower()
    return "ordered", ""


@dataclass(frozen=True)
class UnitPairs(FileSource):
    """Units of a file with a text in both languages."""

    source_language: str
    target_language: str
    read_texts: Callable[[Path], Iterator[Texts]]

    def read(self) -> Iterator[SentencePair]:
        """Select the two texts of each unit."""
        units = left_out = 0
        codes: dict[str, str] = {}
        for texts in self.read_texts(self.path):
            units += 1
            codes.update(texts)
            source = find_language(tuple(texts), self.source_language)
            target = find_language(tuple(texts), self.target_language)
            pair = SentencePair("", "")
            if source is not None and target is not None and source != target:
                pair = SentencePair(join_lines(texts[source]), join_lines(texts[target]))
            if pair.source and pair.target:
                yield pair
            else:
                left_out += 1
        if left_out == units:
            languages = f"`{self.source_language}` and `{self.target_language}`"
            there = listed(sorted(filter(None, codes))) or "none"
            raise DataError(
                f"{self.path}: no unit has a text in both {languages}; its languages are {there}"
            )
        if left_out:
            message = "%s: %d of %d units lack one of the sides and are left out"
            warn_once(message, self.path, left_out, units)


def read_tmx(path: Path) -> Iterator[Texts]:
    """Stream the units of a TMX file (TMX 1.4b, https://www.gala-global.org/tmx-14b)."""
    for unit in read_elements(path, TMX_UNITS):
        if unit.name in TMX_UNITS:
            filled, empty = find_variants(unit)
            yield {
                code: segment.text()
                for code, variant in (empty | filled).items()
                for segment in variant.children("seg")[:1]
                if code
            }


def find_variants(unit: XmlElement) -> tuple[dict[str, XmlElement], dict[str, XmlElement]]:
    """Return the first variant with a text of each language of a unit, and the first without one.

    The key is the code of the language, "" without one.
    """
    filled, empty = dict[str, XmlElement](), dict[str, XmlElement]()
    for variant in unit.children("tuv"):
        code = variant.attributes.get("xml:lang") or variant.attributes.get("lang") or ""
        segments = variant.children("seg")
        (filled if segments and segments[0].has_text() else empty).setdefault(code, variant)
    return filled, empty


def read_xliff(path: Path) -> Iterator[Texts]:
    """Stream the units of an XLIFF file, 1.2 or 2; untranslated targets are omitted.

    https://docs.oasis-open.org/xliff/v1.2, https://docs.oasis-open.org/xliff/xliff-core/v2.0
    """
    for unit in read_elements(path, XLIFF_UNITS):
        if unit.name not in XLIFF_UNITS:
            continue
        around = unit.around
        texts: dict[str, str] = {}
        for source in unit.children("source")[:1]:
            code = around.get("source-language") or around.get("srcLang") or ""
            texts[code] = source.text()
        for target in unit.children("target")[:1]:
            if not is_untranslated(unit, target):
                code = around.get("target-language") or around.get("trgLang") or ""
                texts.setdefault(target.attributes.get("xml:lang") or code, target.text())
        yield texts


def is_untranslated(unit: XmlElement, target: XmlElement) -> bool:
    """Test for a target whose state, or that of its unit in XLIFF 2, is untranslated."""
    states = [unit.attributes.get("state"), target.attributes.get("state")]
    return not _UNTRANSLATED.isdisjoint(states)


@dataclass(slots=True)
class PoString:
    """String of a gettext message, and its place from the first to the last quotation mark."""

    start: int
    end: int
    text: str


@dataclass(slots=True)
class PoMessage:
    """Message of a gettext file; the one with an empty `msgid` is the header."""

    start: int = -1
    """Place of the first line that is not a comment of translators."""
    line: int = 0
    flags: int = -1
    """Place after `#,`."""
    flag_names: frozenset[str] = frozenset()
    strings: dict[str, PoString] = field(default_factory=dict)
    """Strings by keyword: `msgid`, `msgstr[0]`."""

    @property
    def is_fuzzy(self) -> bool:
        """True for a translation that awaits a check."""
        return "fuzzy" in self.flag_names

    @property
    def forms(self) -> list[PoString]:
        """Translation, or the translations of all plural forms."""
        return [text for key, text in self.strings.items() if key.startswith("msgstr")]

    @property
    def is_header(self) -> bool:
        """True for the message whose translation describes the file."""
        return not self.strings["msgid"].text and "msgctxt" not in self.strings


_PO_STRING = re.compile(
    r"[ \t]*(?P<key>msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)?[ \t]*"
    r'(?P<string>"(?P<text>(?>(?:[^"\\\r\n]++|\\.)*))")[ \t]*[\r\n]*\Z'
)


def read_messages(source: str, name: str) -> Iterator[PoMessage]:
    """Yield the messages of a gettext file without comments; raise DataError with the line."""

    def unescape(escape: re.Match[str]) -> str:
        if escape[3]:
            return _PO_CHARACTERS.get(escape[3], escape[3])
        return chr(int(escape[1], 8) if escape[1] else int(escape[2], 16))

    message, key = PoMessage(), ""
    lines = re.finditer(r"[^\r\n]*(?:\r\n?|\n|\Z)", source)
    for line_number, line in enumerate(lines, start=1):
        start, text = line.start(), line[0].lstrip(" \t")
        if not text.strip():
            continue
        is_comment = text.startswith("#")
        match = None if is_comment else _PO_STRING.match(line[0])
        if not (is_comment or match) or (match and not (match["key"] or key)):
            raise DataError(f"{name}: line {line_number}: is not a string or comment of gettext")
        begins = is_comment or (match and match["key"] in {"msgctxt", "msgid"})
        if begins and message.forms:
            if "msgid" in message.strings:
                yield message
            message, key = PoMessage(), ""
        if match:
            first = start + match.start("string")
            if match["key"]:
                key = match["key"]
                if key in message.strings:
                    raise DataError(f"{name}: line {line_number}: a second `{key}` in one message")
                message.strings[key] = PoString(first, first, "")
            string = message.strings[key]
            string.end = start + match.end("string")
            string.text += _PO_ESCAPE.sub(unescape, match["text"])
        elif text.startswith("#,"):
            message.flag_names |= {*re.split(r"[\s,]+", text[2:])}
            message.flags = start + line[0].index("#,") + 2
        if message.start < 0 and (match or text.startswith("#|")):
            message.start, message.line = start, line_number
    if "msgid" in message.strings:
        yield message


PO_ESCAPES = {
    "\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b",
    "\f": "\\f", "\v": "\\v",
}  # fmt: skip
"""Escape sequence of each character in a string of gettext."""
_PO_CHARACTERS = {escape[1]: character for character, escape in PO_ESCAPES.items()}
_PO_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")


def read_po(path: Path) -> Iterator[Texts]:
    """Stream the messages of a gettext file, read as a whole; its header has the language.

    Fuzzy and empty messages have no translation. Two plural forms are singular and plural, a single
    one is the plural; messages with more forms are omitted.
    """
    content = b"".join(read_chunks(path))
    declared = re.search(rb"Content-Type:[^\r\n]+ charset=([\w:.-]+)", content)
    charset = declared[1].decode() if declared else "utf-8"
    if charset == "CHARSET":  # in a template
        charset = "utf-8"
    try:
        text = content.decode(charset).removeprefix("\ufeff")
    except (LookupError, ValueError) as error:
        raise DataError(f"{path}: is not {charset} ({error})") from error
    code = ""
    for message in read_messages(text, str(path)):
        if message.is_header:
            header = "".join(form.text for form in message.forms)
            match = re.search("^Language:(.*)", header, re.MULTILINE)
            code = match[1].strip() if match else ""
            continue
        if not code:
            break
        forms = [form.text for form in message.forms]
        if message.is_fuzzy or len(forms) not in {1, 2}:
            yield {}
        elif "msgid_plural" in message.strings:
            texts = [message.strings[key].text for key in ("msgid", "msgid_plural")][-len(forms) :]
            yield from ({"": text, code: form} for text, form in zip(texts, forms, strict=True))
        else:
            yield {"": message.strings["msgid"].text, code: "".join(forms)}
    if not code:
        raise DataError(f"{path}: the header does not name the `Language` of the translations")


READERS: dict[str, Callable[[Path], Iterator[Texts]]] = {
    "tmx": read_tmx,
    "xliff": read_xliff,
    "po": read_po,
}


def join_lines(text: str) -> str:
    """Replace line breaks and the spaces around them by one space, and strip the text."""
    if "\n" in text or "\r" in text:
        text = _LINE_END.sub(" ", text)
    return text.strip(" \t")


@functools.lru_cache(maxsize=1024)
def find_language(codes: tuple[str, ...], language: str) -> str | None:
    """Return the code that matches a language: the same, a longer one, or \"\"."""
    wanted, *split = [re.split("[-_@]", code.lower()) for code in (language, *codes)]
    same = [code for code, parts in zip(codes, split, strict=True) if parts == wanted]
    longer = [c for c, parts in zip(codes, split, strict=True) if parts[: len(wanted)] == wanted]
    return next(iter([*same, *longer, *(code for code in codes if not code)]), None)
