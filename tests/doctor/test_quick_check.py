import random
from pathlib import Path

import pytest

from mt.config.loading import load_config
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora
from mt.doctor.check import CorpusWatch, check_split
from mt.doctor.findings import KINDS

Pairs = list[tuple[str, str]]

ENGLISH = ["the", "old", "man", "sees", "some", "river", "behind", "house", "while", "they", "sing"]
RUSSIAN = ["этот", "старый", "видит", "реку", "за", "домом", "пока", "дети", "поют", "про", "воду"]
SAME = "pairs with the same text on both sides"


def _pairs(count: int, *, seed: int = 0) -> Pairs:
    """Return word-by-word translations of random sentences."""
    draw = random.Random(seed)
    rows = [draw.choices(range(len(RUSSIAN)), k=draw.randint(6, 14)) for _ in range(count)]
    return [
        (f"{' '.join(ENGLISH[n] for n in row)}.", f"{' '.join(RUSSIAN[n] for n in row)}.")
        for row in rows
    ]


CLEAN, VALID, TEST = _pairs(1600), _pairs(200, seed=1), _pairs(200, seed=2)


def _check(folder: Path, train: Pairs, *settings: str) -> list[str]:
    """Check training pairs; the files of the splits are for the cleaning."""
    for split, pairs in (("valid", VALID), ("test", TEST)):
        for side, language in enumerate(("en", "ru")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    recipe = folder / "recipe.yaml"
    valid, test = (
        f"{{source: {folder}/{split}.en, target: {folder}/{split}.ru}}"
        for split in ("valid", "test")
    )
    recipe.write_text(
        "data:\n  source_language: en\n  target_language: ru\n"
        f"  train: {valid}\n  valid: {valid}\n  tests: {{test: {test}}}\n",
        encoding="utf-8",
    )
    (opened,) = open_training_corpora(load_config(recipe, overrides=settings).data)
    splits = {"valid": _sentence_pairs(VALID), "test": _sentence_pairs(TEST)}
    watch, corpus = CorpusWatch(splits, opened.cleaning), _sentence_pairs(train)
    assert list(watch.read(corpus)) == corpus
    return watch.warnings()


def _sentence_pairs(pairs: Pairs) -> list[SentencePair]:
    return [SentencePair(source, target) for source, target in pairs]


def _shuffled(pairs: Pairs) -> Pairs:
    targets = [target for _, target in pairs]
    random.Random(1).shuffle(targets)
    return [(source, target) for (source, _), target in zip(pairs, targets, strict=True)]


def _names() -> Pairs:
    draw = random.Random(4)
    letters = dict(zip("abcdefghijkl", "абвгдежзиклм", strict=True))
    names = ["".join(draw.choices([*letters], k=8)) for _ in CLEAN]
    return [(name, "".join(letters[c] for c in name)) for name in names]


SWAPPED = "the sides look swapped: `ru` on the source side, `en` on the target side"
SCRIPT = "100% of 1,600 pairs: text in a script of another language, target side"
SPLIT = (
    "100% of 1,600 pairs: text split into words (spaces before punctuation, escapes), source side"
)
SHARED = "10 of the 200 pairs of `test` are also in it"
REPEATED = "75% of the pairs are repetitions"
IN_ENGLISH = "the target side seems to be in `en`, `data.target_language` is `de`"
MOSTLY_SAME = [*_pairs(500), *((source, source) for source, _ in _pairs(1000, seed=5))]
CASES: dict[str, tuple[Pairs, list[str], list[str]]] = {
    "clean": (CLEAN, [], []),
    "one test pair": ([*CLEAN, TEST[0]], [], []),
    "names": (_names(), [], []),
    "shuffled": (_shuffled(CLEAN), [], [KINDS["unrelated"]]),
    "swapped": ([(target, source) for source, target in CLEAN], [], [SWAPPED]),
    "other script": (CLEAN, ["data.target_language=zh"], [SCRIPT]),
    "tokenized": ([(s.replace(".", " ."), t) for s, t in CLEAN], [], [SPLIT]),
    "overlap": ([*CLEAN, *TEST[:10], *TEST[:10]], [], [SHARED]),
    "other direction": (
        [*[(f"x {s}", t) for s, t in CLEAN], *((t, s) for s, t in TEST[:10])],
        [],
        [SHARED],
    ),
    "overlap cleaned": ([*CLEAN, *TEST[:10]], ["data.cleaning.overlap=exact"], []),
    "repeated": (_pairs(800) * 4, [], [REPEATED]),
    "repeated cleaned": (_pairs(800) * 4, ["data.cleaning.duplicates=pair"], []),
    "repeated once": (_pairs(800) * 2, [], []),
    "defects cleaned": (
        MOSTLY_SAME,
        ["data.cleaning.identical_sides=true", "data.cleaning.wrong_script=true"],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_defects_that_cleaning_keeps_are_warnings(case: str, tmp_path: Path) -> None:
    train, settings, warnings = CASES[case]
    assert _check(tmp_path, train, *settings) == warnings


def test_several_warnings_are_listed_and_short_repeats_are_not_unrelated(tmp_path: Path) -> None:
    assert f"67% of 1,500 pairs: {SAME}" in _check(tmp_path, MOSTLY_SAME)
    warnings = _check(tmp_path, [pair for pair in _pairs(40) for _ in range(40)])
    assert KINDS["unrelated"] not in warnings


def test_a_language_of_the_same_script_is_identified(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    copied = [(source, source) for source, _ in CLEAN]
    warnings = _check(tmp_path, copied, "data.target_language=de")
    assert warnings == [f"100% of 1,600 pairs: {SAME}", IN_ENGLISH]


@pytest.mark.parametrize(
    ("lines", "lost", "distance", "read"),
    [
        (1600, 200, -1, range(190, 211)),
        (1600, 1300, -1, range(1290, 1311)),
        (30_000, 20_000, 1, range(20_000, 20_802)),  # every eighth stretch of 100 lines is read
    ],
)
def test_a_line_without_translation_is_located(
    lines: int, lost: int, distance: int, read: range, tmp_path: Path
) -> None:
    sources, targets = map(list, zip(*_pairs(lines), strict=True))
    del (sources if distance > 0 else targets)[lost]
    (warning,) = _check(tmp_path, list(zip(sources, targets, strict=False)))
    assert warning.startswith("the sides go out of step")
    assert warning.endswith(f"translates to line i{distance:+d}")
    assert int(warning.partition(" at line ")[2].split()[0].replace(",", "")) in read


EN_DE = [
    ("The children are playing behind the old house.", "Die Kinder spielen hinter dem alten Haus."),
    ("Nobody knows why the shop was closed today.", "Niemand weiß, warum der Laden heute zu war."),
    ("We would like two tickets for the evening.", "Wir hätten gern zwei Karten für den Abend."),
]
EN_ZH = [("He reads a book.", "他在看书。"), ("No.", "不。"), ("1984", "1984")]
JA_ZH = [("子供たちが古い家の裏で遊んでいます。", "孩子们正在那座老房子后面玩。")] * 3
OTHER_SIDE = "the sides look swapped: `{1}` on the source side, `{0}` on the target side"


@pytest.mark.parametrize("copies", [1, 5, 40])
@pytest.mark.parametrize(
    ("pairs", "languages"), [(EN_DE, "en de"), (EN_ZH, "en zh"), (JA_ZH, "ja zh"), (CLEAN, "en ru")]
)
def test_faults_of_a_split_are_named_at_any_size(pairs: Pairs, languages: str, copies: int) -> None:
    pytest.importorskip("py3langid")
    source, target = languages.split()
    pairs = [pairs[n % 3] for n in range(3 * copies)]
    good, swapped = _sentence_pairs(pairs), [SentencePair(t, s) for s, t in pairs]
    assert check_split(good, (source, target)) == []
    assert check_split(swapped, (source, target)) == [OTHER_SIDE.format(source, target)]
    blank = [SentencePair("\u200b", "x"), SentencePair("x", "\u3000 "), *good, SentencePair("", "")]
    warning = f"3 of the {len(blank)} pairs have a blank side, the first at line 1"
    assert check_split(blank, (source, target)) == [warning]
    copied = [SentencePair(pair.source, pair.source) for pair in good]
    assert f"100% of 3 pairs: {SAME}" in " ".join(check_split(copied[:1] * 3, (source, target)))


def test_names_and_single_words_are_no_other_language() -> None:
    names = ["Anna Schmidt", "Peter Müller", "Ulan Bator", "Rio de Janeiro", "Reykjavík"] * 3
    pairs = [SentencePair(name, f"{name}.") for name in names]
    assert check_split(pairs, ("en", "de")) == []


@pytest.mark.parametrize("count", [12, 300])
def test_sides_without_text_are_named(count: int, tmp_path: Path) -> None:
    scores = [(f"{n / 7:.3f}", pair[1]) for n, pair in enumerate(CLEAN[:count])]
    ids = [(pair[0], f"doc-{n}") for n, pair in enumerate(CLEAN[:count])]
    quoted = [(f'"{source}"', target) for source, target in CLEAN[:count]]
    for pairs, warning in (
        (scores, "the source side is numbers, codes or the like, such as `0.000`"),
        (ids, "the target side is numbers, codes or the like, such as `doc-0`"),
        (quoted, "the source side is in quotation marks, which are taken for text"),
    ):
        assert _check(tmp_path, pairs) == [warning]
        assert check_split(_sentence_pairs(pairs), ("en", "ru"))[0] == warning


@pytest.mark.parametrize(
    ("language", "texts", "rarer", "kinds"),
    [
        ("zh", ["这是我们的国家。", "這是我們的國家。"], 40, ["two_scripts"]),
        ("zh-Hans", ["这是我们的国家。", "這是我們的國家。"], 40, ["wrong_script"]),
        ("sr", ["Добро вече свима.", "Dobro veče svima."], 20, ["two_scripts"]),
        ("sr", ["Добро вече свима.", "Dobro veče svima."], 0, []),
    ],
)
def test_other_script_is_found_once(
    language: str, texts: list[str], rarer: int, kinds: list[str]
) -> None:
    pairs = [SentencePair(f"our country {n}", texts[n < rarer]) for n in range(100)]
    found = check_split(pairs, ("en", language))
    shown = [kind for kind in KINDS for line in found if KINDS[kind] in line]
    assert [kind for kind in shown if kind.endswith(("_script", "_scripts"))] == kinds
