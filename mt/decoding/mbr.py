"""Minimum Bayes risk decoding."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from mt.config import DecodingConfig
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import Engine, Hypothesis, TargetPrefixes
from mt.errors import UserError

Utility = Literal["chrf", "bleu"]
Compare = Callable[[str, str], float]
"""Map a translation and a reference to a utility from 0 to 100."""


class MbrEngine(Engine):
    """Engine that ranks the hypotheses of another engine by their expected utility."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, decoding: DecodingConfig) -> None:
        """Require `decoding.mbr`; raise UserError if the search finds too few candidates."""
        assert decoding.mbr is not None
        most = {"greedy": 1, "beam": decoding.beam, "sample": decoding.mbr_candidates}
        if most[decoding.search] < decoding.mbr_candidates:
            raise UserError(
                f"`decoding.mbr` chooses from {decoding.mbr_candidates} translations, and "
                f"{decoding.search} search finds {most[decoding.search]}: take "
                "`decoding.search` sample, a larger `decoding.beam`, or fewer "
                "`decoding.mbr_candidates`"
            )
        self.engine = engine
        self._tokenizer = tokenizer
        self._compare = UTILITIES[decoding.mbr]()
        self._candidates = decoding.mbr_candidates

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, highest expected utility first."""
        found = self.engine.n_best_ids(sources, decoding, self._candidates, prefixes=prefixes)
        return [self._ranked(candidates)[:count] for candidates in found]

    def _ranked(self, candidates: list[Hypothesis]) -> list[Hypothesis]:
        texts = [self._tokenizer.decode_target(each.ids) for each in candidates]
        utilities = expected_utilities(texts, self._compare)
        scored = {
            each.ids: replace(each, score=utility)
            for each, utility in zip(candidates, utilities, strict=True)
        }
        return sorted(scored.values(), key=lambda each: -each.score)


def expected_utilities(texts: Sequence[str], compare: Compare) -> list[float]:
    """Return the mean utility of each translation, with each of `texts` as the reference.

    Kumar and Byrne 2004, equation 3, with the translations as a sample of the model's distribution
    (Eikema and Aziz 2020, section 5); duplicates count as often as they were drawn.
    """
    counts = Counter(texts)
    means = {
        text: sum(count * compare(text, reference) for reference, count in counts.items())
        / len(texts)
        for text in counts
    }
    return [means[text] for text in texts]


def _compare_by(metric: CHRF | BLEU) -> Compare:
    return lambda text, reference: metric.sentence_score(text, [reference]).score


UTILITIES: dict[Utility, Callable[[], Compare]] = {
    "chrf": lambda: _compare_by(CHRF()),
    # Character n-grams need no word boundaries and therefore no language.
    "bleu": lambda: _compare_by(BLEU(tokenize="char", effective_order=True)),
}
