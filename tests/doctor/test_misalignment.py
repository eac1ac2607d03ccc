import gzip
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mt.doctor.misalignment import Shift, are_unrelated, find_shifts, learn_word_vectors
from mt.doctor.tally import LineBlock

Lines = list[str]

CORPORA = (
    ("multi30k", "en", "de", ("train", "val", "test_2016_flickr", "test_2017_mscoco")),
    ("multi30k", "en", "fr", ("train", "val", "test_2017_flickr", "test_2017_mscoco")),
    ("coursera-zh-en", "zh", "en", ("train", "valid", "test")),
    ("tatoeba-de-en", "de", "en", ("train", "valid", "test")),
    ("tatoeba-zh-en", "zh", "en", ("train", "valid", "test")),
    ("small-parallel-enja", "ja", "en", ("train", "valid", "test")),
    ("classical-modern", "lzh", "zh", ("train", "valid", "test")),
)


def _invented(pairs: int, *, spaced: bool) -> tuple[Lines, Lines]:
    """Return sentences of invented words with Zipf-like counts, and shuffled translations.

    A tenth of the target words is missing.
    """
    draw = random.Random(1)
    sources, targets = [], []
    for _ in range(pairs):
        words = [int(draw.paretovariate(0.6)) % 400 for _ in range(draw.randint(3, 12))]
        sources.append(" ".join(f"{'aeiou'[word % 5]}{word * 7919 % 997:03}q" for word in words))
        translated = [word for word in words if draw.random() > 0.1]
        draw.shuffle(translated)
        characters = [chr(0x4E00 + 13 * word) for word in translated]
        targets.append((" " if spaced else "").join(characters))
    return sources, targets


def _blocks(sources: Lines, targets: Lines, *, size: int = 4000) -> Iterator[LineBlock]:
    for first in range(0, max(len(sources), len(targets)), size):
        yield LineBlock(first, sources[first : first + size], targets[first : first + size])


def _locate(sources: Lines, targets: Lines) -> list[Shift]:
    vectors = learn_word_vectors(_blocks(sources, targets))
    return find_shifts(_blocks(sources, targets), vectors)


@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize(
    ("lost_sources", "lost_targets", "added_targets", "shifts"),
    [
        ([], [], [], []),
        ([731], [], [], [(732, 1)]),
        ([], [96], [], [(97, -1)]),
        ([], [0], [], [(1, -1)]),
        ([], [400], [800], [(401, -1), (801, 0)]),
        ([999], [600], [], [(601, -1)]),
    ],
)
def test_shifts_are_located(
    lost_sources: list[int],
    lost_targets: list[int],
    added_targets: list[int],
    shifts: list[tuple[int, int]],
    spaced: bool,
) -> None:
    sources, targets = _invented(1000, spaced=spaced)
    for index in lost_sources:
        del sources[index]
    for index in lost_targets:
        del targets[index]
    for index in added_targets:
        targets.insert(index, "")
    located = _locate(sources, targets)
    assert [shift.distance for shift in located] == [distance for _, distance in shifts]
    for shift, (line, _) in zip(located, shifts, strict=True):
        assert abs(shift.line - line) <= 10


def test_shifts_do_not_depend_on_the_block_size() -> None:
    sources, targets = _invented(800, spaced=True)
    del sources[500]
    vectors = learn_word_vectors(_blocks(sources, targets))
    expected = find_shifts(_blocks(sources, targets), vectors)
    assert expected
    for size in (1, 7, 100, 799):
        assert find_shifts(_blocks(sources, targets, size=size), vectors) == expected


@pytest.mark.parametrize("lines", [(1, 1), (0, 1), (3, 0)])
def test_corpora_of_a_few_lines_have_no_shift(lines: tuple[int, int]) -> None:
    sides = ["a b c"] * lines[0], ["d e f"] * lines[1]
    assert len(_locate(*sides)) <= 1
    blocks = list(_blocks(*sides))
    assert not are_unrelated(blocks, learn_word_vectors(blocks))


def test_shuffled_sides_are_unrelated_without_a_shift_and_true_pairs_are_not() -> None:
    sources, targets = _invented(1000, spaced=True)
    blocks = list(_blocks(sources, targets))
    assert not are_unrelated(blocks, learn_word_vectors(blocks))
    random.Random(2).shuffle(targets)
    blocks = list(_blocks(sources, targets))
    assert are_unrelated(blocks, learn_word_vectors(blocks))
    assert _locate(sources, targets) == []


def _read(path: Path) -> Lines:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def _splits(corpora: Path) -> Iterator[tuple[str, Lines, Lines]]:
    for corpus, source, target, splits in CORPORA:
        for split in splits:
            stem = corpora / corpus / split
            sides = (_read(stem.with_name(f"{split}.{code}.gz")) for code in (source, target))
            yield f"{corpus} {split}", next(sides), next(sides)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_line_removed_from_a_real_corpus_is_located(corpora: Path) -> None:
    located, missed = 0, []
    for seed, (name, sources, targets) in enumerate(_splits(corpora)):
        if name.endswith("train"):
            vectors = learn_word_vectors(_blocks(sources, targets))
        assert find_shifts(_blocks(sources, targets), vectors) == [], name
        draw = random.Random(seed)
        side, lost = draw.randrange(2), draw.randrange(len(sources))
        del (sources, targets)[side][lost]
        if name.endswith("train"):
            vectors = learn_word_vectors(_blocks(sources, targets))
        shifts = find_shifts(_blocks(sources, targets), vectors)
        if len(shifts) == 1 and abs(shifts[0].line - (lost + 1)) <= 50:
            located += 1
        else:
            missed.append((name, lost + 1, shifts))
    assert located >= 20
    assert len(missed) <= 1, missed
