"""Two run folders of one training do not differ; whatever is changed in one is told."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.config.loading import load_config
from mt.selftest.run_differences import run_differences
from mt.training.checkpoint import MODEL, OPTIMIZER, STATE
from mt.training.run_folder import RunFolder
from mt.training.trainer import train


@pytest.fixture(scope="module")
def original(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    settings = ["max_updates=6", "log_every=1", "validate_every=4", "keep_last=1", "keep_best=1"]
    train(load_config(tiny_recipe, overrides=[f"training.{each}" for each in settings]), run)
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def edit_journal(run: Path, change: Callable[[list[str]], None]) -> None:
    journal = RunFolder(run).metrics
    lines = journal.read_text().splitlines()
    change(lines)
    journal.write_text("".join(f"{line}\n" for line in lines))


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]


def checkpoint(run: Path) -> Path:
    checkpoints = RunFolder(run).checkpoints
    return checkpoints.path(checkpoints.updates()[-1])


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_copy_does_not_differ(run: Path, original: Path) -> None:
    assert len([event for event in events(run) if event["event"] == "train"]) == 6
    assert run_differences(run, original) == []


def test_a_loss_that_differs_in_its_last_digit_is_told(run: Path, original: Path) -> None:
    journal = RunFolder(run).metrics
    loss = next(e["loss"] for e in events(run) if e["event"] == "train" and e["update"] == 3)
    other = loss * (1 + 2**-52)
    journal.write_text(journal.read_text().replace(repr(loss), repr(other)))
    told = f"train, update 3, loss: {other!r} instead of {loss!r}"
    assert run_differences(run, original) == [told]
    told = f"train, update 3, loss: {loss!r} instead of {other!r}"
    assert run_differences(original, run) == [told]


@pytest.mark.parametrize("event", ["train", "validation", "final"])
def test_lines_that_are_missing_are_told(event: str, run: Path, original: Path) -> None:
    def leave_out(lines: list[str]) -> None:
        lines.remove(next(line for line in lines if json.loads(line)["event"] == event))

    edit_journal(run, leave_out)
    differences = run_differences(run, original)
    assert differences
    assert all(line.startswith(f"{event}, update ") for line in differences)
    assert all(": nothing instead of " in line for line in differences)
    assert all(" instead of nothing" in line for line in run_differences(original, run))


def test_an_update_that_is_told_twice_must_be_the_same(run: Path, original: Path) -> None:
    def repeat(lines: list[str]) -> None:
        index = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == "train")
        event = json.loads(lines[index])
        lines.insert(index + 1, json.dumps(event | {"target_tokens_per_second": 1.0}))

    edit_journal(run, repeat)
    assert run_differences(run, original) == []

    def repeat_otherwise(lines: list[str]) -> None:
        index = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == "train")
        lines.insert(index, json.dumps(json.loads(lines[index]) | {"loss": 1.5}))

    edit_journal(run, repeat_otherwise)
    (difference,) = run_differences(run, original)
    assert difference.startswith("train, update 1, loss: 1.5 and ")


def test_a_line_that_a_kill_cut_short_says_nothing(run: Path, original: Path) -> None:
    edit_journal(run, lambda lines: lines.insert(3, lines[3][:-5]))
    assert run_differences(run, original) == []


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER])
def test_a_bit_of_a_checkpoint_is_told(name: str, run: Path, original: Path) -> None:
    flip_a_byte(checkpoint(run) / name)
    (difference,) = run_differences(run, original)
    assert difference.startswith(f"checkpoint of update 6, {name}: ")


def test_a_checkpoint_that_is_missing_is_told(run: Path, original: Path) -> None:
    shutil.rmtree(checkpoint(run))
    differences = run_differences(run, original)
    assert all(line.startswith("checkpoint of update 6, ") for line in differences)
    assert any(f"{MODEL}: nothing instead of " in line for line in differences)


def test_where_a_checkpoint_stands_is_told(run: Path, original: Path) -> None:
    path = checkpoint(run) / STATE
    written = json.loads(path.read_text())
    written["state"]["update_in_epoch"] += 1
    written["state"]["elapsed_seconds"] += 1
    path.write_text(json.dumps(written))
    (difference,) = run_differences(run, original)
    assert difference.startswith("checkpoint of update 6, update_in_epoch: ")


def test_final_weights_that_differ_are_told(run: Path, original: Path) -> None:
    flip_a_byte(RunFolder(run).weights)
    (difference,) = run_differences(run, original)
    assert difference.startswith("model.safetensors: ")
