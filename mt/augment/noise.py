"""Noise on a translation: words that are dropped, masked or moved.

Edunov et al. 2018, "Understanding Back-Translation at Scale", section 3: a forward model learns
more from a synthetic source that is not too regular.
"""

import re
from dataclasses import dataclass
from random import Random

from mt.errors import UserError
from mt.languages import written_without_spaces

FILLER = "<blank>"
"""What stands for a masked word."""

_UNIT = re.compile(r"\s*(?:[0-9A-Za-z]+|\S)")
"""A word where words stand without spaces: a character, or one in Latin letters."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How much of it; the paper has 0.1, 0.1 and 3."""

    drop: float = 0.0
    """The probability that a word is dropped."""
    mask: float = 0.0
    """The probability that a word that stays is replaced by `FILLER`."""
    swap: int = 0
    """How many places a word moves at most."""

    def __post_init__(self) -> None:
        for name, share in (("drop", self.drop), ("mask", self.mask)):
            if not 0 <= share < 1:
                raise UserError(f"--{name} {share}: is a probability from 0 to less than 1")
        if self.swap < 0:
            raise UserError(f"--swap {self.swap}: is a number of places, 0 or more")

    def on(self, text: str, *, language: str, seed: int, line: int) -> str:
        """Return a text with noise that follows from the seed, the line's number and the text.

        One word at the least stays. White space becomes one space where there is noise at all.
        """
        if self == Noise():
            return text
        random = Random(f"{seed} {line}")
        apart = not written_without_spaces(language)
        words = text.split() if apart else _UNIT.findall(text)
        kept = [word for word in words if random.random() >= self.drop] or words[:1]
        masked = [FILLER if random.random() < self.mask else word for word in kept]
        # A place and up to `swap` more: sorted by that, no word moves further.
        keys = [place + random.random() * (self.swap + 1) for place in range(len(masked))]
        order = sorted(range(len(masked)), key=keys.__getitem__)
        return (" " if apart else "").join(masked[place] for place in order).strip()
