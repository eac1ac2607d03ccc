"""Commands `mt train`, `mt reproduce` and `mt average`."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.factories import Program

Recorded = Callable[..., list[Any]]
Result = Callable[..., Any]


def test_train_uses_the_run_folder_and_the_overrides(
    program: Program, recipe: Path, recorded: Recorded
) -> None:
    calls = recorded("mt.training.trainer.train", "runs/tiny: BLEU 30")
    status, out, err = program("train", recipe)
    commands = ["translate runs/tiny < FILE", "evaluate runs/tiny --split valid", "serve runs/tiny"]
    shown = ["runs/tiny: BLEU 30", *(f"  mt {command}" for command in commands)]
    lines = out.splitlines()
    assert (status, [lines[0], *lines[2:]], err) == (0, shown, "")
    assert lines[1].startswith("next: ")
    recorded("mt.plotting.pictures.plot_trainings", Path("r/training.png"))
    settings = ["--set", "model.heads=4", "--set", "seed=7"]
    status, out, err = program("train", recipe, "--run", "r", *settings)
    assert (status, err) == (0, "")
    assert out.endswith("  r/training.png: loss, scores and learning rate\n")
    (((config, run), _), ((changed, other_run), _)) = calls
    assert (config.model.heads, config.seed, run) == (8, 1, Path("runs/tiny"))
    assert (changed.model.heads, changed.seed, other_run) == (4, 7, Path("r"))


def test_run_folder_as_config_is_resumed_in_place(
    program: Program, recipe: Path, recorded: Recorded, tmp_path: Path
) -> None:
    calls = recorded("mt.training.trainer.train", "")
    run = tmp_path / "mine"
    run.mkdir()
    shutil.copy(recipe, run / "config.yaml")
    assert program("train", run, "--set", "seed=7")[0] == 0
    assert program("train", run, "--run", "other")[0] == 0
    assert [(config.seed, folder) for (config, folder), _ in calls] == [
        (7, run),
        (1, Path("other")),
    ]


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_exit_status_of_reproduce_is_the_verdict(
    passed: bool, status: int, program: Program, recipe: Path, recorded: Recorded, result: Result
) -> None:
    calls = recorded("mt.recipes.reproduce.reproduce", result(passed=passed))
    exported = recorded("mt.export.export.export_trained_run")
    calibrated = recorded("mt.export.export.calibrate_trained_run")
    assert program("reproduce", recipe) == (status, "30 ± 1\n", "")
    assert calls[0][0][1] == exported[0][0][0] == calibrated[0][0][0] == Path("runs/tiny")
