import math
from collections import Counter

import pytest
from sacrebleu.metrics.chrf import CHRF

from mt.compare.compare import (
    RareWords,
    SlicedSide,
    SubsetScorer,
    choose_side,
    find_changed,
    find_rare_words,
    make_slices,
    split_by_difference,
)
from mt.compare.systems import EvaluationSet, System

SOURCES = (
    "ein Hund läuft schnell .",
    "Wo sind die 3 Hunde?",
    "„Halt!“",
    " ".join(["sehr"] * 25) + ", ja.",
    "Titel ohne Punkt",
)
REFERENCES = ("a b c d e f", "where are 3 dogs", "stop it now !", "x y z w v", "one two three four")
TRANSLATIONS = (*REFERENCES[:1], "where are 3 cats", *REFERENCES[2:3], "q r s t u", REFERENCES[4])


def test_sentences_with_the_largest_gains_and_losses(test_set: EvaluationSet) -> None:
    right = test_set.references[0]
    base = ("zz", "Anna has", *right[2:])
    other = (right[0], right[1], "no", "David has seen", *right[4:])
    systems = (System("base", base), System("other", other))
    scorer = SubsetScorer(test_set, systems)
    changed = find_changed(test_set, systems, scorer, most=1)
    assert [(sentence.system, sentence.line) for sentence in changed] == [(1, 1), (1, 3)]
    changed = find_changed(test_set, systems, scorer, most=9)
    assert [sentence.line for sentence in changed] == [1, 2, 3, 4]
    chrf = CHRF()
    for sentence in changed:
        translations = sentence.baseline, sentence.translation
        alone = [chrf.sentence_score(text, sentence.references).score for text in translations]
        assert sentence.chrf == pytest.approx(tuple(alone))
        assert sentence.gain == pytest.approx(alone[1] - alone[0])
    assert (changed[0].source, changed[0].references) == (test_set.sources[0], (right[0],))


@pytest.mark.parametrize(
    ("text", "other", "language", "marked"),
    [
        ("a red ball.", "a blue ball.", "en", ["red"]),
        ("same", "same", "en", []),
        ("a b c", "c", "en", ["a b "]),
        ("他们去北京。", "他们去上海。", "zh", ["北京"]),
        ("", "x", "en", []),
    ],
)
def test_differing_parts_are_words_or_characters(
    text: str, other: str, language: str, marked: list[str]
) -> None:
    parts = list(split_by_difference(text, other, language=language))
    assert "".join(part for part, _ in parts) == text
    assert [part for part, differs in parts if differs] == marked


def _set(sources: tuple[str, ...] = SOURCES, language: str | None = "de") -> EvaluationSet:
    return EvaluationSet("t", sources, (REFERENCES,), language, "en", tokenizer="13a")


def _members(test_set: EvaluationSet, rare: RareWords | None = None) -> dict[tuple[str, str], int]:
    systems = (System("a", TRANSLATIONS),)
    side = choose_side(test_set)
    parts = make_slices(
        SubsetScorer(test_set, systems), side, rare or find_rare_words(systems, side)
    )
    return {(part.group, part.name): part.sentences for part in parts}


def test_sentences_are_grouped() -> None:
    assert _members(_set()) == {
        ("length", "0 to 10 words"): 4,
        ("length", "21 to 30 words"): 1,
        ("rare words", "with rare words"): 5,
        ("numbers", "digits"): 1,
        ("numbers", "no digits"): 4,
    }


def test_chinese_length_is_in_characters() -> None:
    chinese = ("我们" * 8, "你好，世界！", "好。", "他说：" + "是" * 40, "再见")
    members = _members(_set(chinese, "zh"))
    lengths = {name: n for (group, name), n in members.items() if group == "length"}
    assert lengths == {"0 to 15 characters": 3, "16 to 30 characters": 1, "31 to 50 characters": 1}


def test_references_are_grouped_without_sources() -> None:
    for sources in ((), SOURCES):  # files of translations have no source language
        side = choose_side(_set(sources, None))
        assert side == SlicedSide("reference", REFERENCES, unspaced=False)


def test_a_word_is_rare_by_its_count() -> None:
    counts = Counter({"ein": 9, "hund": 9, "läuft": 5, "schnell": 6, "sehr": 6, "ja": 6})
    counts |= Counter({"titel": 6, "ohne": 6, "punkt": 6, "halt": 4})
    members = _members(_set(), RareWords(counts, 5, "somewhere"))
    assert members["rare words", "with rare words"] == 3  # läuft, everything of line 2, halt
    assert members["rare words", "without rare words"] == 2


def test_slices_are_scored_separately() -> None:
    test_set = _set()
    parts = make_slices(
        SubsetScorer(test_set, (System("a", TRANSLATIONS), System("right", REFERENCES))),
        choose_side(test_set),
        RareWords(Counter(), 0, ""),
    )
    by_name = {part.name: part for part in parts}
    # where are 3 cats: 3 of 4 words, 2 of 3 pairs, 1 of 2 triples, no run of four (smoothed: 1/2).
    by_hand = 100 * math.exp(sum(map(math.log, (3 / 4, 2 / 3, 1 / 2, 1 / 2))) / 4)
    assert by_name["digits"].bleu == pytest.approx((by_hand, 100.0))
    # No word of this line is right: all counts are 0.
    assert by_name["21 to 30 words"].bleu == pytest.approx((0.0, 100.0))
    assert by_name["21 to 30 words"].chrf == pytest.approx((0.0, 100.0))
    assert all(part.too_small for part in parts)
