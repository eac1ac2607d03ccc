"""Plain text, columns of TSV, fields of JSON lines, and subtitles in SubRip (SRT) and WebVTT."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from operator import methodcaller

from mt.data.sentences import split_sentences
from mt.data.sources import (
    CELLS,
    UnfitRecordError,
    are_quoted,
    join_quoted,
    parse_record,
    usual_width,
)
from mt.documents.html import add_characters, escape_text, find_foreign
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
    read_lines,
)
from mt.documents.tags import TagKind
from mt.errors import DataError, did_you_mean, listed
from mt.tables import make_printable

_TEXT = re.compile(r"\S(?:[^\r\n]*\S)?")
_CELL = str.maketrans("\t\r\n", "   ")
"""Characters that a cell without quotation marks cannot have."""


def read_text(source: str) -> Iterator[Segment]:
    """Yield the lines without the white space around them; newline and carriage return end one."""
    for line in _TEXT.finditer(source):
        if has_letters(line[0]):
            yield Segment(*line.span(), line[0], line[0], make_join(str))


def read_tsv(source: str, options: Options) -> Iterator[Item]:
    """Yield the cells of a column, given by its name in the first line or by its number from 1.

    Raises DataError if there is no such column, with the line for a row that is too short.
    """
    lines = [line for _, line in read_lines(source, "\n")]
    is_quoted = are_quoted(lines)
    rows = [*join_quoted(lines)] if is_quoted else lines
    table = [
        CELLS.findall(row.rstrip("\r\n")) if is_quoted else row.rstrip("\r\n").split("\t")
        for row in rows
    ]
    usual = usual_width(len(cells) for cells in table if cells != [""])
    column = options.column
    names = [cell.strip('"') if is_quoted else cell for cell in table[0]] if table else [""]
    if column is None:
        raise _missing_option(options, names)
    has_names = not (column.isdecimal() and int(column))
    if has_names and column not in names:
        raise _unknown_column(options, names)
    index = names.index(column) if has_names else int(column) - 1
    end, line_number = 0, 1
    for row_number, (row, cells) in enumerate(zip(rows, table, strict=True)):
        start, end = end, end + len(row)
        first_line, line_number = line_number, line_number + row.count("\n")
        if cells == [""] or (has_names and not row_number):
            continue
        if len(cells) > usual or "\t".join(cells) != row.rstrip("\r\n"):
            yield Replacement(start, start, "", "rows with too many cells")
            continue
        if index >= len(cells):
            raise DataError(
                f"{options.name}: line {first_line}: has {len(cells)} columns, none is `{column}`"
            )
        cell = cells[index]
        first = start + sum(len(cell) + 1 for cell in cells[:index])
        if is_quoted and cell.startswith('"'):
            text = cell[1:-1].replace('""', '"')
            write = methodcaller("replace", '"', '""')
            yield from embed(first + 1, first + len(cell) - 1, cell[1:-1], text, write)
        else:
            write = methodcaller("translate", _CELL)
            yield from embed(first, first + len(cell), cell, cell, write)


def read_jsonl(source: str, options: Options) -> Iterator[Item]:
    """Yield the texts of a field, a name or a path such as `meta.title` or `messages[].content`.

    Lists on the way are read element by element; other values stay as they are. Raises DataError
    with the line if one is not a JSON object, or if no record has the field.
    """
    names: list[str] = []
    has_field = False
    field = options.column and options.column.replace("[]", "")
    for line_number, (start, line) in enumerate(read_lines(source, "\n"), start=1):
        if not line.strip():
            continue
        try:
            values = parse_record(line)
        except UnfitRecordError as error:
            raise DataError(f"{options.name}: line {line_number}: {error}") from error
        if not names:
            names = [*dict.fromkeys(path for path, value in values if isinstance(value, str))]
        if field is None:
            raise _missing_option(options, names)
        if all(path.replace("[]", "") != field for path, _ in values):
            yield Replacement(start, start, "", f"records without `{options.column}`")
        strings = (string for string in _JSON_STRING.finditer(source, start) if not string[1])
        last = start
        for path, value in values:
            first, last = next(strings).span() if isinstance(value, str) else (last, last)
            if path.replace("[]", "") != field:
                continue
            if not isinstance(value, str):
                noun = f"values of `{options.column}` other than texts"
                yield Replacement(last, last, "", noun)
                continue
            has_field = True
            raw = source[first:last]
            write = partial(json.dumps, ensure_ascii="\\u" in raw and raw.isascii())
            yield from embed(first, last, raw, value, write)
    if names and not has_field:
        raise _unknown_column(options, names)


_JSON_STRING = re.compile(r'"(?>(?:[^"\\]++|\\.)*)"(\s*+:)?')
"""String of valid JSON; with a colon, a name."""


def _missing_option(options: Options, names: list[str]) -> DataError:
    return DataError(
        f"{options.name}: name the texts to translate with `--column`; there are {listed(names)}"
    )


def _unknown_column(options: Options, names: list[str]) -> DataError:
    column = options.column or ""
    hint = did_you_mean(column, names)
    there = f"there are {listed(names)}{hint}" if any(names) else "line 1 has no names"
    return DataError(f"{options.name}: no texts in `{column}`; {there}")


_TIME = r"(?:\d+:)?\d{1,2}:\d{1,2}[.,]\d{1,3}"
_TIMING = re.compile(rf"\s*(?:(?P<times>{_TIME}\s*-->\s*{_TIME})|\d+:[\d:.,]*\s*-+>|-->)")
"""Start of the line of times of a cue, also of a damaged one."""
_NOT_SHOWN = ("WEBVTT", "NOTE", "STYLE", "REGION")
"""First word of a block of WebVTT that is not shown."""
_TIME_TAG = re.compile(rf"<{_TIME}>")
_VTT_TAG = re.compile(
    r"<(?P<kept>rt|lang)\b[^<>\r\n]*>[^<\r\n]*(?:</(?P=kept)>)?|</?(?:[A-Za-z][^<>\r\n]*)?>"
    r"|<[\d:.]+>|\{\\[^}\r\n]*\}|[♪♫♬]+",
    re.IGNORECASE,
)
"""Reading of a ruby, text in another language, tag, or mark of a song."""
_SRT_TAG = re.compile(
    r"</?(?:[bius]|c(?:\.[\w.]+)?|font(?:\s[^<>\r\n]*)?)>|\{\\[^}\r\n]*\}|\{/?[bius]\}|\\h|[♪♫♬]+",
    re.IGNORECASE,
)
_HALF = re.compile(r"[<{](?!rt>|lang\b)[/>A-Za-z][^>]*>?")
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
_Span = tuple[int, int]


def read_subtitles(source: str, options: Options, *, is_vtt: bool) -> Iterator[Item]:
    """Yield the texts of SubRip or WebVTT subtitles, not of notes, styles and regions.

    A blank line ends a cue of WebVTT. A cue of SubRip ends before the number and times of the next.
    """
    subtitles = _Subtitles(source, options, _VTT_TAG if is_vtt else _SRT_TAG, is_vtt)
    example = "00:00:01.000 --> 00:00:02.000" if is_vtt else "00:00:01,000 --> 00:00:02,000"
    block: list[_Span] = []
    in_cue, has_cues = False, False
    for line_number, (start, line) in enumerate(read_lines(source, ""), start=1):
        timing = _TIMING.match(line)
        if timing and not timing["times"]:
            shown = make_printable(line.strip()[:40])
            raise DataError(
                f"{options.name}: line {line_number}: `{shown}` is not a time such as `{example}`"
            )
        if timing or (is_vtt and not line.strip()):
            yield from subtitles.read_block(block, in_cue=in_cue, before_times=bool(timing))
            block, in_cue = [], bool(timing)
            has_cues = has_cues or in_cue
        else:
            block.append((start, start + len(line)))
    yield from subtitles.read_block(block, in_cue=in_cue)
    if not has_cues:
        raise DataError(f"{options.name}: has no subtitles, which begin with `{example}`")


@dataclass(frozen=True, slots=True)
class _Subtitles:
    """Subtitles that are read cue by cue."""

    source: str
    options: Options
    tags: re.Pattern[str]
    is_vtt: bool

    def read_block(
        self, lines: list[_Span], *, in_cue: bool, before_times: bool = False
    ) -> Iterator[Item]:
        """Yield the items of a cue or other lines; the last may be the number of the next cue."""
        texts = [self.source[start:end].strip() for start, end in lines]
        while texts and not texts[-1]:
            texts.pop()
        is_shown = not any(text.startswith(_NOT_SHOWN) for text in texts[:1])
        if before_times and texts and (not in_cue or texts[-1].isdigit()):
            texts.pop()
        if in_cue:
            yield from self.read_cue(lines[: len(texts)])
        elif is_shown and any(texts):
            yield Replacement(lines[0][0], lines[0][0], "", "paragraphs without times")

    def read_cue(self, lines: list[_Span]) -> Iterator[Item]:
        """Yield the segments of a cue: speakers, and lines that end a sentence, have their own.

        The dash or name of a speaker is a tag, as are the marks of a song and the brackets of a
        note. A text in another language, as of `<lang>`, stays.
        """
        source, tags = self.source, self.tags
        join = _join_in_order if self.is_vtt else make_join(str)
        builder = SegmentBuilder(source, join, keeps_lines=True)
        add_text = partial(add_characters, builder) if self.is_vtt else builder.add_text
        brackets: dict[int, TagKind] = {}
        for note in _NOTE.finditer(source, lines[0][0], lines[-1][1]) if lines else ():
            brackets |= {note.start(): "open", note.end() - 1: "close"}
        before = ""
        for start, end, line_end in self.split_lines(lines):
            speaker = self.find_speaker(start, end)
            text = tags.sub("", source[speaker[-1][1] if speaker else start : end]).strip()
            if not text or speaker or self.is_border(before, text):
                yield from builder.finish()
                before = ""
            elif line_end and before:
                builder.add_tag(*line_end, "break")
            before = f"{before} {text}".lstrip()
            spans = [*speaker, *(tag.span() for tag in tags.finditer(source, start, end))]
            inside = {place for span in spans for place in range(*span)}
            outside = [place for place in brackets.keys() - inside if start <= place < end]
            for first, last in sorted([*spans, *((place, place + 1) for place in outside)]):
                add_text(start, first)
                start, markup = last, source[first:last]
                if markup.startswith(("<v", "♪", "♫", "♬")):
                    yield from builder.finish()
                if markup == "\\h":
                    builder.add_text(first, last, " ")
                    continue
                half: TagKind = "close" if markup[1:2] == "/" else "open"
                kind = brackets.get(first, half if _HALF.fullmatch(markup) else "single")
                is_kept = kind == "single" and markup.startswith("<lang")
                foreign = Replacement(first, first, "", find_foreign(markup))
                builder.add_tag(first, last, kind, (foreign,) if is_kept else ())
            add_text(start, end)
        yield from builder.finish()

    def split_lines(self, lines: list[_Span]) -> Iterator[tuple[int, int, _Span | None]]:
        """Yield the parts of the lines, and the line end inside a line of the file before each.

        A line with several speakers, each behind a dash, is divided. So are lines with `\\N` in
        SubRip, and those with a note at the start, or in square brackets at the end.
        """
        source = self.source
        for start, end in lines:
            ends: list[tuple[_Span, _Span | None]] = []
            if _DASH.match(source, start, end):
                ends += [(gap.span(), None) for gap in _NEXT_SPEAKER.finditer(source, start, end)]
            if not self.is_vtt:
                ends += [(gap.span(),) * 2 for gap in _LINE_END.finditer(source, start, end)]
            speaker = self.find_speaker(start, end)
            first = speaker[-1][1] if speaker else start
            for note in _NOTE.finditer(source, first, end):
                if not has_letters(self.tags.sub("", source[first : note.start()])):
                    ends.append(((note.end(), note.end()), None))
                    first = note.end()
                elif note[0][0] not in "(（" and not has_letters(source[note.end() : end]):
                    ends.append(((note.start(), note.start()), None))
            line_end = None
            for (first, last), next_line_end in sorted(ends):
                yield start, first, line_end
                start, line_end = last, next_line_end
            yield start, end, line_end

    def find_speaker(self, start: int, end: int) -> list[_Span]:
        """Return the places of the dash and of the name of a speaker at the start of a line.

        A name is in capitals, and the text behind it is not.
        """
        spans = []
        while tag := self.tags.match(self.source, start, end):
            start = tag.end()
        if dash := _DASH.match(self.source, start, end):
            spans.append(dash.span())
            start = dash.end()
        name = _NAME.match(self.source, start, end)
        is_name = name and name[1].isupper() and len(name[1].split()) <= _MOST_WORDS
        if name and is_name and not self.source[name.end() : end].isupper():
            spans.append(name.span())
        return spans

    def is_border(self, text: str, following: str) -> bool:
        """Test for the end of a sentence or note between two texts of a cue, or another voice."""
        name = _NAME.match(following)
        is_voice = name and not any(word[:1].islower() for word in name[1].split()[:_MOST_WORDS])
        if is_voice or _NOTE.match(following) or _NOTE.fullmatch(text):
            return True
        sentences = split_sentences(f"{text} {following}", self.options.source)
        lengths = map(len, chain(*zip(sentences.gaps, sentences.texts, strict=False)))
        return len(text) in accumulate(lengths)


def _join_in_order(pieces: Pieces) -> str:
    """Return the text of a cue of WebVTT, with the times inside it in rising order."""
    text = make_join(escape_text)(pieces)
    times = sorted(_TIME_TAG.findall(text), key=lambda time: time.rjust(len("<00:00:00.000>"), "0"))
    return _TIME_TAG.sub(lambda _: times.pop(0), text)
