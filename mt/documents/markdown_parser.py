"""Parser of Markdown: CommonMark, GFM, and general rules about the marks of other dialects.

The inline rules of markdown-it-py are wrapped to keep the places of tokens.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from mt.documents.html import BLOCK, VOID, is_protected, scan, skip_element
from mt.documents.segments import Fragment, Options, merge_pairs
from mt.documents.tags import TagKind
from mt.errors import DataError, install_hint

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.ruler import RuleOptionsType
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

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
    """Return a parser whose inline tokens of markup have their place in `meta["span"]`.

    Raises DataError if markdown-it-py is not installed.
    """
    try:
        from markdown_it import MarkdownIt, rules_block, rules_inline  # an optional package
    except ModuleNotFoundError as error:
        hint = install_hint("documents")
        raise DataError(f"reading Markdown needs markdown-it-py: {hint}") from error
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.inline.ruler2.disable("fragments_join")  # it would merge the marks of emphasis
    interrupted: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("fence", "marks", _read_block, interrupted)
    parser.block.ruler.at(
        "html_block",
        partial(_read_html_block, rules_block.html_block),
        {"alt": ["paragraph", "reference", "blockquote"]},
    )
    rules = {
        "backticks": rules_inline.backtick,
        "strikethrough": rules_inline.strikethrough.tokenize,
        "emphasis": rules_inline.emphasis.tokenize,
    }
    for name in ("newline", "escape", "link", "image", "autolink", "html_inline", "entity"):
        rules[name] = getattr(rules_inline, name)
    for name, rule in rules.items():
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
        yield Fragment(start, end, None, find_tag_kind(content[start:end]))
    elif token.nesting > 0:  # of strong emphasis, the inner mark is the token
        yield Fragment(end - len(token.markup) if token.markup else start, end, None, "open")
    elif token.nesting < 0:
        end = start + len(token.markup) if token.markup else end
        yield Fragment(start, end, None, "close", markup=token.meta.get("markup"))
    elif token.type != "text":
        yield Fragment(start, end, None)


_TAG_NAME = re.compile(r"</?([\w.-]*)[\s/>]")


def find_tag_kind(markup: str) -> TagKind:
    """Return the kind of a tag of HTML or MDX, or of an element that is not translated."""
    name = _TAG_NAME.match(markup)
    if name and name[1].lower() == "br":
        return "break"
    is_single = not name or name[1].lower() in VOID or markup.endswith("/>") or "</" in markup[1:]
    return "single" if is_single else "close" if markup.startswith("</") else "open"


def _get_line(state: "StateBlock", number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()


def _read_block(state: "StateBlock", start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 - as it is called
    """Read a line of marks or lines of markup, or a mark and the text that is indented below it."""
    line = _get_line(state, start)
    if not line or state.is_code_block(start):
        return False
    if silent and line.startswith("[^"):  # no definition of a link inside a paragraph
        return "]:" in line
    if body := _BODY.match(line):
        if not silent:
            _read_indented(state, line[body.end() :].lstrip(), start, end)
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


def _read_indented(state: "StateBlock", beside: str, start: int, end: int) -> None:
    """Read the text beside and below a mark."""
    old = state.blkIndent, state.bMarks[start], state.tShift[start], state.sCount[start]
    indent = state.sCount[start] + _TEXT_INDENT
    first = start
    if beside:
        line = _get_line(state, start)
        state.bMarks[start] += state.tShift[start] + len(line) - len(beside)
        state.tShift[start], state.sCount[start] = 0, indent
    else:
        _push_line(state, _get_line(state, start), start, start + 1)
        first = state.line
    state.blkIndent = indent
    state.push("body_open", "", 1)
    state.md.block.tokenize(state, first, end)
    state.push("body_close", "", -1)
    state.blkIndent, state.bMarks[start], state.tShift[start], state.sCount[start] = old


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
