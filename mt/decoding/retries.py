"""Search for translations, and a second one where the first loops or alters text to be copied."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mt.config import DecodingConfig
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import is_unspaced, not_copied, put_back, take_out
from mt.decoding.alignment import links_of, place_by
from mt.decoding.engine import Engine, Hypothesis, Part
from mt.decoding.preparation import Input, in_one_line

BLOCKED_NGRAM = 3
"""`no_repeat_ngram` of the second search for a translation that repeats itself."""
_COPIES = 4
_FEWEST_TOKENS = 8
_LONGEST_PERIOD = 50
_DISTINCT_SHARE = 1 / 3
_MOST_TIMES = 3
"""A translation that has more than this times the length of its source is decoded again."""


@dataclass(frozen=True, slots=True)
class Found:
    """Translations of one input."""

    parts: list[Part]
    """Best first."""
    repeated: bool = False
    """True if the first search repeated itself or went on for too long; `parts` are of another."""
    restored: tuple[str, ...] = ()
    """Text that the first search altered, put back into the texts of the second."""


@dataclass(frozen=True, slots=True)
class Searches:
    """The searches for the translation of an input, as `decoding` says."""

    engine: Engine
    tokenizer: Tokenizer
    decoding: DecodingConfig

    def find(self, inputs: Sequence[Input], n_best: int) -> list[Found]:
        """Return up to `n_best` translations of each input."""
        found = [Found(parts) for parts in self._search(inputs, n_best, self.decoding)]
        if self.decoding.on_repetition == "again":
            given = self.decoding.no_repeat_ngram or math.inf
            blocked = {"no_repeat_ngram": min(given, BLOCKED_NGRAM)}
            if given > BLOCKED_NGRAM:
                self._replace(inputs, found, n_best, _is_loop, blocked)
            # From two source tokens on, this limit is `_MOST_TIMES` at most.
            short = {**blocked, "max_length_ratio": _MOST_TIMES - 0.5, "max_length_extra": 1}
            if self.decoding.min_length_ratio < 1:
                self._replace(inputs, found, n_best, _may_be_shorter, short)
        if self.decoding.on_altered == "restore":
            self._restore(inputs, found, n_best)
        return found

    def _search(
        self, inputs: Sequence[Input], n_best: int, decoding: DecodingConfig
    ) -> list[list[Part]]:
        found = self.engine.n_best_ids(
            [each.ids for each in inputs],
            decoding,
            n_best,
            prefixes=[(*self.tokenizer.target_prefix, *each.prefix) for each in inputs],
        )
        return [
            [self._part(each, hypothesis) for hypothesis in hypotheses]
            for each, hypotheses in zip(inputs, found, strict=True)
        ]

    def _part(self, given: Input, hypothesis: Hypothesis) -> Part:
        # Byte tokens can spell a line end.
        text = in_one_line(self.tokenizer.decode_target(hypothesis.ids))
        return Part(given.ids, hypothesis, given.text, text)

    def _replace(
        self,
        inputs: Sequence[Input],
        found: list[Found],
        n_best: int,
        is_wrong: Callable[[Input, Part], bool],
        changes: Mapping[str, float],
    ) -> None:
        """Replace wrong translations by those of a search with changed settings."""
        places = [
            place for place, each in enumerate(found) if is_wrong(inputs[place], each.parts[0])
        ]
        if places:
            decoding = self.decoding.model_copy(update=changes)
            again = self._search([inputs[place] for place in places], n_best, decoding)
            for place, parts in zip(places, again, strict=True):
                found[place] = Found(parts, repeated=True)

    def _restore(self, inputs: Sequence[Input], found: list[Found], n_best: int) -> None:
        """Translate texts without what was altered, and put that back.

        The place is beside the word that is aligned with the neighbour in the source. A text
        without other words is copied; a translation without any word is not used.
        """
        lacking = {
            place: tuple(altered)
            for place, (given, each) in enumerate(zip(inputs, found, strict=True))
            if not given.prefix and (altered := not_copied(given.text, each.parts[0].text))
        }
        taken = {place: take_out(inputs[place].text) for place in lacking}
        for place, (rest, _) in [*taken.items()]:
            if not any(map(str.isalpha, rest)):
                text = inputs[place].text
                parts = [replace(part, text=text) for part in found[place].parts[:1]]
                found[place] = Found(parts, found[place].repeated, restored=lacking[place])
                del taken[place]
        if not taken:
            return
        encoded = self.tokenizer.encode_source([rest for rest, _ in taken.values()])
        rests = [Input(rest, ids) for (rest, _), ids in zip(taken.values(), encoded, strict=True)]
        keeping = replace(self, decoding=self.decoding.model_copy(update={"on_altered": "keep"}))
        again = keeping.find(rests, n_best)
        every = [part for each in again for part in each.parts]
        links = iter(links_of(every, self.engine, self.tokenizer))
        for (place, (rest, cut)), each in zip(taken.items(), again, strict=True):
            parts = [
                replace(part, text=put_back(part.text, cut, place_by(next(links), rest, part.text)))
                for part in each.parts
            ]
            if each.parts[0].text.strip():
                found[place] = Found(parts, each.repeated, restored=lacking[place])


def _is_loop(_: Input, part: Part) -> bool:
    hypothesis = part.hypothesis
    return repeats_itself(hypothesis.ids, part.source[:-1], finished=hypothesis.finished)


def _may_be_shorter(given: Input, part: Part) -> bool:
    return is_too_long(part) and not given.prefix


def is_too_long(part: Part) -> bool:
    """Test for more than three times the source, both in tokens and in characters."""
    written = len(part.hypothesis.ids) + part.hypothesis.finished  # with EOS, as the source
    is_longer = _length(part.text) > _MOST_TIMES * _length(part.source_text)
    return is_longer and written > _MOST_TIMES * len(part.source)


def _length(text: str) -> int:
    """Return the number of characters; an ideograph counts as a word of three letters."""
    return sum(3 if is_unspaced(character) else 1 for character in text)


def repeats_itself(
    translation: Sequence[int], source: Sequence[int], *, finished: bool = True
) -> bool:
    """Return True if a translation, in tokens, is a loop of the search.

    A loop repeats a sequence of tokens at least four times in a row, over at least eight tokens. An
    unfinished translation is also a loop if two of three tokens are repetitions. A source that
    repeats itself at least half as much excuses both.
    """
    repetition = longest_repetition(translation)
    if repetition >= _FEWEST_TOKENS and repetition > 2 * longest_repetition(source):
        return True
    if finished or len(translation) < _FEWEST_TOKENS:
        return False
    share = _distinct_share(translation)
    return share < _DISTINCT_SHARE and 2 * share < _distinct_share(source)


def longest_repetition(tokens: Sequence[int]) -> int:
    """Return the length of the longest stretch of at least four copies of one sequence, or 0.

    An incomplete last copy counts.
    """
    if len(tokens) - len(set(tokens)) < _COPIES - 1:
        return 0
    longest = 0
    for period in range(1, min(len(tokens) // _COPIES, _LONGEST_PERIOD) + 1):
        equal = 0
        for token, earlier in zip(tokens[period:], tokens, strict=False):
            equal = equal + 1 if token == earlier else 0
            if equal >= (_COPIES - 1) * period:
                longest = max(longest, equal + period)
    return longest


def _distinct_share(tokens: Sequence[int]) -> float:
    return len(set(tokens)) / max(1, len(tokens))
