import itertools
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt.config.decoding import Band, Published
from mt.config.loading import load_config
from mt.data.pairs import SentencePair
from mt.evaluation.scores import Evaluation, Score
from mt.recipes.reproduce import (
    SplitResult,
    compare_with_published,
    judge_results,
    nearest_targets,
    reproduce,
)

BLEU = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
CHRF = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"
TOKENIZED = f"{BLEU.replace('13a', 'none')}|text:tokenised,lower-cased"
PROTOCOL = "nrefs:1|case:mixed|tok:none|text:tokenised,lower-cased"


def pairs(*sources: str) -> list[SentencePair]:
    return [SentencePair(source, f"target {index}") for index, source in enumerate(sources)]


def nearest(corpus: list[SentencePair], *sources: str, language: str = "en") -> list[int]:
    targets = nearest_targets(corpus, sources, source_language=language)
    return [int(target.removeprefix("target ")) for target in targets]


@pytest.mark.parametrize("language", ["zh", "zh-CN", "lzh", "ja", "tha"])
def test_languages_without_spaces_are_compared_by_characters(language: str) -> None:
    corpus = pairs("我们去公园", "今天天气不好", "你好")
    assert nearest(corpus, "今天天气很好", language=language) == [1]
    assert nearest(corpus, "今天天气很好", language="en") == [0]


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
    protocol = "protocol: 'nrefs:1|case:mixed|tok:13a|text:plain'"
    published = (
        f"[{{split: test, system: best, score: 99.9, {protocol}, source: one paper}}, "
        "{split: test, system: old, score: 3, source: another}]"
    )
    settings = [f"evaluation.published={published}"]
    result = reproduce(load_config(tiny_recipe, overrides=settings), run)
    assert result.passed
    best, old = result.text.split("\n")[-2:]
    assert best.startswith("test: best 99.90, here ")
    assert best.endswith(") [one paper]")
    assert old.endswith("(not comparable: its source does not state `nrefs`) [another]")


def split_result(
    bleu: float = 85.0, signature: str = BLEU, *, split: str = "test", **more: Any
) -> SplitResult:
    scores = Score("BLEU", bleu, signature), Score("chrF2", 88.125, CHRF)
    return SplitResult(split, Evaluation(*scores, 500, "zh"), **more)


@pytest.mark.parametrize(
    ("bleu", "band", "result"),
    [
        (90.0, Band(low=80.0, high=90.0), "pass"),
        (79.994, Band(low=80.0), "FAIL"),
        (90.01, Band(low=80.0, high=90.0), "FAIL"),
        (79.996, Band(low=80.0), "pass"),  # shown as 80.00
        (1.0, None, "no band set"),
    ],
)
def test_split_passes_inside_its_band(bleu: float, band: Band | None, result: str) -> None:
    verdict = judge_results([split_result(bleu, band=band)])
    assert verdict.passed is (result != "FAIL")
    assert result in verdict.text.split("\n")[1]
    passing = split_result(85.0, band=Band(low=80.0))
    verdict = judge_results([passing, split_result(bleu, band=band, split="news")])
    assert verdict.passed is (result != "FAIL")
    assert verdict.passed or verdict.text.endswith("\nFAIL: BLEU outside the expected band on news")


def published(protocol: str) -> Published:
    return Published(split="test", system="Tiny", score=41.02, protocol=protocol, source="a paper")


@pytest.mark.parametrize(
    ("signature", "protocol", "difference"),
    [
        (TOKENIZED, PROTOCOL, ""),
        (BLEU, PROTOCOL, "`tok` is `none` there and `13a` here"),
        (TOKENIZED, "nrefs:1|case:mixed", "its source does not state `tok`"),
        (BLEU.replace("mixed", "lc"), PROTOCOL, "`case` is `mixed` there and `lc` here"),
        (
            TOKENIZED,
            "nrefs:1|case:mixed|tok:none|text:plain",
            "`text` is `plain` there and `tokenised,lower-cased` here",
        ),
        (f"{TOKENIZED}|forced:tokens", PROTOCOL, "the score here is forced (`tokens`)"),
    ],
)
def test_published_score_is_compared_by_the_same_protocol(
    signature: str, protocol: str, difference: str
) -> None:
    here = Score("BLEU", 41.524, signature)
    outcome = f"not comparable: {difference}" if difference else "+0.50"
    comparison = compare_with_published(published(protocol), here)
    assert comparison == f"Tiny 41.02, here 41.52 ({outcome}) [a paper]"
    if not difference:  # nor is a small loss a negative zero
        equal = compare_with_published(published(protocol), Score("BLEU", 41.018, signature))
        assert "(+0.00)" in equal
