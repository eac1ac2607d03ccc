"""`mt average`: choice of checkpoints, their mean, and errors."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mt.config.loading import load_config
from mt.training import trainer
from mt.training.checkpoint import MODEL
from mt.training.validation import Validation, Validator
from tests.factories import Program, contents

LOSSES = (3.0, 1.0, 2.0, 4.0)
"""Of the validations after 10, 20, 30 and 40 updates."""


@pytest.fixture(scope="module")
def run(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with checkpoints after 10, 20, 30 and 40 updates; the best: 20, 30, 10."""
    losses, validate = iter(LOSSES), Validator.run

    def found(validator: Validator, count: int | None = None) -> Validation:
        return replace(validate(validator, count), loss=next(losses, 1.0))

    path = tmp_path_factory.mktemp("runs") / "four"
    settings = ["training.keep_last=4", "training.keep_best=3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(Validator, "run", found)
        torch.set_num_threads(1)
        trainer.train(load_config(tiny_recipe, overrides=settings), path)
    return path


def mean_of(run: Path, *updates: int) -> dict[str, torch.Tensor]:
    folders = [run / "checkpoints" / f"update-{update:09d}" for update in updates]
    files = [load_file(folder / MODEL) for folder in folders]
    sums = {name: sum(file[name].double() for file in files) for name in files[0]}
    return {name: (total / len(files)).float() for name, total in sums.items()}


@pytest.mark.parametrize(
    ("options", "averaged"),
    [
        ([], [10, 20, 30]),
        (["--checkpoints", "best:2"], [20, 30]),
        (["--checkpoints", "last:3"], [20, 30, 40]),
        (["--checkpoints", "40,10"], [10, 40]),
        (["--checkpoints", "30,30"], [30]),
    ],
)
def test_mean_of_chosen_checkpoints(
    options: list[str],
    averaged: list[int],
    run: Path,
    tmp_path: Path,
    program: Program,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mt")
    output = tmp_path / "new" / "mean"
    status, out, err = program("average", run, *options, "--output", output, "--device", "cpu")
    assert status == 0, err
    named = ", ".join(map(str, averaged))
    assert f"{run}: averaging updates {named}" in caplog.messages
    described = json.loads((output / "model.json").read_text())
    assert (described["averaged_updates"], described["updates"]) == (averaged, averaged[-1])
    assert out == f"{output}: {described['score']}\n"
    made, wanted = load_file(output / "model.safetensors"), mean_of(run, *averaged)
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[name], wanted[name]) for name in wanted)
    assert [path.name for path in output.parent.iterdir()] == ["mean"]


def test_new_folder_is_complete(
    run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    before = contents(run)
    output = tmp_path / "mean"
    _, told, _ = program("average", run, "--output", output, "--device", "cpu")
    assert contents(run) == before
    greedy = ["--set", "decoding.search=greedy", "--set", "decoding.repair=off"]
    status, out, _ = program("evaluate", output, "--split", "valid", *greedy, "--json")
    assert status == 0
    # The printed score is that of the written model.
    assert f"BLEU {json.loads(out)['bleu']['score']:.2f}" in told
    text = (tiny_corpus / "test.en").read_bytes()
    assert program("translate", output, stdin=text)[1].count("\n") == text.count(b"\n")
    status, out, _ = program("train", output / "config.yaml", "--run", output)
    assert (status, out.splitlines(keepends=True)[0]) == (
        0,
        told.replace(f"{output}: ", f"{output}: finished already; "),
    )


def test_training_does_not_overwrite_it(run: Path, tmp_path: Path, program: Program) -> None:
    output = tmp_path / "mean"
    assert program("average", run, "--output", output)[0] == 0
    (output / ".lock").touch()
    before = contents(output)
    longer = ["--set", "training.max_updates=50"]
    status, _, err = program("train", output / "config.yaml", "--run", output, *longer)
    assert (status, err) == (
        2,
        f"error: {output}: holds a model, but no checkpoint to resume from "
        "(training.max_updates: 40 -> 50); name another folder with --run\n",
    )
    assert contents(output) == before


def test_unfinished_run_can_be_averaged(
    run: Path, tiny_recipe: Path, tmp_path: Path, program: Program
) -> None:
    unfinished = shutil.copytree(run, tmp_path / "unfinished")
    for name in ("model.json", "model.safetensors"):
        (unfinished / name).unlink()
    output = tmp_path / "mean"
    assert program("average", unfinished, "--checkpoints", "last:2", "--output", output)[0] == 0
    assert program("translate", output, stdin=b"one two\n")[0] == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--checkpoints", "25"], "RUN: no checkpoint after update 25; there are 10, 20, 30, 40"),
        (["--checkpoints", "10,5"], "RUN: no checkpoint after update 5; there are 10, 20, 30, 40"),
        (
            ["--checkpoints", "10;20"],
            "--checkpoints 10;20: write best, best:3, last:3, or updates such as 1000,2000",
        ),
        (
            ["--checkpoints", "best:4"],
            "RUN: --checkpoints best:4: only 3 are kept, those after update 10, 20, 30",
        ),
        (
            ["--checkpoints", "last:5"],
            "RUN: --checkpoints last:5: only 4 are kept, those after update 10, 20, 30, 40",
        ),
    ],
)
def test_missing_checkpoints_are_an_error(
    options: list[str], told: str, run: Path, tmp_path: Path, program: Program
) -> None:
    output = tmp_path / "mean"
    status, out, err = program("average", run, *options, "--output", output)
    assert (status, out, err) == (2, "", f"error: {told}\n".replace("RUN: ", f"{run}: "))
    assert not output.exists()


@pytest.mark.parametrize("is_finished", [True, False])
def test_weights_are_averaged_without_the_corpora(
    run: Path,
    is_finished: bool,
    tiny_corpus: Path,
    tmp_path: Path,
    program: Program,
    caplog: pytest.LogCaptureFixture,
) -> None:
    alone, output = shutil.copytree(run, tmp_path / "run"), tmp_path / "mean"
    config = (alone / "config.yaml").read_text().replace(str(tiny_corpus), "gone")
    (alone / "config.yaml").write_text(config)
    described = json.loads((alone / "model.json").read_text())
    if not is_finished:
        (alone / "model.json").unlink()
    status, out, _ = program("average", alone, "--checkpoints", "10,20", "--output", output)
    assert (status, out) == (0, f"{output}: not validated\n")
    assert re.fullmatch(
        "gone/.*: no such file.*; so the mean is not validated", caplog.messages[-1]
    )
    for name, tensor in mean_of(run, 10, 20).items():
        assert torch.equal(load_file(output / "model.safetensors")[name], tensor)
    mean = json.loads((output / "model.json").read_text())
    longest = described["longest_source"] if is_finished else 40
    assert (mean["score"], mean["longest_source"]) == ("not validated", longest)
    assert mean["pairs"] == (described["pairs"] if is_finished else {})
    assert program("translate", output, stdin=b"one two\n")[0] == 0


def test_existing_output_is_not_overwritten(run: Path, tmp_path: Path, program: Program) -> None:
    (tmp_path / "thesis.txt").write_text("my only copy")
    status, out, err = program("average", run, "--output", tmp_path)
    told = f"error: {tmp_path}: exists already; name a new folder\n"
    assert (status, out, err) == (2, "", told)
    assert (tmp_path / "thesis.txt").read_text() == "my only copy"


def test_failed_write_leaves_nothing_behind(
    run: Path, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mt.runs.write_json", full)
    output = tmp_path / "new" / "mean"
    assert program("average", run, "--output", output)[0] == 2
    assert list(output.parent.iterdir()) == []
