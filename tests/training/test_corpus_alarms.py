"""Is a user warned of an alarming corpus, once, and is the training the same without a look?"""

from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., tuple[int, str, str]]
ALARM = "data.train: 75% of the pairs are repetitions"
SHORT = ("--set", "training.max_updates=4", "--set", "training.validate_every=2")


@pytest.fixture
def repeated(tiny_recipe: Path, tmp_path: Path) -> Path:
    """Return a recipe whose training pairs are there four times."""
    recipe = tiny_recipe.read_text(encoding="utf-8")
    for language in ("en", "de"):
        text = (tiny_recipe.parent / f"train.{language}").read_text(encoding="utf-8")
        (tmp_path / f"train.{language}").write_text(text * 4, encoding="utf-8")
        recipe = recipe.replace(
            f"{tiny_recipe.parent}/train.{language}", f"{tmp_path}/train.{language}"
        )
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe, encoding="utf-8")
    return path


def _alarms(log: pytest.LogCaptureFixture) -> list[str]:
    """Return what has been warned of, and forget it."""
    told = [record.getMessage() for record in log.records]
    log.clear()
    return [line for line in told if line.startswith("data.train: ")]


def test_each_training_tells_it_after_one_look_and_the_next_step_is_one_that_works(
    repeated: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    status, _, _ = program("train", repeated, "--run", tmp_path / "run", *SHORT)
    assert status == 0
    (alarm,) = _alarms(caplog)
    assert alarm == f"{ALARM}; see `mt data check {tmp_path}/run/config.yaml`"
    status, out, _ = program("data", "check", tmp_path / "run/config.yaml")
    assert status == 0
    assert "repeated pairs" in out

    monkeypatch.setattr("mt.training.data.first_look", None)  # no second look
    status, _, _ = program("train", repeated, "--run", tmp_path / "another", *SHORT)
    assert status == 0
    assert _alarms(caplog) == [f"{ALARM}; see `mt data check {tmp_path}/another/config.yaml`"]

    for language in ("en", "de"):
        with (tmp_path / f"train.{language}").open("a", encoding="utf-8") as file:
            file.write("Something new.\n")
    status, _, _ = program("train", repeated, "--run", tmp_path / "third", *SHORT)
    assert status == 0
    assert "not looked at" in _alarms(caplog)[0]  # another text wants a look of its own


def test_a_resumed_run_and_one_with_the_key_off_are_silent_and_no_other_weights_come_of_it(
    repeated: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = (*SHORT, "--set", "data.check=false")
    status, _, _ = program("train", repeated, "--run", tmp_path / "silent", *silent)
    assert status == 0
    assert _alarms(caplog) == []

    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    half = ("--run", tmp_path / "run", *SHORT, "--set", "training.max_updates=2")
    status, _, _ = program("train", repeated, *half)
    assert status == 0
    assert len(_alarms(caplog)) == 1

    monkeypatch.setenv("MT_CACHE", str(tmp_path / "empty"))
    status, _, err = program("train", repeated, "--run", tmp_path / "run", *SHORT)
    assert status == 0
    assert "going on after update 2" in err
    assert _alarms(caplog) == []
    status, _, _ = program("train", repeated, "--run", tmp_path / "run", *silent)
    assert status == 0  # the key may change within a run
    weights = [tmp_path / run / "model.safetensors" for run in ("silent", "run")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_look_that_fails_is_told_and_the_training_goes_on(
    repeated: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(_corpus: object) -> list[str]:
        raise ValueError("no such thing")

    monkeypatch.setattr("mt.training.data.first_look", failing)
    status, _, _ = program("train", repeated, "--run", tmp_path / "run", *SHORT)
    assert status == 0
    (told,) = _alarms(caplog)
    assert told.startswith("data.train: not looked at (no such thing); see `mt data check ")
