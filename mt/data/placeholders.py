"""Placeholders in the messages of programs, such as `%s` and `{name}`, by their syntax."""

import functools
import re
from collections import Counter
from dataclasses import dataclass

from mt.errors import listed

_WIDTH = r"(?:\*(?:\d++\$)?|\d++)?(?:\.(?:\*(?:\d++\$)?|-?\d++)?)?"
"""Width and precision."""
_LENGTH = "(?:hh|ll|I64|I32|[hlLqjztw])?"


def _printf(
    conversions: str,
    *,
    argument: str = r"\d+\$",
    flags: str = "[-+#0',(I]*+",
    length: str = _LENGTH,
) -> str:
    """Return the pattern of a printf.

    After a space, a word that begins with the conversion is a part of it: `50% discount` has `% d`.
    """
    head, tail = rf"%(?:{argument})?{flags}", rf"{_WIDTH}{length}(?:{conversions})"
    return rf"%%|{head} [-+ #0]*+{tail}[A-Za-z]*|{head}{tail}"


_C = r"[diouxXcsfFeEgGaApnmCSbB]|<PRI\w+>"
_BRACES = r"\{\{|\}\}|\{(?>(?:[^{}]++|\{[^{}]*\})*)\}"
_TILDE = r"~(?:[-+]?\d+|'.|[vV#])?(?:,(?:[-+]?\d+|'.|[vV#])?)*[:@]*(?s:.)"
_GCC = (
    r"%(?:\d+\$)?[-+ #0q]*+(?:\d++|\*)?(?:\.(?:\d+|\*(?:\d+\$)?))?(?:hh|ll|[hlLjztw])?"
    r"[A-Za-z<>(){}'%]"
)
SYNTAXES = {
    "c": _printf(_C),
    "c++": _BRACES,
    "objc": _printf(_C + "|@"),
    "python": _printf(
        "[diouxXeEfFgGcrsa]", argument=r"\((?>(?:[^()]++|\([^()]*\))*)\)", length="[hlL]?"
    ),
    "python-brace": _BRACES,
    "java": _BRACES,
    "java-printf": _printf("[bBhHsScCdoxXeEfgGaAn]|[tT][A-Za-z]", argument=r"\d+\$|<", length=""),
    "csharp": _BRACES,
    "rust": _BRACES,
    "javascript": _printf("[sdifjcoOxX]", argument=r"\d+\$|\([^()]*\)"),
    "scheme": _TILDE,
    "lisp": _TILDE,
    "elisp": _printf("[sSdoxXeEfgGicu]"),
    "librep": _printf("[sSdoxXic]"),
    "ruby": r"%[-+ #0]*+(?:<\w+>)?[-+ #0\d.*]*+\{[^{}]*\}|"
    + _printf("[diouxXeEfFgGaAcspbB]", argument=r"\d+\$|<[^<>]+>"),
    "sh": r"\$\{[^{}]*\}|\$[A-Za-z_][A-Za-z0-9_]*",
    "sh-printf": _printf(_C),
    "awk": _printf(_C),
    "lua": _printf("[diouxXeEfFgGcqsaA]"),
    "object-pascal": _printf("[dDuUeEfFgGnNmMpPsSxX]", argument=r"\d+:", length=""),
    "modula2": _printf(_C),
    "d": _printf(_C + "|[(|)]"),
    "smalltalk": r"%\d+|%<[^<>]*>|<[^<>]*>|%%",
    "qt": r"%L?\d{1,2}|%L?n",
    "qt-plural": r"%L?n",
    "kde": r"%\d+",
    "kde-kuit": r"%\d+|</?[A-Za-z][^<>]*>",
    "boost": r"%\d+%|%\|[^|%]+\||" + _printf(_C),
    "tcl": _printf("[diouxXcsfeEgG]"),
    "perl": _printf("v?[csdiouxXeEfgGbBpnDUOF]"),
    "perl-brace": r"\{[A-Za-z_]\w*\}",
    "php": _printf("[bcdeEfFgGhHosuxX]", flags="(?>(?:[-+0]|'.){0,9})", length=""),
    "gcc-internal": _GCC,
    "gfc-internal": _GCC,
    "ycp": r"%[1-9%]",
    "go": _printf("[vTtbcdoOqxXUeEfFgGspw]", argument=r"\[\d+\]"),
}
"""Pattern of the placeholders of a syntax, by the flag of gettext for it without `-format`."""
_MARKS = {
    **dict.fromkeys(("c++", "python-brace", "java", "csharp", "rust"), "{}"),
    **dict.fromkeys(("perl-brace", "qt", "qt-plural", "kde", "kde-kuit"), ""),
    **{"sh": "$", "scheme": "~", "lisp": "~"},
}
"""Characters with a meaning in a syntax, `%` in the others; alone they are placeholders too."""

_UNIT = r"(?:s|ms|px|th|x|[kKMG]i?B)\b"
_QUOTED = "'[^'{}]*[{}][^']*'|"
"""Braces without a meaning in Java."""

# In running text:
_END = rf"(?:(?![A-Za-z0-9_])|(?={_UNIT}))"
_NO_PERCENTAGE = r"(?<!\d)(?<!\d[ \u00a0\u202f])"
_TEMPLATE = (
    r"\{\{\{?(?>(?:[^{}]++|\{[^{}]*+\})*)\}\}\}?|(?s:\{%(?>(?:(?!\{%|%\}).)*)%\}"
    r"|\{\#(?>(?:(?!\{\#|\#\}).)*)\#\}|<%(?>(?:(?!<%|%>).)*)%>)"
)
_GENERAL = "|".join(
    [
        _TEMPLATE,
        r"[$#%@]?\{[^{}\s]*+\}",
        r"[$#%]\{[^{}\n]*+\}",
        r"\{\s*+(?:[-$][A-Za-z]|[a-z_])[\w.-]*+\s*+\}",
        r"\{\s*+\w++\s*+,\s*+(?:number|date|time|choice|spellout|ordinal|duration)\b[^{}\n]*+\}",
        r"\{\s*+[A-Z_]++\([^{}()\n]*+\)\s*+\}",  # function of Fluent
        r"\{[\w.\[\]]*+(?:![rsa])?(?:,\s*+-?\d++)?:(?:\s?[<>^=%]|[^{}\s])[^{}\n]*+\}",
        rf"%\([^()\n]++\)[-+ #0]*+{_WIDTH}[hlL]?[diouxXeEfFgGcrsa]{_END}",
        rf"%\d+\$[-+#0']*+{_WIDTH}{_LENGTH}[diouxXcsfFeEgGaApn@]",
        rf"{_NO_PERCENTAGE}%[-+#0']*+{_WIDTH}{_LENGTH}(?:[diouxXcsfFeEgGaApnr@]{_END}|<PRI\w+>)",
        rf"(?<!\d)%{_LENGTH}[diouxXcsfFeEgGaApnr@]{_END}|%[sdif@]{_END}",
        r"%<\w+>[-+#0]*+[\d.]*+[diouxXeEfgGcs]",
        r"(?<![\w%])%[A-Za-z_][\w.-]++%(?![\w%])|%%(?:[A-Za-z_]\w++%%)?",
        r"(?<![\d%])%L?[1-9](?:%(?![\dL]))?(?![A-Za-z0-9_%])|%\|[\d$\w.]+\|",
        r"\$t\([^()\n]*+\)",
        r"(?<![\w$])\$(?!(?:US|CA|CAN|AU|NZ|HK|SG|TW)D?\b)[A-Za-z_][A-Za-z0-9_]++",
        r"(?<![^\s\"'“‘«(\[]):[a-z][a-z0-9_]++(?![\w:.-])",
        r"@(?:\.[a-z]+)?:(?:\{'[^'{}]*'\}|\([^()\s]*\)|[A-Za-z_]\w*+(?>(?:\.\w++)*))",
    ]
)


@dataclass(frozen=True, slots=True)
class Syntax:
    """Syntax of the placeholders in a message."""

    pattern: re.Pattern[str]
    hidden: re.Pattern[str]
    """Placeholders, with a unit after them, that leave the text of a document as tags do."""
    quotes: bool = False
    """True if an apostrophe quotes and two are one, as in Java."""


GENERAL = Syntax(re.compile(_GENERAL), re.compile(_TEMPLATE))
"""Placeholders that no running text has by chance: a percentage, `a:b` and `@home` are none."""
_IN_ORDER = re.compile(
    r"%(?!%|[({]|<\w+>.|\|?\d+[$:%|]|L?\d+\Z|[\w.-]+%\Z)|\{(?:[:!][^{}]*)?\}\Z|~(?!~)"
)
_PERCENT_FIRST = re.compile(r"%([1-9])")


@functools.cache
def find_syntax(flags: frozenset[str]) -> Syntax:
    """Return the syntax that the flags of a gettext message name; `GENERAL` without any."""
    names = sorted({flag.removesuffix("-format") for flag in flags} & {*SYNTAXES})
    if not names:
        return GENERAL
    marks = "".join(_MARKS.get(name, "%") for name in names)
    patterns = [SYNTAXES[name] for name in names] + [f"[{marks}]"] * bool(marks)
    quotes = "java" in names
    pattern = "|".join(patterns)
    hidden = (_QUOTED if quotes else "") + f"(?:{pattern})(?:{_UNIT})?"
    return Syntax(re.compile(pattern), re.compile(hidden), quotes)


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
