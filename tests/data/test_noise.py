from random import Random

import pytest

from mt.data.augmentation import FILLER, Noise, with_typos, without_punctuation


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


WORDS = [f"w{number}" for number in range(40)]
TEXT = " ".join(WORDS)


def on(
    noise: Noise, text: str = TEXT, *, line: int = 1, seed: int = 1, language: str = "de"
) -> str:
    return noise.on(text, language=language, seed=seed, line=line)


def test_zero_noise_keeps_the_text() -> None:
    assert on(Noise(), " a  b\u3000 ") == " a  b\u3000 "


def test_words_are_dropped_or_masked_with_the_given_probability() -> None:
    kept = [on(Noise(drop=0.25), line=line).split() for line in range(200)]
    assert all(words == sorted(words, key=WORDS.index) for words in kept)
    assert sum(map(len, kept)) / (200 * len(WORDS)) == pytest.approx(0.75, abs=0.02)
    masked = [on(Noise(mask=0.1), line=line).split() for line in range(200)]
    for words in masked:
        assert all(word in {FILLER, was} for word, was in zip(words, WORDS, strict=True))
    share = sum(words.count(FILLER) for words in masked) / (200 * len(WORDS))
    assert share == pytest.approx(0.1, abs=0.02)


def test_words_move_up_to_the_given_distance() -> None:
    moved = set()
    for line in range(200):
        words = on(Noise(swap=3), line=line).split()
        assert sorted(words) == sorted(WORDS)
        moved |= {abs(place - WORDS.index(word)) for place, word in enumerate(words)}
    assert moved == {0, 1, 2, 3}


def test_noise_depends_on_seed_and_line() -> None:
    noise = Noise(0.1, 0.1, 3)
    assert on(noise) == on(noise)
    assert len({on(noise, line=line, seed=seed) for line in range(5) for seed in range(5)}) == 25


@pytest.mark.parametrize("language", ["de", "zh"])
def test_at_least_one_word_remains(language: str) -> None:
    texts = [on(Noise(drop=0.99), "猫 hat", line=line, language=language) for line in range(50)]
    assert set(texts) <= {"猫", "hat", "猫 hat"}
    assert "猫" in texts


def test_in_unspaced_languages_words_are_characters_and_latin_words() -> None:
    text = "我在New York买了2个苹果。"
    units = ["我", "在", "New", "York", "买", "了", "2", "个", "苹", "果", "。"]
    masked = [on(Noise(mask=0.3), text, line=line, language="zh") for line in range(100)]
    assert sum(each.count(FILLER) for each in masked) / 1100 == pytest.approx(0.3, abs=0.05)
    rest = "".join(masked).replace(FILLER, "")
    assert not set(rest) - set(text)
    for line in range(20):
        swapped = on(Noise(swap=2), text, line=line, language="zh")
        assert all(unit in swapped for unit in units)
        assert len(swapped.replace(" ", "")) == len(text) - 1
