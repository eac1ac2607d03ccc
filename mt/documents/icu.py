"""Markup that a text contains: pairs such as `<0>…</0>`, and ICU MessageFormat.

A message has arguments such as `{name}`, and branches for the values of one:
`{count, plural, one {# file} other {# files}}`. Texts in branches are translated, all else is kept.
https://unicode-org.github.io/icu/userguide/format_parse/messages/
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mt.data.formats import TEXT_TAG, is_break
from mt.documents.segments import (
    Entry,
    Fragment,
    Item,
    Pieces,
    RefusedTranslationError,
    Replacement,
    SegmentBuilder,
)
from mt.documents.tags import TagKind, find_unpaired

_COMPLEX = {"plural", "selectordinal", "select"}
_BRANCHING = re.compile(r"\{\s*[^\s{},'#|]+\s*,\s*(?:plural|selectordinal|select)\s*,")
_VOID = {"br", "hr", "img", "input", "wbr"}
_DEEPEST = 20
_TAG = "\ufffc"


def has_branches(text: str) -> bool:
    """Test for an argument with branches."""
    return "{" in text and _BRANCHING.search(text) is not None


def finish_message(builder: SegmentBuilder) -> Iterator[Item]:
    """Yield the items of a block, which may be a message of ICU MessageFormat.

    Tags in its text become inline tags. A message is translated as a whole or not at all, and
    stays as it is if it does not parse.
    """
    _pair_tags(builder)
    block = _Block(builder.fragments)
    if not has_branches(block.text):
        yield from builder.finish()
        return
    try:
        parts = _Parser(block.text).read_message(0)
        if not any(part.branches for part in parts):  # quoted
            yield from builder.finish()
            return
        doubles = "''" in block.text or _QUOTED.search(block.text) is not None
        message = _Writer(block, builder, doubles=doubles).build(
            (0, len(block.text)), parts, plural=False
        )
    except _SyntaxError:
        start = builder.fragments[0].start
        builder.fragments = []
        yield Replacement(start, start, "", kept="ICU messages that do not parse")
        return
    builder.fragments = []
    segments = tuple(message.finish())
    if segments:
        yield Entry(builder.source, segments)


class _SyntaxError(Exception):
    """Text that is no message of ICU MessageFormat, or has escapes inside its syntax."""


class _Block:
    """Text of a block, with a character for each tag."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self.fragments = fragments
        self.starts: list[int] = []
        """Place in the text of each fragment."""
        length, texts = 0, []
        for fragment in fragments:
            self.starts.append(length)
            texts.append(_TAG if fragment.text is None else fragment.text)
            length += len(texts[-1])
        self.text = "".join(texts)

    def locate(self, place: int) -> int | None:
        """Return the place in the document, None inside an escape."""
        if place == len(self.text):
            return self.fragments[-1].end
        index = bisect_right(self.starts, place) - 1
        fragment, inside = self.fragments[index], place - self.starts[index]
        if any(
            piece.start == piece.end and piece.text != ""
            for piece in self.fragments[max(index - 1, 0) : index + 1]
        ):
            return None
        is_plain = len(fragment.text or "") == fragment.end - fragment.start
        return fragment.start + inside if is_plain or not inside else None

    def cut(self, start: int, end: int) -> Iterator[Fragment]:
        """Yield the fragments of a part of the text.

        A piece of an escape has the place of its start, the last piece all of it.
        """
        index = max(bisect_right(self.starts, start) - 1, 0)
        while start < end:
            fragment, place = self.fragments[index], self.starts[index]
            index += 1
            length = len(_TAG if fragment.text is None else fragment.text)
            if fragment.text is None or (start <= place and place + length <= end):
                yield fragment
            else:
                last = min(end - place, length)
                text = fragment.text[start - place : last]
                if length == fragment.end - fragment.start:
                    first = fragment.start + start - place
                    yield replace(fragment, start=first, end=fragment.start + last, text=text)
                else:
                    stop = fragment.end if last == length else fragment.start
                    yield replace(fragment, end=stop, text=text)
            start = max(start, place + length)


def _pair_tags(builder: SegmentBuilder) -> None:
    """Make tags of the pairs and empty tags in the text; keep unpaired tags in order."""
    block = _Block(builder.fragments)
    halves: list[tuple[int, int, TagKind, str]] = [
        (place, place + 1, fragment.kind, fragment.key)
        for place, fragment in zip(block.starts, builder.fragments, strict=True)
        if fragment.text is None and fragment.kind in {"open", "close"}
    ]
    singles: list[tuple[int, int, TagKind, str]] = []
    for match in TEXT_TAG.finditer(block.text):
        name = (match["name"] or match["inner"]).lower()
        is_close = bool(match["close"] or match["close_brace"])
        if match["empty"] or (match["name"] and name in _VOID and not is_close):
            around = block.text[max(match.start() - 1, 0)] + block.text[match.end() :][:1]
            is_bare = is_break(match[0]) and not any(map(str.isspace, around))
            singles.append((*match.span(), "break" if is_bare else "ordered", ""))
        else:
            halves.append((*match.span(), "close" if is_close else "open", name))
    halves.sort()
    unpaired = find_unpaired([(kind, key) for _, _, kind, key in halves])
    changed: list[tuple[int, int, TagKind, str]] = []
    for index, (start, end, kind, key) in enumerate(halves):
        is_text = block.text[start] != _TAG
        if index not in unpaired and is_text:
            changed.append((start, end, kind, key))
        elif index in unpaired and not is_text:
            changed.append((start, end, "ordered", key))
    fragments: list[Fragment] = []
    done = 0
    for start, end, kind, key in sorted([*changed, *singles]):
        fragments += block.cut(done, start)
        pieces = list(block.cut(start, end))
        tag = replace(pieces[0], end=pieces[-1].end, text=None, kind=kind, key=key)
        if block.locate(start) is None or block.locate(end) is None:
            tag.markup = builder.join([(block.text[start:end], False)])
        fragments.append(tag)
        done = end
    builder.fragments = [*fragments, *block.cut(done, len(block.text))]


@dataclass(frozen=True, slots=True)
class _Part:
    """Argument, quoted text or doubled apostrophe of a message."""

    start: int
    end: int
    branches: tuple[tuple[tuple[int, int], list["_Part"]], ...] = ()
    """Place and parts of each branch."""
    is_plural: bool = False


_SPECIAL = re.compile(r"[{}'#]")
_QUOTED = re.compile(r"'(?=[{}])(?:[^']|'')*+(?:'|\Z)")
_QUOTED_IN_PLURAL = re.compile(r"'(?=[{}#])(?:[^']|'')*+(?:'|\Z)")
_SIMPLE = re.compile(r"\{\s*[^\s{},'#|]+\s*(?:,\s*\w+\s*)?\}|\{\{[^{}]*\}\}")
_HEAD = re.compile(r"\{\s*[^\s{},'#|]+\s*,\s*(\w+)\s*,(\s*offset:\s*\d+)?\s*")
_SELECTOR = re.compile(r"\s*(?:=\d+|[^\s{}=,'#|]+)\s*\{")
_STYLE = re.compile(r"(?:[^{}']|'[^']*'|\{[^{}']*\})*+\}")
_END = re.compile(r"\s*\}")


class _Parser:
    """Reader of the parts of a message."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0

    def read_message(self, depth: int, *, plural: bool = False) -> list[_Part]:
        """Read up to the brace that ends a branch, or the end of the text."""
        parts: list[_Part] = []
        if depth > _DEEPEST:
            raise _SyntaxError
        while match := _SPECIAL.search(self.text, self.place):
            start = self.place = match.start()
            quoted = (_QUOTED_IN_PLURAL if plural else _QUOTED).match(self.text, start)
            if match[0] == "}":
                break
            if match[0] == "{":
                parts.append(self._read_argument(depth, plural=plural))
                continue
            self.place = start + 1
            if self.text.startswith("''", start):
                self.place = start + 2
            elif quoted:
                self.place = quoted.end()
            elif match[0] == "'" or not plural:
                continue
            parts.append(_Part(start, self.place))
        if (match is not None) != (depth > 0):
            raise _SyntaxError
        return parts

    def _read_argument(self, depth: int, *, plural: bool) -> _Part:
        start = self.place
        if simple := _SIMPLE.match(self.text, start):
            self.place = simple.end()
            return _Part(start, self.place)
        head = _HEAD.match(self.text, start)
        if not head:
            raise _SyntaxError
        if head[1] not in _COMPLEX:
            self._skip(_STYLE, head.start(2) if head[2] else head.end())
            return _Part(start, self.place)
        is_plural = plural or head[1] != "select"
        branches = []
        self.place = head.end()
        while not (end := _END.match(self.text, self.place)):
            self._skip(_SELECTOR, self.place)
            first = self.place
            parts = self.read_message(depth + 1, plural=is_plural)
            branches.append(((first, self.place), parts))
            self.place += 1
        self.place = end.end()
        if not branches:
            raise _SyntaxError
        return _Part(start, self.place, tuple(branches), is_plural)

    def _skip(self, pattern: re.Pattern[str], place: int) -> None:
        match = pattern.match(self.text, place)
        if not match:
            raise _SyntaxError
        self.place = match.end()


@dataclass(frozen=True, slots=True)
class _Writer:
    """Builder of the segments of a message."""

    block: _Block
    outer: SegmentBuilder
    doubles: bool
    """Apostrophes are doubled."""

    def build(self, span: tuple[int, int], parts: list[_Part], *, plural: bool) -> SegmentBuilder:
        """Return the text of a branch, in which arguments are tags, and branches texts inside."""
        source, lines = self.outer.source, self.outer.keeps_lines
        builder = SegmentBuilder(source, self._make_join(plural=plural), lines)
        start = span[0]
        for part in parts:
            builder.fragments += self.block.cut(start, part.start)
            first, last = self.block.locate(part.start), self.block.locate(part.end)
            if first is None or last is None:
                raise _SyntaxError
            if self.block.text[part.start : part.end] == "''":
                builder.add_text(first, last, "'")
            else:
                inner = [
                    self.build(*branch, plural=plural or part.is_plural) for branch in part.branches
                ]
                texts = tuple(segment for branch in inner for segment in branch.finish())
                builder.add_tag(first, last, "ordered", texts)
            start = part.end
        builder.fragments += self.block.cut(start, span[1])
        return builder

    def _make_join(self, *, plural: bool) -> Callable[[Pieces], str]:
        syntax = re.compile(r"[{}#]|<(?=[/A-Za-z])" if plural else r"[{}]|<(?=[/A-Za-z])")

        def join(pieces: Pieces) -> str:
            written = []
            following = [piece for piece, _ in pieces[1:]] + ["}"]
            for (piece, is_markup), after in zip(pieces, following, strict=True):
                if is_markup:
                    written.append((piece, True))
                    continue
                if match := syntax.search(piece):
                    raise RefusedTranslationError(f"`{match[0]}` is syntax of ICU MessageFormat")
                text = piece.replace("'", "''") if self.doubles else piece
                # An apostrophe before syntax would quote it.
                if not self.doubles and text.endswith("'") and after[:1] in "{}#'":
                    text = text[:-1] + "’"
                written.append((text, False))
            return self.outer.join(written)

        return join
