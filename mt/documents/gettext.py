"""Untranslated messages of gettext files (PO)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mt.documents.segments import Item, Options, Replacement, Segment, SegmentBuilder, escaping
from mt.errors import DataError

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_STRING = re.compile(
    r"[ \t]*(?P<key>msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)?[ \t]*"
    r'(?P<string>"(?P<text>(?:[^"\\\r\n]++|\\.)*+)")[ \t]*[\r\n]*\Z'
)
_PLURALS = re.compile(r"nplurals=(\d+)")
_CHARSET = re.compile(r"charset=([^\s;]+)")


@dataclass(slots=True)
class _String:
    start: int
    end: int
    text: str


@dataclass(slots=True)
class _Entry:
    start: int = -1
    """Place of the first line that is not a comment of translators."""
    line: int = 0
    """Number of this line."""
    flags: int = -1
    """Place after `#,`."""
    is_fuzzy: bool = False
    strings: dict[str, _String] = field(default_factory=dict)


def read_po(source: str, options: Options) -> Iterator[Item]:
    """Yield the messages without a translation; the first form of a plural is the singular.

    Obsolete and fuzzy messages stay as they are. Raises DataError with the line if the file is
    damaged or has a charset other than UTF-8.
    """
    line_end = "\r\n" if "\r\n" in source else "\n"
    plurals: int | None = None
    for entry in _entries(source, options.name):
        message = entry.strings.get("msgid")
        if message is None:
            continue
        if not message.text and "msgctxt" not in entry.strings:
            _check_charset(entry, options.name)
            header = entry.strings.get("msgstr")
            declared = _PLURALS.search(header.text) if header else None
            plurals = int(declared[1]) if declared else None
            continue
        _check_forms(entry, plurals, options.name)
        items = [] if entry.is_fuzzy else list(_filled(entry, line_end))
        if items and options.fuzzy:
            if entry.flags < 0:
                yield Replacement(entry.start, entry.start, f"#, fuzzy{line_end}")
            else:
                yield Replacement(entry.flags, entry.flags, " fuzzy,")
        yield from items


def _entries(source: str, name: str) -> Iterator[_Entry]:
    entry, key = _Entry(), ""
    for number, line in enumerate(_LINE.finditer(source), start=1):
        start, text = line.start(), line[0].lstrip(" \t")
        if not text.strip():
            continue
        is_comment = text.startswith("#")
        match = None if is_comment else _STRING.match(line[0])
        if not (is_comment or match) or (match and not (match["key"] or key)):
            raise DataError(f"{name}: line {number}: is not a string or comment of gettext")
        begins = is_comment or (match and match["key"] in {"msgctxt", "msgid"})
        if begins and any(each.startswith("msgstr") for each in entry.strings):
            yield entry
            entry, key = _Entry(), ""
        if match:
            first = start + match.start("string")
            if match["key"]:
                key = match["key"]
                if key in entry.strings:
                    raise DataError(f"{name}: line {number}: a second `{key}` in one message")
                entry.strings[key] = _String(first, first, "")
            string = entry.strings[key]
            string.end = start + match.end("string")
            string.text += _unescape(match["text"])
        elif text.startswith("#,"):
            entry.is_fuzzy |= "fuzzy" in re.split(r"[\s,]+", text)
            entry.flags = start + line[0].index("#,") + 2
        if entry.start < 0 and (match or text.startswith("#|")):
            entry.start, entry.line = start, number
    yield entry


def _check_charset(entry: _Entry, name: str) -> None:
    header = entry.strings.get("msgstr")
    declared = _CHARSET.search(header.text) if header else None
    if declared and declared[1].upper() not in {"UTF-8", "UTF8", "CHARSET"}:
        raise DataError(
            f"{name}: its header declares the charset {declared[1]}, translations are UTF-8; "
            "convert it with `msgconv --to-code=UTF-8`"
        )


def _check_forms(entry: _Entry, plurals: int | None, name: str) -> None:
    """Raise DataError for a message without `msgstr`, or with another number than `plurals`."""
    forms = sum(each.startswith("msgstr") for each in entry.strings)
    if not forms:
        raise DataError(f"{name}: line {entry.line}: the message has no `msgstr`")
    if "msgid_plural" in entry.strings and not entry.is_fuzzy and forms != (plurals or forms):
        raise DataError(
            f"{name}: line {entry.line}: has {forms} plural forms, the header declares {plurals}; "
            "correct one of them"
        )


def _filled(entry: _Entry, line_end: str) -> Iterator[Item]:
    """Yield the empty translations of an entry."""
    forms = [key for key in entry.strings if key.startswith("msgstr")]
    for number, key in enumerate(forms):
        string = entry.strings[key]
        is_plural = "msgid_plural" in entry.strings and (number or len(forms) == 1)
        message = entry.strings["msgid_plural" if is_plural else "msgid"].text
        if not string.text:
            yield from _translated(message, string, line_end)


def _translated(message: str, place: _String, line_end: str) -> Iterator[Item]:
    """Yield a message line by line; a line that begins in lower case continues the last one."""
    builder = SegmentBuilder(message, escaping(str), keeps_lines=True)
    segments: list[Segment] = []
    start = 0
    for match in re.finditer(r"\n(?![a-zß-öø-ÿ])", message):
        builder.add_text(start, match.end())
        segments += builder.finish()
        start = match.end()
    builder.add_text(start, len(message))
    segments += builder.finish()
    if not segments:
        return
    several = "\n" in message.rstrip("\n")

    def escape(text: str) -> str:
        text = _ESCAPED.sub(lambda match: _ESCAPES[match[0]], text)
        return text.replace("\\n", f'\\n"{line_end}"') if several else text

    end = place.end
    opening = f'""{line_end}"' if several else '"'
    before = 0
    for segment in segments:
        gap = escape(message[before : segment.start])
        yield Replacement(end if before else place.start, end, opening + gap)
        opening, before = "", segment.end
        yield replace(
            segment,
            start=end,
            end=end,
            raw=escape(segment.raw),
            join=lambda pieces: "".join(escape(piece) for piece, _ in pieces),
        )
    last = escape(message[before:])
    if last.endswith(f'"{line_end}"'):  # no empty string at the end
        last = last.removesuffix(f'{line_end}"')
    else:
        last += '"'
    yield Replacement(end, end, last)


_ESCAPES = {
    "\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b",
    "\f": "\\f", "\v": "\\v",
}  # fmt: skip
_CHARACTERS = {escape[1]: character for character, escape in _ESCAPES.items()}
_ESCAPED = re.compile('[\\\\"\n\t\r\a\b\f\v]')
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[3]:
            return _CHARACTERS.get(match[3], match[3])
        return chr(int(match[1], 8) if match[1] else int(match[2], 16))

    return _ESCAPE.sub(character, text)
