"""Search for translations, and a second one where the first loops or loses a copied part."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mt.config import DecodingConfig
from mt.config.decoding import MBR_CANDIDATES
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import extract_verbatim, missing_verbatim, reinsert
from mt.data.words import is_unspaced
from mt.decoding.alignment import align_words, map_positions
from mt.decoding.engine import Engine, TranslatedPart
from mt.decoding.preparation import SearchInput, in_one_line
from mt.decoding.terms import Terms

BLOCKED_NGRAM = 3
"""`no_repeat_ngram` of the second search for a translation that repeats itself."""
_COPIES = 4
_FEWEST_TOKENS = 8
_LONGEST_PERIOD = 50
_DISTINCT_SHARE = 1 / 3
_MOST_TIMES = 3
"""Times the length of its source from which on an unfinished translation is decoded again."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Translations of one input."""

    alternatives: list[TranslatedPart]
    """Best first."""
    repeated: bool = False
    """True if the first search repeated itself or went on for too long; `alternatives` are the
    better of two searches.
    """
    restored: tuple[str, ...] = ()
    """Copied parts that the first search lost, put back into the texts of the second."""


@dataclass(frozen=True, slots=True)
class RetryingSearch:
    """Search of an engine, repeated with other settings for results that need it."""

    engine: Engine
    tokenizer: Tokenizer
    decoding: DecodingConfig
    terms: Terms

    def find(
        self, inputs: Sequence[SearchInput], n_best: int
    ) -> Iterator[tuple[int, SearchResult]]:
        """Yield the number of each input and up to `n_best` translations, in any order.

        Those that need no second search come while the engine searches for the others.
        """
        has_terms, repairs = bool(self.terms.glossary.terms), self.decoding.repair != "off"
        unfinished: dict[int, SearchResult] = {}
        for index, alternatives in self._search(inputs, n_best, self.decoding):
            item, best = inputs[index], alternatives[0]
            is_wrong = repairs and (is_loop(best) or _overran(item, best))
            if has_terms or is_wrong or (repairs and missing_verbatim(item.text, best.text)):
                unfinished[index] = SearchResult(alternatives)
            else:
                yield index, SearchResult(alternatives)
        order = sorted(unfinished)
        some, results = [inputs[index] for index in order], [unfinished[index] for index in order]
        if repairs:
            self._retry_loops(some, results, n_best)
            self._restore(some, results, n_best)
        if has_terms:
            for index, (item, result) in enumerate(zip(some, results, strict=True)):
                alternatives = [self.terms.insert_missing(item, a) for a in result.alternatives]
                results[index] = replace(result, alternatives=alternatives)
        yield from zip(order, results, strict=True)

    def _retry_loops(
        self, inputs: Sequence[SearchInput], results: list[SearchResult], n_best: int
    ) -> None:
        """Search again for translations that loop or are too long."""
        usual = self.decoding.no_repeat_ngram or math.inf
        blocked = {"no_repeat_ngram": min(usual, BLOCKED_NGRAM)}
        if usual > BLOCKED_NGRAM:
            self._retry(inputs, results, n_best, lambda _, part: is_loop(part), blocked)
        # From two source tokens on, this limit is `_MOST_TIMES` at most.
        short = {**blocked, "max_length_ratio": _MOST_TIMES - 0.5, "max_length_extra": 1}
        self._retry(inputs, results, n_best, _overran, short)

    def _search(
        self, inputs: Sequence[SearchInput], n_best: int, decoding: DecodingConfig
    ) -> Iterator[tuple[int, list[TranslatedPart]]]:
        if self.terms.glossary.terms:
            inputs = [replace(item, ids=self.terms.annotate_source(item)) for item in inputs]
        candidates = self.engine.iterate_n_best(
            [item.ids for item in inputs],
            decoding,
            n_best if decoding.mbr is None else MBR_CANDIDATES,
            prefixes=[(*self.tokenizer.target_prefix, *item.prefix) for item in inputs],
        )
        decode, compare = self.tokenizer.decode_target, None
        if decoding.mbr is not None:
            from mt.decoding.sampling import UTILITIES, rank_by_utility

            compare = UTILITIES[decoding.mbr]()
        for index, hypotheses in candidates:
            item, texts = inputs[index], [decode(hypothesis.ids) for hypothesis in hypotheses]
            if compare is not None:
                ranked = rank_by_utility(hypotheses, texts, compare)[:n_best]
                hypotheses, texts = ranked, [decode(hypothesis.ids) for hypothesis in ranked]
            # Byte tokens can spell a line end.
            lines = zip(hypotheses, map(in_one_line, texts), strict=True)
            yield index, [TranslatedPart(item.ids, best, item.text, text) for best, text in lines]

    def _retry(
        self,
        inputs: Sequence[SearchInput],
        results: list[SearchResult],
        n_best: int,
        is_wrong: Callable[[SearchInput, TranslatedPart], bool],
        changes: Mapping[str, float],
    ) -> None:
        """Search for wrong translations again with changed settings, and keep the better ones."""
        pairs = enumerate(zip(inputs, results, strict=True))
        wrong = [index for index, (item, result) in pairs if is_wrong(item, result.alternatives[0])]
        if wrong:
            decoding = self.decoding.changed(**changes)
            retried = self._search([inputs[index] for index in wrong], n_best, decoding)
            for place, alternatives in retried:
                index = wrong[place]
                before = results[index].alternatives
                is_better = _retry_sort_key(alternatives[0]) > _retry_sort_key(before[0])
                better = alternatives if is_better else before
                results[index] = SearchResult(better, repeated=True)

    def _restore(
        self, inputs: Sequence[SearchInput], results: list[SearchResult], n_best: int
    ) -> None:
        """Translate texts without their copied parts where some were lost, and put these back.

        The place is beside the word that is aligned with the neighbour in the source. The result is
        used if it lacks fewer parts, and is finished and free of loops where the first is.
        """
        lost = {
            index: copies
            for index, (item, result) in enumerate(zip(inputs, results, strict=True))
            if not item.prefix
            and (copies := missing_verbatim(item.text, result.alternatives[0].text))
        }
        if not lost:
            return
        rests, copied = zip(*[extract_verbatim(inputs[index].text) for index in lost], strict=True)
        encoded = self.tokenizer.encode_source(rests)
        shorter = [SearchInput(rest, ids) for rest, ids in zip(rests, encoded, strict=True)]
        alternatives = dict(self._search(shorter, n_best, self.decoding))
        retried = [SearchResult(alternatives[index]) for index in range(len(shorter))]
        self._retry_loops(shorter, retried, n_best)
        written = [part for result in retried for part in result.alternatives]
        links = iter(align_words(written, self.engine, self.tokenizer))
        for index, rest, copies, result in zip(lost, rests, copied, retried, strict=True):
            repaired = list[TranslatedPart]()
            for part in result.alternatives:
                map_position = map_positions(next(links), rest, part.text)
                repaired.append(replace(part, text=reinsert(part.text, copies, map_position)))
            best, first = repaired[0], results[index].alternatives[0]
            lacks_less = len(missing_verbatim(inputs[index].text, best.text)) < len(lost[index])
            has_words = bool(result.alternatives[0].text.strip())
            if lacks_less and has_words and _retry_sort_key(best)[:2] >= _retry_sort_key(first)[:2]:
                results[index] = SearchResult(repaired, result.repeated, tuple(lost[index]))


def _retry_sort_key(part: TranslatedPart) -> tuple[bool, bool, bool, float]:
    """Return the sort key of translations: finished, without a loop, by length, by score."""
    is_finished = part.hypothesis.finished
    is_short_enough = is_finished or not is_too_long(part)
    return is_finished, not is_loop(part), is_short_enough, part.hypothesis.score


def is_loop(part: TranslatedPart) -> bool:
    """Test for a translation that repeats itself more than its source."""
    hypothesis = part.hypothesis
    return repeats_itself(hypothesis.ids, part.source[:-1], finished=hypothesis.finished)


def _overran(item: SearchInput, part: TranslatedPart) -> bool:
    return not part.hypothesis.finished and is_too_long(part) and not item.prefix


def is_too_long(part: TranslatedPart) -> bool:
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
