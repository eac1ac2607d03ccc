"""Is what is alarming told in a few clauses, and nothing else?"""

import random
from pathlib import Path

import pytest

from mt.config.loading import load_config
from mt.data.filters import open_training_corpora
from mt.doctor.first_look import first_look

Pairs = list[tuple[str, str]]

ENGLISH = ["the", "old", "man", "sees", "some", "river", "behind", "house", "while", "they", "sing"]
RUSSIAN = ["этот", "старый", "видит", "реку", "за", "домом", "пока", "дети", "поют", "про", "воду"]
SPLITS = ("train", "valid", "test")


def _pairs(count: int, *, seed: int) -> Pairs:
    """Return translations word by word of sentences drawn at random."""
    draw = random.Random(seed)
    rows = [draw.choices(range(len(RUSSIAN)), k=draw.randint(6, 14)) for _ in range(count)]
    return [
        (f"{' '.join(ENGLISH[n] for n in row)}.", f"{' '.join(RUSSIAN[n] for n in row)}.")
        for row in rows
    ]


def _write(folder: Path, split: str, pairs: Pairs) -> None:
    for side, language in enumerate(("en", "ru")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with three spotless splits."""
    for seed, split in enumerate(SPLITS):
        _write(tmp_path, split, _pairs(3000 if split == "train" else 200, seed=seed))
    return tmp_path


def _look(folder: Path, *settings: str, languages: tuple[str, str] = ("en", "ru")) -> list[str]:
    recipe = folder / "recipe.yaml"
    train, valid, test = (
        f"{{source: {folder}/{split}.en, target: {folder}/{split}.ru}}" for split in SPLITS
    )
    recipe.write_text(
        f"data:\n  source_language: {languages[0]}\n  target_language: {languages[1]}\n"
        f"  train: {train}\n  valid: {valid}\n  tests: {{test: {test}}}\n",
        encoding="utf-8",
    )
    (corpus,) = open_training_corpora(load_config(recipe, overrides=settings).data)
    return first_look(corpus)


def test_lists_of_names_and_lines_with_many_translations_are_not_called_unrelated(
    folder: Path,
) -> None:
    draw = random.Random(4)
    letters = dict(zip("abcdefghijkl", "абвгдежзиклм", strict=True))
    names = ["".join(draw.choices([*letters], k=8)) for _ in range(3000)]
    _write(folder, "train", [(name, "".join(letters[c] for c in name)) for name in names])
    assert _look(folder) == []
    draws = [pair for pair in _pairs(100, seed=0) for _ in range(40)]
    _write(folder, "train", draws)
    assert not any("nothing in common" in alarm for alarm in _look(folder))


def test_a_spotless_corpus_raises_no_alarm(folder: Path) -> None:
    assert _look(folder) == []


@pytest.mark.parametrize("lost", [200, 1500, 2500])
def test_a_lost_line_is_told_with_its_place(folder: Path, lost: int) -> None:
    pairs = _pairs(3000, seed=0)
    targets = [target for _, target in pairs]
    del targets[lost]
    _write(folder, "train", list(zip([source for source, _ in pairs], targets, strict=False)))
    (alarm,) = _look(folder)
    place = int(alarm.partition(" at line ")[2].partition(" ")[0].replace(",", ""))
    assert abs(place - lost) <= 10
    assert alarm.startswith("the sides slip apart")
    assert alarm.endswith("translates to line i-1")


def test_of_a_large_corpus_only_stretches_are_looked_at_and_the_place_is_right(
    folder: Path,
) -> None:
    pairs = _pairs(30_000, seed=0)
    targets = [target for _, target in pairs]
    targets.insert(20_000, "река.")
    _write(folder, "train", list(zip([source for source, _ in pairs], targets, strict=False)))
    (alarm,) = _look(folder)
    place = int(alarm.partition(" at line ")[2].partition(" ")[0].replace(",", ""))
    # Every eighth stretch of 100 lines is read.
    assert 20_000 <= place <= 20_801
    assert alarm.endswith("line i+1")


def test_swapped_sides_are_told_once(folder: Path) -> None:
    _write(folder, "train", [(target, source) for source, target in _pairs(3000, seed=0)])
    assert _look(folder) == [
        "the sides look swapped: `ru` on the source side, `en` on the target side"
    ]


def test_one_side_in_another_script_is_told(folder: Path) -> None:
    assert _look(folder, languages=("en", "zh")) == [
        "100% of a sample: text in a script of another language, target side"
    ]


def test_languages_of_one_script_are_told_apart_by_the_identifier(folder: Path) -> None:
    pytest.importorskip("py3langid")
    _write(folder, "train", [(source, source) for source, _ in _pairs(3000, seed=0)])
    assert _look(folder, languages=("en", "de")) == [
        "100% of a sample: pairs with the same text on both sides",
        "the target side seems to be in `en`, `data.target_language` is `de`",
    ]


def test_text_cut_into_words_is_told(folder: Path) -> None:
    pairs = _pairs(3000, seed=0)
    _write(folder, "train", [(s.replace(".", " ."), t) for s, t in pairs])
    assert _look(folder) == [
        "100% of a sample: text cut into words (spaces before punctuation, escapes), source side"
    ]


def test_pairs_of_the_tests_are_told_by_split_unless_cleaning_takes_them(folder: Path) -> None:
    shared = _pairs(200, seed=2)[:10]
    _write(folder, "train", [*_pairs(3000, seed=0), *shared, *shared])
    assert _look(folder) == ["10 of the 200 pairs of `test` are in it too"]
    assert _look(folder, "data.cleaning.overlap=exact") == []


def test_a_pair_or_two_of_a_test_are_no_alarm(folder: Path) -> None:
    _write(folder, "train", [*_pairs(3000, seed=0), *_pairs(200, seed=2)[:1]])
    assert _look(folder) == []


@pytest.mark.parametrize(("times", "told"), [(2, []), (4, ["75% of the pairs were there before"])])
def test_most_pairs_repeated_are_told_unless_cleaning_takes_them(
    folder: Path, times: int, told: list[str]
) -> None:
    _write(folder, "train", _pairs(3000, seed=0) * times)
    assert _look(folder) == told
    assert _look(folder, "data.cleaning.duplicates=pair") == []


def test_repeats_are_seen_in_a_sample_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt.doctor.first_look._MOST_KEPT", 500)
    _write(folder, "train", _pairs(3000, seed=0) * 4)
    assert _look(folder) == ["75% of the pairs were there before"]


def test_what_the_cleaning_takes_out_is_no_alarm(folder: Path) -> None:
    bad = [(source, source) for source, _ in _pairs(2000, seed=5)]
    _write(folder, "train", [*_pairs(1000, seed=0), *bad])
    assert "67% of a sample: pairs with the same text on both sides" in _look(folder)
    settings = ("data.cleaning.identical_sides=true", "data.cleaning.wrong_script=true")
    assert _look(folder, *settings) == []


def test_a_corpus_of_a_line_is_no_trouble(folder: Path) -> None:
    _write(folder, "train", [("a red house.", "a red house.")])
    assert _look(folder) == []


def test_a_shuffled_side_is_told_and_no_slip_besides(folder: Path) -> None:
    sources, targets = map(list, zip(*_pairs(3000, seed=0), strict=True))
    random.Random(1).shuffle(targets)
    _write(folder, "train", list(zip(sources, targets, strict=True)))
    (alarm,) = _look(folder)
    assert "nothing in common with those opposite" in alarm
