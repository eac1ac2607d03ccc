"""What became of a line."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from mt.decoding.engine import Hypothesis

_logger = logging.getLogger(__name__)

Status = Literal[
    "empty", "repeated", "length-limited", "copied", "unknown-characters", "split", "ok"
]
"""What is to be known of a line; where several hold it is the first of them.

The line or its translation is empty; the translation repeated itself and was made again; it was cut
at its length limit; it is the line itself; the tokenizer does not know some characters of the line;
the line was translated in parts; none of these.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A line as the engine saw it, or a part of a line that was split."""

    source: Sequence[int]
    """Its pieces, EOS last."""
    hypothesis: Hypothesis


@dataclass(frozen=True, slots=True)
class Alternative:
    """One translation of a line, among others."""

    text: str
    """Always one line."""
    score: float
    """The hypothesis's score; the sum of the parts' scores where the line was split."""
    parts: tuple[Part, ...]
    """What the engine translated: none where the line is blank, several where it was split."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The target pieces, those of the parts one after the other."""
        return tuple(chain.from_iterable(part.hypothesis.ids for part in self.parts))


@dataclass(frozen=True, slots=True)
class Translation:
    """What became of one input line."""

    line_number: int
    """From 1."""
    source: str
    """The line as it was given."""
    text: str
    """The translation, always one line."""
    status: Status
    score: float
    """That of the best of `alternatives`, 0 for a blank line."""
    notes: tuple[str, ...] = ()
    """What a user should know of it, such as that the line was split; see `log_notes`."""
    alternatives: tuple[Alternative, ...] = ()
    """As many as were asked for and found, best first: the first is the translation itself."""


def log_notes(translation: Translation) -> None:
    """Warn of what a user should know of a translation, with the number of its line."""
    for note in translation.notes:
        _logger.warning("line %d: %s", translation.line_number, note)
