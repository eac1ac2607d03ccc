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
LINES = 1600


def _pairs(count: int, *, seed: int) -> Pairs:
    """Return word-by-word translations of random sentences."""
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
    """Return a folder with three clean splits."""
    for seed, split in enumerate(SPLITS):
        _write(tmp_path, split, _pairs(LINES if split == "train" else 200, seed=seed))
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


def _shift_place(warning: str) -> int:
    return int(warning.partition(" at line ")[2].partition(" ")[0].replace(",", ""))


def test_a_clean_corpus_has_no_warning(folder: Path) -> None:
    assert _look(folder) == []
    _write(folder, "train", [*_pairs(LINES, seed=0), *_pairs(200, seed=2)[:1]])
    assert _look(folder) == []
    _write(folder, "train", [("a red house.", "a red house.")])
    assert _look(folder) == []


def test_lists_of_names_and_repeated_translations_are_not_unrelated(folder: Path) -> None:
    draw = random.Random(4)
    letters = dict(zip("abcdefghijkl", "абвгдежзиклм", strict=True))
    names = ["".join(draw.choices([*letters], k=8)) for _ in range(LINES)]
    _write(folder, "train", [(name, "".join(letters[c] for c in name)) for name in names])
    assert _look(folder) == []
    _write(folder, "train", [pair for pair in _pairs(40, seed=0) for _ in range(40)])
    assert not any("nothing in common" in warning for warning in _look(folder))


@pytest.mark.parametrize("lost", [200, 1300])
def test_a_missing_line_is_located(folder: Path, lost: int) -> None:
    pairs = _pairs(LINES, seed=0)
    targets = [target for _, target in pairs]
    del targets[lost]
    _write(folder, "train", list(zip([source for source, _ in pairs], targets, strict=False)))
    (warning,) = _look(folder)
    assert abs(_shift_place(warning) - lost) <= 10
    assert warning.startswith("the sides go out of step")
    assert warning.endswith("translates to line i-1")


def test_a_shift_between_the_stretches_of_a_large_corpus_is_located_after_it(folder: Path) -> None:
    pairs = _pairs(30_000, seed=0)
    targets = [target for _, target in pairs]
    targets.insert(20_000, "река.")
    _write(folder, "train", list(zip([source for source, _ in pairs], targets, strict=False)))
    (warning,) = _look(folder)
    assert 20_000 <= _shift_place(warning) <= 20_801  # every eighth stretch of 100 lines is read
    assert warning.endswith("line i+1")


def test_a_shuffled_side_is_one_warning(folder: Path) -> None:
    sources, targets = map(list, zip(*_pairs(LINES, seed=0), strict=True))
    random.Random(1).shuffle(targets)
    _write(folder, "train", list(zip(sources, targets, strict=True)))
    (warning,) = _look(folder)
    assert "nothing in common with those opposite" in warning


def test_swapped_sides_are_one_warning(folder: Path) -> None:
    _write(folder, "train", [(target, source) for source, target in _pairs(LINES, seed=0)])
    assert _look(folder) == [
        "the sides look swapped: `ru` on the source side, `en` on the target side"
    ]


def test_sides_in_other_languages_are_found_by_script_or_identifier(folder: Path) -> None:
    assert _look(folder, languages=("en", "zh")) == [
        "100% of a sample: text in a script of another language, target side"
    ]
    pytest.importorskip("py3langid")
    _write(folder, "train", [(source, source) for source, _ in _pairs(LINES, seed=0)])
    assert _look(folder, languages=("en", "de")) == [
        "100% of a sample: pairs with the same text on both sides",
        "the target side seems to be in `en`, `data.target_language` is `de`",
    ]


def test_tokenized_text_is_a_warning(folder: Path) -> None:
    _write(folder, "train", [(s.replace(".", " ."), t) for s, t in _pairs(LINES, seed=0)])
    assert _look(folder) == [
        "100% of a sample: text split into words (spaces before punctuation, escapes), source side"
    ]


def test_test_pairs_in_the_training_are_counted_unless_cleaning_removes_them(folder: Path) -> None:
    shared = _pairs(200, seed=2)[:10]
    _write(folder, "train", [*_pairs(LINES, seed=0), *shared, *shared])
    assert _look(folder) == ["10 of the 200 pairs of `test` are also in it"]
    assert _look(folder, "data.cleaning.overlap=exact") == []


@pytest.mark.parametrize("kept", [1 << 16, 250])
def test_repetitions_are_a_warning_from_one_half_unless_cleaning_removes_them(
    kept: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.doctor.first_look._MAX_HASHES", kept)
    _write(folder, "train", _pairs(800, seed=0) * 4)
    assert _look(folder) == ["75% of the pairs are repetitions"]
    assert _look(folder, "data.cleaning.duplicates=pair") == []
    _write(folder, "train", _pairs(800, seed=0) * 2)
    assert _look(folder) == []


def test_defects_that_cleaning_removes_are_no_warning(folder: Path) -> None:
    bad = [(source, source) for source, _ in _pairs(1000, seed=5)]
    _write(folder, "train", [*_pairs(500, seed=0), *bad])
    assert "67% of a sample: pairs with the same text on both sides" in _look(folder)
    settings = ("data.cleaning.identical_sides=true", "data.cleaning.wrong_script=true")
    assert _look(folder, *settings) == []
