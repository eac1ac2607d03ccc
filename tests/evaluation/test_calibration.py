import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.config.loading import load_config
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError
from mt.evaluation.calibration import (
    calibrate_run,
    calibrate_trained_run,
    fit_isotonic,
    project_run,
)
from mt.evaluation.evaluate import EvaluationJob, GivenTexts
from tests.factories import DIGITS

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
    calibration = Translator.load(calibrated_run, device="cpu").calibration
    assert calibration is not None
    assert calibration.signature.startswith("nrefs:1|case:mixed")
    stored = json.loads((calibrated_run / "confidence.json").read_text())
    assert stored["format"] == 2
    assert tuple(map(tuple, stored["curve"])) == calibration.curve
    (zero, nothing), (least, lowest), *_, (_, highest) = calibration.curve
    assert zero < least
    assert 0 == nothing <= lowest <= highest <= 100
    assert calibration.expect(zero - 1) == 0
    assert calibration.expect((zero + least) / 2) == pytest.approx(lowest / 2)


def test_a_second_calibration_is_the_same_and_is_not_made_unasked(
    calibrated_run: Path, tmp_path: Path
) -> None:
    run, folder = shutil.copytree(calibrated_run, tmp_path / "run"), calibrated_run.parent
    job = EvaluationJob(texts=GivenTexts(folder / "more.en", (folder / "more.de",)))
    calibrate_run(run, device="cpu", job=job)
    stored = [(path / "confidence.json").read_text() for path in (run, calibrated_run)]
    assert stored[0] == stored[1]
    before = (run / "confidence.json").stat().st_mtime_ns
    calibrate_trained_run(run, load_config(run / "config.yaml"))
    assert (run / "confidence.json").stat().st_mtime_ns == before


def test_small_splits_and_sampling_have_no_calibration(
    finished_run: Path, calibrated_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError):
        calibrate_run(finished_run, device="cpu")
    with pytest.raises(UserError):
        project_run(finished_run, calibrated_run.parent / "more.en", device="cpu")
    caplog.set_level("INFO")
    calibrate_trained_run(finished_run, load_config(finished_run / "config.yaml"))
    assert caplog.messages[-1] == "no confidence: valid has 7 pairs; a calibration needs 100"
    folder = calibrated_run.parent
    job = EvaluationJob(texts=GivenTexts(folder / "more.en", (folder / "more.de",)))
    with pytest.raises(UserError):
        calibrate_run(calibrated_run, device="cpu", job=job, overrides=["decoding.search=sample"])


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.update(format=7), "format 7 is not supported"),
        (lambda stored: stored.pop("curve"), "`curve`: Field required"),
        (lambda stored: stored["curve"].clear(), "`curve`: Tuple should have at least 2 items"),
        (lambda stored: stored.update(curve=[[1.0]]), "`curve.0.1`: Field required"),
        (lambda stored: stored.update(curve=[[1.0, float("nan")]]), "damaged"),
        (lambda stored: stored.update(pairs=0), "`pairs`: Input should be greater than 0"),
    ],
)
def test_damaged_calibration_is_one_line(
    calibrated_run: Path,
    tmp_path: Path,
    change: Change,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    stored = json.loads((run / "confidence.json").read_text())
    change(stored)
    (run / "confidence.json").write_text(json.dumps(stored))
    translator = Translator.load(run, device="cpu")
    assert translator.calibration is None
    assert translator.translate(["one"]), "the run translates"
    [warning] = caplog.messages
    assert warning.startswith(f"{run / 'confidence.json'}: ")
    assert message in warning
    assert "\n" not in warning


def test_calibration_is_of_one_model_and_search(
    calibrated_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = shutil.copytree(calibrated_run, tmp_path / "run")
    greedy, drawn = (
        Translator.load(run, overrides=[f"decoding.search={search}"], device="cpu").calibration
        for search in ("greedy", "sample")
    )
    assert greedy is not None
    assert drawn is None
    message = f"{run / 'confidence.json'} is of other weights, tags or search"
    assert caplog.messages[-1] == message
    stored = json.loads((run / "confidence.json").read_text())
    (run / "confidence.json").write_text(json.dumps({**stored, "model": "0" * 64}))
    other = Translator.load(run, device="cpu")
    with pytest.raises(UserError, match=f"`--x`: {run} has no fitting calibration; `mt evaluate"):
        other.require_calibration("--x")
    (run / "confidence.json").unlink()
    caplog.clear()
    assert Translator.load(run, device="cpu").calibration is None
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
    assert head.startswith(f"projected chrF2 {record['projected_chrf']:.0f} ± ")
    assert head.endswith(", 16 pairs, beam 2")
    assert record["below"] == 0
    assert table.splitlines()[0].split() == [
        *("line", "confidence", "status", "source", "translation")
    ]
    sources.write_text("\n \n")
    with pytest.raises(DataError):
        project_run(calibrated_run, sources, device="cpu")
