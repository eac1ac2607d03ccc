"""Plain text, columns of TSV, fields of JSON lines, and subtitles in SubRip (SRT) and WebVTT."""

import json
import re
from collections.abc import Iterator
from functools import partial

from mt.documents.html import add_characters, escape_text
from mt.documents.segments import Options, Segment, SegmentBuilder, has_letters, make_join
from mt.documents.tags import TagKind
from mt.errors import DataError, did_you_mean, listed
from mt.tables import make_printable

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def read_text(source: str) -> Iterator[Segment]:
    """Yield the lines without the white space around them; newline and carriage return end one."""
    for line in re.finditer(r"\S(?:[^\r\n]*\S)?", source):
        if has_letters(line[0]):
            yield Segment(*line.span(), line[0], line[0], make_join(str))


def read_tsv(source: str, options: Options) -> Iterator[Segment]:
    """Yield the cells of a column, given by its name in the first line or by its number from 1.

    Raises DataError if there is no such column, with the line for a line that is too short.
    """
    lines = _LINE.finditer(source)
    column = options.column
    if column is None:
        raise _missing_option(options, source.partition("\n")[0].rstrip("\r").split("\t"))
    index = int(column) - 1 if column.isdecimal() else -1
    if index < 0:
        first = next(lines, None)
        names = first[0].rstrip("\r\n").split("\t") if first else []
        if column not in names:
            raise _unknown_column(options, names)
        index = names.index(column)
    builder = SegmentBuilder(source, make_join(lambda text: re.sub(r"[\t\r]", " ", text)))
    for line_number, line in enumerate(lines, start=1 if column.isdecimal() else 2):
        cells = line[0].rstrip("\r\n").split("\t")
        if cells == [""]:
            continue
        if index >= len(cells):
            raise DataError(
                f"{options.name}: line {line_number}: has {len(cells)} columns, none is `{column}`"
            )
        start = line.start() + sum(len(cell) + 1 for cell in cells[:index])
        builder.add_text(start, start + len(cells[index]))
        yield from builder.finish()


def read_jsonl(source: str, options: Options) -> Iterator[Segment]:
    """Yield the texts of a field, a name or a dotted path; other values stay as they are.

    Raises DataError with the line if one is not a JSON object, or if no record has the field.
    """
    names: list[str] = []
    has_field = False
    for line_number, line in enumerate(_LINE.finditer(source), start=1):
        if not line[0].strip():
            continue
        try:
            record = json.loads(line[0])
        except (ValueError, RecursionError) as error:
            raise DataError(f"{options.name}: line {line_number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise DataError(f"{options.name}: line {line_number}: not a JSON object")
        names = names or list(_list_fields(record))
        if options.column is None:
            raise _missing_option(options, names)
        for start, end in _find_strings(source, line.start(), options.column):
            has_field = True
            yield from _read_string(source, start + 1, end - 1)
    if names and not has_field:
        raise _unknown_column(options, names)


def _missing_option(options: Options, names: list[str]) -> DataError:
    return DataError(
        f"{options.name}: name the texts to translate with `--column`; there are {listed(names)}"
    )


def _unknown_column(options: Options, names: list[str]) -> DataError:
    column = options.column or ""
    hint = did_you_mean(column, names)
    there = f"there are {listed(names)}{hint}" if any(names) else "line 1 has no names"
    return DataError(f"{options.name}: no texts in `{column}`; {there}")


def _list_fields(record: dict[str, object]) -> Iterator[str]:
    """Yield the fields with texts, nested ones with dots."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in _list_fields(value))
        elif isinstance(value, str):
            yield name


_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def _find_strings(source: str, start: int, field: str) -> Iterator[tuple[int, int]]:
    """Yield the places of the strings of a field, with quotes, in the object at `start`."""

    def skip_space(position: int) -> int:
        match = _SPACE.match(source, position)
        return match.end() if match else position

    position = skip_space(skip_space(start) + 1)
    while source[position] != "}":
        name, position = _DECODER.raw_decode(source, position)
        value_start = skip_space(skip_space(position) + 1)
        value, position = _DECODER.raw_decode(source, value_start)
        if name == field and isinstance(value, str):
            yield value_start, position
        elif field.startswith(f"{name}.") and isinstance(value, dict):
            yield from _find_strings(source, value_start, field.removeprefix(f"{name}."))
        position = skip_space(position)
        if source[position] == ",":
            position = skip_space(position + 1)


_CHARACTERS = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\.|[^\\]+")


def _read_string(source: str, start: int, end: int) -> Iterator[Segment]:
    """Yield the lines of a JSON string; a lower-case first letter continues the line before."""
    is_ascii = "\\u" in source[start:end] and source[start:end].isascii()
    builder = SegmentBuilder(
        source,
        lambda pieces: json.dumps("".join(piece for piece, _ in pieces), ensure_ascii=is_ascii)[
            1:-1
        ],
        keeps_lines=True,
    )
    for match in _CHARACTERS.finditer(source, start, end):
        text = json.loads(f'"{match[0]}"', strict=False)
        ends_line = match.start() > start and source.endswith("\\n", start, match.start())
        if ends_line and not text[:1].islower():
            yield from builder.finish()
        builder.add_text(*match.span(), text)
    yield from builder.finish()


_CUE_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_TIME = r"(?:\d+:)?\d{1,2}:\d{1,2}[.,]\d{1,3}"
_TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_LIKE_TIMING = re.compile(r"\s*(?:\d+:[\d:.,]*\s*-+>|-->)")
"""Start of a line that is meant as the times of a cue."""
_TAG = re.compile(r"<[^<>\r\n]*>|\{\\[^}\r\n]*\}")
_SPEAKER = re.compile(r"(?:<[^<>]*>)*\s*[-–—♪♫]")
"""Start of a line that does not continue the one before: speech of another person, or a song."""


def read_subtitles(source: str, options: Options, *, is_vtt: bool) -> Iterator[Segment]:
    """Yield the texts of SubRip or WebVTT subtitles, not of notes, styles and regions."""
    cue: list[tuple[int, int]] | None = None
    count = 0
    example = "00:00:01.000 --> 00:00:02.000" if is_vtt else "00:00:01,000 --> 00:00:02,000"
    for line_number, match in enumerate(_CUE_LINE.finditer(source), start=1):
        if _TIMING.match(match[0]):
            if cue and source[slice(*cue[-1])].strip().isdigit():
                cue.pop()  # number of this cue, without a blank line before
            yield from _read_cue(source, cue or [], is_vtt=is_vtt)
            cue, count = [], count + 1
        elif _LIKE_TIMING.match(match[0]):
            shown = make_printable(match[0].strip()[:40])
            raise DataError(
                f"{options.name}: line {line_number}: `{shown}` is not a time such as `{example}`"
            )
        elif not match[0].strip():
            yield from _read_cue(source, cue or [], is_vtt=is_vtt)
            cue = None
        elif cue is not None:
            cue.append(match.span())
    yield from _read_cue(source, cue or [], is_vtt=is_vtt)
    if not count:
        raise DataError(f"{options.name}: has no subtitles, which begin with `{example}`")


def _read_cue(source: str, lines: list[tuple[int, int]], *, is_vtt: bool) -> Iterator[Segment]:
    """Yield the segments of a cue: one, or one for each speaker."""
    join = make_join(escape_text) if is_vtt else make_join(str)
    builder = SegmentBuilder(source, join, keeps_lines=True)
    add_text = partial(add_characters, builder) if is_vtt else builder.add_text
    for start, end in lines:
        if _SPEAKER.match(source, start, end):
            yield from builder.finish()
        for tag in _TAG.finditer(source, start, end):
            add_text(start, tag.start())
            kind: TagKind = "single" if tag[0][1] in "\\0123456789" else "open"
            builder.add_tag(*tag.span(), "close" if tag[0][1] == "/" else kind)
            start = tag.end()
        add_text(start, end)
    yield from builder.finish()
