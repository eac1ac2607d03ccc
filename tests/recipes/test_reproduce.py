import itertools
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mt.config.loading import load_config
from mt.data.pairs import SentencePair
from mt.recipes.reproduce import nearest_targets, reproduce


def pairs(*sources: str) -> list[SentencePair]:
    return [SentencePair(source, f"target {number}") for number, source in enumerate(sources)]


def nearest(corpus: list[SentencePair], *sources: str, language: str = "en") -> list[int]:
    found = nearest_targets(corpus, sources, source_language=language)
    return [int(target.removeprefix("target ")) for target in found]


@pytest.mark.parametrize("language", ["zh", "zh-CN", "lzh", "ja", "tha"])
def test_languages_without_spaces_are_compared_by_characters(language: str) -> None:
    corpus = pairs("我们去公园", "今天天气不好", "你好")
    assert nearest(corpus, "今天天气很好", language=language) == [1]
    assert nearest(corpus, "今天天气很好", language="en") == [0]


def test_search_is_limited_to_the_first_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt.recipes.reproduce.MAX_TRAINING_PAIRS", 2)
    corpus = iter(pairs("a b", "c d", "c d e"))
    assert nearest_targets(corpus, ["c d e"], source_language="en") == ["target 1"]
    assert next(corpus).target == "target 2"
    assert nearest_targets([], ["a", "b"], source_language="en") == ["", ""]


def test_nearest_pair_has_the_largest_f1_of_all_pairs() -> None:
    rng = np.random.default_rng(1)
    words = np.array(["a", "b", "c", "d", "e", "f"])
    lines = [" ".join(rng.choice(words, rng.integers(0, 7))) for _ in range(90)]
    corpus, sources = pairs(*lines[:60]), lines[60:]

    def f1(one: str, other: str) -> Fraction:
        texts = one.split(), other.split()
        bags = [Counter([*line, *itertools.pairwise(line)]) for line in texts]
        total = bags[0].total() + bags[1].total()
        return Fraction(2 * (bags[0] & bags[1]).total(), total) if total else Fraction(0)

    expected = []
    for source in sources:
        scores = [f1(pair.source, source) for pair in corpus]
        expected.append(scores.index(max(scores)))
    assert nearest(corpus, *sources) == expected
    assert len(set(expected)) > 10


def test_reproduction_ends_with_the_published_scores(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    known = "protocol: {scorer: sacrebleu, tokenizer: 13a, case: kept, text: plain}"
    published = (
        f"[{{split: test, system: best, score: 99.9, {known}, source: one paper}}, "
        "{split: test, system: old, score: 3, source: another}]"
    )
    settings = [f"evaluation.published={published}", "evaluation.seed_band=0.7"]
    result = reproduce(load_config(tiny_recipe, overrides=settings), run)
    assert result.passed
    best, old = result.text.split("\n")[-2:]
    assert best.startswith("test: best 99.90, here ")
    assert best.endswith(", seeds vary by ± 0.70) [one paper]")
    assert old.endswith("(not comparable: its source does not state `scorer`) [another]")
