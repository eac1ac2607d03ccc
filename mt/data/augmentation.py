"""Changed copies of training pairs, other ones in each epoch, for text that is not one clean line.

Karpukhin et al. 2019, "Training on Synthetic Noise Improves Robustness to Natural Noise in Machine
Translation", for typos; Kondo et al. 2021, "Sentence Concatenation Approach to Data Augmentation
for Neural Machine Translation", for joined pairs.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from random import Random
from typing import Literal

import numpy as np

from mt.data.noise import with_typos
from mt.data.pairs import SentencePair
from mt.data.store import Chunk, Rows, concatenate
from mt.data.tokenizer import Tokenizer
from mt.data.vocabulary import Vocabulary
from mt.languages import FINAL_MARKS

_WORD_START = re.compile(r"(?<![\w'’])\w")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_EMOJI = "😀😂🙂😍😉🤔👍👏🙏🎉🔥✨❤☀★✓"
_MOST_JOINED = 4
_ALONE = 0.2
"""Share of the copied texts that are a pair of their own: a short input has a short translation."""


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Share of the pairs for each change, in the order of `data.augmentation`."""

    upper_case: float
    title_case: float
    lower_case: float
    no_final_punctuation: float
    typos: float
    no_diacritics: float
    joined_pairs: float
    copied_text: float

    def apply(
        self, chunk: Chunk, tokenizer: Tokenizer, seed: np.random.SeedSequence, *, max_tokens: int
    ) -> Chunk:
        """Return a chunk in which some rows hold changed text; a row has at most one change.

        A row that would exceed `max_tokens` on a side keeps its tokens.
        """
        random = np.random.Generator(np.random.PCG64(seed))
        count, names = len(chunk.source), [each.name for each in fields(self)]
        kinds = np.searchsorted(np.cumsum(astuple(self)), random.random(count), side="right")
        rows = np.flatnonzero(kinds < len(names))
        seeds = random.integers(1 << 62, size=len(rows)).tolist()
        pairs = [
            _changed(chunk, tokenizer, row, names[kinds[row]], Random(number))
            for row, number in zip(rows.tolist(), seeds, strict=True)
        ]
        encoded = tokenizer.encode_source([pair.source for pair in pairs])
        place: Literal[0, -1] = -1 if tokenizer.tag_is_last else 0
        source = _tagged_like(chunk.source.take(rows), encoded, tokenizer.source, place)
        encoded = tokenizer.encode_target([pair.target for pair in pairs])
        target = _tagged_like(chunk.target.take(rows), encoded, tokenizer.target, 0)
        fits = (source.lengths <= max_tokens) & (target.lengths <= max_tokens)
        chosen = np.arange(count)
        chosen[rows[fits]] = count + np.flatnonzero(fits)
        return Chunk(
            concatenate([chunk.source, source]).take(chosen),
            concatenate([chunk.target, target]).take(chosen),
            chunk.left_out,
        )


def _tagged_like(
    rows: Rows, encoded: list[list[int]], vocabulary: Vocabulary, place: Literal[0, -1]
) -> Rows:
    """Return encoded texts, each with the tag at this place that its row has."""
    known = set(vocabulary.tags.values())
    for number, ids in enumerate(encoded):
        tag = int(rows[number][place])
        if tag in known:
            ids.insert(place if place == 0 else len(ids), tag)
    return Rows.of(encoded)


def _changed(
    chunk: Chunk, tokenizer: Tokenizer, row: int, kind: str, random: Random
) -> SentencePair:
    """Return the text of a row after a change, or of several rows if the change joins them."""
    last = row + (random.randint(2, _MOST_JOINED) if kind == "joined_pairs" else 1)
    pairs = [
        SentencePair(
            tokenizer.decode_source(chunk.source[number].tolist()),
            tokenizer.decode_target(chunk.target[number].tolist()),
        )
        for number in range(row, min(last, len(chunk.source)))
    ]
    if kind == "joined_pairs":
        return SentencePair(
            _joined([pair.source for pair in pairs]), _joined([pair.target for pair in pairs])
        )
    return CHANGES[kind](pairs[0], random)


def _joined(texts: list[str]) -> str:
    """Join sentences by a space, except between ideographs."""
    whole, *others = texts
    for text in others:
        ends = whole[-1:] + text[:1]
        is_wide = all(unicodedata.east_asian_width(each) in "WF" for each in ends)
        whole += text if is_wide else f" {text}"
    return whole


def _on_both(change: Callable[[str], str]) -> Callable[[SentencePair, Random], SentencePair]:
    return lambda pair, _: SentencePair(change(pair.source), change(pair.target))


def _on_source(
    change: Callable[[str, Random], str],
) -> Callable[[SentencePair, Random], SentencePair]:
    return lambda pair, random: SentencePair(change(pair.source, random), pair.target)


def in_title_case(text: str) -> str:
    """Return a text with the first letter of each word in upper case."""
    return _WORD_START.sub(lambda match: match[0].upper(), text)


def without_final_mark(text: str) -> str:
    """Return a text without the marks that end it; a text of marks alone is unchanged."""
    return text.rstrip(FINAL_MARKS).rstrip() or text


def without_diacritics(text: str, _random: Random) -> str:
    """Return a text with its Latin letters without marks."""
    return "".join(map(_without_mark, text))


def _without_mark(character: str) -> str:
    base = unicodedata.normalize("NFD", character)[0]
    return base if base.isascii() else character


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


def with_copied_text(text: str, copied: str) -> str:
    """Return a text with another one in front, or behind if the length of that one is even."""
    return f"{copied} {text}" if len(copied) % 2 else f"{text} {copied}"


def _with_copied_text(pair: SentencePair, random: Random) -> SentencePair:
    copied = copied_text(random)
    if random.random() < _ALONE:
        return SentencePair(copied, copied)
    return SentencePair(
        with_copied_text(pair.source, copied), with_copied_text(pair.target, copied)
    )


CHANGES: dict[str, Callable[[SentencePair, Random], SentencePair]] = {
    "upper_case": _on_both(str.upper),
    "title_case": _on_both(in_title_case),
    "lower_case": _on_source(lambda text, _: text.lower()),
    "no_final_punctuation": _on_both(without_final_mark),
    "typos": _on_source(with_typos),
    "no_diacritics": _on_source(without_diacritics),
    "copied_text": _with_copied_text,
}
"""Change of one pair by key of `data.augmentation`; `joined_pairs` takes several pairs."""
