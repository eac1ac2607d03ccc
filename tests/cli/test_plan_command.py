"""`mt plan`: output and errors."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mt.data.batches import PaddingEfficiency
from mt.profiling.plan import TrainingPlan

Program = Callable[..., tuple[int, str, str]]

PLAN = TrainingPlan(
    device="cpu",
    precision="fp32",
    threads=2,
    parameters=7_000_000,
    learning_parameters=6_000_000,
    pairs=29_000,
    vocabularies={"source": 8000, "target": 8000},
    updates_per_epoch=120,
    ends_by="training.max_updates",
    bound="at most",
    updates=3000,
    validations=4,
    checkpoints=3,
    target_tokens_per_update=4000.0,
    share_of_the_papers_update=0.16,
    padding_efficiency=PaddingEfficiency(source=0.95, target=0.9),
    flops_per_target_token=5e7,
    flops_per_update=2e11,
    flops=6e14,
    heaviest_batch={"pairs": 100, "source_length": 30, "target_length": 40},
    memory_bytes=2**31,
    memory_free_bytes=3 * 2**30,
    checkpoint_bytes=76 * 2**20,
    disk_bytes=512 * 2**20,
    disk_free_bytes=2**39,
    probed_updates=12,
    seconds={"update": 2.0, "validation": 30.0, "checkpoint": 0.5, "total": 6121.5},
)
TEXT = """\
my.yaml: fp32 on cpu, 2 threads

parameters          7,000,000, 1,000,000 of them frozen
corpus              29,000 pairs; vocabulary 8,000 / 8,000 tokens
updates             3,000, 25.0 epochs of 120
tokens an update    4,000 target, 0.16 of the paper's 25,000
padding efficiency  95.0% source, 90.0% target
FLOPs               50 M a target token, 200 G an update, 600 T in all
heaviest batch      100 pairs of up to 30 source and 40 target tokens
peak memory         2.0 GiB; 3.0 GiB are available
checkpoint          76 MiB
disk                at most 512 MiB; 512.0 GiB are available
export to           ctranslate2; huggingface

time         each  number            together
update        2 s   3,000          1 h 40 min
validation   30 s       4               2 min
checkpoint  0.5 s       3               1.5 s
in all                     at most 1 h 42 min

Extrapolated from 12 updates on this machine.
`training.max_updates` ends the training. `training.patience` may end it earlier.
"""


@pytest.fixture
def planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_recipe: Path
) -> Callable[..., Any]:
    """Return a function that replaces `plan_training` by one that returns PLAN with changes."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(tiny_recipe.read_text())

    def use(**changes: Any) -> list[Path]:
        runs: list[Path] = []

        def plan_training(_: object, run: Path) -> TrainingPlan:
            runs.append(run)
            return replace(PLAN, **changes)

        monkeypatch.setattr("mt.profiling.plan.plan_training", plan_training)
        return runs

    return use


def test_text_holds_counts_sizes_and_times(program: Program, planned: Callable[..., Any]) -> None:
    runs = planned()
    assert program("plan", "my.yaml") == (0, TEXT, "")
    program("plan", "my.yaml", "--run", "elsewhere")
    assert runs == [Path("runs/my"), Path("elsewhere")]


def test_json_is_the_plan_with_the_refused_exports(
    program: Program, planned: Callable[..., Any]
) -> None:
    planned()
    status, out, err = program("plan", "my.yaml", "--json")
    exports = {"ctranslate2": None, "huggingface": None}
    assert (status, err) == (0, "")
    assert json.loads(out) == {**asdict(PLAN), "export_refused": exports}


def test_refused_exports_name_the_key(program: Program, planned: Callable[..., Any]) -> None:
    planned()
    rotary = program("plan", "my.yaml", "--set", "model.positional=rotary")[1]
    assert "\nexport to           ctranslate2; no huggingface: `model.positional: rotary`" in rotary
    samples = ("--set", "decoding.search=sample", "--json")
    refused = json.loads(program("plan", "my.yaml", *samples)[1])["export_refused"]
    assert refused["ctranslate2"].startswith("`decoding.search: sample`: ")


@pytest.mark.parametrize(
    ("bound", "total", "note"),
    [
        ("exactly", "   1 h 42 min", "ends the training."),
        (
            "at least",
            "   at least 1 h 42 min",
            "ends the training. This is the shortest case: no validation improves on the first.",
        ),
    ],
)
def test_bound_is_explained(
    bound: str, total: str, note: str, program: Program, planned: Callable[..., Any]
) -> None:
    planned(bound=bound, memory_bytes=None, memory_free_bytes=None)
    out = program("plan", "my.yaml")[1].splitlines()
    assert out[-1] == f"`training.max_updates` {note}"
    assert out[-4].endswith(total)
    assert "peak memory         unknown" in out


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0123, "0.0123 s"),
        (99.9, "99.9 s"),
        (100, "2 min"),
        (5970, "100 min"),
        (6000, "1 h 40 min"),
        (172_000, "47 h 47 min"),
        (180_000, "2 d 2 h"),
    ],
)
def test_durations_have_a_fitting_unit(
    seconds: float, shown: str, program: Program, planned: Callable[..., Any]
) -> None:
    planned(seconds={**PLAN.seconds, "total": seconds})
    assert program("plan", "my.yaml")[1].splitlines()[-4].endswith(f"at most {shown}")


def test_a_real_plan_writes_nothing(
    program: Program, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mt.profiling.probe.MOST_UPDATES", 6)
    status, out, err = program("plan", tiny_recipe, "--json", "--set", "training.max_updates=9")
    assert status == 0
    found = json.loads(out)
    assert (found["updates"], found["validations"], found["probed_updates"]) == (9, 2, 3)
    assert found["memory_bytes"] > 4 * found["parameters"]
    assert "pairs to train on" in err
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan", "Missing argument 'CONFIG'."),
        ("plan none.yaml", "none.yaml: no such file"),
        ("plan my.yaml --set training.device=mps", "device `mps`: not on this machine"),
        ("plan my.yaml", "no-such-file.en: no such file"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: str,
    message: str,
    program: Program,
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(tiny_recipe.read_text().replace("train.en", "no-such-file.en"))
    status, out, err = program(*arguments.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["my.yaml"]
