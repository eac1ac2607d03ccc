import math
import os
import random
import typing
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt.config.data import CleaningConfig, DataConfig, TextSource
from mt.data.filters import DUPLICATES, OVERLAP, Cleaning, SeenHashes
from mt.data.pairs import SentencePair
from mt.data.processes import map_blocks
from mt.data.splits import open_training_corpora
from mt.errors import UserError

GOOD = SentencePair("The house is very old.", "Das Haus ist sehr alt.")
OTHER = SentencePair("We came in 1990.", "Wir kamen 1990.")
HELD_OUT = {
    "valid": SentencePair("Where is the cat?", "Wo ist die Katze?"),
    "test": SentencePair("It rains.", "Es regnet."),
}


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    sources = {}
    for name, pair in {"train": GOOD, **HELD_OUT}.items():
        source, target = tmp_path / f"{name}.en", tmp_path / f"{name}.de"
        source.write_text(f"{pair.source}\n")
        target.write_text(f"{pair.target}\n")
        sources[name] = TextSource(source=str(source), target=str(target))
    return DataConfig(
        source_language="en",
        target_language="de",
        train=sources["train"],
        valid=sources["valid"],
        tests={"test": sources["test"]},
    )


def cleaning(data: DataConfig, **settings: Any) -> Cleaning:
    changed = data.model_copy(update={"cleaning": CleaningConfig(**settings)})
    (corpus,) = open_training_corpora(changed)
    return corpus.cleaning


def taken(data: DataConfig, pairs: list[SentencePair], **settings: Any) -> list[str | None]:
    return [judged.removed_by for judged in cleaning(data, **settings).judge(pairs)]


def test_tables_have_the_keys_of_the_config() -> None:
    assert {KEYS.get(name, name) for name in BAD} | {"normalize_spaces", "duplicates"} == {
        *CleaningConfig.model_fields
    }
    words = {"overlap": set(OVERLAP), "duplicates": set(DUPLICATES)}
    for key, known in words.items():
        choices = typing.get_args(CleaningConfig.model_fields[key].annotation)[0]
        assert set(typing.get_args(choices)) == known


def test_cleaning_is_off_by_default(data: DataConfig) -> None:
    pairs = [SentencePair(" \0", "\ufffd"), GOOD, GOOD]
    off = cleaning(data)
    assert (off.is_on, off.fingerprint, off.make_filters()) == (False, None, {})
    assert list(off.clean(pairs)) == pairs


BAD = {
    "identical_sides": (True, SentencePair("The same text.", "The same text. ")),
    "min_characters": (3, SentencePair("no ", "Nein")),
    "max_characters": (25, SentencePair("yes", "j" + 25 * "a")),
    "max_length_ratio": (2.0, SentencePair("Short.", "Das ist ein deutlich längerer Satz.")),
    "wrong_script": (True, SentencePair("Это по-русски.", "Das ist deutsch.")),
    "mojibake": (["mojibake"], SentencePair("Cologne is big.", "KÃ¶ln ist groß.")),
    "tokens": (["tokens"], SentencePair("un@@ do it", "mach es ungeschehen")),
    "tokenized": (["tokenized"], SentencePair("I do n't know .", "Ich weiß nicht.")),
    "control_characters": ("reject", SentencePair("a\0b", "ab")),
    "markup": (["markup"], SentencePair("A <b>house</b>.", "Ein Haus.")),
    "numbers": (True, SentencePair("in 1990", "1991")),
    "language": (True, SentencePair("It was nice.", "The text on this side is still in English.")),
    "overlap": ("exact", SentencePair("Is it raining?", "Es regnet.")),
}


KEYS = dict.fromkeys(["mojibake", "tokens", "tokenized", "markup"], "broken_text")
"""Config keys of filters with other names."""


@pytest.mark.parametrize("name", BAD)
def test_filter_removes_only_its_defect(name: str, data: DataConfig) -> None:
    value, bad = BAD[name]
    key = KEYS.get(name, name)
    removed_by = taken(data, [GOOD, bad, OTHER], **{key: value})
    assert removed_by == [None, name, None]
    backwards = SentencePair(bad.target, bad.source)
    if name not in {"wrong_script", "language", "overlap"}:  # these depend on the side
        assert taken(data, [backwards], **{key: value}) == [name]


@pytest.mark.parametrize(
    ("kind", "stays"),
    [
        ("pair", [True, True, True, True, False, True]),
        ("source", [True, False, True, True, False, False]),
        ("target", [True, True, False, True, False, True]),
    ],
)
def test_first_of_several_duplicates_remains(
    kind: str, stays: list[bool], data: DataConfig
) -> None:
    pairs = [SentencePair(*each) for each in ("ab", "ac", "db", "ef", "ab", "aB")]
    removed_by = taken(data, pairs, duplicates=kind)
    assert [name is None for name in removed_by] == stays
    assert taken(data, pairs, duplicates=kind) == removed_by  # a second pass starts afresh
    shifted = [SentencePair("ab", "c"), SentencePair("a", "bc")]
    assert taken(data, shifted, duplicates="pair") == [None, None]


def test_overlap_compares_each_side_with_all_splits(data: DataConfig, tmp_path: Path) -> None:
    valid, test = HELD_OUT["valid"], HELD_OUT["test"]
    pairs = [
        SentencePair(f" {valid.source}", "x"),
        SentencePair("x", test.target),
        SentencePair(valid.target, valid.source),
        SentencePair(valid.source.upper(), "x"),
        SentencePair("x", "es ｒegnet !"),
    ]
    assert taken(data, pairs, overlap="exact") == ["overlap"] * 3 + [None] * 2
    assert taken(data, pairs, overlap="normalized") == ["overlap"] * 5
    (tmp_path / "valid.en").write_text("\n")
    assert taken(data, [SentencePair(" ", "x")], overlap="normalized") == [None]


def test_texts_are_changed_before_filters_see_them(data: DataConfig) -> None:
    pair = SentencePair(" a\0\u2028 b\t\u3000c ", "x  y")
    settings = {"control_characters": "strip", "normalize_spaces": True, "min_characters": 3}
    (judged,) = cleaning(data, **settings).judge([pair])
    assert judged.original == pair
    assert judged.pair == SentencePair("a b c", "x y")
    assert judged.removed_by is None
    spaced = SentencePair("It  rains. ", "x")
    assert taken(data, [spaced], overlap="exact") == [None]
    assert taken(data, [spaced], overlap="exact", normalize_spaces=True) == ["overlap"]


def test_removed_pair_counts_for_the_first_filter(data: DataConfig) -> None:
    both = SentencePair("<b>un@@ do</b>", "<b>un@@ do</b>")
    counts = Counter[str]()
    settings = {"duplicates": "pair", "broken_text": ["markup", "tokens"]}
    filters = cleaning(data, **settings)
    assert [*filters.make_filters()] == ["tokens", "markup", "duplicates"]
    left = list(filters.clean([OTHER, both, GOOD, OTHER], counts))
    assert left == [OTHER, GOOD]
    assert counts == {"tokens": 1, "duplicates": 1}


@pytest.mark.parametrize("kind", DUPLICATES)
def test_blocks_processes_and_second_pass_judge_as_each_pair_in_turn(
    kind: str, data: DataConfig
) -> None:
    draw = random.Random(1)
    texts = [GOOD, OTHER, *HELD_OUT.values(), *(bad for _, bad in BAD.values())]
    pairs = [
        SentencePair(draw.choice(texts).source, draw.choice(texts).target) for _ in range(1200)
    ]
    values = {name: value for name, (value, _) in BAD.items() if name not in KEYS}
    clean = cleaning(data, **values, broken_text=[*KEYS], normalize_spaces=True, duplicates=kind)
    full = replace(clean, held_out=clean.splits[:1])
    filters, expected = full.make_filters(), []
    for changed in map(full.changed, pairs):
        expected.append(next((name for name, takes in filters.items() if takes(changed)), None))
    assert len({*expected}) > 10
    assert [judged.removed_by for judged in full.judge(pairs)] == expected
    verdicts = bytearray()
    assert len(list(clean.clean(pairs, verdicts=verdicts))) < len(pairs) == len(verdicts)
    second = replace(full, verdicts=bytes(verdicts)).judge(pairs)
    assert [judged.removed_by for judged in second] == expected
    blocks = [
        [(pair.source, pair.target) for pair in pairs[at : at + 500]] for at in range(0, 1200, 500)
    ]
    judged = map_blocks(clean.judge_alone, blocks, processes=3, patience=0)
    alone = verdicts.replace(bytes([max(verdicts)]), b"\0")  # without the last one, `duplicates`
    assert b"".join(results for _, results in judged) == alone


def test_error_and_death_of_a_process_are_errors_here() -> None:
    assert list(map_blocks(abs, [-2, 1], processes=3, patience=0)) == [(-2, 2), (1, 1)]
    with pytest.raises(ValueError, match="math domain"):
        list(map_blocks(math.sqrt, [4, -1, 9, 16], processes=2, patience=0))
    with pytest.raises(UserError, match="status 7"):
        list(map_blocks(os._exit, [7, 7, 7], processes=2, patience=0))


def test_fingerprint_depends_on_all_inputs(data: DataConfig, tmp_path: Path) -> None:
    def fingerprint(data: DataConfig, **settings: Any) -> str | None:
        return cleaning(data, **settings).fingerprint

    swapped = data.model_copy(update={"source_language": "fr"})
    settings: list[dict[str, Any]] = [
        {"broken_text": ["mojibake"]},
        {"broken_text": ["markup"]},
        {"max_characters": 1},
        {"max_characters": 2},
    ]
    settings += [{"language": True}, {"overlap": "exact"}, {"overlap": "normalized"}]
    before = [fingerprint(data, **keys) for keys in settings]
    before.append(fingerprint(swapped, broken_text=["mojibake"]))
    assert len(set(before)) == len(before)
    for side in ("en", "de"):
        (tmp_path / f"test.{side}").write_text("x\n")
        assert fingerprint(data, broken_text=["mojibake"]) == before[0]
        assert fingerprint(data, overlap="exact") not in before
        before.append(fingerprint(data, overlap="exact"))


def test_seen_hashes_are_those_of_a_set() -> None:
    draw, seen, expected = random.Random(1), SeenHashes(), set[int]()
    few = [draw.randrange(1 << 64) for _ in range(90_000)]
    for hashed in (0, (1 << 64) - 1, *draw.choices(few, k=200_000)):
        assert seen.add(hashed) == (hashed not in expected)
        expected.add(hashed)
