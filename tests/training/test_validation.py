"""Statistics of validation translations, and the warnings about them."""

from collections.abc import Sequence

import numpy as np
import pytest

from mt.data.pairs import SentencePair
from mt.data.store import Example
from mt.decoding.engine import Hypothesis
from mt.decoding.translator import Alternative, Part, Translation
from mt.evaluation.scores import Evaluation, Score
from mt.training.validation import (
    TranslationStatistics,
    Validation,
    translation_statistics,
    unigram_entropy,
    validation_warnings,
)


def translation(text: str, ids: Sequence[int] = (7, 8, 9)) -> Translation:
    part = Part((5, 6, 3), Hypothesis(tuple(ids), 0.0, 0.0, finished=True))
    return Translation(1, "", text, "ok", 0.0, alternatives=(Alternative(text, 0.0, (part,)),))


def statistics(rows: Sequence[tuple[str, str, str]], language: str = "de") -> TranslationStatistics:
    """Return the statistics of sources, references and translations."""
    return translation_statistics(
        [SentencePair(source, reference) for source, reference, _ in rows],
        [translation(text) for _, _, text in rows],
        target_language=language,
        bleu=lambda texts, references: float(len(texts) + len(references[0])),
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
    assert found.bleu_by_length == ()
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
        bleu=lambda _texts, _references: 0.0,
    )
    assert found.repeated == 1 / 4


def test_bleu_by_length_is_that_of_quarters_sorted_by_source_length() -> None:
    rows = [("s" * (1 + (7 * n) % 100), "r" * (1 + (7 * n) % 100), "t") for n in range(100)]
    # The stand-in for BLEU is the size of a group plus the length of its first reference.
    found = statistics(rows)
    assert found.bleu_by_length == (25 + 1, 25 + 26, 25 + 51, 25 + 76)
    assert found.as_text().endswith("BLEU by length 26.0 51.0 76.0 101.0")
    assert statistics(rows[:79]).bleu_by_length == ()


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
    found = TranslationStatistics(1.0, copied, 0.0, 0.1, 0.1, ())
    validation = Validation(loss, Evaluation(*scores, sentences, "de"), found)
    assert [kind for kind, _ in validation_warnings(validation, EXAMPLES)] == kinds


def test_unigram_entropy_is_that_of_the_target_tokens() -> None:
    assert unigram_entropy(EXAMPLES) == pytest.approx(np.log(8))
