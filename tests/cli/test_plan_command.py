"""`mt plan`: output and errors."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mt.data.batches import PaddingEfficiency
from mt.profiling.plan import TrainingPlan
from tests.factories import Program

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
    memory_with={"recompute: on": 2**30, "precision: pure_bf16": 2**29},
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
less memory         1.0 GiB (recompute: on), 512 MiB (precision: pure_bf16)
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


Shown = Callable[..., str]


@pytest.fixture
def shown(
    program: Program,
    recorded: Callable[..., list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny_recipe: Path,
) -> Shown:
    """Return a function that returns the output of `mt plan my.yaml` for PLAN with changes."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(tiny_recipe.read_text())

    def show(*options: str, run: str = "runs/my", **changes: Any) -> str:
        calls = recorded("mt.profiling.plan.plan_training", replace(PLAN, **changes))
        status, out, err = program("plan", "my.yaml", *options)
        assert (status, err) == (0, "")
        (((_, folder), _),) = calls
        assert folder == Path(run)
        return out

    return show


def test_text_holds_counts_sizes_and_times(shown: Shown) -> None:
    assert shown() == TEXT
    assert shown("--run", "elsewhere", run="elsewhere") == TEXT


def test_json_is_the_plan_with_the_refused_exports(shown: Shown) -> None:
    exports = {"ctranslate2": None, "huggingface": None}
    assert json.loads(shown("--json")) == {**asdict(PLAN), "export_refused": exports}


def test_refused_exports_name_the_key(shown: Shown) -> None:
    rotary = shown("--set", "model.positional=rotary")
    assert "\nexport to           ctranslate2; no huggingface: `model.positional: rotary`" in rotary
    refused = json.loads(shown("--set", "decoding.search=sample", "--json"))["export_refused"]
    assert refused["ctranslate2"].startswith("`decoding.search: sample`: ")


@pytest.mark.parametrize(
    ("bound", "note"),
    [
        ("exactly", ""),
        ("at least", " This is the shortest case: no validation improves on the first."),
    ],
)
@pytest.mark.parametrize(
    ("seconds", "duration"),
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
def test_bounds_are_explained_and_durations_have_a_fitting_unit(
    bound: str, note: str, seconds: float, duration: str, shown: Shown
) -> None:
    changes = {"seconds": {**PLAN.seconds, "total": seconds}, "memory_bytes": None}
    out = shown(bound=bound, memory_free_bytes=None, **changes).splitlines()
    assert out[-1] == f"`training.max_updates` ends the training.{note}"
    assert out[-4].endswith(f"  {'' if bound == 'exactly' else f'{bound} '}{duration}")
    assert "peak memory         unknown" in out


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
    ("options", "message"),
    [
        (["--set", "training.device=mps"], "device `mps`: not on this machine"),
        (["--set", "data.train.source=none.en"], "none.en: no such file"),
    ],
)
def test_a_training_that_is_refused_cannot_be_planned(
    options: list[str], message: str, refused: Callable[..., str], tiny_recipe: Path
) -> None:
    assert message in refused("plan", tiny_recipe, *options)
