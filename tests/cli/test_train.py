"""Commands `mt train`, `mt reproduce`, `mt ablate` and `mt average`."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.factories import Program

Recorded = Callable[..., list[Any]]
Refused = Callable[..., str]
Result = Callable[..., Any]


def test_train_uses_the_run_folder_and_the_overrides(
    program: Program, recipe: Path, recorded: Recorded
) -> None:
    calls = recorded("mt.training.trainer.train", "runs/tiny: BLEU 30")
    status, out, err = program("train", recipe)
    commands = ["translate runs/tiny < FILE", "evaluate runs/tiny --split valid", "serve runs/tiny"]
    shown = ["runs/tiny: BLEU 30", *(f"  mt {command}" for command in commands)]
    assert (status, out.splitlines(), err) == (0, shown, "")
    settings = ["--set", "model.heads=4", "--set", "seed=7"]
    assert program("train", recipe, "--run", "r", *settings)[0] == 0
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


@pytest.fixture
def ablation(tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(
        f"config: {tiny_recipe}\nset: [training.max_updates=4, training.validate_every=4]\n"
        "seeds: [7]\nsplit: test\nchanges: {untied: [model.tie_embeddings=none]}\n"
    )
    return Path("small.yaml")


def test_invalid_change_is_reported_before_training(
    ablation: Path, refused: Refused, recorded: Recorded
) -> None:
    calls = recorded("mt.recipes.ablation.run_ablation")
    ablation.write_text(ablation.read_text().replace("tie_embeddings=none", "tie_embedding=none"))
    assert refused("ablate", ablation) == (
        "small.yaml: `changes.untied`: --set model.tie_embedding: unknown; "
        "did you mean `model.tie_embeddings`?"
    )
    assert calls == []


def test_ablation_trains_into_folders_named_after_its_file(
    ablation: Path, program: Program
) -> None:
    status, out, _ = program("ablate", ablation)
    assert status == 0
    _, _, base, untied, *notes = out.splitlines()
    assert (base.split()[1], untied.split()[1]) == ("base", "untied")
    # The references of the test split are lower-cased.
    assert any(note.startswith("- BLEU of `base`, `untied`: nrefs:1|") for note in notes)
    assert any(note.endswith("|text:lower-cased") for note in notes)
    assert Path("runs/ablation-small/untied-seed7/model.json").exists()
