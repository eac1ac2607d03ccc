"""Statistics of validation translations, and the warnings about them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.config import DecodingConfig
from mt.data.pairs import SentencePair, spread
from mt.data.store import Example
from mt.decoding.engine import Hypothesis, TranslatedPart, length_limit
from mt.decoding.translator import RankedTranslation, Translation
from mt.evaluation.scores import Evaluation, Score
from mt.training.validation import (
    TranslationStatistics,
    Validation,
    translation_statistics,
    typical_pair,
    validation_length,
    validation_warnings,
)


def translation(text: str, ids: Sequence[int] = (7, 8, 9)) -> Translation:
    part = TranslatedPart((5, 6, 3), Hypothesis(tuple(ids), 0.0, 0.0, finished=True), "", "")
    return Translation(
        1, "", text, "ok", 0.0, alternatives=(RankedTranslation(text, 0.0, (part,)),)
    )


def statistics(rows: Sequence[tuple[str, str, str]], language: str = "de") -> TranslationStatistics:
    """Return the statistics of sources, references and translations."""
    return translation_statistics(
        [SentencePair(source, reference) for source, reference, _ in rows],
        [translation(text) for _, _, text in rows],
        target_language=language,
    )


def test_lengths_copies_and_beginnings_are_counted() -> None:
    found = statistics(
        [
            ("a dog", "ein Hund", "ein Mann"),
            ("Berlin", "Berlin", "Berlin"),  # the reference is a copy too
            ("a cat", "eine Katze", "a cat "),
            ("12", "zwölf", "12"),  # no letter
        ]
    )
    assert found.length_ratio == pytest.approx((8 + 6 + 6 + 2) / (8 + 6 + 10 + 5))
    assert found.copied == 1 / 4
    assert (found.same_beginning, found.same_beginning_of_references) == (1 / 4, 1 / 4)
    rows = [("a", "我是", "他来"), ("b", "你是", "他在"), ("c", "我来", " "), ("d", "他", "")]
    assert statistics(rows, "zh").same_beginning == 2 / 4
    assert statistics(rows, "zh").same_beginning_of_references == 2 / 4
    assert statistics(rows, "de").same_beginning == 1 / 4


def test_loops_are_counted() -> None:
    looping = translation("b b b", [7, 8] * 6)
    found = translation_statistics(
        [SentencePair("x", "y")] * 4,
        [looping, translation("a"), translation("a"), Translation(4, "", "", "empty", 0.0)],
        target_language="de",
    )
    assert found.repeated == 1 / 4


def test_subset_is_spread_over_the_split_and_sample_is_of_median_length() -> None:
    pairs = [SentencePair("s" * n, "r" * (100 - 3 * n % 7)) for n in range(10)]
    assert spread(pairs, None) == spread(pairs, 10) == spread(pairs, 11) == pairs
    assert spread(pairs, 4) == [pairs[0], pairs[2], pairs[5], pairs[7]]
    lengths = sorted((len(pair.source + pair.target), n) for n, pair in enumerate(pairs))
    assert typical_pair(pairs) == lengths[5][1]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 90)), min_size=1),
    st.floats(0.0, 3.0),
    st.integers(1, 80),
)
def test_length_limit_of_validation_leaves_room_for_each_reference(
    lengths: list[tuple[int, int]], ratio: float, extra: int
) -> None:
    usual = DecodingConfig(max_length_ratio=ratio, max_length_extra=extra)
    found = validation_length(np.array(lengths, np.int32), usual)
    limited = usual.changed(max_length_extra=found)
    slack = []
    for source, target in lengths:
        limit = length_limit(source, limited)
        assert limit == length_limit(source, usual) or limit >= target + 10
        slack.append(limit - target)
    assert found <= extra
    assert min(slack) <= 11 or found == 1  # and not more room than that


# Eight target tokens of equal frequency: their entropy is log 8 = 2.08 nats.
EXAMPLES = [Example(n, np.array([5]), np.array([n % 8])) for n in range(16)]


@pytest.mark.parametrize(
    ("loss", "bleu", "chrf", "copied", "sentences", "kinds"),
    [
        (1.0, 0.1, 10.0, 0.0, 100, []),
        (0.4, 1.0, 10.0, 0.0, 100, ["loss_too_low"]),
        (0.42, 1.0, 10.0, 0.0, 100, []),
        (0.4, 5.0, 10.0, 0.0, 100, []),
        (0.4, 0.0, 20.0, 0.0, 100, []),  # references of one word
        (0.4, 1.0, 10.0, 1.0, 49, []),  # too few pairs
        (1.0, 10.0, 10.0, 0.51, 50, ["copies"]),
        (1.0, 10.0, 10.0, 0.5, 50, []),
    ],
)
def test_warnings_of_a_validation(
    loss: float, bleu: float, chrf: float, copied: float, sentences: int, kinds: list[str]
) -> None:
    scores = Score("BLEU", bleu, ""), Score("chrF", chrf, "")
    found = TranslationStatistics(1.0, copied, 0.0, 0.1, 0.1)
    validation = Validation(loss, Evaluation(*scores, sentences, "de"), found, "")
    assert [kind for kind, _ in validation_warnings(validation, EXAMPLES)] == kinds
