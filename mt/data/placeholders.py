"""Placeholders in the messages of programs, such as `%s` and `{name}`, by one grammar.

A placeholder is a mark or a bracket, attached to a name, a number or a conversion.
"""

import functools
import re
from collections import Counter
from dataclasses import dataclass

from mt.errors import listed

_NAME = r"(?a:[A-Za-z_](?>(?:[.-]?\w)*))"
_WIDTH = r"(?:\*(?:\d++\$)?|\d++)?(?:\.(?:\*(?:\d++\$)?|-?\d++)?)?"
"""Width and precision."""
_LENGTH = "(?:hh|ll|I64|I32|[hlLqjztwv]|[tT](?=[A-Z]))?"
_CONVERSION = r"(?:[A-Za-z]|@(?:\w++@)?|<PRI\w+>)"
_UNIT = r"(?:s|ms|px|th|x|[kKMG]i?B)\b"
_END = rf"(?:(?![A-Za-z0-9_])|(?={_UNIT}))"
_NO_AMOUNT = r"(?<!\d)(?<!\d[ \u00a0\u202f])"
"""Neither a percentage nor a price."""
_TEMPLATE = (
    r"[$#%@]?\{\{\{?(?>(?:[^{}]++|\{[^{}]*+\})*)\}\}\}?"
    r"|(?s:\{%(?>(?:(?!\{%|%\}).)*)%\}|\{\#(?>(?:(?!\{\#|\#\}).)*)\#\}|<%(?>(?:(?!<%|%>).)*)%>)"
)
_MARKS = "[$#%@{<_:[]"
_GENERAL = "|".join(
    [
        _TEMPLATE,
        r"[$#%@]?\{[^{}\s]*+\}|[$#%]\{[^{}\n]*+\}",
        rf"\{{\s*+(?:[$-]|(?![A-Z])){_NAME}\s*+\}}",
        # Attached to a name or brace: `{0,date short}`. A comma may have a space behind it.
        r"\{\s*+[\w.\[\]]*+(?:,\s*+[^\W\d]|\s*+[^\s\w{}.,;'’-][^\s{}])[^{}\n]*+\}",
        rf"%\([^()\n]++\)[-+ #0]*+{_WIDTH}[hlL]?[A-Za-z]{_END}",
        rf"{_NO_AMOUNT}[$#%@]\({_NAME}\)|[$#%@]\[[^\[\]\s]++\]",
        rf"\[\[{_NAME}\]\]|<<{_NAME}>>|\$\w++\([^()\n]*+\)",
        r"(?<![\w$#@%])(?P<mark>__|##?|@@?|\$\$?|%%?)(?a:[A-Za-z_](?>(?:[_.-]?[A-Za-z0-9])+))"
        r"(?P=mark)(?![\w%])",
        rf"%(?:\d+\$|<\w+>)[-+#0']*+{_WIDTH}{_LENGTH}{_CONVERSION}",
        rf"{_NO_AMOUNT}%[-+#0']*+{_WIDTH}{_LENGTH}(?:[A-Za-z]{_END}|@(?:\w++@)?|<PRI\w+>)",
        rf"(?<!\d)%{_LENGTH}[diouxXcsfFeEgGaApnr@]{_END}|%[sdif@]{_END}|%%",
        r"(?<![\d%])%L?[1-9](?:%(?![\dL]))?(?![A-Za-z0-9_%])|%\|[\d$\w.]+\|",
        rf"{_NO_AMOUNT}(?<![\w%$])(?:%[a-z][a-z0-9_][a-z0-9_]++(?!\w)|\$(?a:[A-Za-z_]\w++))"
        r"(?![ \u00a0]?\d)",
        r"(?<![^\s\"'“‘«(\[]):[a-z][a-z0-9_]++(?![\w:.-])",
        rf"@(?:\.[a-z]+)?:(?:\{{'[^'{{}}]*'\}}|\([^()\s]*\)|{_NAME})",
    ]
)


class TaggedText(str):
    """Text without its inline tags, which return to its translation; no memory has such texts."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """Syntax of the placeholders in a message."""

    pattern: re.Pattern[str]
    hidden: re.Pattern[str]
    """Placeholders, with a unit after them, that leave the text of a document as tags do."""
    quotes: bool = False
    """True if an apostrophe quotes and two are one, as in Java."""


GENERAL = Syntax(re.compile(rf"(?={_MARKS})(?:{_GENERAL})"), re.compile(_TEMPLATE))
"""Placeholders that no running text has by chance: a percentage, `a:b` and `@home` are none.

The first characters stand alone in front, which makes searches faster.
"""
_QUOTED = "'[^'{}]*[{}][^']*'|"
"""Braces without a meaning in Java."""
_PRINTF_HEAD = r"%(?:\d+[:$]|\([^()]*+\)|<[^<>]*+>|\[\d+\])?"
_PRINTF_TAIL = rf"{_WIDTH}{_LENGTH}{_CONVERSION}"
_FLAGS = r"(?:[-+#0,(Iq]|'(?:[^A-Za-z](?=\d))?)"
_FLAGGED = {
    # After a space, a word that begins with the conversion is a part of it: `50% discount`.
    "%": (
        rf"%<PRI\w+>|{_PRINTF_HEAD}(?>(?:{_FLAGS}|\ )*)(?<=\ ){_PRINTF_TAIL}[A-Za-z]*"
        rf"|{_PRINTF_HEAD}(?>{_FLAGS}*){_PRINTF_TAIL}",
        r"%[<>(){}'|]?",
    ),
    "{": (r"\{\{|\}\}|\{(?>(?:[^{}]++|\{[^{}]*+\})*)\}", "[{}]"),
    "~": (r"~(?:[-+]?\d+|'.|[vV#])?(?:,(?:[-+]?\d+|'.|[vV#])?)*[:@]*(?s:.)", "~"),
    "1": (r"%L?(?:\d{1,2}|n)", "(?!)"),
}
"""What else is a placeholder in messages with a flag: conversions, and at last the mark alone."""
_FAMILIES = {
    **dict.fromkeys(("c++", "python-brace", "java", "csharp", "rust", "perl-brace"), "{"),
    **dict.fromkeys(("scheme", "lisp"), "~"),
    **dict.fromkeys(("qt", "qt-plural", "kde", "kde-kuit"), "1"),
}
"""Kind of the placeholders by the flag of gettext without `-format`; of others it is `%`."""


@functools.cache
def find_syntax(flags: frozenset[str]) -> Syntax:
    """Return the syntax that the flags of a gettext message name; `GENERAL` without any."""
    names = {
        flag.removesuffix("-format")
        for flag in flags
        if flag.endswith("-format") and not flag.startswith(("no-", "possible-", "impossible-"))
    }
    if not names:
        return GENERAL
    kinds = [_FLAGGED[kind] for kind in sorted({_FAMILIES.get(name, "%") for name in names})]
    pattern = "|".join([first for first, _ in kinds] + [_GENERAL] + [last for _, last in kinds])
    quotes = "java" in names
    hidden = (_QUOTED if quotes else "") + f"(?:{pattern})(?:{_UNIT})?"
    return Syntax(re.compile(pattern), re.compile(hidden), quotes)


_IN_ORDER = re.compile(
    rf"%(?!%|[({{[]|<\w+>.|\|?\d+[$:%|]|L?\d+\Z|\#?@\w|[\w.-]+%\Z"
    rf"|(?!{_LENGTH}[A-Za-z](?:{_UNIT})?\Z)[A-Za-z_]\w+\Z)|\{{(?:[:!][^{{}}]*)?\}}\Z|~(?!~)"
)
_PERCENT_FIRST = re.compile(r"%([1-9])")


def is_in_order(placeholder: str) -> bool:
    """Test for a placeholder without name or number: its place among the others is its meaning."""
    return _IN_ORDER.match(placeholder) is not None


def is_percentage(placeholder: str, translation: str) -> bool:
    """Test for a placeholder such as `%5` that a translation has as a percentage, as in Turkish."""
    match = _PERCENT_FIRST.fullmatch(placeholder)
    return match is not None and re.search(rf"{match[1]}\s?[%٪％]", translation) is not None


def describe_changes(source: str, translation: str, syntax: Syntax) -> str:
    """Return the placeholders that a translation lacks, adds or reorders in words, or nothing."""
    before, after = (
        [part[0] for part in syntax.pattern.finditer(text)] for text in (source, translation)
    )
    lost = Counter(before) - Counter(after)
    missing = [part for part in lost if not is_percentage(part, translation)]
    invented = list(Counter(after) - Counter(before))
    changes = [f"lacks {listed(missing)}"] if missing else []
    if invented:
        changes.append(f"adds {listed(invented)}")
    in_order, reordered = (list(filter(is_in_order, parts)) for parts in (before, after))
    if not changes and in_order != reordered:
        changes = [f"changes the order of {listed(dict.fromkeys(in_order))}"]
    return " and ".join(changes)
