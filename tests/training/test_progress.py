"""Journal, progress bar and TensorBoard."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mt.training import progress as module
from mt.training import trainer
from mt.training.progress import Progress, TensorBoard, append_event
from mt.training.state import TrainState
from mt.training.step import StepMetrics, TokenCounts
from tests.factories import Program


def metrics(loss: float, norm: float, tokens: int) -> StepMetrics:
    """Return an update with this loss per token and half of it as the plain loss."""
    counts = TokenCounts(source=2 * tokens, target=tokens)
    return StepMetrics(loss * tokens, loss * tokens / 2, norm, counts)


def journalled(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def logged(path: Path, *updates: StepMetrics) -> dict[str, Any]:
    progress = Progress(path / "metrics.jsonl", done_updates=0, max_updates=None)
    for each in updates:
        progress.advance(0.25)
        progress.add(each)
    progress.log(TrainState(update=len(updates)))
    (line,) = journalled(path)
    return line


def test_losses_are_means_over_tokens_and_norms_over_updates(tmp_path: Path) -> None:
    line = logged(tmp_path, metrics(4.0, 3.0, 10), metrics(2.0, 1.0, 30), metrics(2.0, 2.0, 10))
    assert (line["event"], line["update"], line["learning_rate"]) == ("train", 3, 0.25)
    assert (line["loss"], line["nll"]) == (2.4, 1.2)
    assert (line["gradient_norm"], line["largest_gradient_norm"]) == (2.0, 3.0)
    assert (line["target_tokens"], line["skipped_updates"]) == (50, 0)


def test_lines_without_a_terminal_come_twice_a_minute_and_the_time_left_counts_validations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(module.Interval, "seconds", property(lambda each: float(each.updates)))
    progress = Progress(tmp_path / "metrics.jsonl", done_updates=100, max_updates=200)
    for update in range(101, 171):
        clock[0] += 1.0
        progress.advance(0.25)
        progress.add(metrics(update / 100, 1.0, 10))
        state = TrainState(update=update)
        progress.show(state)
        if update % 20 == 0:
            progress.log(state)
        if update == 150:
            with progress.paused():  # a validation
                clock[0] += 50.0
    assert capsys.readouterr().err.splitlines() == [
        "update 130 of 200: training loss 1.255, 10 target tokens/s; 01:10 left",
        "update 151 of 200: training loss 1.460, 10 target tokens/s; 01:37 left",
    ]
    assert [line["update"] for line in journalled(tmp_path)] == [120, 140, 160]


def test_cut_line_of_the_journal_does_not_swallow_the_next(tmp_path: Path) -> None:
    journal = tmp_path / "metrics.jsonl"
    append_event(journal, "one", value=1)
    with journal.open("a") as file:
        file.write('{"event": "to')
    append_event(journal, "two", value=2)
    first, _, last = journal.read_text().splitlines()
    assert json.loads(first) == {"event": "one", "value": 1}
    assert json.loads(last) == {"event": "two", "value": 2}


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """Return the curves that TensorBoard draws: value by update, for each tag."""
    events = EventAccumulator(str(folder))
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        points = [(point.step, point.value) for point in events.Scalars(tag)]
        found[tag] = dict(points)
        assert [step for step, _ in points] == sorted(found[tag])  # in order, none of them twice
    return found


def write_run(path: Path, updates: Iterable[int]) -> None:
    """Log some updates as one process of a run does, with a validation every 10."""
    numbers = [*updates]
    board = TensorBoard(path / "tensorboard", done_updates=numbers[0] - 1)
    progress = Progress(
        path / "metrics.jsonl", done_updates=numbers[0] - 1, max_updates=40, board=board
    )
    for update in numbers:
        progress.advance(update / 1000)
        progress.add(metrics(1.0 / update, 2.0, 10))
        if update % 5 == 0:
            progress.log(TrainState(update=update))
        if update % 10 == 0:
            progress.record("validation", update=update, bleu=float(update), signature="x")


def test_tensorboard_shows_the_journal_and_each_update_once(tmp_path: Path) -> None:
    for first, last in ((1, 8), (1, 17), (11, 40)):  # killed twice, resumed at a checkpoint
        write_run(tmp_path, range(first, last + 1))
    assert len([*(tmp_path / "tensorboard").iterdir()]) == 3
    expected: dict[str, dict[int, Any]] = {}
    for line in journalled(tmp_path):
        for name in line.keys() - {"event", "update", "signature"}:
            curve = expected.setdefault(f"{line['event']}/{name}", {})
            curve[line["update"]] = pytest.approx(line[name])  # stored in fp32
    found = curves(tmp_path / "tensorboard")
    assert found == expected
    assert [*found["train/loss"]] == [*range(5, 41, 5)]
    assert [*found["validation/bleu"]] == [10, 20, 30, 40]


def test_missing_tensorboard_is_an_error_before_any_work(
    tiny_recipe: Path, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "find_spec", lambda name: None)
    run = tmp_path / "run"
    arguments = ["train", tiny_recipe, "--run", run]
    status, out, err = program(*arguments, "--set", "training.tensorboard=on")
    assert (status, out) == (2, "")
    assert err.startswith("error: `training.tensorboard: on` needs tensorboard: pip install")
    assert not run.exists()
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # an import of it would fail
    assert program(*arguments, "--set", "training.max_updates=1")[0] == 0
    assert not (run / "tensorboard").exists()
