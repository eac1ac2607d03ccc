"""Held-out splits: the choice of their pairs, and training without them."""

import json
import random
import re
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.config.data import DataConfig
from mt.config.loading import load_config
from mt.data import corpus_files
from mt.data.corpus_files import read_chunks
from mt.data.splits import open_split, open_splits, open_training_corpora
from mt.errors import ConfigError, DataError
from mt.training.data import open_prepared, prepare
from mt.training.run_folder import RunFolder
from tests.factories import Program

Pairs = list[tuple[str, str]]
NAMES = ("test", "valid")


def write(folder: Path, name: str, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Write a corpus and return its section."""
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return {"format": "tsv", "path": str(path)}


def config(train: dict[str, Any], *, valid: Any = 2, test: Any = 2, **keys: Any) -> DataConfig:
    """Return a config; a number stands for that many held-out pairs."""
    valid, test = ({"held_out": n} if isinstance(n, int) else n for n in (valid, test))
    corpora = train if "format" in train else {"corpora": train}
    languages = {"source_language": "en", "target_language": "de"}
    return DataConfig.model_validate(
        {**languages, "train": corpora, "valid": valid, "tests": {"test": test}, **keys}
    )


def chosen(data: DataConfig) -> dict[str, Pairs]:
    return {
        name: [(pair.source, pair.target) for pair in open_split(data, name).pairs()]
        for name in NAMES
    }


def trained(data: DataConfig, counts: Counter[str] | None = None) -> Pairs:
    return [
        (pair.source, pair.target)
        for corpus in open_training_corpora(data)
        for pair in corpus.cleaning.clean(corpus.source.pairs(), counts)
    ]


def bare(text: str) -> str:
    """Return a text without case, width, spaces and punctuation."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(c for c in folded if unicodedata.category(c)[0] not in "PZC") or text.strip()


def texts(pairs: Iterable[Sequence[str]]) -> list[str]:
    return [bare(text) for pair in pairs for text in pair]


def numbered(count: int) -> Pairs:
    return [(f"Source {n}.", f"Ziel {n}.") for n in range(count)]


SIDE = st.tuples(
    st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h", "", " "]),
    st.sampled_from(["", ".", " ", "！"]),
    st.booleans(),
).map(lambda parts: (parts[0].upper() if parts[2] else parts[0]) + parts[1])


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(SIDE, SIDE.map(lambda side: side.replace("a", "ａ"))), min_size=12),
    shuffle=st.randoms(use_true_random=False),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_no_text_is_shared_and_order_does_not_matter(
    pairs: Pairs, shuffle: random.Random, sizes: tuple[int, int]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        valid, test = sizes
        data = config(write(folder, "one", pairs), valid=valid, test=test)
        filled = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
        distinct = {tuple(map(bare, pair)) for pair in filled}
        try:
            choice = chosen(data)
        except DataError:
            taken = set[str]()
            disjoint = []
            for pair in distinct:
                if taken.isdisjoint(pair):
                    disjoint.append(pair)
                    taken |= {*pair}
            # Pairs that are disjoint in another order are at most twice as many.
            assert valid + test > min(len(distinct) // 2, len(disjoint) // 2)
            return
        assert valid + test <= len(distinct) // 2
        assert {name: len(choice[name]) for name in NAMES} == {"valid": valid, "test": test}
        assert all(pair in filled for name in NAMES for pair in choice[name])
        held = [*choice["test"], *choice["valid"]]
        for pair in held:  # a pair may have the same text on both sides
            others = texts(other for other in held if other is not pair)
            assert not {*map(bare, pair)} & {*others}
        counts = Counter[str]()
        remain = [pair for pair in pairs if not {*map(bare, pair)} & {*texts(held)}]
        assert trained(data, counts) == remain
        assert counts == Counter(held_out=len(pairs) - len(remain))

        shuffled = [*pairs, *pairs[:3]]
        shuffle.shuffle(shuffled)
        again = {
            "first": write(folder, "first", shuffled[:5]),
            "second": write(folder, "second", shuffled[5:]),
        }
        assert chosen(config(again, valid=valid, test=test)) == choice


def test_choice_is_the_best_by_rank(tmp_path: Path) -> None:
    """A split is a prefix of a larger one; test comes before valid; names differ."""
    data = write(tmp_path, "train", numbered(200))
    few, many = (chosen(config(data, valid=size)) for size in (3, 60))
    assert few["test"] == many["test"]
    assert few["valid"] == many["valid"][:3]
    more = chosen(config(data, valid=3, test=40))
    assert more["test"][:2] == few["test"]
    rest = [pair for pair in many["valid"] if pair not in more["test"]]
    assert more["valid"] == rest[:3]


def test_choice_from_many_pairs_depends_on_no_order(tmp_path: Path) -> None:
    """Of 20,000 pairs, fewer than half are kept while the corpus is read."""
    pairs = [*numbered(20_000), *((f"Other {n}", "Ziel 7!") for n in range(2000))]
    choice = chosen(config(write(tmp_path, "train", pairs), valid=400, test=300))
    assert [len(choice[name]) for name in NAMES] == [300, 400]
    random.Random(1).shuffle(pairs)
    assert chosen(config(write(tmp_path, "train", pairs), valid=400, test=300)) == choice


def test_pairs_are_chosen_after_the_cleaning(tmp_path: Path) -> None:
    dirty = 300
    good = numbered(30)
    dirt = [(f"<b>Source {n}</b>", f"Ziel  {n}") for n in range(1000, 1000 + dirty)]
    cleaning: dict[str, Any] = {"broken_text": ["markup"], "normalize_spaces": True}
    cleaning |= {"duplicates": "source", "overlap": "exact"}
    source = write(tmp_path, "train", [*dirt, *((a, f" {b}") for a, b in good)])
    data = config(source, valid=6, test=5, cleaning=cleaning)
    choice = chosen(data)
    assert [len(choice[name]) for name in NAMES] == [5, 6]
    held = {*choice["test"], *choice["valid"]}
    assert held < {*good}
    counts = Counter[str]()
    remain = trained(data, counts)
    assert remain == [pair for pair in good if pair not in held]
    assert counts == {"held_out": 11, "markup": dirty}
    few = config(write(tmp_path, "good", good), valid=6, test=5)
    assert chosen(few) == choice


def test_pairs_come_from_corpora_of_the_same_languages_and_tag(tmp_path: Path) -> None:
    real = numbered(20)
    back = [(f"Back {n}", target) for n, (_, target) in enumerate(real[:10])]
    back += [(f"Back {n}", f"Zurück {n}") for n in range(10, 40)]
    french = [(source, f"But {n}") for n, (source, _) in enumerate(real)]
    train = {
        "real": write(tmp_path, "real", real),
        "back": {**write(tmp_path, "back", back), "tag": "<bt>"},
        "french": {**write(tmp_path, "french", french), "target_language": "fr"},
        "turned": {
            **write(tmp_path, "turned", [(b, a) for a, b in real]),
            **{"source_language": "de", "target_language": "en"},
        },
    }
    data = config(train, valid=4, test=3)
    held = [pair for pairs in chosen(data).values() for pair in pairs]
    assert {*held} < {*real}
    sources, targets = zip(*held, strict=True)
    expected = [pair for pair in real if pair not in held]
    expected += [pair for pair in back if pair[1] not in targets]
    expected += [pair for pair in french if pair[0] not in sources]
    expected += [(b, a) for a, b in real if (a, b) not in held]
    assert trained(data) == expected
    tagged = config(train, valid=4, test={"held_out": 5, "tag": "<bt>"})
    assert {*chosen(tagged)["test"]} < {*back}


def test_pairs_share_no_text_with_a_split_of_its_own_file(tmp_path: Path) -> None:
    pairs = numbered(30)
    others = [(source.upper(), "x") for source, _ in pairs[:15]]
    train, test = write(tmp_path, "train", pairs), write(tmp_path, "test", others)
    choice = chosen(config(train, valid=12, test=test))["valid"]
    assert {*choice} < {*pairs[15:]}


def test_a_changed_corpus_is_seen_and_an_unchanged_one_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[Path] = []

    def read_and_count(path: Path) -> Iterator[bytes]:
        readings.append(path)
        return read_chunks(path)

    monkeypatch.setattr(corpus_files, "read_chunks", read_and_count)
    train = write(tmp_path, "train", numbered(20))
    first = chosen(config(train))
    assert chosen(config(train)) == first
    assert len(readings) == 1
    (source, target), *_ = first["test"]
    write(tmp_path, "train", [pair for pair in numbered(20) if pair != (source, target)])
    assert (source, target) not in chosen(config(train))["test"]
    assert len(readings) == 2


def test_checksums_of_a_held_out_split_are_checked(tmp_path: Path) -> None:
    train = write(tmp_path, "train", numbered(20))
    sums = open_splits(config(train))["test"].source.checksums()
    pinned = {"held_out": 2, "sha256_source": sums.source, "sha256_target": sums.target}
    assert len(chosen(config(train, test=pinned))["test"]) == 2
    with pytest.raises(DataError):
        chosen(config(train, test={**pinned, "sha256_source": "0" * 64}))


@pytest.mark.parametrize("pairs", [numbered(7), [(f"{n}", f"same {n // 4}") for n in range(12)]])
def test_too_few_pairs_are_an_error(pairs: Pairs, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`data.valid.held_out`: only 1 pairs of `data.train`"):
        chosen(config(write(tmp_path, "train", pairs)))


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("data.valid={held_out: 5, weight: 2}", "data.valid.weight"),
        ("data.train={held_out: 5}", "data.train"),
        ("data.valid={held_out: 5, target_language: fr}", "data.valid.held_out"),
        ("data.tests.test={held_out: 5, tag: <bt>}", "data.tests.test.held_out"),
    ],
)
def test_impossible_section_is_an_error(setting: str, key: str, tiny_recipe: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        load_config(tiny_recipe, overrides=[setting, "tokenizer.tags=[<bt>]"])


@pytest.fixture
def recipe(tiny_recipe: Path, tmp_path: Path) -> Path:
    """Return the tiny recipe with held-out splits, and only the training files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for side in ("en", "de"):
        shutil.copy(tiny_recipe.parent / f"train.{side}", folder)
    text = tiny_recipe.read_text().replace(str(tiny_recipe.parent), str(folder))
    for name, size in (("valid", 5), ("test", 7)):
        section = f"{name}: {{source: {folder}/{name}.en, target: {folder}/{name}.de}}"
        assert section in text
        text = text.replace(section, f"{name}: {{held_out: {size}}}")
    (folder / "tiny.yaml").write_text(text)
    return folder / "tiny.yaml"


def test_run_with_held_out_splits(recipe: Path, tmp_path: Path, program: Program) -> None:
    loaded = load_config(recipe)
    sides = ((recipe.parent / f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    pairs = list(zip(*sides, strict=True))
    choice = chosen(loaded.data)
    held = [*choice["test"], *choice["valid"]]
    run = tmp_path / "run"
    status, _, err = program("train", recipe, "--run", run)
    assert status == 0
    assert f"cleaning removed 12 of {len(pairs)} pairs: 12 by `held_out`" in err
    record = json.loads((run / "corpora.json").read_text())
    assert record["cleaning"] == {"held_out": 12}
    sums = open_splits(loaded.data)["test"].source.checksums()
    assert record["tests.test"] == {"source": sums.source, "target": sums.target}

    # Another rank and a resumed run have the same pairs.
    first, second = prepare(loaded, RunFolder(run)), open_prepared(loaded, RunFolder(run))
    assert first.store.path == second.store.path
    assert len(first.store) == len(pairs) - 12
    assert [(pair.source, pair.target) for pair in first.valid] == choice["valid"]

    assert program("evaluate", run, "--split", "test")[0] == 0
    written = json.loads((run / "evaluations" / "test.json").read_text())
    assert written["sentences"] == 7
    status, out, _ = program("info", run)
    assert "held out of train" in out
    shutil.copytree(run, tmp_path / "other")
    status, out, _ = program("compare", run, tmp_path / "other")
    assert status == 0
    assert "7 sentences" in out
    status, out, _ = program("data", "check", recipe)
    assert status == 0
    assert "another split" not in out
    status, out, _ = program("data", "clean", recipe, "--out", tmp_path / "cleaned")
    assert re.search(r"removed by `held_out` +12 ", out)
    remain = (tmp_path / "cleaned" / "train.en").read_text().splitlines()
    assert remain == [pair[0] for pair in pairs if pair not in held]

    # A test pair is no longer in the corpus.
    text = (recipe.parent / "train.en").read_text()
    (recipe.parent / "train.en").write_text(text.replace(f"{held[0][0]}\n", "ten\n"))
    status, _, err = program("train", recipe, "--run", run, "--set", "training.max_updates=50")
    assert status == 2
    assert "the source side of `data.train` has changed since this run began" in err
