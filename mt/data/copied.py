"""Text that a translation repeats unchanged: addresses, placeholders, emoji and numbers."""

import re
from collections import Counter

from mt.data.pair_checks import numbers_differ

_ENDS = r"\s<>\"'“”‘’«»，。！？；：、（）【】《》「」"
_COPIED = re.compile(
    rf"https?://[^{_ENDS}]*[^{_ENDS}.,;:!?)]"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|\$?\{\w*\}|%\(\w+\)[sdif]|%[sdif](?!\w)|\$[A-Z_][A-Z0-9_]+"
    "|[\u2600-\u27bf\U0001f300-\U0001faff]",
    re.ASCII,
)
_NUMBER = re.compile(r"\d(?:[.,:\u00a0\u202f]?\d)*")
_LONG = 3
"""Digits of a number that is not written in words."""


def copied_parts(text: str) -> list[str]:
    """Return the addresses of the web and of e-mail, placeholders and emoji of a text."""
    return _COPIED.findall(text)


def not_copied(source: str, translation: str) -> list[str]:
    """Return the parts of a source that a translation lacks; of its numbers, those that differ.

    A short number that the translation may have in words is no difference.
    """
    wanted = Counter(copied_parts(source))
    lacking = [part for part, count in wanted.items() if translation.count(part) < count]
    source, translation = _COPIED.sub(" ", source), _COPIED.sub(" ", translation)
    written = set(_NUMBER.findall(translation))
    numbers = [number for number in _NUMBER.findall(source) if number not in written]
    if numbers_differ(source, translation):
        lacking += numbers
    elif not written:
        lacking += [number for number in numbers if sum(map(str.isdigit, number)) >= _LONG]
    return lacking
