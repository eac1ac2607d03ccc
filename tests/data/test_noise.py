from random import Random

import pytest

from mt.data.augmentation import with_typos, without_punctuation


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Yes, he said: “No!” (twice)", "Yes he said No twice"),
        ("I don't know 3.14 or well-known a/b.", "I don't know 3.14 or well-known a/b"),
        ("a - b", "a b"),
        ("你好，世界。我来了！", "你好世界我来了"),
        ("50% of A&B", "50% of A&B"),
        ("¿Qué?", "Qué"),
        ("...!", "...!"),
        ("no  marks", "no marks"),
    ],
)
def test_punctuation_is_removed_except_inside_words(text: str, left: str) -> None:
    assert without_punctuation(text, Random(1)) == left


def test_typo_swaps_drops_or_doubles_a_letter_of_a_long_word() -> None:
    found = set()
    for seed in range(300):
        words = with_typos("An abcdef 12345 go.", Random(seed)).split(" ")
        assert (words[0], *words[2:]) == ("An", "12345", "go.")
        found.add(words[1])
    swaps, drops = "acbdef abdcef abcedf abcdfe", "acdef abdef abcef abcdf"
    assert found == {*f"{swaps} {drops} abbcdef abccdef abcddef abcdeef".split()}


def test_typos_hit_a_tenth_of_the_words_and_at_least_one() -> None:
    assert with_typos("no go", Random(1)) == "no go"
    words = [f"{chr(97 + number)}bcdefgh" for number in range(20)] * 10
    counts = []
    for seed in range(20):
        typed = with_typos(" ".join(words), Random(seed)).split()
        counts.append(sum(a != b for a, b in zip(words, typed, strict=True)))
    assert sum(counts) / (20 * len(words)) == pytest.approx(0.1, abs=0.02)
