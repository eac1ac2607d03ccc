"""Parser of Markdown: CommonMark with tables, strikethrough and the markup of its dialects.

The dialects are those of GitHub, MkDocs, Docusaurus, MDX, MyST, Hugo, Jekyll, Pandoc and wikis. A
line of their markup becomes a block, and inline markup a token; the text around and inside them is
read as any other. The inline rules of markdown-it-py are wrapped to keep the places of tokens.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mt.documents.html import VOID, is_protected, scan, skip_element
from mt.documents.tags import TagKind
from mt.errors import DataError, install_hint

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.ruler import RuleOptionsType
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_BRACES = r"\{(?>(?:[^{}]++|\{(?>(?:[^{}]++|\{[^{}]*+\})*)\})*)\}"
_ATTRIBUTES = r"\{(?::|\s*[#.][\w-]|@\w|\s*[\w:-]+=(?!>))[^{}\n]*\}"
_TEMPLATE = (
    r"(?:\{\{\{?(?>(?:(?!\{\{|\}\}).)*)\}\}\}?|\{%(?>(?:(?!\{%|%\}).)*)%\}"
    r"|\{\#(?![\w-]+\})(?>(?:(?!\{\#|\#\}).)*)\#\}|<%(?>(?:(?!<%|%>).)*)%>)"
)
_JSX_VALUE = rf"\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|{_BRACES})"
_JSX_ATTRIBUTES = rf"(?>(?:\s++(?:[\w:.-]++(?>(?:{_JSX_VALUE})?)|{_BRACES}))*)"
_JSX = rf"(?:</?[A-Za-z][\w.]*+{_JSX_ATTRIBUTES}\s*+/?>|</?>)"
_ADMONITION = (
    r"\{(?:admonition|attention|caution|danger|error|hint|important|note|seealso|tip|warning|todo|"
    r"dropdown|card|tab-item|topic|sidebar|details|versionadded|versionchanged|deprecated)\}"
)
_REST = r"\s*(?:\{[^{}]*\})?\s*"
_FORMULA_SIGN = r"(?:\\[A-Za-z]|[\^_={}<>]|\w\s*[+*/]\s*\w)"
_INDENTED = "indented text"
_FENCE = "fence"
_CODE_END = r"^[)}\]].*$"
_BLOCKS = [
    (re.compile(opening), re.compile(ending, re.MULTILINE))
    for opening, ending in (
        (r"(?:!!!|\?\?\?\+?)\s*[\w-]+(?:\s+[\w-]+)*(?:\s+([\"'])(?P<title>.*)\1)?$", _INDENTED),
        (r"===[!+]*\s+([\"'])(?P<title>.*)\1$", _INDENTED),
        (r"\[\^[^\]\s]+\]:(?=$|\s+\S+\s+[^\s\"'(])|:[ \t]+(?=\S)", _INDENTED),
        (rf"(?P<fence>`{{3,}}|~{{3,}})(?:{_ADMONITION}\s*(?P<title>\S.*)?)?$", _FENCE),
        (r"\[![A-Za-z][\w-]*(?:\|[^\]]*)?\][-+]?(?:\s+(?P<title>\S.*))?$", ""),
        (r":{3,}\s*[\w-]+\s*\[(?P<title>.+)\]" + _REST + "$", ""),
        (rf":{{3,}}\s*(?:[\w-]+|{_ADMONITION})\s+(?P<title>[^\s={{:\[][^={{]*?){_REST}:*$", ""),
        (r"/{3,}\s*[\w-]+\s*\|\s*(?P<title>\S.*)$", ""),
        (rf":{{3,}}|(?:{_TEMPLATE}\s*)+$|{_ATTRIBUTES}$|(?=</?[A-Z>]){_JSX}$", ""),
        (r"(?:@?\[(?:TOC|toc)\]|\[\[_?(?:TOC|toc)_?\]\]|\$\{toc\})$", ""),
        (r";?-{1,2}8<-{1,2}|<<<\s|@(?:include|code)\b|\*\[[^\]]+\]:|\([\w.:-]+\)=$", ""),
        (r"/{3,}(?:\s*[\w-]+)?$|\\(?!begin\b)[A-Za-z]+\*?(?:\{[^{}]*\}|\[[^\[\]]*\])*$", ""),
        (r"\$\$", r"\$\$"),
        (rf"\\\\?\[(?=$|.*{_FORMULA_SIGN})", r"\\\]"),
        (r"\\begin\{", r"\\end\{[\w*]+\}"),
        (r"\{/\*", r"\*/\}"),
        (r"\{\{[<%]?", r"\}\}"),
        (r"\{%", r"%\}"),
        (r"(?:import|export)\s.*[({\[]$|\{(?:[^}]*[({\[])?$", _CODE_END),
        (r"<[A-Z][\w.]*(?:\s[^<>]*)?\{[^}]*$", r"^\s*[)}\]]*/?>"),
        (r"import\s+(?:[\w*{$][^'\"]*\sfrom\s+)?(['\"])[^'\"]+\1\s*;?$", ""),
        (r"export\s+(?:(?:const|let|var|type)\s[^=]+=|[{*]|default\s+(?:\w+;?$|.*[({;]))", ""),
        (r"export\s+\w+\s.*\{.*\}$", ""),
    )
]
"""First line of a block of markup, with a title or not, and its end: "" after this line."""
_FIRST = "[:/!?=`~{<$\\*;-@(ie"
_TAIL = re.compile(r"\s*(?:\{[^{}]*\}|\([\w:.-]+\))?\s*$")
_OPTION = re.compile(r":[\w-]+:(?:\s|$)")
_LONGEST = 300
_TEXT_INDENT = 4

_EXPRESSION = r"=>|\w\(|(['\"`]).*\1|&&|\|\||</|\?\.|\{\s*\.\.\.|^\{\s*[\w.$\[\]()-]*\s*\}$"
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
    ("{<", rf"{_TEMPLATE}|{_ATTRIBUTES}|\{{/\*(?>(?:(?!\*/).)*)\*/\}}", ""),
    ("{:", r"(?:\{[\w:.+-]+\}|(?<![\w:]):[A-Za-z][\w:.+-]*:)`[^`]+`", ""),
    ("{", _BRACES, _EXPRESSION),
    ("%", r"%%[^%\n]++%%", ""),
    ("[", r"\[\^[^\]\s]+\]:?|\[[ xX]\](?=\s)", ""),
    ("![", r"!?\[(?P<label>\[[^\[\]\n]+\]|-?@[\w:.-]+[^\[\]\n]*)\](?![(\[:])", ""),
    (":", r"(?<![A-Za-z0-9:]):(?:[+-]1|\w*[a-z][\w+-]*):(?![A-Za-z0-9:])", ""),
    ("@", r"(?<![A-Za-z0-9./@])@[A-Za-z0-9][\w-]*(?:/[\w.-]*\w)?", ""),
    ("$", r"\$`[^`]+`\$|(?<!\$)\$\$(?!\$)(?:\\.|[^$\\]){1,1000}\$\$", ""),
    (
        "$",
        r"(?<![A-Za-z0-9$])\$(?![\s$])(?:\\.|[^$\\`]){1,1000}(?<!\s)\$"
        r"(?:(?![\w$])|(?=[^\x00-\x7f])|(?=(?:th|st|nd|rd|s)\b))",
        rf"{_FORMULA_SIGN}|\A(?!{_PROSE})",
    ),
    ("\\", r"\\\\?\((?:(?!\\\))[^`]){1,300}?\\\\?\)", rf"{_FORMULA_SIGN}|\(\s*[A-Za-z]\s*\\"),
    ("\\", r"\\\\?\[(?:(?!\\\]|\]\()[^`]){1,1000}?\\\\?\]", _FORMULA_SIGN),
    ("+", r"\+\+[\w\"-]+(?:\+[\w\"-]+)*\+\+(?![\w+])", ""),
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
    ("<", _JSX, ""),
]
"""Pairs of marks with text between them, and tags of MDX, if they are nothing in CommonMark."""


def build_parser() -> "MarkdownIt":
    """Return a parser whose inline tokens of markup have their place in `meta["span"]`.

    Raises DataError if markdown-it-py is not installed.
    """
    try:
        from markdown_it import MarkdownIt, rules_inline  # an optional package
    except ModuleNotFoundError as error:
        hint = install_hint("documents")
        raise DataError(f"reading Markdown needs markdown-it-py: {hint}") from error
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.inline.ruler2.disable("fragments_join")  # it would merge the marks of emphasis
    interrupted: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("fence", "dialect", _read_block, interrupted)
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
    parser.inline.ruler.before("newline", "dialect", _build_rule(_MARKUP))
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
            state.push("dialect", "", 0).meta["span"] = match.span()
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
            label = " ".join((match.groupdict().get("label") or "").split()).lower().upper()
            if label in state.env.get("references", {}):
                continue
            limit = state.posMax
            if not silent and "inner" in pattern.groupindex:
                state.pos, state.posMax = match.span("inner")
                state.push("span_open", "", 1).meta["span"] = match.start(), state.pos
                state.md.inline.tokenize(state)
                state.push("span_close", "", -1).meta["span"] = match.end("inner"), match.end()
            elif not silent:
                state.push("dialect", "", 0).meta["span"] = match.span()
            state.pos, state.posMax = match.end(), limit
            return True
        return False

    return read


@dataclass(frozen=True, slots=True)
class Part:
    """Text or inline markup in the content of a block."""

    start: int
    end: int
    text: str | None = None
    kind: TagKind = "single"
    markup: str | None = None
    """Markup beside a changed text, if not that of the content."""


def read_parts(parser: "MarkdownIt", content: str, env: dict[str, Any]) -> list[Part]:
    """Return the text and markup of the content of a block in order."""
    tokens: list[Token] = []
    parser.inline.parse(content, parser, env, tokens)
    spans = [token for token in tokens if "span" in token.meta]
    parts: list[Part] = []
    end = 0
    for token in sorted(spans, key=lambda token: token.meta["span"]):
        if token.meta["span"][0] < end:  # inside an element that is not translated
            continue
        for part in _read_token(token, content):
            if end < part.start:
                parts.append(Part(end, part.start, content[end : part.start]))
            parts.append(part)
            end = part.end
    return [*parts, Part(end, len(content), content[end:])] if end < len(content) else parts


def _read_token(token: "Token", content: str) -> Iterator[Part]:
    start, end = token.meta["span"]
    if token.type == "softbreak":
        yield Part(start, end, " ")
    elif token.type == "hardbreak":
        before = len(content[:start].rstrip(" ")) if content[start] == "\n" else start
        yield Part(before, end, kind="break")
    elif token.type == "text_special":
        yield Part(start, end, token.content)
    elif content[start] == "<":
        tags = scan(content, start)
        tag = next(tags)
        if is_protected(content, tag):
            end = skip_element(content, tag, tags, is_xml=False)[0]
        yield Part(start, end, kind=find_tag_kind(content[start:end]))
    elif token.nesting > 0:  # of strong emphasis, the inner mark is the token
        yield Part(end - len(token.markup) if token.markup else start, end, kind="open")
    elif token.nesting < 0:
        end = start + len(token.markup) if token.markup else end
        yield Part(start, end, kind="close", markup=token.meta.get("markup"))
    elif token.type != "text":
        yield Part(start, end)


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
    """Read lines of markup, a title in them, and a text that is indented below."""
    line = _get_line(state, start)
    if line[:1] not in _FIRST or state.is_code_block(start):
        return False
    if silent and line.startswith("[^"):  # no definition of a link inside a paragraph
        return "]:" in line
    for pattern, ending in _BLOCKS:
        match = pattern.match(line)
        last = _find_end(state, match, ending, start, end) if match else 0
        if match and last:
            if not silent and ending.pattern == _INDENTED:
                _read_indented(state, match, start, end)
            elif not silent:
                _push_line(state, match, start, last, end)
            return True
    return False


def _find_end(
    state: "StateBlock", match: re.Match[str], ending: re.Pattern[str], start: int, end: int
) -> int:
    """Return the number of the line after markup that begins with a match, 0 if it is text."""
    fence_ends = state.env.setdefault("fence_ends", set())
    is_block = not ending.pattern or start in fence_ends
    if ending.pattern == _FENCE and "{" in match[0]:
        closing = re.compile(rf"{match['fence']}{match['fence'][0]}*$")
        lines = range(start + 1, min(end, start + _LONGEST))
        last = next((line for line in lines if closing.match(_get_line(state, line))), 0)
        fence_ends.add(last)
        is_block = last > 0
    elif ending.pattern == _INDENTED:
        indent = state.sCount[start] + _TEXT_INDENT
        is_block = (
            match.end() < len(match.string)
            or bool(match.groupdict().get("title"))
            or (start + 1 < end and (state.isEmpty(start + 1) or state.sCount[start + 1] >= indent))
        )
    elif ending.pattern and ending.pattern != _FENCE:
        limit = min(end, start + _LONGEST)
        first = state.bMarks[start] + state.tShift[start] + match.end()
        found = ending.search(state.src, first, state.eMarks[limit - 1])
        if not found:
            return 0
        last = bisect_right(state.bMarks, found.end() - 1, hi=limit)
        is_inside = all(
            state.isEmpty(number) or state.sCount[number] >= state.blkIndent
            for number in range(start + 1, last)
        )
        is_last = _TAIL.match(state.src, found.end(), state.eMarks[last - 1])
        return last if is_last and is_inside else 0
    return start + 1 if is_block else 0


def _push_line(state: "StateBlock", match: re.Match[str], start: int, last: int, end: int) -> None:
    """Add the lines of markup of a match, or the title in them."""
    line = match.string
    groups = match.groupdict(default="")
    title = groups.get("title", "").strip()
    token = state.push("inline" if title else "line", "", 0)
    token.content, token.map, token.children = title or line, [start, last], []
    if title:
        after = f"{line[match.end('title') :]}\n{groups.get('fence', '')}".rstrip("\n")
        token.meta = {"frame": (line[: match.start("title")], after)}
    while line[0] in ":`~" and last < end and _OPTION.match(_get_line(state, last)):
        last += 1
    state.line = last


def _read_indented(state: "StateBlock", match: re.Match[str], start: int, end: int) -> None:
    """Read the text beside and below a mark."""
    old = state.blkIndent, state.bMarks[start], state.tShift[start], state.sCount[start]
    indent = state.sCount[start] + _TEXT_INDENT
    beside = match.string[match.end() :].lstrip()
    first = start
    if beside:
        state.bMarks[start] += state.tShift[start] + len(match.string) - len(beside)
        state.tShift[start], state.sCount[start] = 0, indent
    else:
        _push_line(state, match, start, start + 1, end)
        first = state.line
    state.blkIndent = indent
    state.push("body_open", "", 1)
    state.md.block.tokenize(state, first, end)
    state.push("body_close", "", -1)
    state.blkIndent, state.bMarks[start], state.tShift[start], state.sCount[start] = old
