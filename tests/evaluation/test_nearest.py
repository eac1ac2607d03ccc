import itertools
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mt.config import DataConfig
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.experiments import reproduce as nearest
from mt.experiments.reproduce import nearest_targets


def _pairs(*sources: str) -> list[SentencePair]:
    return [SentencePair(source, f"target {number}") for number, source in enumerate(sources)]


def _nearest(pairs: list[SentencePair], *sources: str, language: str = "en") -> list[int]:
    found = nearest_targets(pairs, sources, source_language=language)
    return [int(target.removeprefix("target ")) for target in found]


def test_the_nearest_source_lends_its_target() -> None:
    pairs = _pairs("a cat sleeps", "two dogs run fast", "a dog sleeps on the mat")
    assert _nearest(pairs, "two cats run fast", "a dog sleeps", "a cat sleeps") == [1, 2, 0]


def test_word_order_counts_through_the_bigrams() -> None:
    assert _nearest(_pairs("dog bites man", "man bites dog"), "man bites dog today") == [1]


def test_repeated_words_count_as_often_as_they_stand() -> None:
    # F1: 2*3 / (3+15) against 2*3 / (3+3)
    assert _nearest(_pairs("no no no no no no no no", "no no"), "no no") == [1]
    assert _nearest(_pairs("no", "no no", "no no no"), "no no no") == [2]


def test_of_equally_near_pairs_the_first_counts() -> None:
    pairs = _pairs("x y", "a b", "a c", "a b")
    assert _nearest(pairs, "a d", "a b", "nothing alike", "") == [1, 1, 0, 0]


@pytest.mark.parametrize("language", ["zh", "zh-CN", "lzh", "ja", "tha"])
def test_languages_without_spaces_are_compared_by_characters(language: str) -> None:
    pairs = _pairs("我们去公园", "今天天气不好", "你好")
    assert _nearest(pairs, "今天天气很好", language=language) == [1]
    assert _nearest(pairs, "今天天气很好", language="en") == [0]  # one unknown word


def test_no_training_pair_means_nothing_to_copy() -> None:
    assert nearest_targets([], ["a", "b"], source_language="en") == ["", ""]


def test_only_the_first_pairs_of_a_large_corpus_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "MAX_TRAINING_PAIRS", 2)
    endless = itertools.chain(_pairs("a b", "c d"), map(_fail, itertools.count()))
    assert nearest_targets(endless, ["c d e"], source_language="en") == ["target 1"]


def _fail(number: int) -> SentencePair:
    raise AssertionError(f"pair {number} beyond the limit was read")


def test_it_is_what_comparing_with_every_pair_gives() -> None:
    rng = np.random.default_rng(1)
    words = np.array(["a", "b", "c", "d", "e", "f"])
    lines = [" ".join(rng.choice(words, rng.integers(0, 7))) for _ in range(90)]
    pairs, sources = _pairs(*lines[:60]), lines[60:]
    expected = [_slow_nearest(pairs, source) for source in sources]
    assert _nearest(pairs, *sources) == expected
    assert len(set(expected)) > 10


def _slow_nearest(pairs: list[SentencePair], source: str) -> int:
    scores = [_f1(pair.source, source) for pair in pairs]
    return scores.index(max(scores))


def _f1(one: str, other: str) -> Fraction:
    bags = [Counter([*line.split(), *itertools.pairwise(line.split())]) for line in (one, other)]
    total = bags[0].total() + bags[1].total()
    return Fraction(2 * (bags[0] & bags[1]).total(), total) if total else Fraction(0)


def test_a_real_corpus_takes_seconds(corpora: Path) -> None:
    data = DataConfig.model_validate(
        {
            "source_language": "en",
            "target_language": "de",
            "train": {"corpus": "multi30k/train"},
            "valid": {"corpus": "multi30k/test_2016_flickr"},
        }
    )
    sources = [pair.source for pair in open_source(data.valid, data).pairs()]
    started_at = time.perf_counter()
    found = nearest_targets(open_source(data.train, data).pairs(), sources, source_language="en")
    assert len(found) == 1000
    assert time.perf_counter() - started_at < 20  # about two on an idle machine
