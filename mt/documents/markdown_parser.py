"""Parser of Markdown: CommonMark with tables, strikethrough and the markup of its dialects.

The dialects are those of GitHub, MkDocs, Docusaurus, MDX, MyST, Hugo, Jekyll, Pandoc and wikis. A
line of their markup becomes a block, and inline markup a token; the text around and inside them is
read as any other. The rules of markdown-it-py for inline markup are wrapped to record its place,
which it does not keep.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mt.documents.html import VOID
from mt.documents.segments import has_letters
from mt.documents.tags import TagKind
from mt.errors import DataError, install_hint

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.ruler import RuleOptionsType
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_BRACES = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}"
_ATTRIBUTES = r"\{(?::|\s*[#.][\w-]|@\w|\s*[\w:-]+=(?!>))[^{}\n]*\}"
_TEMPLATE = (
    r"(?:\{\{\{?(?:(?!\{\{|\}\}).)*+\}\}\}?|\{%(?:(?!\{%|%\}).)*+%\}"
    r"|\{\#(?![\w-]+\})(?:(?!\{\#|\#\}).)*+\#\}|<%(?:(?!<%|%>).)*+%>)"
)
_JSX = (
    r"(?:</?[A-Za-z][\w.]*+(?:\s++(?:[\w:.-]++(?:\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|"
    rf"{_BRACES}))?+|{_BRACES}))*+\s*+/?>|</?>)"
)
_ADMONITIONS = (
    "(?:admonition|attention|caution|danger|error|hint|important|note|seealso|tip|warning|todo|"
    "dropdown|card|tab-item|topic|sidebar|details|versionadded|versionchanged|deprecated)"
)

_JSX_TAG = re.compile(_JSX)
_LINE = re.compile(
    rf"(?:{_TEMPLATE}\s*)+$|{_ATTRIBUTES}$|{_JSX}$|\{{/\*.*\*/\}}$"
    r"|(?:@?\[TOC\]|@?\[toc\]|\[\[_?(?:TOC|toc)_?\]\]|\$\{toc\})$"
    r"|;?-{1,2}8<-{1,2}|<<<\s|@(?:include|code)\b"
    r"|\*\[[^\]]+\]:|/{3,}(?:\s*[\w-]+)?$|\([\w.:-]+\)=$|\\(?!begin\b)[A-Za-z]+\*?(?:\{[^{}]*\}|\[[^\[\]]*\])*$"
    r"|import\s+(?:[\w*{$][^'\"]*\sfrom\s+)?(['\"])[^'\"]+\1\s*;?$"
    r"|\$\$(?:[^$\\]|\\.)+\$\$$|\\\\?\[(?=.*(?:[\^_={}<>+]|\\[A-Za-z])).*\\\\?\]$"
)
"""Line of markup."""
_LONG = [
    (re.compile(opening), re.compile(closing))
    for opening, closing in (
        (r"\$\$", r"\$\$"),
        (r"\\\\?\[(?=$|.*[\^_={}<>+])", r"\\\]"),
        (r"\\begin\{", r"\\end\{[\w*]+\}"),
        (r"\{/\*", r"\*/\}"),
        (r"\{\{[<%]?", r"\}\}"),
        (r"\{%", r"%\}"),
        (r"import\s[^'\"]*\{[^}'\"]*$", r"\}\s*from\s*['\"][^'\"]*['\"][ \t]*;?"),
    )
]
"""Beginning and end of markup of several lines."""
_LONGEST = 300
_TAIL = re.compile(r"\s*(?:\{[^{}]*\}|\([\w:.-]+\))?\s*$")
_CODE = re.compile(
    r"export\s+(?:(?:const|let|var)\s[^=]+=|type\s+\w+\s*=|interface\s+\w+|default\s+\w+;?$"
    r"|default\s.*[({;]|(?:default\s+)?(?:async\s+)?(?:function|class)\b.*[({]|\{|\*\s+from\b)"
    r"|\{(?![^{]*\}[^{}]*$)|<[A-Z][\w.]*(?:\s[^<>]*)?\{[^}]*$"
)
"""First line of code of MDX, which ends where its brackets are closed."""
_TITLED = [
    re.compile(pattern)
    for pattern in (
        r"\[![A-Za-z][\w-]*(?:\|[^\]]*)?\][-+]?(?:\s+(?P<title>\S.*))?$",
        r":{3,}\s*[\w-]+\s*\[(?P<title>.+)\]\s*(?:\{[^{}]*\})?$",
        r":{3,}\s*[\w-]+\s+(?P<title>[^\s={:\[][^={]*?)\s*(?:\{[^{}]*\})?\s*:*$",
        rf":{{3,}}\s*\{{{_ADMONITIONS}\}}\s+(?P<title>\S.*)$",
        r":{3,}",
        r"/{3,}\s*[\w-]+\s*\|\s*(?P<title>\S.*)$",
    )
]
"""Lines of markup that may have a title."""
_INDENTED = [
    re.compile(pattern)
    for pattern in (
        r"(?:!!!|\?\?\?\+?)\s*[\w-]+(?:\s+[\w-]+)*\s+([\"'])(?P<title>.*)\1$",
        r"===[!+]*\s+([\"'])(?P<title>.*)\1$",
        r"(?:!!!|\?\?\?\+?)\s*[\w-]+(?:\s+[\w-]+)*$",
        r"\[\^[^\]\s]+\]:(?=$|\s+\S+\s+[^\s\"'(])",
        r":[ \t]+(?=\S)",
    )
]
"""Marks with an indented text below."""
_FENCE = re.compile(rf"(?P<fence>`{{3,}}|~{{3,}})\{{{_ADMONITIONS}\}}\s*(?P<title>\S.*)?$")
_OPTION = re.compile(r":[\w-]+:(?:\s|$)")
_FIRST = "[:/!?=`~{<$\\*;-@(ie"
_TEXT_INDENT = 4


def build_parser() -> "MarkdownIt":
    """Return a parser that records inline markup in `env["recorded"]`, if there is such a list.

    Raises DataError if markdown-it-py is not installed.
    """
    try:
        from markdown_it import MarkdownIt, rules_inline  # an optional package
    except ModuleNotFoundError as error:
        hint = install_hint("documents")
        raise DataError(f"reading Markdown needs markdown-it-py: {hint}") from error
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.inline.ruler2.disable("fragments_join")  # it would merge the recorded tokens
    interrupted: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("fence", "dialect", _read_line, interrupted)
    parser.inline.ruler.before("newline", "dialect", _read_inline)
    parser.inline.ruler.after("html_inline", "span", _read_span)
    for name, rule in {
        "dialect": _read_inline,
        "newline": rules_inline.newline,
        "escape": rules_inline.escape,
        "backticks": rules_inline.backtick,
        "strikethrough": rules_inline.strikethrough.tokenize,
        "emphasis": rules_inline.emphasis.tokenize,
        "link": rules_inline.link,
        "image": rules_inline.image,
        "autolink": rules_inline.autolink,
        "html_inline": rules_inline.html_inline,
        "span": _read_span,
        "entity": rules_inline.entity,
    }.items():
        parser.inline.ruler.at(name, _record(name, rule))
    return parser


@dataclass(slots=True)
class RecordedMarkup:
    """Markup that an inline rule has found in the content of a block."""

    start: int
    end: int
    rule: str
    token: "Token"
    label_end: int = -1


def _record(
    name: str, rule: "Callable[[StateInline, bool], bool]"
) -> "Callable[[StateInline, bool], bool]":
    """Return a rule that appends its pieces to `env["recorded"]`."""

    def wrapped(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - as it is called
        start, first = state.pos, len(state.tokens)
        # The text of an image is parsed on its own.
        recorded = state.env.pop("recorded", None) if name == "image" else state.env.get("recorded")
        is_match = rule(state, silent)
        if name == "image" and recorded is not None:
            state.env["recorded"] = recorded
        if not is_match:
            return False
        if silent or recorded is None or len(state.tokens) == first:
            return True
        last = state.tokens[-1]
        if name in {"emphasis", "strikethrough"}:  # a token for each mark
            end = state.pos
            for token in reversed(state.tokens[first:]):
                if end > start:
                    length = len(token.content)
                    recorded.append(RecordedMarkup(end - length, end, name, token))
                    end -= length
        elif name in {"link", "image"}:
            label = start + (1 if name == "link" else 2)
            end = state.md.helpers.parseLinkLabel(state, label - 1, name == "link")
            recorded.append(RecordedMarkup(start, state.pos, name, last, end))
        else:
            recorded.append(RecordedMarkup(last.meta.get("start", start), state.pos, name, last))
        return True

    return wrapped


def _get_line(state: "StateBlock", number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()


def _read_line(state: "StateBlock", start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 - as it is called
    """Read lines of markup, a title in them, and a text that is indented below."""
    line = _get_line(state, start)
    if line[:1] not in _FIRST or state.is_code_block(start):
        return False
    if fence := _FENCE.match(line):
        return silent or _read_fence(state, fence, start, end)
    if (match := _match_any(_INDENTED, line)) and _has_text(state, match, start, end):
        return silent or _read_indented(state, match, start, end)
    if silent and line.startswith("[^"):  # no definition of a link inside a paragraph
        return "]:" in line
    match = _match_any(_TITLED, line)
    last = start + 1 if match else _find_end(state, line, start, end)
    if last is None or silent:
        return last is not None
    if match:
        _push_title(state, match, start)
        while line.startswith(":") and last < end and _OPTION.match(_get_line(state, last)):
            last += 1
    else:
        token = state.push("abbreviation" if line.startswith("*[") else "line", "", 0)
        token.content, token.map = line, [start, last]
        if _JSX_TAG.fullmatch(line):
            token.type = "jsx"
    state.line = last
    return True


def _has_text(state: "StateBlock", match: re.Match[str], start: int, end: int) -> bool:
    """Test for a title, text beside a mark, or a line below that is blank or indented."""
    if match.end() < len(match.string) or match.groupdict().get("title"):
        return True
    indent = state.sCount[start] + _TEXT_INDENT
    return start + 1 < end and (state.isEmpty(start + 1) or state.sCount[start + 1] >= indent)


def _match_any(patterns: list[re.Pattern[str]], line: str) -> re.Match[str] | None:
    return next(filter(None, (pattern.match(line) for pattern in patterns)), None)


def _push_title(state: "StateBlock", match: re.Match[str], number: int) -> None:
    if not (match.groupdict().get("title") or "").strip():
        return
    token = state.push("inline", "", 0)
    token.content, token.map, token.children = match["title"].strip(), [number, number + 1], []
    line = match.string
    token.meta = {"frame": (line[: match.start("title")], line[match.end("title") :])}


def _read_indented(state: "StateBlock", match: re.Match[str], start: int, end: int) -> bool:
    old = state.blkIndent, state.bMarks[start], state.tShift[start], state.sCount[start]
    state.blkIndent = state.sCount[start] + _TEXT_INDENT
    state.push("body_open", "", 1)
    beside = match.string[match.end() :].lstrip()
    if beside:
        state.bMarks[start] += state.tShift[start] + len(match.string) - len(beside)
        state.tShift[start], state.sCount[start] = 0, state.blkIndent
    else:
        _push_title(state, match, start)
        start += 1
    state.line = start
    state.md.block.tokenize(state, start, end)
    state.push("body_close", "", -1)
    start -= not beside
    state.blkIndent, state.bMarks[start], state.tShift[start], state.sCount[start] = old
    return True


def _read_fence(state: "StateBlock", match: re.Match[str], start: int, end: int) -> bool:
    """Read a directive of MyST in a fence, with text inside."""
    _push_title(state, match, start)
    is_end = re.compile(rf"{match['fence']}{match['fence'][0]}*$").match
    last = next(
        (number for number in range(start + 1, end) if is_end(_get_line(state, number))), end
    )
    first = start + 1
    while first < last and _OPTION.match(_get_line(state, first)):
        first += 1
    old, state.lineMax = state.lineMax, last
    state.push("body_open", "", 1)
    state.md.block.tokenize(state, first, last)
    state.push("body_close", "", -1)
    state.lineMax = old
    state.line = min(last + 1, end)
    return True


def _find_end(state: "StateBlock", line: str, start: int, end: int) -> int | None:
    """Return the number of the line after markup that begins with a line, None if it is text."""
    if _LINE.match(line):
        return start + 1
    lines = range(start + 1, min(end, start + _LONGEST))
    for opening, closing in _LONG:
        if not (match := opening.match(line)):
            continue
        if closing.search(line, match.end()):
            return None
        found = closing.search(state.src, state.eMarks[start], state.eMarks[lines.stop - 1])
        if not found:
            return None
        last = bisect_right(state.bMarks, found.start(), hi=lines.stop) - 1
        is_outside = any(
            not state.isEmpty(number) and state.sCount[number] < state.blkIndent
            for number in range(start + 1, last + 1)
        )
        is_end = _TAIL.match(state.src, found.end(), state.eMarks[last])
        return last + 1 if is_end and not is_outside else None
    return _find_code_end(state, line, (start, *lines)) if _CODE.match(line) else None


def _find_code_end(state: "StateBlock", line: str, lines: Iterable[int]) -> int | None:
    depth = 0
    for number in lines:
        text = _get_line(state, number)
        depth += sum(text.count(mark) for mark in "([{") - sum(text.count(mark) for mark in ")]}")
        if depth <= 0 and (text.endswith(">") or not line.startswith("<")):
            return number + 1
        if not text and depth <= 0:
            break
    return None


def _is_code(match: re.Match[str], _: "StateInline") -> bool:
    return bool(_EXPRESSION.search(match[0]))


def _is_formula(match: re.Match[str], _: "StateInline") -> bool:
    return bool(_OPERATOR.search(match["formula"])) or not _PROSE.search(match["formula"])


def _is_symbol(match: re.Match[str], _: "StateInline") -> bool:
    return bool(_OPERATOR.search(match["formula"])) or bool(_LETTER.fullmatch(match["formula"]))


def _is_undefined(match: re.Match[str], state: "StateInline") -> bool:
    """Test for brackets that are no link to a definition."""
    label = " ".join(match["label"].split()).lower().upper()
    return label not in state.env.get("references", {})


_EXPRESSION = re.compile(
    r"=>|\w\(|(['\"`]).*\1|&&|\|\||</|\?\.|\{\s*\.\.\.|^\{\s*[\w.$\[\]()-]*\s*\}$", re.DOTALL
)
_LETTER = re.compile(r"\s*[A-Za-z]\s*")
_OPERATOR = re.compile(r"\\[A-Za-z]|[\^_={}<>]|\w\s*[+*/]\s*\w")
_PROSE = re.compile(r"[A-Za-z]{2,}[,.]?\s+[A-Za-z]{2,}|\s[A-Za-z]{2,}\s|^\d[\d.,]*\s*[,;-]?\s+\w")
_Check = Callable[[re.Match[str], "StateInline"], bool]
_INLINE: dict[str, list[tuple[re.Pattern[str], _Check | None]]] = {}
for _marks, _pattern, _check in (
    ("{<", rf"{_TEMPLATE}|{_ATTRIBUTES}|\{{/\*(?:(?!\*/).)*+\*/\}}", None),
    ("{:", r"(?:\{[\w:.+-]+\}|(?<![\w:]):[A-Za-z][\w:.+-]*:)`[^`]+`", None),
    ("{", _BRACES, _is_code),
    ("%", r"%%[^%\n]++%%", None),
    ("[", r"\[\^[^\]\s]+\]:?|\[[ xX]\](?=\s)", None),
    ("![", r"!?\[(?P<label>\[[^\[\]\n]+\]|-?@[\w:.-]+[^\[\]\n]*)\](?![(\[:])", _is_undefined),
    (":", r"(?<=[A-Za-z0-9])://[!#-;=?-Z^_a-{}~]{2,2000}", None),
    (":", r"(?<![A-Za-z0-9:]):(?:[+-]1|\w*[a-z][\w+-]*):(?![A-Za-z0-9:])", None),
    ("@", r"(?<=[A-Za-z0-9])@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}", None),
    ("@", r"(?<![A-Za-z0-9./@])@[A-Za-z0-9][\w-]*(?:/[\w.-]*\w)?", None),
    ("$", r"\$`[^`]+`\$|(?<!\$)\$\$(?!\$)(?:\\.|[^$\\]){1,1000}\$\$", None),
    (
        "$",
        r"(?<![A-Za-z0-9$])\$(?P<formula>(?![\s$])(?:\\.|[^$\\`]){1,1000}(?<!\s))\$"
        r"(?:(?![\w$])|(?=[^\x00-\x7f])|(?=(?:th|st|nd|rd|s)\b))",
        _is_formula,
    ),
    (
        "\\",
        r"\\\\?(?:\((?P<formula>(?:(?!\\\))[^`]){1,300}?)\\\\?\))",
        _is_symbol,
    ),
    ("\\", r"\\\\?\[(?P<formula>(?:(?!\\\]|\]\()[^`]){1,1000}?)\\\\?\]", _is_symbol),
    ("~^", r"(?<=[A-Za-z0-9])([~^])(?!\1)[^\s~^]{1,30}\1(?!\1)[A-Za-z0-9]*", None),
    ("+", r"\+\+[\w\"-]+(?:\+[\w\"-]+)*\+\+(?![\w+])", None),
):
    for _mark in _marks:
        _INLINE.setdefault(_mark, []).append((re.compile(_pattern, re.DOTALL), _check))
_LONGEST_WORD = 64
WEB_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9.+-]*://|www\.")
"""Beginning of an address in a text."""
WEB_HOST = re.compile(r"(?<![A-Za-z0-9./@-])www\.[A-Za-z0-9-]+\.[!#-;=?-Z^_a-{}~]{2,2000}")
"""Address in a text that begins with `www`."""


def _read_inline(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - as it is called
    """Read markup that comes back as it is, with the letters of a word around it."""
    for pattern, check in _INLINE.get(state.src[state.pos], ()):
        match = pattern.match(state.src, state.pos, state.posMax)
        if not match or (check and not check(match, state)):
            continue
        start, end = match.span()
        if match[0].startswith("://"):
            end = start + len(trim_address(match[0]))
        if (
            match[0][0] in "~^"
            or match[0].startswith("://")
            or (match[0][0] == "@" and start and state.src[start - 1].isalnum())
        ):
            while (
                start
                and match.start() - start < _LONGEST_WORD
                and _is_in_word(state.src[start - 1])
            ):
                start -= 1
        if not silent:
            state.push("dialect", "", 0).meta = {"start": start}
        state.pos = end
        return True
    return False


def _is_in_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in "+-.")


def trim_address(address: str) -> str:
    """Return an address in a text without the punctuation that follows it."""
    while True:
        trimmed = address.rstrip("?!.,:;*_~'")
        if trimmed.endswith(")") and trimmed.count(")") > trimmed.count("("):
            trimmed = trimmed[:-1]
        if trimmed == address:
            return address
        address = trimmed


_MARKS = r"(?:==|\+\+|\^\^|~)"
_OPENING = re.compile(
    rf"(?P<bracket>(?:\^|(?<![\w:]):[A-Za-z][\w-]*)?\[)|(?P<jsx>{_JSX})"
    rf"|(?P<mark>(?<![A-Za-z0-9=+^~]){_MARKS}(?=\w)|(?<!\w){_MARKS}(?=[^\w\s=+^~]))",
    re.DOTALL,
)
_AFTER_BRACKET = re.compile(r"\](?:\{[^{}\n]*\}|\[[^\[\]\s]+\])")


def _read_span(state: "StateInline", silent: bool) -> bool:  # noqa: FBT001 - as it is called
    """Read a pair of marks with text inside, or a tag of MDX that is none of HTML."""
    src, start, limit = state.src, state.pos, state.posMax
    match = _OPENING.match(src, start, limit)
    if not match:
        return False
    inner = end = match.end()
    close = -1
    if match["bracket"]:
        close = state.md.helpers.parseLinkLabel(state, inner - 1)
        if close < 0:
            return False
        after = _AFTER_BRACKET.match(src, close, limit)
        if not after and len(match[0]) == 1:
            return False
        if len(match[0]) == 1 and (
            src[start - 1 : start].isalnum() or src[start - 1 : start] in {"]", ")", "`"}
        ):
            return False
        end = after.end() if after else close + 1
    elif match["mark"]:
        mark = re.escape(match["mark"])
        closing = re.compile(
            rf"(?:(?<=\w){mark}|(?<=[^\w\s=+^~]){mark}(?!\w))(?![A-Za-z0-9=+^~])"
        ).search(src, inner + 1, min(limit, inner + _LONGEST))
        if not closing:
            return False
        close, end = closing.span()
    if not silent:
        if close >= 0:
            state.pos, state.posMax = inner, close
            state.push("span_open", "", 1)
            state.md.inline.tokenize(state)
            state.push("span_close", "", -1).meta = {"start": start, "inner": (inner, close)}
        else:
            state.push("dialect", "", 0).meta = {"start": start}
    state.pos, state.posMax = end, limit
    return True


ALT_END = re.compile(r"\]\(|\]\[|\]$")
_LINK_TITLE = re.compile(r"\s[\"'(][^\n]*[\"')]\s*\)\Z")
_DIRECTIVE = re.compile(
    r"\{(?!(?:code|math|mermaid|toctree|include|literalinclude|image|eval-rst)\b)[a-z]"
)


_TAG_NAME = re.compile(r"</?([\w.-]*)[\s/>]")


def find_tag_kind(markup: str) -> TagKind:
    """Return the kind of a tag of HTML or MDX."""
    name = _TAG_NAME.match(markup)
    if not name or name[1].lower() == "br":
        return "break" if name else "single"
    if markup.endswith("/>") or name[1].lower() in VOID:
        return "single"
    return "close" if markup.startswith("</") else "open"


def is_directive(info: str) -> bool:
    """Test for a fence of MyST whose content is not code, by the text after its mark."""
    return _DIRECTIVE.match(info) is not None


def find_untranslated(markup: str, *, is_read: bool) -> str:
    """Return a noun for the text in markup that is not translated, if any."""
    if markup.startswith(("[[", "![[")):
        return "wiki links" if has_letters(markup) else ""
    if markup.startswith("![") and not is_read and has_letters(ALT_END.split(markup[2:])[0]):
        return "alternative texts"
    if markup.startswith(("](", "![")) and (title := _LINK_TITLE.search(markup)):
        return "titles of links" if has_letters(title[0]) else ""
    return ""


class HeadingLinks:
    """Links to headings of the same file, whose anchors change with the translation."""

    def __init__(self) -> None:
        self._links: list[str] = []
        self._headings: set[str] = set()

    def add(self, content: str, *, is_heading: bool = False) -> None:
        """Add the links in the content of a block, and the anchor of a heading."""
        self._links += [match[1] or match[2] for match in _ANCHOR_LINK.finditer(content)]
        if is_heading and has_letters(content):
            text = _LINK_TARGET.sub("", content).strip().lower()
            self._headings.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))

    def count_dead(self, source: str) -> int:
        """Return the number of links to headings without an anchor of their own."""
        own = {match[1] for match in _OWN_ANCHOR.finditer(source)}
        return sum(
            link not in own
            and not self._headings.isdisjoint({link.lower(), re.sub(r"-\d+$", "", link.lower())})
            for link in map(unquote, self._links)
        )


_ANCHOR_LINK = re.compile(r"\]\(<?#([^)>\s]+)|\bhref=[\"']?#([^\"'\s>]+)")
_OWN_ANCHOR = re.compile(r"(?:\{[^{}\n]*#|\b(?:id|name)=[\"']?)([^\"'\s{}>]+)")
_LINK_TARGET = re.compile(r"\]\([^)]*\)|<[^>]*>")
