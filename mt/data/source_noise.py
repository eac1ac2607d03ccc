"""Noise on training sources, so that a model bears what people type: a function each.

Belinkov and Bisk 2018, "Synthetic and Natural Noise Both Break Neural Machine Translation": a
model that has seen noise in training is less harmed by it. What a line gets follows from the seed,
the kind of noise and the line's number alone.
"""

import re
import unicodedata
from collections.abc import Callable
from random import Random

from mt.config.cleaning import CleaningConfig

_TYPO_SHARE = 0.1
"""The share of words that get a typo where a line gets any; one word gets one in any case."""
_WORD = re.compile(r"[^\W\d_]{4,}")
"""Letters alone, and enough of them to be recognised with a typo."""
_INSIDE = frozenset("'’-‐.,:/·")
"""Marks that belong to a word or a number where they stand inside it: don't, 3.14, well-known."""
_MEANS_SOMETHING = frozenset("%‰&@#*/\\_§¶")
"""Unicode calls these punctuation, but they stand for words."""


def in_capitals(text: str, _random: Random) -> str:
    """Return a text in capital letters."""
    return text.upper()


def without_punctuation(text: str, _random: Random) -> str:
    """Return a text without its punctuation, unless it holds nothing else."""
    kept = [character for place, character in enumerate(text) if not _is_punctuation(text, place)]
    left = re.sub(" {2,}", " ", "".join(kept)).strip()
    return left or text


def with_typos(text: str, random: Random) -> str:
    """Return a text with typos in words of four letters and more, if there are any.

    A typo swaps two letters that stand side by side, drops a letter, or writes it twice.
    """
    words = list(_WORD.finditer(text))
    chosen = [word for word in words if random.random() < _TYPO_SHARE]
    if words and not chosen:
        chosen = [words[int(random.random() * len(words))]]
    for word in reversed(chosen):  # from behind, so that places stay what they are
        text = text[: word.start()] + _misspelt(word[0], random) + text[word.end() :]
    return text


NOISES: dict[str, Callable[[str, Random], str]] = {
    "noise_case": in_capitals,
    "noise_punctuation": without_punctuation,
    "noise_typos": with_typos,
}
"""What is done to a share of the sources, by key of `data.cleaning`, in this order."""


def noised(text: str, settings: CleaningConfig, *, line: int) -> tuple[str, tuple[str, ...]]:
    """Return a text with the noise that its line gets, and the kinds that have changed it."""
    changed = []
    for name, change in NOISES.items():
        share = getattr(settings, name)
        random = Random(f"{settings.noise_seed} {name} {line}")
        if not share or random.random() >= share:
            continue
        noisy = change(text, random)
        if noisy != text:
            changed.append(name)
        text = noisy
    return text, tuple(changed)


def _is_punctuation(text: str, place: int) -> bool:
    character = text[place]
    if not unicodedata.category(character).startswith("P") or character in _MEANS_SOMETHING:
        return False
    between = text[max(0, place - 1) : place], text[place + 1 : place + 2]
    return character not in _INSIDE or not all(map(str.isalnum, between))


def _misspelt(word: str, random: Random) -> str:
    """Return a word with a typo behind its first letter; the same word where letters repeat."""
    place = 1 + int(random.random() * (len(word) - 2))
    first, second = word[place], word[place + 1]
    kinds = (second + first, second, first + first + second)
    return word[:place] + kinds[int(random.random() * len(kinds))] + word[place + 2 :]
