import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF

from mt.compare.significance import SAMPLES, Resampling, score_systems
from mt.compare.systems import EvaluationSet, System
from mt.errors import UserError
from mt.evaluation.scores import ConfidenceInterval


def test_same_translations_do_not_differ(
    test_set: EvaluationSet, systems: tuple[System, ...]
) -> None:
    twice = (systems[0], replace(systems[0], name="again"))
    for test in SAMPLES:
        for _, other in score_systems(test_set, twice, test=test, samples=100, metrics=["ter"]):
            assert (other.difference, other.p_value) == (0.0, 1.0)
            assert other.outcome == "no significant difference"
            assert other.difference_interval == ConfidenceInterval(0.0, 0.0)


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_better_system_is_significant(
    test: Resampling, test_set: EvaluationSet, systems: tuple[System, ...]
) -> None:
    rows = score_systems(test_set, systems, test=test, samples=500, metrics=["chrf++", "ter"])
    assert [row[0].metric for row in rows] == ["BLEU", "chrF2", "chrF2++", "TER"]
    for row in rows:
        assert row[0].outcome == "baseline"
        assert row[0].difference is None
        assert row[1].value == pytest.approx(0.0 if row[1].metric == "TER" else 100.0)
        assert row[1].difference == pytest.approx(row[1].value - row[0].value)
        assert row[1].p_value is not None
        assert row[1].p_value < 0.05
        assert row[1].outcome == "better"
        assert row[2].outcome == "no significant difference"
        assert row[0].interval.half_width > 1
        # The second system has the same score in every sample.
        mean, half_width = row[1].value - row[0].interval.mean, row[0].interval.half_width
        interval = row[1].difference_interval
        assert interval is not None
        assert (interval.mean, interval.half_width) == pytest.approx((mean, half_width))
        assert row[0].value == pytest.approx(row[0].interval.mean, abs=1)
        mark = "bs:500" if test == "bootstrap" else "ar:500"
        assert mark in row[1].signature
        assert "seed:12345" in row[1].signature
    backwards = score_systems(test_set, systems[1::-1], test=test, samples=500, metrics=["ter"])
    assert [row[1].outcome for row in backwards] == ["worse"] * 3


@pytest.mark.parametrize(
    ("test", "samples", "most"),
    [("bootstrap", 1_250_001, "1,250,000"), ("randomization", 5_000_001, "5,000,000")],
)
def test_too_many_samples_are_an_error(
    test: Resampling, samples: int, most: str, test_set: EvaluationSet, systems: tuple[System, ...]
) -> None:
    message = (
        f"^{samples:,} samples of 40 sentences do not fit .*: take up to {most} with --samples$"
    )
    with pytest.raises(UserError, match=message):
        score_systems(test_set, systems, test=test, samples=samples)


def test_randomization_agrees_with_all_256_exchanges(test_set: EvaluationSet) -> None:
    references = test_set.references[0][:8]
    one = ["seen"] * 4 + list(references[4:])
    other = [line.upper() if n in {0, 5, 6} else line for n, line in enumerate(references)]
    chrf = CHRF()

    def score(lines: Sequence[str]) -> float:
        return float(chrf.corpus_score(lines, [references]).score)

    real = abs(score(one) - score(other))
    ways = list(itertools.product(*(((a, b), (b, a)) for a, b in zip(one, other, strict=True))))
    larger = 0
    for way in ways:
        left, right = zip(*way, strict=True)
        larger += abs(score(left) - score(right)) > real + 1e-9
    systems = (System("one", tuple(one)), System("other", tuple(other)))
    eight = replace(test_set, references=(references,))
    scores = score_systems(eight, systems, test="randomization", samples=5000)[1]
    assert scores[1].p_value == pytest.approx(larger / len(ways), abs=0.03)
    assert 0.05 < larger / len(ways) < 0.95


def test_p_values_of_equal_systems_are_uniform() -> None:
    right = tuple(f"w{n} w{n + 1} w{n + 2} w{n + 3} w{n + 4}" for n in range(60))
    test_set = EvaluationSet("test", (), (right,), None, "en", tokenizer="13a")
    generator = np.random.default_rng(5)

    def system(name: str) -> System:
        fails = generator.random(60) < 0.5
        lines = (f"x{line}" if bad else line for line, bad in zip(right, fails, strict=True))
        return System(name, tuple(lines))

    significant = 0
    for _ in range(12):
        others = [system(f"{n}") for n in range(8)]
        _, chrf = score_systems(test_set, others, samples=100)
        significant += sum((score.p_value or 0.0) < 0.05 for score in chrf[1:])
    assert 0 < significant < 0.08 * 12 * 7


@pytest.mark.parametrize(("differing", "least"), [(1, 1.0), (2, 0.5), (5, 0.0625)])
def test_few_differing_sentences_are_not_significant(
    differing: int, least: float, test_set: EvaluationSet
) -> None:
    right = test_set.references[0]
    other = ("nothing at all",) * differing + right[differing:]
    for row in score_systems(
        test_set, (System("a", right), System("b", other)), test="randomization", samples=1000
    ):
        assert row[1].p_value == least


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_text_that_a_metric_ignores_is_not_significant(
    test: Resampling, test_set: EvaluationSet
) -> None:
    right = test_set.references[0]
    one = tuple(f"{line.upper()} " for line in right)
    other = ("Nothing at all", *(line.upper() for line in right[1:]))
    rows = score_systems(
        test_set, (System("a", one), System("b", other)), test=test, samples=100, metrics=["ter"]
    )
    assert [row[1].p_value for row in rows] == [1.0] * 3
    rows = score_systems(
        test_set, (System("a", right), System("b", other)), test=test, samples=100, metrics=["ter"]
    )
    assert [row[1].p_value for row in rows[:2]] == pytest.approx([1 / 101] * 2, rel=1.1)
    assert rows[2][1].p_value == 1.0  # TER ignores case, so that one sentence differs


def test_signatures_have_form_and_allowed_reasons(
    test_set: EvaluationSet, systems: tuple[System, ...]
) -> None:
    lowered = replace(test_set, references=(tuple(map(str.lower, test_set.references[0])),))
    forced = replace(systems[1], forced="lowercased")
    bleu, _ = score_systems(lowered, (systems[0], forced), samples=100)
    assert bleu[0].signature.endswith("|text:lower-cased")
    assert bleu[1].signature.endswith("|text:lower-cased|forced:lowercased")
