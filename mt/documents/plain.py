"""Plain text, columns of TSV, fields of JSON lines, and subtitles in SubRip (SRT) and WebVTT."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, chain

from mt.data.sentences import split_sentences
from mt.data.sources import usual_width
from mt.documents.html import LAST_MARK, add_characters, escape_text, find_foreign
from mt.documents.inline import embed
from mt.documents.segments import (
    Item,
    Options,
    Pieces,
    Replacement,
    Segment,
    SegmentBuilder,
    has_letters,
    make_join,
)
from mt.documents.tags import TagKind
from mt.errors import DataError, did_you_mean, listed
from mt.languages import base_language
from mt.tables import make_printable

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_NO_CELL = re.compile(r"[\t\r\n]")


def read_text(source: str) -> Iterator[Segment]:
    """Yield the lines without the white space around them; newline and carriage return end one."""
    for line in re.finditer(r"\S(?:[^\r\n]*\S)?", source):
        if has_letters(line[0]):
            yield Segment(*line.span(), line[0], line[0], make_join(str))


def read_tsv(source: str, options: Options) -> Iterator[Item]:
    """Yield the cells of a column, given by its name in the first line or by its number from 1.

    Raises DataError if there is no such column, with the line for a line that is too short.
    """
    rows = (line[0] for line in _LINE.finditer(source))
    usual = usual_width(row.count("\t") + 1 for row in rows if row.strip())
    lines, column = _LINE.finditer(source), options.column
    names = source.partition("\n")[0].rstrip("\r").split("\t")
    if column is None:
        raise _missing_option(options, names)
    index = int(column) - 1 if column.isdecimal() else -1
    if index < 0:
        next(lines, None)
        if column not in names:
            raise _unknown_column(options, names)
        index = names.index(column)
    for line_number, line in enumerate(lines, start=1 if column.isdecimal() else 2):
        cells = line[0].rstrip("\r\n").split("\t")
        if cells == [""]:
            continue
        if len(cells) > usual:
            yield Replacement(line.start(), line.start(), "", "rows with too many cells")
            continue
        if index >= len(cells):
            raise DataError(
                f"{options.name}: line {line_number}: has {len(cells)} columns, none is `{column}`"
            )
        start, cell = line.start() + sum(len(cell) + 1 for cell in cells[:index]), cells[index]
        yield from embed(start, start + len(cell), cell, *_read_cell(cell))


def _read_cell(cell: str) -> tuple[str, Callable[[str], str]]:
    """Return the text of a cell without quotes, and the function that writes such a text."""
    if _QUOTED.fullmatch(cell):
        return cell[1:-1].replace('""', '"'), lambda text: '"{}"'.format(
            _NO_CELL.sub(" ", text).replace('"', '""')
        )
    return cell, partial(_NO_CELL.sub, " ")


def read_jsonl(source: str, options: Options) -> Iterator[Item]:
    """Yield the texts of a field, a name or a path such as `meta.title` or `messages[].content`.

    Lists on the way are read element by element; other values stay as they are. Raises DataError
    with the line if one is not a JSON object, or if no record has the field.
    """
    names: list[str] = []
    has_field = False
    field = options.column and options.column.replace("[]", "")
    for line_number, line in enumerate(_LINE.finditer(source), start=1):
        if not line[0].strip():
            continue
        try:
            record = json.loads(line[0])
            names = names or list(_list_fields(record, "")) if isinstance(record, dict) else names
            values = [*_find_values(source, line.start(), field)] if field else []
        except (ValueError, RecursionError) as error:
            raise DataError(f"{options.name}: line {line_number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise DataError(f"{options.name}: line {line_number}: not a JSON object")
        if field is None:
            raise _missing_option(options, names)
        if not values:
            yield Replacement(line.start(), line.start(), "", f"records without `{options.column}`")
        for start, end, is_text in values:
            if is_text:
                has_field = True
                yield from _read_string(source, start + 1, end - 1)
            else:
                kept = f"values of `{options.column}` other than texts"
                yield Replacement(start, start, "", kept)
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


def _list_fields(value: object, path: str) -> Iterator[str]:
    """Yield the paths of the texts in a value, names joined by dots and `[]` for lists."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _list_fields(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        paths = (found for inner in value for found in _list_fields(inner, f"{path}[]"))
        yield from dict.fromkeys(paths)
    elif isinstance(value, str):
        yield path


_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def _skip_space(source: str, position: int) -> int:
    match = _SPACE.match(source, position)
    return match.end() if match else position


def _find_values(source: str, start: int, field: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the places of the values of a field in the value at `start`; True for a text.

    An empty field stands for the value itself, or for the elements of a list.
    """
    opening, position = source[start], _skip_space(source, start + 1)
    if opening == "{" and field:
        while source[position] != "}":
            name, position = _DECODER.raw_decode(source, position)
            value_start = _skip_space(source, _skip_space(source, position) + 1)
            if name == field:
                yield from _find_values(source, value_start, "")
            elif field.startswith(f"{name}."):
                yield from _find_values(source, value_start, field.removeprefix(f"{name}."))
            position = _find_next(source, value_start)
    elif opening == "[":
        while source[position] != "]":
            yield from _find_values(source, position, field)
            position = _find_next(source, position)
    elif not field:
        yield start, _DECODER.raw_decode(source, start)[1], opening == '"'


def _find_next(source: str, value_start: int) -> int:
    """Return the place after a value and the comma behind it."""
    position = _skip_space(source, _DECODER.raw_decode(source, value_start)[1])
    return _skip_space(source, position + 1) if source[position] == "," else position


def _read_string(source: str, start: int, end: int) -> Iterator[Item]:
    """Return a JSON string, without its quotes, as the texts that it holds."""
    raw = source[start:end]
    is_ascii = "\\u" in raw and raw.isascii()
    text = json.loads(f'"{raw}"', strict=False)
    return embed(start, end, raw, text, lambda text: json.dumps(text, ensure_ascii=is_ascii)[1:-1])


_CUE_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_TIME = r"(?:\d+:)?\d{1,2}:\d{1,2}[.,]\d{1,3}"
_TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_LIKE_TIMING = re.compile(r"\s*(?:\d+:[\d:.,]*\s*-+>|-->)")
"""Start of a line that is meant as the times of a cue."""
_NO_CUE = re.compile(r"\ufeff?WEBVTT|NOTE\b|STYLE\b|REGION\b")
"""Start of a block of WebVTT that is not shown."""
_TIME_TAG = re.compile(rf"<{_TIME}>")
_VTT_TAG = r"<rt>[^<\r\n]*(?:</rt>)?|</?(?:[A-Za-z][^<>\r\n]*)?>|<[\d:.]+>|\{\\[^}\r\n]*\}|[♪♫♬]+"
_LANGUAGE = re.compile(r"<lang[.\w]*[ \t]+([\w-]+)")
_SRT_TAG = re.compile(
    r"</?(?:[bius]|c(?:\.[\w.]+)?|font(?:\s[^<>\r\n]*)?)>|\{\\[^}\r\n]*\}|\{/?[bius]\}|\\h"
    r"|[♪♫♬]+",
    re.IGNORECASE,
)
_HALF = re.compile(r"[<{](?!rt>)[/>A-Za-z][^>]*>?")
"""Tag that is half of a pair."""
_LINE_END = re.compile(r"[ \t]*(?:\\[Nn]|<br */?>)[ \t]*")
"""Line end of SubRip inside a line of the file."""
_NEXT_SPEAKER = re.compile(r"(?<=[.!?…。！？])[ \t]+(?=[-–—][ \t]*[^\W\d])")
_DASH = re.compile(r"\s*(?:[-–—]+(?![-–—\d])|>>+|#(?=\s))\s*")
_NAME = re.compile(r"\s*([^\s:：<>{}][^:：<>{}]{0,39}?)\s*(?:[:：]\s+|：)")
_BRACKETS = r"\[\]()（）【】［］"
_NOTE = re.compile(rf"[\[(（【［][^{_BRACKETS}]*[\])）】］]")
"""Sound or name of a speaker in brackets."""
_MOST_WORDS = 4
"""Words of the name of a speaker."""


def read_subtitles(source: str, options: Options, *, is_vtt: bool) -> Iterator[Item]:
    """Yield the texts of SubRip or WebVTT subtitles, not of notes, styles and regions.

    A blank line ends a cue of WebVTT. A cue of SubRip ends before the number and times of the next.
    """
    lines: list[tuple[int, int]] = []
    in_cue, count = False, 0

    def read_block(*, before_times: bool = False) -> Iterator[Item]:
        """Yield the items of a cue or other lines; the last may be the number of the next cue."""
        is_shown = not (lines and _NO_CUE.match(source, lines[0][0]))
        while lines and not source[slice(*lines[-1])].strip():
            lines.pop()
        last = source[slice(*lines[-1])].strip() if lines else ""
        texts = lines[:-1] if before_times and (not in_cue or last.isdigit()) else lines
        if in_cue:
            yield from _read_cue(source, texts, options, is_vtt=is_vtt)
        elif is_shown and any(source[slice(*line)].strip() for line in texts):
            yield Replacement(lines[0][0], lines[0][0], "", "paragraphs without times")

    example = "00:00:01.000 --> 00:00:02.000" if is_vtt else "00:00:01,000 --> 00:00:02,000"
    for line_number, match in enumerate(_CUE_LINE.finditer(source), start=1):
        if _TIMING.match(match[0]):
            yield from read_block(before_times=True)
            lines, in_cue, count = [], True, count + 1
        elif _LIKE_TIMING.match(match[0]):
            shown = make_printable(match[0].strip()[:40])
            raise DataError(
                f"{options.name}: line {line_number}: `{shown}` is not a time such as `{example}`"
            )
        elif is_vtt and not match[0].strip():
            yield from read_block()
            lines, in_cue = [], False
        else:
            lines.append(match.span())
    yield from read_block()
    if not count:
        raise DataError(f"{options.name}: has no subtitles, which begin with `{example}`")


def _read_cue(
    source: str, lines: list[tuple[int, int]], options: Options, *, is_vtt: bool
) -> Iterator[Item]:
    """Yield the segments of a cue: speakers, and lines that end a sentence, have their own.

    The dash or name of a speaker is a tag, as are the marks of a song and the brackets of a note.
    A text in another language than the source, as `<lang>` says, stays.
    """
    builder = SegmentBuilder(source, _join_in_order if is_vtt else make_join(str), keeps_lines=True)
    add_text = partial(add_characters, builder) if is_vtt else builder.add_text
    own = base_language(options.source).replace("und", "")  # nothing is foreign to it
    foreign = rf"<lang[.\w]*[ \t]+(?!{own}\b)[^<>\r\n]*>[^<\r\n]*(?:</lang>)?|"
    tags = re.compile(foreign + _VTT_TAG) if is_vtt else _SRT_TAG
    notes = _NOTE.finditer(source, lines[0][0], lines[-1][1]) if lines else ()
    brackets: dict[int, TagKind] = {}
    for note in notes:
        brackets |= {note.start(): "open", note.end() - 1: "close"}
    before = ""
    for start, end, line_end in _split_cue(source, lines, tags, is_vtt=is_vtt):
        speaker = _find_speaker(source, start, end, tags)
        text = tags.sub("", source[speaker[-1][1] if speaker else start : end]).strip()
        if not text or speaker or _is_border(before, text, options.source):
            yield from builder.finish()
            before = ""
        elif line_end and before:
            builder.add_tag(*line_end, "break")
        before = f"{before} {text}".lstrip()
        spans = [*speaker, *(tag.span() for tag in tags.finditer(source, start, end))]
        inside = {place for span in spans for place in range(*span)}
        spans += [(place, place + 1) for place in brackets.keys() - inside if start <= place < end]
        for first, last in sorted(spans):
            add_text(start, first)
            start = last
            markup = source[first:last]
            if markup.startswith(("<v", "♪", "♫", "♬")):
                yield from builder.finish()
            if markup == "\\h":
                builder.add_text(first, last, " ")
            else:
                half: TagKind = "close" if markup[1:2] == "/" else "open"
                kind = brackets.get(first, half if _HALF.fullmatch(markup) else "single")
                changes: tuple[Replacement, ...] = ()
                if kind == "single" and markup.startswith("<lang"):
                    changes = (Replacement(first, first, "", find_foreign(markup)),)
                elif code := _LANGUAGE.match(source, first):
                    changes = (Replacement(*code.span(1), options.target),)
                builder.add_tag(first, last, kind, changes)
        add_text(start, end)
    yield from builder.finish()


def _split_cue(
    source: str, lines: list[tuple[int, int]], tags: re.Pattern[str], *, is_vtt: bool
) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    """Yield the parts of the lines, and the line end inside a line of the file before each.

    A line with several speakers, each behind a dash, is divided. So are lines with `\\N` in SubRip,
    and those with a note at the start, or in square brackets at the end.
    """
    for start, end in lines:
        ends: list[tuple[tuple[int, int], tuple[int, int] | None]] = []
        if _DASH.match(source, start, end):
            ends += [(match.span(), None) for match in _NEXT_SPEAKER.finditer(source, start, end)]
        for match in () if is_vtt else _LINE_END.finditer(source, start, end):
            ends.append((match.span(), match.span()))
        speaker = _find_speaker(source, start, end, tags)
        first = speaker[-1][1] if speaker else start
        for note in _NOTE.finditer(source, first, end):
            if not has_letters(tags.sub("", source[first : note.start()])):
                ends.append(((note.end(), note.end()), None))
                first = note.end()
            elif note[0][0] not in "(（" and not has_letters(source[note.end() : end]):
                ends.append(((note.start(), note.start()), None))
        line_end = None
        for (first, last), next_line_end in sorted(ends):
            yield start, first, line_end
            start, line_end = last, next_line_end
        yield start, end, line_end


def _find_speaker(
    source: str, start: int, end: int, tags: re.Pattern[str]
) -> list[tuple[int, int]]:
    """Return the places of the dash and of the name of a speaker at the start of a line.

    A name is in capitals, and the text behind it is not.
    """
    spans = []
    while tag := tags.match(source, start, end):
        start = tag.end()
    if dash := _DASH.match(source, start, end):
        spans.append(dash.span())
        start = dash.end()
    name = _NAME.match(source, start, end)
    is_name = name and name[1].isupper() and len(name[1].split()) <= _MOST_WORDS
    if name and is_name and not source[name.end() : end].isupper():
        spans.append(name.span())
    return spans


def _is_border(text: str, following: str, language: str) -> bool:
    """Return True if a sentence or a note ends between two texts of a cue, or a voice begins."""
    name = _NAME.match(following)
    is_voice = name and not any(word[:1].islower() for word in name[1].split()[:_MOST_WORDS])
    if is_voice or _NOTE.match(following) or _NOTE.fullmatch(text):
        return True
    if not LAST_MARK.search(text):
        return False
    sentences = split_sentences(f"{text} {following}", language)
    lengths = map(len, chain(*zip(sentences.gaps, sentences.texts, strict=False)))
    return len(text) in accumulate(lengths)


def _join_in_order(pieces: Pieces) -> str:
    """Return the text of a cue of WebVTT, with the times inside it in rising order."""
    text = make_join(escape_text)(pieces)
    times = sorted(_TIME_TAG.findall(text), key=lambda time: time.rjust(len("<00:00:00.000>"), "0"))
    return _TIME_TAG.sub(lambda _: times.pop(0), text)
