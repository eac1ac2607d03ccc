"""`mt plan`: what it prints, and how it fails."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mt.data.batches import PaddingEfficiency
from mt.profiling.plan import Extent, TrainingPlan, Work
from mt.profiling.probe import Disk, HeaviestBatch, Memory, Probe, Spent
from mt.profiling.training_speed import MatmulRates

Program = Callable[..., tuple[int, str, str]]

PLAN = TrainingPlan(
    device="cpu",
    precision="fp32",
    threads=2,
    work=Work(
        parameters=7_000_000,
        learning=6_000_000,
        pairs=29_000,
        vocabularies=(8000, 8000),
        updates_per_epoch=120,
        target_tokens_per_update=4000.0,
        flops_per_update=2e11,
        padding=PaddingEfficiency(source=0.95, target=0.9),
    ),
    extent=Extent("training.max_updates", "at most", updates=3000, validations=4, checkpoints=3),
    memory=Memory(HeaviestBatch(100, 30, 40), most_bytes=2**31, free_bytes=3 * 2**30),
    disk=Disk(checkpoint_bytes=76 * 2**20, most_bytes=512 * 2**20, free_bytes=2**39),
    measured=Probe(
        updates=12,
        update=Spent(2.0, 4.0),
        validation=Spent(30.0, 60.0),
        checkpoint=Spent(0.5, 0.25),
        matmul_rates=MatmulRates(2e11, 3e11),
        validation_bytes=2**20,
        peak_bytes=2**31,
    ),
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
peak memory         2.0 GiB; 3.0 GiB are free
checkpoint          76 MiB
disk                at most 512 MiB; 512.0 GiB are free
export to           ctranslate2; huggingface

time         each  number            together
update        2 s   3,000          1 h 40 min
validation   30 s       4               2 min
checkpoint  0.5 s       3               1.5 s
in all                     at most 1 h 42 min

From 12 updates at 40% of the rate of matrix products, 250 GFLOP/s just then.
`training.max_updates` ends it. `training.patience` may do so before.
"""
"""The sizes are such that every number can be checked by hand."""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_recipe: Path) -> list[Path]:
    """Have a plan of round numbers made; return the run folders that were asked for."""
    runs: list[Path] = []

    def plan_training(_: object, run: Path) -> TrainingPlan:
        runs.append(run)
        return PLAN

    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(tiny_recipe.read_text())
    monkeypatch.setattr("mt.profiling.plan.plan_training", plan_training)
    return runs


def test_the_table(program: Program, planned: list[Path]) -> None:
    assert program("plan", "my.yaml") == (0, TEXT, "")
    program("plan", "my.yaml", "--run", "elsewhere")
    assert planned == [Path("runs/my"), Path("elsewhere")]


def test_what_cannot_be_exported_is_told_with_its_key(
    program: Program, planned: list[Path]
) -> None:
    rotary = program("plan", "my.yaml", "--set", "model.positional=rotary")[1]
    assert (
        "\nexport to           ctranslate2; no huggingface: `model.positional: rotary`;" in rotary
    )
    samples = ("--set", "decoding.search=sample", "--json")
    refused = json.loads(program("plan", "my.yaml", *samples)[1])["export_refused"]
    assert refused["ctranslate2"].startswith("`decoding.search: sample`: ")
    assert refused["huggingface"] is None


@pytest.mark.parametrize(
    ("extent", "told"),
    [
        (Extent("training.max_epochs", "exactly", 3000, 4, 3), "`training.max_epochs` ends it."),
        (
            Extent("training.patience", "at least", 3000, 4, 3),
            "`training.patience` ends it. When, cannot be foreseen: this is if no validation "
            "betters the first.",
        ),
    ],
)
def test_what_ends_it(
    extent: Extent,
    told: str,
    program: Program,
    planned: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(PLAN, extent=extent)
    monkeypatch.setattr("mt.profiling.plan.plan_training", lambda *_: other)
    out = program("plan", "my.yaml")[1].splitlines()
    assert out[-1] == told
    bound = "" if extent.bound == "exactly" else "at least "
    assert out[-4].endswith(f"   {bound}1 h 42 min")


def test_json_holds_every_number(program: Program, planned: list[Path]) -> None:
    status, out, err = program("plan", "my.yaml", "--json")
    assert (status, err) == (0, "")
    total = {"seconds": 6000 + 120 + 1.5, "cpu_seconds": 12000 + 240 + 0.75}
    assert json.loads(out) == {
        "device": "cpu",
        "precision": "fp32",
        "threads": 2,
        "parameters": 7_000_000,
        "learning_parameters": 6_000_000,
        "pairs": 29_000,
        "vocabularies": {"source": 8000, "target": 8000},
        "updates_per_epoch": 120,
        "ends_by": "training.max_updates",
        "bound": "at most",
        "updates": 3000,
        "validations": 4,
        "checkpoints": 3,
        "target_tokens_per_update": 4000.0,
        "share_of_the_papers_update": 0.16,
        "padding_efficiency": {"source": 0.95, "target": 0.9},
        "flops_per_target_token": 5e7,
        "flops_per_update": 2e11,
        "flops": 6e14,
        "heaviest_batch": {"pairs": 100, "source_length": 30, "target_length": 40},
        "memory_bytes": 2**31,
        "memory_free_bytes": 3 * 2**30,
        "checkpoint_bytes": 76 * 2**20,
        "disk_bytes": 512 * 2**20,
        "disk_free_bytes": 2**39,
        "probed_updates": 12,
        "matmul_flops_per_second": {"before": 2e11, "after": 3e11},
        "matmul_share": 0.4,
        "seconds": {
            "update": 2.0,
            "validation": 30.0,
            "checkpoint": 0.5,
            "total": total["seconds"],
        },
        "cpu_seconds": {
            "update": 4.0,
            "validation": 60.0,
            "checkpoint": 0.25,
            "total": total["cpu_seconds"],
        },
        "export_refused": {"ctranslate2": None, "huggingface": None},
    }


@pytest.mark.parametrize(
    ("seconds", "told"),
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
def test_a_duration_in_units_that_people_use(seconds: float, told: str) -> None:
    from mt.cli.plan import _duration

    assert _duration(Spent(seconds, 0.0)) == told


def test_a_real_plan(
    program: Program, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mt.profiling.probe.MOST_UPDATES", 4)
    monkeypatch.setattr("mt.profiling.cost.SAMPLE_SECONDS", 1e-4)
    status, out, err = program("plan", tiny_recipe, "--json", "--set", "training.max_updates=9")
    assert status == 0
    found = json.loads(out)
    assert (found["updates"], found["validations"], found["probed_updates"]) == (9, 2, 4)
    assert 0 < found["matmul_share"] < 2
    assert "pairs to train on" in err
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("plan", "Missing argument 'CONFIG'."),
        ("plan none.yaml", "none.yaml: no such file"),
        ("plan my.yaml --set model.nrom=x", "unknown; did you mean `model.norm`"),
        ("plan my.yaml --set training.device=mps", "device `mps`: not on this machine"),
        ("plan my.yaml", "no-such-file.en: no such file"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: str,
    told: str,
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
    assert told in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["my.yaml"]
