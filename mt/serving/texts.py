"""Texts of any number of lines, for a translator of lines."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from mt.decoding.translation import Status, Translation

# What the translator takes for line ends as well.
_LINE_END = re.compile(r"(\r\n|\r|\n)")
_STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class Text:
    """A text as its lines and what stands between them."""

    lines: tuple[str, ...]
    ends: tuple[str, ...]
    """One fewer than lines."""

    def join(self, lines: Sequence[str]) -> str:
        """Return other lines with the ends that stand between those of this text."""
        pairs = zip(lines, (*self.ends, ""), strict=True)
        return "".join(part for pair in pairs for part in pair)


def read_text(text: str) -> Text:
    """Return a text cut at its line ends: newline, carriage return, or both."""
    parts = _LINE_END.split(text)
    return Text(tuple(parts[::2]), tuple(parts[1::2]))


def status_of(translations: Sequence[Translation]) -> Status:
    """Return the first of the lines' statuses in the order of `Status`, blank lines aside."""
    told = [each.status for each in translations if each.source.strip()]
    return min(told, key=_STATUSES.index, default="empty")


def notes_of(translations: Sequence[Translation]) -> Iterator[str]:
    """Yield what is to be known of a text, with the line's number where it has several."""
    for number, translation in enumerate(translations, start=1):
        place = f"line {number}: " if len(translations) > 1 else ""
        yield from (place + note for note in translation.notes)
