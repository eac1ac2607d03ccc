"""Noise on source sentences: case, punctuation, typos; and noise for back-translation.

Edunov et al. 2018, "Understanding Back-Translation at Scale", section 3, drop, mask and move words
of synthetic sources, which makes them less regular.
"""

import re
import unicodedata
from dataclasses import dataclass
from random import Random

from mt.errors import UserError
from mt.languages import written_without_spaces

_TYPO_SHARE = 0.1
"""Share of words with a typo in a line with typos; at least one word gets one."""
_WORD = re.compile(r"[^\W\d_]{4,}")
"""Words long enough to be recognized with a typo."""
_INSIDE = frozenset("'’-‐.,:/·")
"""Marks that are part of a word or number when inside it: don't, 3.14, well-known."""
_MEANS_SOMETHING = frozenset("%‰&@#*/\\_§¶")
"""Punctuation by Unicode, but with the meaning of words."""


def in_capitals(text: str, _random: Random) -> str:
    """Return a text in capital letters."""
    return text.upper()


def without_punctuation(text: str, _random: Random) -> str:
    """Return a text without punctuation; a text of punctuation alone is unchanged."""
    kept = [character for place, character in enumerate(text) if not _is_punctuation(text, place)]
    left = re.sub(" {2,}", " ", "".join(kept)).strip()
    return left or text


def with_typos(text: str, random: Random) -> str:
    """Return a text with typos in words of four letters or more.

    A typo swaps two neighbouring letters, drops a letter or doubles it.
    """
    words = list(_WORD.finditer(text))
    chosen = [word for word in words if random.random() < _TYPO_SHARE]
    if words and not chosen:
        chosen = [words[int(random.random() * len(words))]]
    for word in reversed(chosen):  # from the end, so that positions stay valid
        text = text[: word.start()] + _misspelt(word[0], random) + text[word.end() :]
    return text


def _is_punctuation(text: str, place: int) -> bool:
    character = text[place]
    if not unicodedata.category(character).startswith("P") or character in _MEANS_SOMETHING:
        return False
    between = text[max(0, place - 1) : place], text[place + 1 : place + 2]
    return character not in _INSIDE or not all(map(str.isalnum, between))


def _misspelt(word: str, random: Random) -> str:
    """Return a word with a typo after its first letter; repeated letters may hide it."""
    place = 1 + int(random.random() * (len(word) - 2))
    first, second = word[place], word[place + 1]
    kinds = (second + first, second, first + first + second)
    return word[:place] + kinds[int(random.random() * len(kinds))] + word[place + 2 :]


FILLER = "<blank>"
"""Replaces a masked word."""
_UNIT = re.compile(r"\s*(?:[0-9A-Za-z]+|\S)")
"""Word in a text without spaces: a character, or a run of Latin letters."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Strength of back-translation noise; the paper uses 0.1, 0.1 and 3."""

    drop: float = 0.0
    """Probability to drop a word."""
    mask: float = 0.0
    """Probability to replace a remaining word by `FILLER`."""
    swap: int = 0
    """Largest distance that a word moves."""

    def __post_init__(self) -> None:
        for name, share in (("drop", self.drop), ("mask", self.mask)):
            if not 0 <= share < 1:
                raise UserError(f"--{name} {share}: is a probability from 0 to less than 1")
        if self.swap < 0:
            raise UserError(f"--swap {self.swap}: is a number of places, 0 or more")

    def on(self, text: str, *, language: str, seed: int, line: int) -> str:
        """Return a text with noise; it follows from the seed, the line number and the text.

        At least one word remains. With noise, white space becomes single spaces.
        """
        if self == Noise():
            return text
        random = Random(f"{seed} {line}")
        apart = not written_without_spaces(language)
        words = text.split() if apart else _UNIT.findall(text)
        kept = [word for word in words if random.random() >= self.drop] or words[:1]
        masked = [FILLER if random.random() < self.mask else word for word in kept]
        # Sorting by position plus a random number below swap + 1 limits the distance to swap.
        keys = [place + random.random() * (self.swap + 1) for place in range(len(masked))]
        order = sorted(range(len(masked)), key=keys.__getitem__)
        return (" " if apart else "").join(masked[place] for place in order).strip()
