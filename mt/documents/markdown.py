"""Segments of a Markdown file: CommonMark with tables, strikethrough and marks of dialects.

A translation is parsed again: if its markup reads otherwise, the block keeps its source.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from mt.documents.html import (
    BLOCK,
    VOID,
    add_characters,
    find_foreign,
    is_foreign,
    is_protected,
    read_attributes,
    read_html,
    scan,
    skip_element,
)
from mt.documents.segments import (
    Fragment,
    Options,
    Pieces,
    RefusedTranslationError,
    Replacement,
    Segment,
    SegmentBuilder,
    has_letters,
    make_join,
    merge_pairs,
    read_lines,
)
from mt.documents.tags import TagKind
from mt.errors import DataError, install_hint

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.ruler import RuleOptionsType
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?=\S).*?\r?\n(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_ANCHOR_LINK = re.compile(r"\]\(<?#\w|\bhref=[\"']?#\w")
_NO_PROSE_DIRECTIVES = frozenset(
    {"code", "math", "mermaid", "toctree", "literalinclude", "include", "image"}
)


def read_markdown(source: str, options: Options) -> Iterator[Segment | Replacement]:
    """Yield the segments of a file, block by block, and what is not translated."""
    front = _FRONT_MATTER.match(source)
    begin, end = front.end() if front else 0, len(source)
    if has_letters(source[:begin]):
        yield Replacement(0, 0, "", "blocks of front matter")
    lines = [*(begin + start for start, _ in read_lines(source[begin:], "")), end]
    page = _Page(source, lines, build_parser(), options)
    before = None
    for token in page.parser.parse(source[begin:], page.env):
        if token.map:
            yield from page.read_block(token, before)
        before = token
    for label, reference in page.env.get("references", {}).items():
        if label.startswith("^") and has_letters(reference["href"].partition("/")[0]):
            yield Replacement(end, end, "", "footnotes of one word")
        elif reference["href"] != "#" and has_letters(reference["title"]):
            yield Replacement(end, end, "", "titles of links")
    for _ in _ANCHOR_LINK.finditer(source, begin):
        yield Replacement(end, end, "", "links to anchors, which headings may change")


_Frame = tuple[str, str]
"""Text before and after the content of a block of its kind."""
_CELL: _Frame = ("| ", " |\n|-|")
_LINED: _Frame = ("", "\n===")
_FRAMES = {"paragraph_open": ("", ""), "td_open": _CELL, "th_open": _CELL, "=": _LINED, "-": _LINED}
_NUMBERED = re.compile(r"\n[ >]*\d{1,9}[.)](?=\s)")
"""Line of a paragraph that some readers take for an item of a list, below a footnote."""


@dataclass(slots=True)
class _Page:
    """File that is read block by block."""

    source: str
    lines: list[int]
    """Starts of lines, and the end."""
    parser: "MarkdownIt"
    options: Options
    env: dict[str, Any] = field(default_factory=dict)
    end: int = 0
    """End of the last block."""

    def read_block(self, token: "Token", before: "Token | None") -> Iterator[Segment | Replacement]:
        """Yield the segments of a block, given with the token before it."""
        start, end = (self.lines[min(index, len(self.lines) - 1)] for index in token.map or ())
        start = max(start, self.end)
        noun = ""
        if token.type == "inline":
            above = self.source[self.lines[max(token.map[0] - 1, 0)] : start] if token.map else ""
            label, _, text = above.lstrip("> \t\r\n").partition("]")
            is_note = label.startswith("[^") and text.startswith(":")
            if is_note and _NUMBERED.search(token.content):
                noun = "paragraphs below footnotes"
            elif block := self.find_inline(token, before):
                yield from block.read_segment()
            else:
                noun = "blocks of an unknown form"
        elif token.type == "html_block" or (token.type == "line" and token.content[0] == "<"):
            yield from self.read_html(token, start, end)
        elif token.type == "fence" and token.info[:1] == "{" and token.info[1:2].islower():
            name = token.info[1:].partition("}")[0].partition("-")[0]
            noun = "directives in fences" if name not in _NO_PROSE_DIRECTIVES else ""
        elif token.type == "line" and token.content[0] not in "{<$\\":
            noun = "lines of marks"
        if noun and has_letters(token.content):
            yield Replacement(start, start, "", noun)

    def find_inline(self, token: "Token", before: "Token | None") -> "_Content | None":
        """Return the block of a token with inline content, or None if its lines are not found."""
        assert token.map, "inline content has lines"
        kind = before.markup or before.type if before else ""
        frame = _FRAMES.get(kind, ("# ", ""))
        places, start = [], 0
        for index, content in enumerate(token.content.split("\n"), start=token.map[0]):
            text = content.strip()
            if index + 1 >= len(self.lines) or not text:
                return None
            first, last = self.lines[index], self.lines[index + 1]
            if frame == _CELL:
                written = re.escape(text).replace(r"\|", r"\\\|")
                cell = re.compile(rf"(?<![^|\s]){written}(?=[ \t]*(?:\||$))", re.MULTILINE)
                match = cell.search(self.source, max(first, self.end), last)
                place = match.start() if match else -1
            else:
                line = self.source[first:last].replace("\0", "\ufffd")
                place = line.rfind(text)
                place += first if place >= 0 else 0
            if place < 0:
                return None
            place -= len(content) - len(content.lstrip())
            places.append((start, place))
            if frame == _CELL:  # without the escapes of `|`
                bars = [index for index, character in enumerate(content) if character == "|"]
                for escapes, bar in enumerate(bars, start=1):
                    places.append((start + bar + 1, place + bar + 1 + escapes))
            start += len(content) + 1
        self.end = places[-1][1] + len(token.content) - places[-1][0]
        rows = self.lines[token.map[0] + 1 : token.map[1] + 2]
        below = [self.source[first:last].strip("> \t\r\n") for first, last in pairwise(rows)]
        has_rule = any(row and not row.strip("-:| \t") for row in below)
        pipe = r"\|" if frame == _CELL else "&#124;" if has_rule else "|"
        return _Content(self, token.content, places, frame, pipe)

    def read_html(self, token: "Token", start: int, end: int) -> Iterator[Segment | Replacement]:
        """Yield the segments of a block of HTML or a tag of MDX on a line of its own."""
        first = token.content.partition("\n")[0].strip()
        start = max(self.source.find(first, start, end), start)
        source = self.source[:end]
        changes = (
            read_html(source, self.options, self.add_text, start)
            if token.type == "html_block"
            else read_attributes(source, next(scan(source, start)), self.options)
        )
        is_quoted = token.level > 0 and source[start:].split() != token.content.split()
        for change in changes:
            if isinstance(change, Segment) and change.raw.startswith("{"):  # of MDX
                continue
            if is_quoted:
                yield Replacement(start, start, "", "texts of HTML in quotations")
            else:
                yield change

    def add_text(self, builder: SegmentBuilder, start: int, end: int) -> None:
        """Add the text between two tags of HTML, which is Markdown."""
        for part in read_parts(self.parser, builder.source[start:end], self.env, self.options):
            first, last = start + part.start, start + part.end
            if part.text is None:
                builder.add_tag(first, last, part.kind, markup=part.markup)
            elif part.text == builder.source[first:last]:
                add_characters(builder, first, last)
            else:
                builder.add_text(first, last, part.text)


_ALT_END = re.compile(r"\]\(|\]\[|\]$")
_LINK_TITLE = re.compile(r"\s[\"'(][^\n]*[\"')]\s*\)\Z")


@dataclass(frozen=True, slots=True)
class _Content:
    """Inline content of a block."""

    page: _Page
    content: str
    places: list[tuple[int, int]]
    """Starts of lines, and of the rests of cells after `|`, in the content and the document."""
    frame: _Frame
    pipe: str
    """Markup of `|`, which makes a table of a line before a rule and cells in a table."""

    def read_segment(self) -> Iterator[Segment | Replacement]:
        """Yield the segment of the block, or those of attributes, and what is not translated."""
        builder = SegmentBuilder(self.page.source, make_join(str))
        page = self.page
        for part in read_parts(page.parser, self.content, page.env, page.options):
            first, last = self.locate(part.start), self.locate(part.end)
            if part.text is not None:
                builder.add_text(first, last, part.text)
                continue
            inside = tuple(self.read_markup(first, last, self.content[part.start : part.end]))
            builder.add_tag(first, last, part.kind, inside, markup=part.markup)
        fragments = [*builder.fragments]
        for segment in builder.finish():
            if isinstance(segment, Replacement) or segment.join is not builder.join:  # of a tag
                yield segment
                continue
            before: Pieces = []
            after: Pieces = []
            for part in fragments:
                raw = page.source[part.start : part.end]
                piece: tuple[str, Literal["text"] | TagKind] = (part.markup or raw, part.kind)
                if part.text is not None:
                    piece = ("\n" if "\n" in raw else part.text, "text")
                if part.end <= segment.start:
                    before.append(piece)
                elif part.start >= segment.end:
                    after.append(piece)
                elif part.text is not None:  # with the white space around the segment
                    before += [(" ", "text")] * (part.start < segment.start)
                    after += [(" ", "text")] * (part.end > segment.end)
            yield replace(segment, join=partial(self.join, before=before, after=after))

    def locate(self, position: int) -> int:
        """Return the place in the document of a position in the content."""
        line = bisect_right(self.places, position, key=lambda line: line[0]) - 1
        start, place_in_document = self.places[line]
        return place_in_document + position - start

    def read_markup(self, start: int, end: int, markup: str) -> Iterator[Segment | Replacement]:
        """Yield the texts inside markup: alternative text, attributes, what is not translated."""
        page, noun = self.page, ""
        title = _LINK_TITLE.search(markup) if markup.startswith(("](", "![")) else None
        if title and has_letters(title[0]):
            yield Replacement(start, start, "", "titles of links")
        if markup.startswith("<") and is_foreign(markup, next(scan(markup)), page.options):
            noun = find_foreign(markup)
        elif markup.startswith("<") and page.source[start:end] == markup:
            source = page.source[:end]
            for tag in scan(source, start):
                for change in read_attributes(source, tag, page.options):
                    if isinstance(change, Replacement):
                        yield change
                    elif not change.raw.startswith("{"):
                        yield replace(change, join=partial(self.join_value, change.join))
        elif markup.startswith(("[[", "![[")):
            noun = "wiki links" if has_letters(markup.partition("](")[0]) else ""
        elif markup.startswith("!["):
            alt = _ALT_END.split(markup[2:], maxsplit=1)[0]
            parts = read_parts(page.parser, alt, page.env)
            is_plain = all(part.text is not None for part in parts) and "\n" not in alt
            if is_plain and markup[2 + len(alt) :] not in {"]", "][]"} and has_letters(alt):
                text = " ".join("".join(part.text or "" for part in parts).split())
                last = end - len(markup) + 2 + len(alt)
                raw = page.source[start + 2 : last]
                join = make_join(
                    lambda text: _SPECIAL.sub(r"\\\g<0>", text).replace("|", self.pipe)
                )
                yield Segment(start + 2, last, text, raw, join)
            elif has_letters(alt):
                noun = "alternative texts"
        if noun:
            yield Replacement(start, start, "", noun)

    def join_value(self, join: Callable[[Pieces], str], pieces: Pieces) -> str:
        """Return the value of an attribute, whose bars make no cells."""
        return join(pieces).replace("|", "|" if self.pipe == "|" else "&#124;")

    def join(self, pieces: Pieces, before: Pieces, after: Pieces) -> str:
        """Join text and markup; escape text, and set off markup, only if it reads wrong else.

        `before` and `after` are in the block around the segment. Raises RefusedTranslationError if
        the markup reads wrong in any case.
        """
        pieces = [*before, *pieces, *after]
        is_risky = any(kind == "text" and {*"`\\"} & {*piece} for piece, kind in pieces)
        kinds, _ = self.read_block("x")
        expected = "".join(
            self.read_inline(piece) if kind in {"single", "ordered"} else _normalize(piece, kind)
            for piece, kind in pieces
        )
        for spaces, escapes in sorted(_WAYS, key=lambda way: is_risky and not way[1]):
            written = self.write(pieces, spaces, escapes, len(pieces) - len(after))
            # The marks of the block after a line break are no inline content.
            inline = "".join(_BREAK.sub("  \n", text) for text in written)
            read_kinds, content = self.read_block(inline)
            if kinds == read_kinds and expected == self.read_inline(content):
                return "".join(written[len(before) : len(written) - len(after)])
        raise RefusedTranslationError("its inline markup would read otherwise")

    def read_block(self, content: str) -> tuple[list[str], str]:
        """Return the kinds of the tokens of a block with this content, and the content read."""
        tokens = self.page.parser.parse(content.join(self.frame), {})
        inline = next((token.content for token in tokens if token.type == "inline"), "")
        return [token.type for token in tokens], inline

    def read_inline(self, content: str) -> str:
        """Return the text and markup of inline content as `_normalize` writes them."""
        content = content.strip(" ")
        parts = read_parts(self.page.parser, content, self.page.env)
        return "".join(
            _normalize(part.markup or content[part.start : part.end], part.kind)
            if part.text is None
            else _normalize(part.text, "text")
            for part in parts
        )

    def write(self, pieces: Pieces, spaces: int, escapes: int, last: int) -> list[str]:
        """Write text and markup; white space between two is in the first from `last` on."""
        written: list[str] = []
        at_start = not _BLOCK_START.match(self.content)
        ending = "break"
        for index, (piece, kind) in enumerate(pieces):
            text = piece
            if kind == "text":
                text = _SPECIAL.sub(r"\\\g<0>", piece) if escapes else piece
                if escapes > 1:  # an escaped bracket may begin a formula
                    text = text.replace(r"\[", "&#91;").replace(r"\]", "&#93;")
                text = text.replace("|", self.pipe)
                if at_start and (start := _BLOCK_START.match(text)):
                    text = f"{text[: start.end()]}\\{text[start.end() :]}"
            at_start = kind == "break" or piece == "\n"
            last_text = written[-1] if written else ""
            is_outside = ending not in {"open", "break"} and kind not in {"close", "break"}
            is_spaced = last_text[-1:].isspace() or text[:1].isspace() or not text
            if not is_outside or is_spaced or ending == kind == "text":
                is_apart = False
            elif ending == "bounded":
                is_apart = kind != "text" or text[0] not in _CLOSING or text[1:2] not in {"", " "}
            elif kind == "single" and _BOUNDED.match(text):
                is_apart = last_text[-1] not in "(*_~\"'"
            else:
                is_apart = spaces > ("text" in {ending, kind})
            if is_apart and index >= last:
                written[-1] += " "
            elif is_apart:
                text = f" {text}"
            written.append(text)
            ending = "bounded" if kind == "single" and _BOUNDED.match(text) else kind
        return written


_WAYS = [(spaces, escapes) for escapes in range(3) for spaces in range(3)]
"""Spaces between text and markup, or between all; escapes."""
_SPECIAL = re.compile(r"[\\`*_\[\]<>&~!#${}=^+@:%]")
_BOUNDED = re.compile(r"\s*(?:\$|[A-Za-z][A-Za-z0-9.+-]*://|www\.)")
"""Address or formula, which needs white space or ASCII punctuation around it."""
_CLOSING = "?!.,:;)*_~'\""
_BLOCK_START = re.compile(
    r"(?=(?:[-+*](?:\s|$)|#{1,6}(?:\s|$)|>|~~~|```|:::|:\s|\|\s|!!!|\?\?\?|///|\$\$|[-=_*+](?:\s*[-=_*+]){2}|=+$))"
    r"|\d{1,9}(?=[.)](?:\s|$))"
)
_BREAK = re.compile(r"(?: +|\\)(?:\r\n?|\n)[\s>]*")


def _normalize(piece: str, kind: str) -> str:
    """Return text without white space, or markup between lines."""
    if kind == "text":
        return "".join(piece.split())
    if _BREAK.match(piece):
        return "\n\n"
    half = f"{kind} " if kind in {"open", "close"} else ""
    return f"\n{half}{piece.strip(' ')}\n".replace(r"\|", "|")


_NO_PROSE = r"(?!\s*+\w++\s++[\w\s,.;!?’-]*+\})"
_BRACES = rf"\{{{_NO_PROSE}(?>(?:[^{{}}]++|\{{(?>(?:[^{{}}]++|\{{[^{{}}]*+\}})*)\}})*)\}}"
"""Braces with braces inside; words alone are prose."""
_VALUE = rf"\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|{_BRACES})"
_TAG = (
    rf"</?[A-Za-z][\w.]*+(?>(?:\s++(?:[\w:.-]++(?>(?:{_VALUE})?)|{_BRACES}))*)\s*+/?>|</?>"
    r"|<%(?>(?:(?!<%|%>).)*)%>"
)
"""Tag of MDX or of a template."""
_FORMULA_SIGN = r"(?:\\[A-Za-z]|[\^_={}<>]|\w\s*[+*/]\s*\w)"
_LINES = re.compile(
    rf"(?:(?:{_BRACES}|(?=</?[A-Z>%])(?:{_TAG})|\$\$(?>(?:(?!\$\$).)*)\$\$"
    rf"|\\\\?\[(?=\s*$|[^\n]*{_FORMULA_SIGN})(?>(?:(?!\\\]).)*)\\\]"
    r"|\\begin\{(?>(?:(?!\\end\{).)*)\\end\{[\w*]+\}"
    r"|(?:import|export)\b(?=[^\n]*[\"'{=(])[^\n{]*+"
    rf"(?:{_BRACES}[^\n]*)?)[ \t]*(?:\([\w:.-]+\))?[ \t]*)+(?=\r?$)",
    re.DOTALL | re.MULTILINE,
)
"""Braces, tags of components, formulas, and code of MDX, on lines of their own."""
_LINE = re.compile(
    r"(?!=+$)([^\w\s\"'(`*_~#>.|\[-])\1\1|(?=[^\w\s\"'(`*_~#>.|\[<]{2})[^A-Za-z\s]{3,}\s"
    r"|\[![A-Za-z]|@?\[{1,2}\w+\]{1,2}$|\([^\s()]+\)=$|\*\[[^\]]+\]:|\\[A-Za-z]"
)
"""Start of a line of marks: three equal ones, several around digits, or a word in brackets."""
_BODY = re.compile(
    r"([!?=])\1\1[+!*]*\s+\S.*|(?:[!?])\1\1$|\[\^[^\]\s]+\]:(?=$|\s+\S+\s+[^\s\"'(])|:[ \t]+(?=\S)"
)
"""Mark of a text that is indented below it: of an admonition, a footnote, a definition."""
_LONGEST, _TEXT_INDENT = 300, 4

_PROSE = r"\$\d[\d.,]*\s*[,;-]?\s+\w|.*(?:[A-Za-z]{2,}[,.]?\s+[A-Za-z]{2,}|\s[A-Za-z]{2,}\s)"
_LABEL = r"\[(?P<inner>(?>(?:[^\[\]\\`]++|\\.|`[^`]*`|\[[^\[\]]*\])+))\]"
_SAFE = r"[!#-'*-;=?-Z^_a-{}~]"
_URL = rf"(?:\({_SAFE}*\)|{_SAFE}){{2,2000}}(?<![?!.,:;*_~'])"
_WORD = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]{{0,63}}://{_URL}|(?<![./@-])www\.[A-Za-z0-9-]+\.{_URL}"
    r"|[A-Za-z0-9+.-]{1,64}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"
    r"|[A-Za-z0-9+.-]{1,64}([~^])(?!\1)[^\s~^]{1,30}\1(?!\1)[A-Za-z0-9]*"
)
"""Address, or word with a subscript or superscript."""
_PLAIN = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9\n!#$%&*+\-:<=>@\[\\\]^_`{}~]+")
_Rows = list[tuple[str, str, str]]
_MARKUP: _Rows = [
    ("{:$", r"(?:\{[^\s{}`]+\}|(?<![\w:]):[A-Za-z][\w:.+-]*:|\$(?=`[^`]+`\$))`[^`]+`\$?", ""),
    ("{", _BRACES, r"\A\{(?:\{|\s*\S+\s*\Z)|[=<>%#/*@|:&\"'($]"),
    ("[", r"\[\^[^\]\s]+\]:?|\[[ xX]\](?=\s|\Z)", ""),
    ("![", r"!?\[(?:\[[^\[\]\n]+\]|-?@[\w:.-]+[^\[\]\n]*)\](?![(\[:])", ""),
    (
        ":+%",
        r"(?<![A-Za-z0-9:+%])(:|\+\+|%%)(?!\1)(?:(?!\1)[^\s`]){1,60}\1(?![A-Za-z0-9:+%])",
        "[a-z1]",
    ),
    ("@", r"(?<![A-Za-z0-9./@])@[A-Za-z0-9][\w-]*(?:/[\w.-]*\w)?", ""),
    (
        "$",
        r"(?<![A-Za-z0-9$])(\$\$?)(?![\s$])(?:\\.|[^$\\`]){1,1000}(?<!\s)\1"
        r"(?:(?![\w$])|(?=[^\x00-\x7f])|(?=(?:th|st|nd|rd|s)\b))",
        rf"{_FORMULA_SIGN}|\A(?!{_PROSE})",
    ),
    (
        "\\",
        r"\\\\?([(\[])(?:(?!\\[)\]]|\]\()[^`]){1,1000}?\\\\?[)\]]",
        rf"{_FORMULA_SIGN}|\(\s*[A-Za-z]\s*\\",
    ),
]
"""Inline markup that comes back as it is: first character, pattern, and a part that it needs."""
_SPANS: _Rows = [
    ("^:", rf"(?:\^|(?<![\w:]):[A-Za-z][\w-]*){_LABEL}(?:\{{[^{{}}\n]*\}})?", ""),
    ("[", rf"(?<![\w\])`]){_LABEL}(?:\{{[^{{}}\n]*\}}|\[[^\[\]\s]+\])", ""),
    (
        "=+^~",
        r"(?<![A-Za-z0-9=+^~])(==|\+\+|\^\^|~)(?![\s=+^~])(?P<inner>(?:(?!\1).){1,300}?)(?<!\s)\1"
        r"(?![A-Za-z0-9=+^~])",
        "",
    ),
    ("<", _TAG, ""),
]
"""Pairs of marks with text between them, and tags, if they are nothing in CommonMark."""


def build_parser() -> "MarkdownIt":
    """Return a parser with places in `meta["span"]`; raise DataError without markdown-it-py."""
    try:
        from markdown_it import MarkdownIt, rules_block  # an optional package
    except ModuleNotFoundError as error:
        hint = install_hint("documents")
        raise DataError(f"reading Markdown needs markdown-it-py: {hint}") from error
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.inline.ruler2.disable("fragments_join")  # it would merge the marks of emphasis
    interrupted: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("fence", "marks", _read_marks, interrupted)
    parser.block.ruler.at(
        "html_block",
        partial(_read_html_block, rules_block.html_block),
        {"alt": ["paragraph", "reference", "blockquote"]},
    )
    names = parser.get_active_rules()["inline"]
    for name, rule in zip(names, parser.inline.ruler.getRules(""), strict=True):
        parser.inline.ruler.at(name, _keep_place(rule))
    parser.inline.ruler.at("text", _read_text)
    parser.inline.ruler.before("newline", "marks", _build_rule(_MARKUP))
    parser.inline.ruler.after("html_inline", "span", _build_rule(_SPANS))
    return parser


_Rule = Callable[["StateInline", bool], bool]


def _keep_place(rule: _Rule) -> _Rule:
    """Return a rule that adds the places of its tokens."""

    def wrapped(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - as it is called
        start, first = state.pos, len(state.tokens)
        is_match = rule(state, silent)
        tokens, end = state.tokens[first:], state.pos
        if silent or not is_match or not tokens:
            return is_match
        if tokens[-1].type == "text":  # a token for each mark of emphasis
            for token in reversed(tokens):
                if end > start:
                    token.meta["span"] = end - len(token.content), end
                    end -= len(token.content)
        elif tokens[-1].type == "link_close" and not tokens[-1].markup:
            opening = next(token for token in tokens if token.type == "link_open")
            opening.meta["span"] = start, start + 1
            label_end = state.md.helpers.parseLinkLabel(state, start, True)
            tokens[-1].meta["span"] = label_end, end
            if state.src[label_end:end] in {"]", "][]"}:  # the text is the label
                label = " ".join(state.src[start + 1 : label_end].split())
                tokens[-1].meta["markup"] = f"][{label}]"
        else:
            tokens[-1].meta["span"] = start, end
        return True

    return wrapped


def _read_text(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - as it is called
    """Read a word, which is markup if it is an address."""
    if match := _WORD.match(state.src, state.pos, state.posMax):
        if not silent:
            state.push("marks", "", 0).meta["span"] = match.span()
    elif match := _PLAIN.match(state.src, state.pos, state.posMax):
        state.pending += match[0] if not silent else ""
    if match:
        state.pos = match.end()
    return match is not None


def _build_rule(rows: _Rows) -> _Rule:
    """Return a rule for the markup of a table."""
    table: dict[str, list[tuple[re.Pattern[str], re.Pattern[str]]]] = {}
    for marks, pattern, needed in rows:
        row = re.compile(pattern, re.DOTALL), re.compile(needed, re.DOTALL)
        for mark in marks:
            table.setdefault(mark, []).append(row)

    def read(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - as it is called
        for pattern, needed in table.get(state.src[state.pos], ()):
            match = pattern.match(state.src, state.pos, state.posMax)
            if not match or not needed.search(match[0]):
                continue
            limit = state.posMax
            if not silent and "inner" in pattern.groupindex:
                state.pos, state.posMax = match.span("inner")
                state.push("span_open", "", 1).meta["span"] = match.start(), state.pos
                state.md.inline.tokenize(state)
                state.push("span_close", "", -1).meta["span"] = match.end("inner"), match.end()
            elif not silent:
                state.push("marks", "", 0).meta["span"] = match.span()
            state.pos, state.posMax = match.end(), limit
            return True
        return False

    return read


def read_parts(
    parser: "MarkdownIt", content: str, env: dict[str, Any], options: Options | None = None
) -> list[Fragment]:
    """Return the text and markup of the content of a block in order.

    With options, a pair without letters inside, and an element in another language, are one part.
    """
    tokens: list[Token] = []
    parser.inline.parse(content, parser, env, tokens)
    spans = [token for token in tokens if "span" in token.meta]
    parts: list[Fragment] = []
    end = 0
    for token in sorted(spans, key=lambda token: token.meta["span"]):
        if token.meta["span"][0] < end:  # inside an element that is not translated
            continue
        for part in _read_token(token, content, options):
            if end < part.start:
                parts.append(Fragment(end, part.start, content[end : part.start]))
            parts.append(part)
            end = part.end
    if end < len(content):
        parts.append(Fragment(end, len(content), content[end:]))
    return merge_pairs(parts, content) if options else parts


_TAG_NAME = re.compile(r"</?([\w.-]*)[\s/>]")


def _read_token(token: "Token", content: str, options: Options | None) -> Iterator[Fragment]:
    start, end = token.meta["span"]
    if token.type == "softbreak":
        yield Fragment(start, end, " ")
    elif token.type == "hardbreak":
        before = len(content[:start].rstrip(" ")) if content[start] == "\n" else start
        yield Fragment(before, end, None, "break")
    elif token.type == "text_special":
        yield Fragment(start, end, token.content)
    elif content[start] == "<":
        tags = scan(content, start)
        tag = next(tags)
        if is_protected(content, tag, options):
            end = skip_element(content, tag, tags, is_xml=False)[0]
        markup = content[start:end]
        kind: TagKind = "single"
        name = _TAG_NAME.match(markup)
        if name and name[1].lower() == "br":
            kind = "break"
        elif name and name[1].lower() not in VOID and not markup.endswith("/>"):
            kind = "close" if markup.startswith("</") else "single" if "</" in markup else "open"
        yield Fragment(start, end, None, kind)
    elif token.nesting > 0:  # of strong emphasis, the inner mark is the token
        yield Fragment(end - len(token.markup) if token.markup else start, end, None, "open")
    elif token.nesting < 0:
        end = start + len(token.markup) if token.markup else end
        yield Fragment(start, end, None, "close", markup=token.meta.get("markup"))
    elif token.type != "text":
        yield Fragment(start, end, None)


def _get_line(state: "StateBlock", number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()


def _read_marks(state: "StateBlock", start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 - as it is called
    """Read a line of marks or lines of markup, or a mark and the text that is indented below it."""
    line = _get_line(state, start)
    if not line or state.is_code_block(start):
        return False
    if silent and line.startswith("[^"):  # no definition of a link inside a paragraph
        return "]:" in line
    body = _BODY.match(line)
    if body and not silent:
        old = state.blkIndent, state.bMarks[start], state.tShift[start], state.sCount[start]
        indent, first = state.sCount[start] + _TEXT_INDENT, start
        if beside := line[body.end() :].lstrip():
            state.bMarks[start] += state.tShift[start] + len(line) - len(beside)
            state.tShift[start], state.sCount[start] = 0, indent
        else:
            _push_line(state, line, start, start + 1)
            first = state.line
        state.blkIndent = indent
        state.push("body_open", "", 1)
        state.md.block.tokenize(state, first, end)
        state.push("body_close", "", -1)
        state.blkIndent, state.bMarks[start], state.tShift[start], state.sCount[start] = old
    if body:
        return True
    limit = state.eMarks[min(end, start + _LONGEST) - 1]
    markup = _LINES.match(state.src, state.bMarks[start] + state.tShift[start], limit)
    last = bisect_right(state.bMarks, markup.end(), hi=end) if markup else start + 1
    inside = range(start + 1, last)
    if any(not state.isEmpty(row) and state.sCount[row] < state.blkIndent for row in inside):
        return False
    if not markup and not _LINE.match(line):
        return False
    if not silent:
        _push_line(state, line, start, last)
    return True


def _push_line(state: "StateBlock", line: str, start: int, last: int) -> None:
    """Add lines of markup."""
    token = state.push("line", "", 0)
    token.content, token.map, token.children = line, [start, last], []
    state.line = last


_LAST_TAG = re.compile(r"<(?:/|!--)?([A-Za-z][\w-]*)?[^<>]*>\s*$")
_CODE = re.compile(r"<(?:pre|script|style|textarea|svg)\b|<[!?]", re.IGNORECASE)


def _read_html_block(
    rule: Callable[["StateBlock", int, int, bool], bool],
    state: "StateBlock",
    start: int,
    end: int,
    silent: bool,  # noqa: FBT001 - as it is called
) -> bool:
    """Read a block of HTML up to a line of text behind a line that ends with the tag of a block."""
    if not rule(state, start, end, silent):
        return False
    if silent or _CODE.search((token := state.tokens[-1]).content):
        return True
    for number in range(start + 1, state.line):
        tag = _LAST_TAG.search(_get_line(state, number - 1))
        line = _get_line(state, number)
        is_text = line and line[0] != "<" and not state.is_code_block(number)
        if tag and (tag[1] or "").lower() in BLOCK and is_text:
            token.map = [start, number]
            token.content = state.getLines(start, number, state.blkIndent, True)
            state.line = number
            break
    return True
