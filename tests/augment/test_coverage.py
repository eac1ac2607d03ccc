"""Choice of diverse lines."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

import pytest

from mt.augment.coverage import choose_lines


def words_of(lines: Sequence[str]) -> list[list[int]]:
    return [[*(crc32(word.encode()) for word in line.split()), 3] for line in lines]


def choose(lines: list[str], count: int) -> list[str]:
    mask = choose_lines(lambda: iter(lines), count, words_of)
    assert len(mask) == len(lines)
    return [line for line, chosen in zip(lines, mask, strict=True) if chosen]


def made_lines(count: int, seed: int = 1) -> list[str]:
    """Return lines of 1 to 12 words of which few are frequent."""
    random_ = random.Random(seed)
    vocabulary = [f"w{number}" for number in range(300)]
    weights = [1 / (rank + 1) for rank in range(300)]
    lengths = [random_.randint(1, 12) for _ in range(count)]
    return [" ".join(random_.choices(vocabulary, weights, k=length)) for length in lengths]


def count_bigrams(lines: list[str]) -> Counter[tuple[str, str]]:
    words = [line.split() for line in lines]
    return Counter(pair for line in words for pair in {*pairwise(line)})


@pytest.mark.parametrize("count", [1, 7, 100, 999])
def test_distinct_lines_are_chosen_as_many_as_asked_for(count: int) -> None:
    lines = ["", *made_lines(1000), "", *made_lines(1000)[:200]]
    chosen = choose(lines, count)
    assert len(chosen) == len(set(chosen)) == min(count, len({*lines} - {""}))
    assert "" not in chosen
    assert chosen == choose(lines, count)


def test_a_short_text_is_chosen_whole() -> None:
    assert choose(["a b", "", "c", "a b", "d"], 4) == ["a b", "c", "d"]
    assert choose(["", ""], 3) == []


def test_chosen_lines_hold_more_ngrams_than_random_ones() -> None:
    lines = [*dict.fromkeys(made_lines(3000))]
    chosen = choose(lines, 300)
    others = random.Random(2).sample(lines, 300)
    repeated = {pair for pair, times in count_bigrams(lines).items() if times > 1}
    held, by_chance = (len(repeated & count_bigrams(sample).keys()) for sample in (chosen, others))
    assert held > 1.15 * by_chance


def test_each_length_keeps_its_share() -> None:
    lines = [*dict.fromkeys(made_lines(4000))]
    chosen = choose(lines, 400)
    for first, last in ((0, 0), (1, 2), (3, 6), (7, 12)):  # and the end mark

        def share(text: list[str], words: range = range(first, last + 1)) -> float:
            return sum(len(line.split()) in words for line in text) / len(text)

        assert share(chosen) == pytest.approx(share(lines), abs=0.006)


def test_text_that_occurs_nowhere_else_is_not_preferred() -> None:
    usual = [f"a{i % 30} b{i % 17} c{i % 23}" for i in range(400)]
    noise = [f"x{i} y{i} z{i}" for i in range(100)]
    assert not {*choose(usual + noise, 60)} & {*noise}


STATEMENTS = {
    "en": ("He went home {}.", '"He went home {}," she said.', "- Go home {}.", "Go home {}?"),
    "de": ("Er ging {} heim.", "„Geh {} heim.“", "– Geh {} heim.", "Gehst du {} heim?“"),
    "es": ("Fue {} a casa.", "«Ve {} a casa.»", "—Ve {} a casa.", "¿Vas {} a casa?"),
    "el": ("Πήγε {} σπίτι.", "«Πήγαινε {} σπίτι.»", "— Πήγαινε {} σπίτι.", "Πας {} σπίτι;"),
    "hy": ("Նա գնաց {} տուն։", "«Գնա {} տուն։»", "— Գնա {} տուն։", "Գնում ես {} տուն՞"),
    "zh": ("他 {} 回家了。", "「回 {} 家吧。」", "“回 {} 家吧。”", "你 {} 回家吗？"),
    "ja": ("彼は {} 帰った。", "「もう {} 帰れ。」", "『もう {} 帰れ。』", "もう {} 帰る？"),
    "ar": (
        "ذهب {} إلى البيت.",
        "«اذهب {} إلى البيت.»",
        "- اذهب {} إلى البيت.",
        "هل تذهب {} إلى البيت؟",
    ),
    "am": ("ወደ {} ቤት ሄደ።", "«ወደ {} ቤት ሂድ።»", "- ወደ {} ቤት ሂድ።", "ወደ {} ቤት ትሄዳለህ፧"),
    "hi": ("वह {} घर गया।", "“तुम {} घर जाओ।”", "- तुम {} घर जाओ।", "क्या {} घर जाओगे?"),
}
"""A statement and three lines of dialogue by language, with place for a number."""


@pytest.mark.parametrize("language", STATEMENTS)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_dialogue_keeps_its_share(language: str, kind: int) -> None:
    # Dialogue repeats itself and would be left out; its words differ from all others.
    statement, dialogue = STATEMENTS[language][0], STATEMENTS[language][kind]
    lines = [statement.format(f"{i % 40} {i % 7} {i}") for i in range(160)]
    spoken = [dialogue.format(f"1 1 {i}") for i in range(40)]
    chosen = choose(lines + spoken, 50)
    assert len({*chosen} & {*spoken}) == pytest.approx(10, abs=1)
