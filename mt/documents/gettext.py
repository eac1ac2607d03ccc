"""Untranslated messages of gettext files (PO)."""

import re
from collections.abc import Iterator
from dataclasses import replace

from mt.data.formats import PO_ESCAPES, PoMessage, PoString, read_messages
from mt.documents.segments import Item, Options, Replacement, Segment, SegmentBuilder, make_join
from mt.errors import DataError

_PLURALS = re.compile(r"nplurals=(\d+)")
_CHARSET = re.compile(r"charset=([^\s;]+)")


def read_po(source: str, options: Options) -> Iterator[Item]:
    """Yield the messages without a translation; the first form of a plural is the singular.

    Obsolete and fuzzy messages stay as they are. Raises DataError with the line if the file is
    damaged or has a charset other than UTF-8.
    """
    line_end = "\r\n" if "\r\n" in source else "\n"
    plurals: int | None = None
    for message in read_messages(source, options.name):
        if message.is_header:
            plurals = _read_header(message, options.name)
            continue
        _check_forms(message, plurals, options.name)
        items = [] if message.is_fuzzy else list(_fill(message, line_end))
        if items and options.fuzzy:
            if message.flags < 0:
                yield Replacement(message.start, message.start, f"#, fuzzy{line_end}")
            else:
                yield Replacement(message.flags, message.flags, " fuzzy,")
        yield from items


def _read_header(message: PoMessage, name: str) -> int | None:
    """Return the declared number of plural forms; raise DataError for a charset but UTF-8."""
    header = message.strings["msgstr"].text if "msgstr" in message.strings else ""
    charset, plurals = _CHARSET.search(header), _PLURALS.search(header)
    if charset and charset[1].upper() not in {"UTF-8", "UTF8", "CHARSET"}:
        raise DataError(
            f"{name}: its header declares the charset {charset[1]}, translations are UTF-8; "
            "convert it with `msgconv --to-code=UTF-8`"
        )
    return int(plurals[1]) if plurals else None


def _check_forms(message: PoMessage, plurals: int | None, name: str) -> None:
    """Raise DataError for a message without `msgstr`, or with another number than `plurals`."""
    forms = len(message.forms)
    if not forms:
        raise DataError(f"{name}: line {message.line}: the message has no `msgstr`")
    if "msgid_plural" in message.strings and not message.is_fuzzy and forms != (plurals or forms):
        raise DataError(
            f"{name}: line {message.line}: has {forms} plural forms, the header declares "
            f"{plurals}; correct one of them"
        )


def _fill(message: PoMessage, line_end: str) -> Iterator[Item]:
    """Yield the changes that fill the empty translations of a message."""
    for index, form in enumerate(message.forms):
        is_plural = "msgid_plural" in message.strings and (index or len(message.forms) == 1)
        original = message.strings["msgid_plural" if is_plural else "msgid"].text
        if not form.text:
            yield from _fill_string(original, form, line_end)


def _fill_string(message: str, string: PoString, line_end: str) -> Iterator[Item]:
    """Yield a message line by line; a line that begins in lower case continues the last one."""
    builder = SegmentBuilder(message, make_join(str), keeps_lines=True)
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
        text = _ESCAPED.sub(lambda match: PO_ESCAPES[match[0]], text)
        return text.replace("\\n", f'\\n"{line_end}"') if several else text

    end = string.end
    opening = f'""{line_end}"' if several else '"'
    before = 0
    for segment in segments:
        gap = escape(message[before : segment.start])
        yield Replacement(end if before else string.start, end, opening + gap)
        opening, before = "", segment.end
        yield replace(
            segment,
            start=end,
            end=end,
            raw=escape(segment.raw),
            join=lambda pieces: "".join(escape(piece) for piece, _ in pieces),
        )
    last = escape(message[before:]) + '"'
    yield Replacement(end, end, last.removesuffix(f'{line_end}""'))  # no empty string at the end


_ESCAPED = re.compile('[\\\\"\n\t\r\a\b\f\v]')
