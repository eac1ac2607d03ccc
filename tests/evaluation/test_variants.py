"""Changed test splits: what changes, what stays, and what would test nothing."""

import pytest

from mt.data.pairs import SentencePair
from mt.evaluation.robustness import LeftOut, Variant, joined, variants

PAIRS = [
    SentencePair("A dog, a cat.", "Ein Hund, eine Katze."),
    SentencePair("Rain?", "Regen?"),
    SentencePair("no marks", "keine Zeichen"),
    SentencePair("Straße 5!", "Weg 5!"),
    SentencePair("It ends.", "Es endet."),
]


def sides(pairs: list[SentencePair]) -> tuple[list[str], list[list[str]]]:
    """Return the sources, and two sets of references of which the second is marked."""
    right = [pair.target for pair in pairs]
    return [pair.source for pair in pairs], [right, [f"{line} 2" for line in right]]


def made(pairs: list[SentencePair], source: str, target: str) -> dict[str, Variant]:
    forms, _ = variants(*sides(pairs), source_language=source, target_language=target)
    return {form.name: form for form in forms}


def left_out(pairs: list[SentencePair], language: str) -> tuple[LeftOut, ...]:
    return variants(*sides(pairs), source_language=language, target_language="en")[1]


def test_each_variant_changes_the_sources_and_tells_how_many() -> None:
    forms = made(PAIRS, "en", "de")
    assert list(forms) == [
        "untouched",
        "upper case",
        "lower case",
        "no punctuation",
        "typos",
        "long input",
    ]
    assert forms["upper case"].sources == (
        "A DOG, A CAT.",
        "RAIN?",
        "NO MARKS",
        "STRASSE 5!",
        "IT ENDS.",
    )
    assert forms["lower case"].sources[0] == "a dog, a cat."
    assert forms["no punctuation"].sources[:2] == ("A dog a cat", "Rain")
    changed = {name: form.changed for name, form in forms.items()}
    assert changed["untouched"] == 0
    assert (changed["upper case"], changed["lower case"], changed["no punctuation"]) == (5, 4, 4)
    assert changed["long input"] == 2


def test_references_stay_but_those_of_joined_lines() -> None:
    forms = made(PAIRS, "en", "de")
    right = tuple(map(tuple, sides(PAIRS)[1]))
    assert {form.references for name, form in forms.items() if name != "long input"} == {right}
    assert forms["long input"].sources == (
        "A dog, a cat. Rain? no marks Straße 5!",
        "It ends.",
    )
    assert forms["long input"].references == (
        ("Ein Hund, eine Katze. Regen? keine Zeichen Weg 5!", "Es endet."),
        ("Ein Hund, eine Katze. 2 Regen? 2 keine Zeichen 2 Weg 5! 2", "Es endet. 2"),
    )


def test_typos_are_always_the_same_and_in_every_line_with_a_word_of_four_letters() -> None:
    typos = made(PAIRS, "en", "de")["typos"]
    assert typos == made(PAIRS, "en", "de")["typos"]
    told = [one.source != other for one, other in zip(PAIRS, typos.sources, strict=True)]
    assert told[0] is False  # its words have three letters
    assert typos.changed == sum(told) >= 3


def test_the_same_words_on_two_lines_get_typos_of_their_own() -> None:
    pairs = [SentencePair("extraordinary circumstances", "x")] * 20
    assert len(set(made(pairs, "en", "de")["typos"].sources)) > 10


def test_a_script_without_capitals_has_no_variants_of_case() -> None:
    pairs = [SentencePair("我爱 NLP。", "I love it."), SentencePair("下雨了吗？", "Rain?")]
    reason = "the script of the sources has no capital letters"
    assert left_out(pairs, "zh") == (
        LeftOut("upper case", reason),
        LeftOut("lower case", reason),
    )


def test_what_changes_no_line_is_left_out() -> None:
    assert left_out([SentencePair("a dog .", "x"), SentencePair("a cat", "y")], "en") == (
        LeftOut("lower case", "it changes no line"),
        LeftOut("typos", "it changes no line"),
    )
    assert left_out([SentencePair("Rain, rain.", "x")], "en") == (
        LeftOut("long input", "there is one line alone"),
    )


@pytest.mark.parametrize(
    ("lines", "language", "first"),
    [
        (["a", "b", "c", "d", "e"], "en", "a b c d"),
        (["我来了。", "你呢？"], "zh", "我来了。你呢？"),
        (
            ["我 来 了 。", "你 呢 ？", "下 雨 了 吗 ？"],
            "zh",
            "我 来 了 。 你 呢 ？ 下 雨 了 吗 ？",
        ),
    ],
)
def test_lines_are_joined_as_the_language_joins_them(
    lines: list[str], language: str, first: str
) -> None:
    assert joined(lines, language)[0] == first
