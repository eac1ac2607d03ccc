"""Changed training pairs, other ones in each epoch, and noise for robustness and back-translation.

Karpukhin et al. 2019, "Training on Synthetic Noise Improves Robustness to Natural Noise in Machine
Translation", for typos; Kondo et al. 2021, "Sentence Concatenation Approach to Data Augmentation
for Neural Machine Translation", for joined pairs; Edunov et al. 2018, "Understanding
Back-Translation at Scale", section 3, for words that are dropped, masked and moved, which makes
synthetic sources less regular.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from functools import partial
from random import Random
from typing import Literal

import numpy as np

from mt.data.pairs import SentencePair
from mt.data.store import Chunk, Rows, concatenate
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.data.words import is_unspaced
from mt.languages import FINAL_MARKS, in_upper_case, written_without_spaces

_WORD_START = re.compile(r"(?<![\w'’])\w")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_EMOJI = "😀😂🙂😍😉🤔👍👏🙏🎉🔥✨❤☀★✓"
_TYPO_SHARE = 0.1
"""Share of words with a typo in a line with typos; at least one word gets one."""
_WORD = re.compile(r"[^\W\d_]{4,}")
"""Words long enough to be recognized with a typo."""
_MOST_JOINED = 4
_ALONE = 0.2
"""Share of the copied texts that are a pair of their own: a short input has a short translation."""


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Share of the pairs for each change, by default the usual one."""

    upper_case: float = 0.01
    """Both sides in upper case."""
    title_case: float = 0.02
    """Both sides with upper case at the start of each word."""
    lower_case: float = 0.02
    """The source in lower case."""
    no_final_punctuation: float = 0.05
    """Both sides without the marks at the end."""
    typos: float = 0.15
    """The source with typos."""
    no_diacritics: float = 0.02
    """The source without diacritics on Latin letters."""
    joined_pairs: float = 0.03
    """Joined with the one to three pairs that follow in the corpus."""
    copied_text: float = 0.03
    """Both sides with the same number, address, placeholder or emoji, or such text alone."""

    def apply(
        self, chunk: Chunk, tokenizer: Tokenizer, seed: np.random.SeedSequence, *, max_tokens: int
    ) -> Chunk:
        """Return a chunk in which some rows hold changed text; a row has at most one change.

        A row that would exceed `max_tokens` on a side keeps its tokens.
        """
        random = np.random.Generator(np.random.PCG64(seed))
        count, names = len(chunk.source), [field.name for field in fields(self)]
        kinds = np.searchsorted(np.cumsum(astuple(self)), random.random(count), side="right")
        rows = np.flatnonzero(kinds < len(names))
        seeds = random.integers(1 << 62, size=len(rows)).tolist()
        pairs = []
        for row, row_seed in zip(rows.tolist(), seeds, strict=True):
            kind, draws = names[kinds[row]], Random(row_seed)
            last = row + (draws.randint(2, _MOST_JOINED) if kind == "joined_pairs" else 1)
            changed = range(row, min(last, count))
            sources = [tokenizer.decode_source(chunk.source[n].tolist()) for n in changed]
            targets = [tokenizer.decode_target(chunk.target[n].tolist()) for n in changed]
            pair = SentencePair(_join_sentences(sources), _join_sentences(targets))
            pairs.append(CHANGES[kind](pair, draws) if kind in CHANGES else pair)
        encoded = tokenizer.encode_source([pair.source for pair in pairs])
        end: Literal[0, -1] = -1 if tokenizer.tag_is_last else 0
        source = _tag_like(chunk.source.take(rows), encoded, tokenizer.source, end)
        encoded = tokenizer.encode_target([pair.target for pair in pairs])
        target = _tag_like(chunk.target.take(rows), encoded, tokenizer.target, 0)
        fits = (source.lengths <= max_tokens) & (target.lengths <= max_tokens)
        chosen = np.arange(count)
        chosen[rows[fits]] = count + np.flatnonzero(fits)
        return Chunk(
            concatenate([chunk.source, source]).take(chosen),
            concatenate([chunk.target, target]).take(chosen),
            chunk.left_out,
        )


def _tag_like(
    rows: Rows, encoded: list[list[int]], vocabulary: Vocabulary, end: Literal[0, -1]
) -> Rows:
    """Return encoded texts, each with the tag at this end that its row has."""
    known = set(vocabulary.tags.values())
    for row, ids in enumerate(encoded):
        tag = int(rows[row][end])
        if tag in known:
            ids.insert(0 if end == 0 else len(ids), tag)
    return Rows.of(encoded)


def _join_sentences(texts: list[str]) -> str:
    """Join sentences as `joiner_of` does for their language, which their letters show."""
    if len(texts) == 1:
        return texts[0]
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    wide = [c for c in letters if is_unspaced(c) and unicodedata.east_asian_width(c) in "WF"]
    return ("" if 3 * len(wide) > len(letters) else " ").join(texts)


def _on_both(change: Callable[[str], str]) -> Callable[[SentencePair, Random], SentencePair]:
    return lambda pair, _: SentencePair(change(pair.source), change(pair.target))


def with_typos(text: str, random: Random) -> str:
    """Return a text with typos in words of four letters or more.

    A typo swaps two neighbouring letters, drops a letter or doubles it.
    """
    words = list(_WORD.finditer(text))
    chosen = [word for word in words if random.random() < _TYPO_SHARE]
    if words and not chosen:
        chosen = [words[int(random.random() * len(words))]]
    for word in reversed(chosen):  # from the end, so that positions stay valid
        # After its first letter; repeated letters may hide it.
        at = word.start() + 1 + int(random.random() * (len(word[0]) - 2))
        first, second = text[at], text[at + 1]
        typos = (second + first, second, first + first + second)
        text = text[:at] + typos[int(random.random() * len(typos))] + text[at + 2 :]
    return text


def without_final_mark(text: str) -> str:
    """Return a text without the marks that end it; a text of marks alone is unchanged."""
    return text.rstrip(FINAL_MARKS).rstrip() or text


def without_diacritics(text: str) -> str:
    """Return a text with its Latin letters without marks."""
    bases = (unicodedata.normalize("NFD", character)[0] for character in text)
    return "".join(b if b.isascii() else old for b, old in zip(bases, text, strict=True))


def copied_text(random: Random) -> str:
    """Return a number, date, address, placeholder, emoji or run of marks."""

    def word() -> str:
        return "".join(random.choices(_LETTERS, k=random.randint(2, 8)))

    def number(most: int) -> str:
        return str(random.randrange(10 ** random.randint(1, most)))

    year, month, day = random.randint(1900, 2099), random.randint(1, 12), random.randint(1, 28)
    choices: tuple[Callable[[], str], ...] = (
        lambda: number(6),
        lambda: f"{number(4)}.{number(2)}",
        lambda: f"{number(3)},{random.randrange(1000):03}",
        lambda: f"{year}-{month:02}-{day:02}",
        lambda: f"{day}/{month}/{year}",
        lambda: f"{random.randrange(24)}:{random.randrange(60):02}",
        lambda: f"https://{word()}.{word()}/{word()}",
        lambda: f"www.{word()}.com",
        lambda: f"{word()}@{word()}.org",
        lambda: "{" + word() + "}",
        lambda: random.choice(["%s", "%d", "{0}", "{}", f"%({word()})s", f"${{{word()}}}"]),
        lambda: f"${word().upper()}",
        lambda: random.choice(_EMOJI),
        lambda: random.choice(["...", "!!!", "???", "---", "***", "=====", "?!"]),
    )
    return random.choice(choices)()


def _with_copied_text(pair: SentencePair, random: Random) -> SentencePair:
    copied = copied_text(random)
    if random.random() < _ALONE:
        return SentencePair(copied, copied)
    if len(copied) % 2:  # as random as another draw
        return SentencePair(f"{copied} {pair.source}", f"{copied} {pair.target}")
    return SentencePair(f"{pair.source} {copied}", f"{pair.target} {copied}")


CHANGES: dict[str, Callable[[SentencePair, Random], SentencePair]] = {
    "upper_case": _on_both(partial(in_upper_case, language="")),
    "title_case": _on_both(lambda text: _WORD_START.sub(lambda match: match[0].upper(), text)),
    "lower_case": lambda pair, _: SentencePair(pair.source.lower(), pair.target),
    "no_final_punctuation": _on_both(without_final_mark),
    "typos": lambda pair, random: SentencePair(with_typos(pair.source, random), pair.target),
    "no_diacritics": lambda pair, _: SentencePair(without_diacritics(pair.source), pair.target),
    "copied_text": _with_copied_text,
}
"""Change of one pair by field of `Augmentation`; `joined_pairs` takes several pairs."""
AUGMENTATIONS: dict[str, Augmentation | None] = {
    "off": None,
    "on": Augmentation(),
    "strong": Augmentation(typos=0.25),
}

FILLER = "<blank>"
_UNIT = re.compile(r"\s*(?:[0-9A-Za-z]+|\S)")
"""Word in a text without spaces: a character, or a run of Latin letters."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Strength of back-translation noise."""

    drop: float = 0.0
    mask: float = 0.0
    """Probability to replace a remaining word by `FILLER`."""
    swap: int = 0

    def on(self, text: str, *, language: str, seed: int, line: int) -> str:
        """Return a text with noise; it follows from the seed, the line number and the text.

        At least one word remains. With noise, white space becomes single spaces.
        """
        if self == Noise():
            return text
        random = Random(f"{seed} {line}")
        apart = not written_without_spaces(language)
        words = text.split() if apart else _UNIT.findall(text)
        remaining = [word for word in words if random.random() >= self.drop] or words[:1]
        masked = [FILLER if random.random() < self.mask else word for word in remaining]
        # Sorting by position plus a random number below swap + 1 limits the distance to swap.
        keys = [at + random.random() * (self.swap + 1) for at in range(len(masked))]
        order = sorted(range(len(masked)), key=keys.__getitem__)
        return (" " if apart else "").join(masked[at] for at in order).strip()
