import pytest
from sacrebleu.metrics.chrf import CHRF

from mt.compare.compare import changed_most, count_all, differing_parts
from mt.compare.systems import EvaluationSet, System


def test_sentences_with_the_largest_gains_and_losses(common: EvaluationSet) -> None:
    right = common.references[0]
    base = ("zz", "Anna has", *right[2:])
    other = (right[0], right[1], "no", "David has seen", *right[4:])
    systems = (System("base", base), System("other", other))
    changed = changed_most(common, systems, count_all(common, systems), most=1)
    assert [(each.system, each.line) for each in changed] == [(1, 1), (1, 3)]
    changed = changed_most(common, systems, count_all(common, systems), most=9)
    assert [each.line for each in changed] == [1, 2, 3, 4]
    chrf = CHRF()
    for each in changed:
        sentences = each.baseline, each.translation
        alone = [chrf.sentence_score(made, each.references).score for made in sentences]
        assert each.chrf == pytest.approx(tuple(alone))
        assert each.gain == pytest.approx(alone[1] - alone[0])
    assert (changed[0].source, changed[0].references) == (common.sources[0], (right[0],))


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
    parts = list(differing_parts(text, other, language=language))
    assert "".join(part for part, _ in parts) == text
    assert [part for part, differs in parts if differs] == marked
