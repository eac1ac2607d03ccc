"""Segments of subtitles in SubRip (SRT) and WebVTT."""

import re
from collections.abc import Iterator

from mt.documents.markup import add_characters, escape_text
from mt.documents.options import Options
from mt.documents.segments import Segment, SegmentBuilder, escaping
from mt.documents.tags import TagKind
from mt.errors import DataError
from mt.tables import printable

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_TIME = r"(?:\d+:)?\d{1,2}:\d{1,2}[.,]\d{1,3}"
_TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_LIKE_TIMING = re.compile(r"\s*(?:\d+:[\d:.,]*\s*-+>|-->)")
"""Start of a line that is meant as the times of a cue."""
_SHOWN = 40
_TAG = re.compile(r"<[^<>\r\n]*>|\{\\[^}\r\n]*\}")
_SPEAKER = re.compile(r"(?:<[^<>]*>)*\s*[-–—♪♫]")
"""Start of a line that does not continue the one before: speech of another person, or a song."""


def read_srt(source: str, options: Options) -> Iterator[Segment]:
    """Yield the texts of SubRip subtitles."""
    return _read(source, options, is_vtt=False)


def read_vtt(source: str, options: Options) -> Iterator[Segment]:
    """Yield the texts of WebVTT subtitles; notes, styles and regions have no timing."""
    return _read(source, options, is_vtt=True)


def _read(source: str, options: Options, *, is_vtt: bool) -> Iterator[Segment]:
    cue: list[tuple[int, int]] | None = None
    count = 0
    example = "00:00:01.000 --> 00:00:02.000" if is_vtt else "00:00:01,000 --> 00:00:02,000"
    for number, match in enumerate(_LINE.finditer(source), start=1):
        if _TIMING.match(match[0]):
            if cue and source[slice(*cue[-1])].strip().isdigit():
                cue.pop()  # number of this cue, without a blank line before
            yield from _cue(source, cue or [], is_vtt=is_vtt)
            cue, count = [], count + 1
        elif _LIKE_TIMING.match(match[0]):
            shown = printable(match[0].strip()[:_SHOWN])
            raise DataError(
                f"{options.name}: line {number}: `{shown}` is not a time such as `{example}`"
            )
        elif not match[0].strip():
            yield from _cue(source, cue or [], is_vtt=is_vtt)
            cue = None
        elif cue is not None:
            cue.append(match.span())
    yield from _cue(source, cue or [], is_vtt=is_vtt)
    if not count:
        raise DataError(f"{options.name}: has no subtitles, which begin with `{example}`")


def _cue(source: str, lines: list[tuple[int, int]], *, is_vtt: bool) -> Iterator[Segment]:
    """Yield the segments of a cue: one, or one for each speaker."""
    join = escaping(escape_text) if is_vtt else escaping(str)
    builder = SegmentBuilder(source, join, keeps_lines=True)
    for start, end in lines:
        if _SPEAKER.match(source, start, end):
            yield from builder.finish()
        place = start
        for tag in _TAG.finditer(source, start, end):
            _add_text(builder, place, tag.start(), is_vtt=is_vtt)
            kind: TagKind = "single" if tag[0][1] in "\\0123456789" else "open"
            builder.add_tag(*tag.span(), "close" if tag[0][1] == "/" else kind)
            place = tag.end()
        _add_text(builder, place, end, is_vtt=is_vtt)
    yield from builder.finish()


def _add_text(builder: SegmentBuilder, start: int, end: int, *, is_vtt: bool) -> None:
    if is_vtt:
        add_characters(builder, start, end)
    else:
        builder.add_text(start, end)
