"""Are the signs counted as one counts them by hand?"""

from collections.abc import Sequence

import pytest

from mt.data.pairs import SentencePair
from mt.decoding.engine import Hypothesis
from mt.decoding.translator import Alternative, Part, Translation
from mt.training.validation import Symptoms, find_symptoms


def _translation(text: str, ids: Sequence[int] = (7, 8, 9)) -> Translation:
    part = Part((5, 6, 3), Hypothesis(tuple(ids), 0.0, 0.0, finished=True))
    found = Alternative(text, 0.0, (part,))
    return Translation(1, "", text, "ok", 0.0, alternatives=(found,))


def _look(rows: Sequence[tuple[str, str, str]], language: str = "de") -> Symptoms:
    return find_symptoms(
        [SentencePair(source, reference) for source, reference, _ in rows],
        [_translation(text) for _, _, text in rows],
        target_language=language,
        bleu=lambda texts, references: float(len(texts) + len(references[0])),
    )


def test_lengths_copies_and_beginnings() -> None:
    found = _look(
        [
            ("a dog", "ein Hund", "ein Mann"),
            ("Berlin", "Berlin", "Berlin"),  # its reference is its source as well
            ("a cat", "eine Katze", "a cat "),
            ("12", "zwölf", "12"),  # no letter
        ]
    )
    assert found.length_ratio == pytest.approx((8 + 6 + 6 + 2) / (8 + 6 + 10 + 5))
    assert found.copied == 1 / 4
    assert (found.same_beginning, found.same_beginning_of_references) == (1 / 4, 1 / 4)
    assert found.bleu_by_length == ()


def test_a_beginning_is_a_word_or_a_character_and_blank_texts_have_none() -> None:
    rows = [("a", "我是", "他来"), ("b", "你是", "他在"), ("c", "我来", " "), ("d", "他", "")]
    assert _look(rows, "zh").same_beginning == 2 / 4
    assert _look(rows, "zh").same_beginning_of_references == 2 / 4
    assert _look(rows, "de").same_beginning == 1 / 4


def test_loops_are_counted_by_the_detector_of_decoding() -> None:
    pair = SentencePair("x", "y")
    looping = _translation("b b b", [7, 8] * 6)
    found = find_symptoms(
        [pair] * 4,
        [looping, _translation("a"), _translation("a"), Translation(4, "", "", "empty", 0.0)],
        target_language="de",
        bleu=lambda _texts, _references: 0.0,
    )
    assert found.repeated == 1 / 4


def test_bleu_by_length_is_that_of_quarters_sorted_by_their_sources() -> None:
    rows = [("s" * (1 + (7 * n) % 100), "r" * (1 + (7 * n) % 100), "t") for n in range(100)]
    # The stand-in for BLEU is the size of a group and the length of its first reference.
    assert _look(rows).bleu_by_length == (25 + 1, 25 + 26, 25 + 51, 25 + 76)
    assert _look(rows[:79]).bleu_by_length == ()
