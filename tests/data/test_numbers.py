"""Numbers in digits that a translation lacks."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.data.corpus_files import LineReader
from mt.data.words import missing_numbers, numbers_differ


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("It cost $300.", "Es hat dreihundert Dollar gekostet."),
        ("2.00 euros at 6:30", "2 Euro um 6.30 Uhr"),
        ("1,250.50 and 1 000 000", "1.250,50 und 1000000"),
        ("5,000,000 people", "5 Millionen Leute"),
        ("On 2021-04-03", "2021年4月3日"),
        ("1,00,000 and 12,34,567", "100,000 and 1234567"),
        ("٢٥ كتابا و ١٢٥٠ قلم", "25 books and 1250 pens"),
        ("１９８４年", "१९८४ में"),
        ("1.5 million", "150万"),
        ("3亿2000万人", "320 million people"),
        ("007", "7"),
    ],
)
def test_other_forms_of_a_number_are_no_difference(source: str, translation: str) -> None:
    for ours, theirs in ((source, translation), (translation, source)):
        assert missing_numbers(ours, theirs) == []


@pytest.mark.parametrize(
    ("source", "translation", "missing"),
    [
        ("© 2020 Tom", "20 Tom", ["2020"]),
        ("12 dogs, 12 cats", "13 Hunde, 12 Katzen", ["12"]),
        ("pay 1,250 euros", "125 Euro zahlen", ["1250"]),
        ("It was 66.6", "Es waren 666", ["66", "6"]),
        ("First, call 4711.", "Rufen Sie an.", ["4711"]),
        ("जन्म २०१९ में", "He was born", ["2019"]),
    ],
)
def test_lost_and_changed_numbers_are_named(
    source: str, translation: str, missing: list[str]
) -> None:
    assert missing_numbers(source, translation) == missing


TEXTS = st.text(st.sampled_from("0123456789٣३３ .,'万a年-:"), max_size=30)


@given(TEXTS, TEXTS)
def test_numbers_of_equal_texts_are_equal(source: str, translation: str) -> None:
    assert missing_numbers(source, source) == []
    assert not numbers_differ(source, source)
    assert numbers_differ(source, translation) is numbers_differ(translation, source)
    if numbers_differ(source, translation):
        assert missing_numbers(source, translation)


@pytest.mark.parametrize(
    ("name", "source", "target", "share"),
    [
        *(("multi30k/train", "en", other, 0.02) for other in ("de", "fr")),
        ("tatoeba-de-en/train", "de", "en", 0.05),
        ("tatoeba-zh-en/train", "zh", "en", 0.03),
        ("small-parallel-enja/train", "en", "ja", 0.02),
        # References of these lectures often have a part of their source only.
        ("coursera-zh-en/train", "zh", "en", 0.1),
    ],
)
def test_references_seldom_lack_a_number(
    name: str, source: str, target: str, share: float, corpora: Path
) -> None:
    sides = [LineReader(corpora / f"{name}.{language}.gz") for language in (source, target)]
    pairs = [pair for pair in zip(*sides, strict=True) if any(map(str.isdecimal, pair[0]))]
    assert sum(bool(missing_numbers(*pair)) for pair in pairs) < share * len(pairs)
