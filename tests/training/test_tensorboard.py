"""TensorBoard shows the numbers of the journal, and each update once, even of a killed run."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mt.config.loading import load_config
from mt.training import progress as tensorboard
from mt.training import trainer as spine
from mt.training.progress import TensorBoard
from mt.training.run_folder import RunFolder

Program = Callable[..., tuple[int, str, str]]
SETTINGS = ["training.tensorboard=on", "training.log_every=5"]
NOT_SHOWN = {"event", "update"}


class Death(BaseException):
    """What `kill -9` is to a run."""


def train(recipe: Path, run: Path, *settings: str) -> None:
    spine.train(load_config(recipe, overrides=[*SETTINGS, *settings]), run)


def train_until(update: int, recipe: Path, run: Path, *settings: str) -> None:
    """Have a run die right after an update."""
    take_update = spine.take_update

    def hit(session: Any, *rest: Any) -> None:
        take_update(session, *rest)
        if session.state.update > update:
            raise Death

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spine, "take_update", hit)
        with pytest.raises(Death):
            train(recipe, run, *settings)


def shown(folder: Path) -> dict[str, dict[int, float]]:
    """Return the curves that TensorBoard draws: value by update, for each tag."""
    events = EventAccumulator(str(folder))
    events.Reload()
    curves = {}
    for tag in events.Tags()["scalars"]:
        points = [(point.step, point.value) for point in events.Scalars(tag)]
        curves[tag] = dict(points)
        assert [step for step, _ in points] == sorted(curves[tag])  # in order, none of them twice
    return curves


def journalled(run: Path) -> dict[str, dict[int, Any]]:
    """Return the same of the journal, where a later line on an update stands for an earlier one."""
    curves: dict[str, dict[int, Any]] = {}
    for line in map(json.loads, RunFolder(run).metrics.read_text().splitlines()):
        if line["event"] in {"train", "validation"}:
            numbers = {
                name: value for name, value in line.items() if isinstance(value, int | float)
            }
            for name in numbers.keys() - NOT_SHOWN:
                curve = curves.setdefault(f"{line['event']}/{name}", {})
                curve[line["update"]] = pytest.approx(numbers[name])  # they are stored in fp32
    return curves


def test_what_is_shown_is_what_is_journalled(tiny_recipe: Path, tmp_path: Path) -> None:
    train(tiny_recipe, tmp_path / "run")
    curves = shown(tmp_path / "run" / "tensorboard")
    assert curves == journalled(tmp_path / "run")
    assert [*curves["train/loss"]] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [*curves["validation/bleu"]] == [10, 20, 30, 40]
    assert curves["train/learning_rate"][5] == pytest.approx(0.005)
    for name in ("nll", "gradient_norm", "largest_gradient_norm", "target_tokens_per_second"):
        assert f"train/{name}" in curves
    for name in ("loss", "chrf"):
        assert f"validation/{name}" in curves


def test_a_run_that_dies_and_goes_on_shows_no_update_twice(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train_until(8, tiny_recipe, run)  # before any checkpoint: it begins anew
    train_until(17, tiny_recipe, run)  # it goes on after 10
    before = shown(run / "tensorboard")
    assert [*before["train/loss"]] == [5, 10, 15]
    train(tiny_recipe, run)
    assert len([*(run / "tensorboard").iterdir()]) == 3
    assert shown(run / "tensorboard") == journalled(run)
    assert shown(run / "tensorboard")["train/loss"].keys() == {*range(5, 41, 5)}


def test_a_run_without_a_checkpoint_may_begin_with_another_config(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    train_until(8, tiny_recipe, tmp_path / "run")
    train(tiny_recipe, tmp_path / "run", "training.label_smoothing=0.2", "training.max_updates=6")
    assert shown(tmp_path / "run" / "tensorboard")["train/loss"].keys() == {5, 6}


def test_updates_that_a_run_takes_again_after_a_rollback_are_shown_once(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "board", done_updates=0)
    for loss, updates in ((1.0, (10, 20, 30, 40)), (2.0, (30, 40, 50)), (3.0, (50, 60))):
        for update in updates:
            board.add("train", {"update": update, "loss": loss})
            if update % 20 == 0:
                board.add("validation", {"update": update, "bleu": loss})
            board.add("rollback", {"update": update, "loss": 99.0})  # not drawn
    assert shown(tmp_path / "board") == {
        "train/loss": {10: 1.0, 20: 1.0, 30: 2.0, 40: 2.0, 50: 3.0, 60: 3.0},
        "validation/bleu": {20: 1.0, 40: 2.0, 60: 3.0},
    }


def test_files_are_read_in_their_order_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, clock in enumerate((2e9, 1e9, 1.5e9)):
        monkeypatch.setattr("time.time", lambda clock=clock: clock)
        board = TensorBoard(tmp_path / "board", done_updates=number)
        for update in (number + 1, number + 2):
            board.add("train", {"update": update, "loss": 10.0 * number + update})
    assert shown(tmp_path / "board") == {"train/loss": {1: 1.0, 2: 12.0, 3: 23.0, 4: 24.0}}


def test_a_missing_package_is_told_before_any_work(
    tiny_recipe: Path, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    run = tmp_path / "run"
    arguments = ["train", tiny_recipe, "--run", run]
    told = program(*arguments, "--set", "training.tensorboard=on")
    assert told == (
        2,
        "",
        'error: `training.tensorboard: on` needs tensorboard: pip install "mt[tensorboard]"\n',
    )
    assert not run.exists()
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # an import of it would fail
    assert program(*arguments, "--set", "training.max_updates=1")[0] == 0
    assert not (run / "tensorboard").exists()
