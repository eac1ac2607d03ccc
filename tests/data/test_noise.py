from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mt.config.data import CleaningConfig, DataConfig, TextSource
from mt.data.filters import Cleaning
from mt.data.noise import NOISES, noised, with_typos, without_punctuation
from mt.data.pairs import SentencePair

TEXT = "The weather, however, was rather pleasant in those mountains."


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


@pytest.mark.parametrize("name", NOISES)
def test_noise_hits_its_share_of_lines_by_seed_and_line(name: str) -> None:
    def run(**settings: Any) -> list[str]:
        config = CleaningConfig(**settings)
        return [noised(TEXT, config, line=line)[0] for line in range(1, 2001)]

    texts = run(**{name: 0.2})
    assert sum(text != TEXT for text in texts) / 2000 == pytest.approx(0.2, abs=0.03)
    assert texts == run(**{name: 0.2})
    assert texts != run(**{name: 0.2}, noise_seed=2)
    assert run(**{name: 0.0}) == [TEXT] * 2000
    assert TEXT not in run(**{name: 1.0})
    # Lines that a smaller share changes are changed alike by a larger share.
    more = run(**{name: 0.4})
    assert all(old in {TEXT, new} for old, new in zip(texts, more, strict=True))


def test_kinds_of_noise_combine_and_are_reported() -> None:
    config = CleaningConfig(noise_case=1.0, noise_punctuation=1.0)
    assert noised("Yes, now.", config, line=1) == ("YES NOW", ("noise_case", "noise_punctuation"))
    assert noised("YES", config, line=1) == ("YES", ())


PAIRS = [SentencePair("Yes, now.", "Ja, jetzt."), SentencePair("x", "x"), SentencePair("No.", "!")]


@pytest.fixture
def data() -> DataConfig:
    source = TextSource(source="a", target="b")
    noise = CleaningConfig(noise_case=1.0, noise_punctuation=0.5, identical_sides=True)
    return DataConfig(
        source_language="en", target_language="de", train=source, valid=source, cleaning=noise
    )


def test_noise_changes_only_sources_after_the_filters(data: DataConfig) -> None:
    taken, noisy = Counter[str](), Counter[str]()
    pairs = PAIRS * 100
    left = list(Cleaning(data).clean(pairs, taken, noisy))
    assert [pair.target for pair in left] == ["Ja, jetzt.", "!"] * 100
    assert {pair.source for pair in left} == {"YES, NOW.", "YES NOW", "NO.", "NO"}
    assert taken == {"identical_sides": 100}
    marks = sum("." not in pair.source for pair in left)
    assert noisy == {"noise_case": 200, "noise_punctuation": marks}
    assert list(Cleaning(data).clean(pairs)) == left


def test_noise_does_not_depend_on_removed_pairs(data: DataConfig) -> None:
    def sources(**settings: Any) -> list[str]:
        changed = data.cleaning.model_copy(update=settings)
        judged = Cleaning(data.model_copy(update={"cleaning": changed})).judge(PAIRS * 20)
        return [each.pair.source for each in judged if each.original == PAIRS[0]]

    assert sources() == sources(identical_sides=False)
    assert len(set(sources())) == 2


def test_cleaning_without_noise_keeps_the_filters(data: DataConfig) -> None:
    quiet = Cleaning(data).without_noise()
    assert list(quiet.clean(PAIRS)) == [PAIRS[0], PAIRS[2]]
    assert quiet.noises == ()
    assert Cleaning(data).noises == ("noise_case", "noise_punctuation")
    prints = {Cleaning(data).fingerprint, quiet.fingerprint}
    again = data.cleaning.model_copy(update={"noise_seed": 2})
    prints.add(Cleaning(data.model_copy(update={"cleaning": again})).fingerprint)
    assert len(prints) == 3


def test_overlap_compares_texts_without_noise(data: DataConfig, tmp_path: Path) -> None:
    for side, text in (("en", "Yes, now."), ("de", "Ja.")):
        (tmp_path / f"valid.{side}").write_text(f"{text}\n")
    valid = TextSource(source=str(tmp_path / "valid.en"), target=str(tmp_path / "valid.de"))
    settings = data.cleaning.model_copy(update={"overlap": "exact"})
    cleaning = Cleaning(data.model_copy(update={"valid": valid, "cleaning": settings}))
    judged = list(cleaning.judge(PAIRS))
    assert [each.taken_by for each in judged] == ["overlap", "identical_sides", None]
    assert replace(judged[0], noise=()) == judged[0]
    assert judged[0].pair == PAIRS[0]
