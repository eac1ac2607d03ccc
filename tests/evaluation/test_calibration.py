import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.decoding.confidence import find_certain, find_negations, load_calibration
from mt.decoding.translator import load_translator
from mt.errors import DataError, RunError, UserError
from mt.evaluation.calibration import (
    calibrate_run,
    calibrate_trained_run,
    fit_isotonic,
    learn_negations,
    project_run,
    remove_words,
)
from mt.evaluation.evaluate import EvaluationJob, GivenTexts
from tests.conftest import DIGITS

VALUES = st.lists(st.integers(-20, 20), min_size=1, max_size=12)


@settings(deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_isotonic_regression_is_the_best_rising_function(values: list[int], random: Any) -> None:
    count = len(values)
    order = random.sample(range(count), count)
    inputs, outputs = np.array(order, dtype=float), np.array(values, dtype=float)
    by_input = outputs[np.argsort(inputs)]
    # Barlow et al. 1972: the fit at i is the largest minimum of the means of stretches around i.
    best = [
        max(min(by_input[a : b + 1].mean() for b in range(i, count)) for a in range(i + 1))
        for i in range(count)
    ]
    curve = fit_isotonic(inputs, outputs)
    assert list(curve) == sorted(set(curve))
    for place, value in curve:
        block = np.flatnonzero(np.isclose(best, value))
        assert place == pytest.approx(block.mean())
    assert (curve[0][1], curve[-1][1]) == pytest.approx((best[0], best[-1]))


def test_isotonic_regression_joins_equal_inputs() -> None:
    curve = fit_isotonic(np.array([1.0, 1.0, 2.0, 2.0]), np.array([0.0, 4.0, 3.0, 9.0]))
    assert curve == ((1.0, 2.0), (2.0, 6.0))


@pytest.mark.parametrize(
    ("text", "count"),
    [("a small dog runs over there", 4), ("一只小狗跑过去了。", 6), ("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᎠᏂ", 2)],
)
def test_a_third_of_the_words_is_removed(text: str, count: int) -> None:
    left = remove_words(text, np.random.default_rng(3))
    assert len(left.split() if " " in text else left) == count
    rest = iter(text)
    assert all(character in rest for character in left), "the order is kept"


def learn(language: str, other: str, *pairs: tuple[str, str], share: float) -> dict[str, bool]:
    own = [find_negations(text, language) for text, _ in pairs for _ in range(20)]
    opposite = [find_negations(text, other) for _, text in pairs for _ in range(20)]
    return learn_negations(own, opposite, share)


def test_negations_and_their_exceptions_are_those_of_the_corpus() -> None:
    certain = learn(
        *("zh", "en"),
        ("他不来。", "He does not come."),
        ("我不去。", "I never go."),
        ("味道不错。", "It tastes good."),
        ("特别好。", "It is very good."),
        ("他来了。", "He came."),
        ("我没有。", "I have none."),
        share=0.0,
    )
    assert certain["不"]
    assert certain["没"]
    assert "别" not in certain, "it has no negation opposite"
    assert find_certain(find_negations("他不去。", "zh"), certain) == "不"
    assert find_certain(find_negations("天气不错。", "zh"), certain) == ""
    assert find_certain(find_negations("特别大。", "zh"), certain) == ""


@pytest.mark.parametrize(
    ("own", "other", "pair"),
    [
        ("ka", "en", ("ის არ მოდის.", "He does not come.")),
        ("en", "ka", ("He does not come.", "ის არ მოდის.")),
        ("en", "de", ("A man stands there.", "Ein Mann steht dort.")),
        ("en", "de", ("He does not come.", "Er kommt.")),
    ],
)
def test_no_negation_is_learned_without_a_list_or_a_counterpart(
    own: str, other: str, pair: tuple[str, str]
) -> None:
    assert learn(own, other, pair, share=0.1) == {}


def test_negations_that_are_too_often_on_one_side_are_left_out() -> None:
    pairs = [("Er kommt nicht.", "He does not come."), ("Ohne Hut.", "Without a hat.")]
    pairs += [("Ohne Hut.", "Hatless.")]
    assert set(learn("de", "en", *pairs, share=0.3)) == {"nicht"}
    assert {"nicht", "ohne"} <= set(learn("de", "en", *pairs, share=0.4))


def spell(numbers: range, step: int) -> str:
    return "".join(
        " ".join([DIGITS[int(digit)] for digit in str(number)][::step]) + "\n" for number in numbers
    )


@pytest.fixture(scope="session")
def calibrated_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that is calibrated on 120 pairs."""
    folder = tmp_path_factory.mktemp("calibrated")
    run = shutil.copytree(finished_run, folder / "run")
    for side, step in (("en", 1), ("de", -1)):
        (folder / f"more.{side}").write_text(spell(range(1, 9999, 84), step))
    job = EvaluationJob(texts=GivenTexts(folder / "more.en", (folder / "more.de",)))
    assert calibrate_run(run, device="cpu", job=job).pairs == 120
    return run


def test_calibration_is_stored_as_numbers_and_read_again(calibrated_run: Path) -> None:
    calibration = load_calibration(load_translator(calibrated_run, device="cpu"))
    assert calibration is not None
    assert any(calibration.omission)
    assert calibration.signature.startswith("nrefs:1|case:mixed")
    stored = json.loads((calibrated_run / "confidence.json").read_text())
    assert stored["format"] == 1
    assert tuple(map(tuple, stored["curve"])) == calibration.curve
    assert 0 <= calibration.curve[0][1] <= calibration.curve[-1][1] <= 100


def test_a_second_calibration_is_the_same(calibrated_run: Path, tmp_path: Path) -> None:
    run, folder = shutil.copytree(calibrated_run, tmp_path / "run"), calibrated_run.parent
    job = EvaluationJob(texts=GivenTexts(folder / "more.en", (folder / "more.de",)))
    calibrate_run(run, device="cpu", job=job)
    stored = [(path / "confidence.json").read_text() for path in (run, calibrated_run)]
    assert stored[0] == stored[1]


def test_small_splits_and_sampling_have_no_calibration(
    finished_run: Path, calibrated_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError, match="valid has 7 pairs; a calibration needs 100"):
        calibrate_run(finished_run, device="cpu")
    caplog.set_level("INFO")
    calibrate_trained_run(finished_run)
    assert caplog.messages[-1] == "no confidence: valid has 7 pairs; a calibration needs 100"
    folder = calibrated_run.parent
    job = EvaluationJob(texts=GivenTexts(folder / "more.en", (folder / "more.de",)))
    with pytest.raises(UserError, match="`decoding.search: sample` has no confidence"):
        calibrate_run(calibrated_run, device="cpu", job=job, overrides=["decoding.search=sample"])


def test_a_calibrated_run_is_not_calibrated_again(calibrated_run: Path) -> None:
    before = (calibrated_run / "confidence.json").stat().st_mtime_ns
    calibrate_trained_run(calibrated_run)
    assert (calibrated_run / "confidence.json").stat().st_mtime_ns == before


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.update(format=7), "format 7 is not supported"),
        (lambda stored: stored.pop("curve"), "`curve`: Field required"),
        (lambda stored: stored.update(curve=[]), "`curve`: Tuple should have at least 1 item"),
        (lambda stored: stored.update(curve=[[1.0]]), "`curve.0.1`: Field required"),
        (lambda stored: stored.update(curve=[[1.0, "x"]]), "`curve.0.1`"),
        (lambda stored: stored.update(curve=[[1.0, float("nan")]]), "damaged"),
        (lambda stored: stored.update(curve=[[1.0, float("inf")]]), "damaged"),
        (lambda stored: stored["omission"].pop(), "`omission`: Tuple should have at least"),
        (lambda stored: stored["negations"].pop(), "`negations.1`: Field required"),
        (lambda stored: stored.update(negations=[{"no": "maybe"}, {}]), "`negations.0.no`"),
        (lambda stored: stored.update(direction="en"), "`direction`"),
        (lambda stored: stored.update(pairs=0), "`pairs`: Input should be greater than 0"),
    ],
)
def test_damaged_calibration_is_one_line(
    calibrated_run: Path, tmp_path: Path, change: Change, message: str
) -> None:
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    stored = json.loads((run / "confidence.json").read_text())
    change(stored)
    (run / "confidence.json").write_text(json.dumps(stored))
    with pytest.raises(RunError) as caught:
        load_calibration(load_translator(run, device="cpu"))
    assert str(caught.value).startswith(f"{run / 'confidence.json'}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_calibration_is_of_one_model_and_search(
    calibrated_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    greedy = load_translator(run, overrides=["decoding.search=greedy"], device="cpu")
    assert load_calibration(greedy) is not None
    drawn = load_translator(run, overrides=["decoding.search=sample"], device="cpu")
    assert load_calibration(drawn) is None
    message = f"{run / 'confidence.json'} is of other weights, tags or search"
    assert caplog.messages[-1] == message
    stored = json.loads((run / "confidence.json").read_text())
    (run / "confidence.json").write_text(json.dumps({**stored, "model": "0" * 64}))
    assert load_calibration(greedy) is None
    with pytest.raises(UserError, match=f"`--x`: {run} has no fitting calibration; `mt evaluate"):
        load_calibration(greedy, required_by="--x")
    (run / "confidence.json").unlink()
    caplog.clear()
    assert load_calibration(greedy) is None
    assert caplog.messages == []


def test_projected_score_weighs_lines_by_their_length(calibrated_run: Path, tmp_path: Path) -> None:
    sources = tmp_path / "text.en"
    sources.write_text("one two\n\nthree four five six\n" * 8)
    projection = project_run(calibrated_run, sources, device="cpu")
    record = projection.as_record()
    assert (record["sentences"], len(record["lines"])) == (16, 10)
    assert all(line["line_number"] % 3 != 2 for line in record["lines"])
    confidences = [line["confidence"] for line in record["lines"] if line["status"] == "ok"]
    assert confidences == sorted(confidences)
    assert 0 <= record["projected_chrf"] <= 100
    assert record["half_width"] > 0
    head, _, table = projection.as_text().partition("\n\n")
    assert head.startswith(f"projected chrF2 {record['projected_chrf']:.2f} ± ")
    assert head.endswith(", 16 lines")
    assert table.splitlines()[0].split() == [
        *("line", "confidence", "status", "source", "translation")
    ]
    sources.write_text("\n \n")
    with pytest.raises(DataError, match="has no text to translate"):
        project_run(calibrated_run, sources, device="cpu")


def test_projection_needs_a_calibration(finished_run: Path, tmp_path: Path) -> None:
    sources = tmp_path / "text.en"
    sources.write_text("one\n")
    with pytest.raises(UserError, match="`--sources`: .* has no fitting calibration"):
        project_run(finished_run, sources, device="cpu")
