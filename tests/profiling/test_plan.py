"""`mt plan` against counts by hand and against what a training does."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mt.config import Config
from mt.config.loading import load_config
from mt.errors import RunError
from mt.profiling import plan as module
from mt.profiling.cost import training_flops
from mt.profiling.plan import TrainingPlan, plan_training
from mt.profiling.probe import Probe
from mt.training.checkpoint import Checkpoints
from mt.training.data import TrainingData, prepare
from mt.training.memory import heaviest
from mt.training.run_folder import RunFolder
from mt.training.trainer import train
from tests.factories import journal

PROBE = Probe(updates=4, update=0.5, validation=3.0, checkpoint=0.25)
Plan = Callable[..., TrainingPlan]


@pytest.fixture(scope="module")
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe)


@pytest.fixture(scope="module")
def corpus(config: Config, tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return prepare(config, RunFolder(tmp_path_factory.mktemp("run")))


def changed(config: Config, **training: object) -> Config:
    values = config.training.model_copy(update=training)
    return config.model_copy(update={"training": values})


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.float64]]:
    """Replace the probe; return the list of the operations that it is called with."""
    calls: list[NDArray[np.float64]] = []

    def probe(_: object, *, update_flops: NDArray[np.float64]) -> Probe:
        calls.append(update_flops)
        return PROBE

    monkeypatch.setattr(module, "probe", probe)
    return calls


@pytest.fixture
def plan(
    config: Config,
    corpus: TrainingData,
    probed: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Plan:
    """Return a function that plans the tiny recipe with other keys of `training`."""
    monkeypatch.setattr("mt.profiling.training_speed.prepare", lambda *_: corpus)
    return lambda **keys: plan_training(changed(config, **keys), tmp_path / "runs" / "new")


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"max_updates": 40}, ("max_updates", "exactly", 40, 5, 4)),
        ({"max_updates": 41, "patience": 3}, ("max_updates", "at most", 41, 6, 5)),
        ({"max_updates": 40, "patience": 3}, ("max_updates", "exactly", 40, 5, 4)),
        ({"max_updates": None, "patience": 3}, ("patience", "at least", 40, 5, 4)),
        ({"max_updates": 5, "max_epochs": 2}, ("max_updates", "exactly", 5, 2, 1)),
        ({"max_updates": None, "max_epochs": 2}, ("max_epochs", "exactly", 8, 2, 1)),
        # 7, 14, 21, 28 besides 10, 20, 30; 30 and 60 are counted once.
        ({"max_updates": 30, "checkpoint_every": 7}, ("max_updates", "exactly", 30, 4, 7)),
        ({"max_updates": 60, "checkpoint_every": 15}, ("max_updates", "exactly", 60, 7, 8)),
    ],
)
def test_extent_follows_from_updates_and_patience(
    training: dict[str, object], expected: tuple[str, str, int, int, int], plan: Plan
) -> None:
    found = plan(**training)
    assert found.ends_by == f"training.{expected[0]}"
    assert (found.bound, found.updates, found.validations, found.checkpoints) == expected[1:]
    times = found.updates * 0.5 + found.validations * 3.0 + found.checkpoints * 0.25
    assert found.seconds == {"update": 0.5, "validation": 3.0, "checkpoint": 0.25, "total": times}


def test_plan_warns_of_a_slow_precision(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faked = {"architecture": "x86_64"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: faked, raising=False)
    assert plan(precision="bf16").precision == "bf16"
    assert capsys.readouterr().err.count("warning: training in bf16 is slower") == 1


def test_counts_are_those_of_the_corpus(
    config: Config, corpus: TrainingData, plan: Plan, probed: list[NDArray[np.float64]]
) -> None:
    found = plan()
    lengths, updates = corpus.store.lengths, corpus.plan_epoch()
    sizes = corpus.tokenizer.source_size, corpus.tokenizer.target_size
    flops, tokens = training_flops(config.model, lengths, vocabularies=sizes), lengths[:, 1].sum()
    assert (found.pairs, found.updates_per_epoch) == (60, len(updates))
    assert found.vocabularies == {"source": sizes[0], "target": sizes[1]}
    assert found.target_tokens_per_update * len(updates) == pytest.approx(tokens)
    assert found.share_of_the_papers_update * 25_000 == found.target_tokens_per_update
    assert found.flops_per_update * len(updates) == pytest.approx(flops.sum())
    assert found.flops_per_target_token == pytest.approx(flops.sum() / tokens)
    assert found.flops == 40 * found.flops_per_update
    assert probed[0].tolist() == [flops[update].sum() for update in updates]


def test_r_drop_doubles_the_operations_and_frozen_parameters_have_no_moments(plan: Plan) -> None:
    plain = plan()
    assert plan(r_drop=1.0).flops_per_update == 2 * plain.flops_per_update
    frozen = plan(freeze=("encoder",), ema_decay=0.9)
    assert plain.learning_parameters == plain.parameters == frozen.parameters
    assert 0 < frozen.learning_parameters < frozen.parameters
    assert plain.checkpoint_bytes == 4 * 3 * plain.parameters
    assert frozen.checkpoint_bytes == 4 * (frozen.parameters + 3 * frozen.learning_parameters)


def test_memory_is_estimated_for_the_heaviest_batch(
    config: Config, corpus: TrainingData, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def estimate_memory(_: Config, lengths: Any, **vocabularies: int) -> int:
        calls.append((lengths.tolist(), *vocabularies.values()))
        return 2**33

    monkeypatch.setattr(module, "estimate_memory", estimate_memory)
    monkeypatch.setattr(module, "available_memory", lambda: 7)
    found = plan(max_tokens_per_batch=100)
    lengths = corpus.store.lengths
    lengths = lengths[heaviest(corpus.plan_epoch(), lengths, max_tokens_per_batch=100)]
    sizes = corpus.tokenizer.source_size, corpus.tokenizer.target_size
    # As configured, and with four settings that save memory.
    assert calls == [(lengths.tolist(), *sizes)] * 5
    assert [*found.heaviest_batch.values()] == [len(lengths), *lengths.max(axis=0)]
    assert (found.memory_bytes, found.memory_free_bytes) == (2**33, 7)


@pytest.mark.gpu
def test_memory_of_a_gpu_is_measured(plan: Plan) -> None:
    found = plan(device="cuda")
    assert found.memory_bytes is not None
    assert found.memory_free_bytes is not None
    assert 4 * found.parameters < found.memory_bytes < found.memory_free_bytes


def test_too_little_disk_is_an_error_before_the_probe(
    plan: Plan, probed: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {tmp_path: plan().disk_bytes}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    assert plan().disk_free_bytes == free[tmp_path]
    free[tmp_path] -= 1
    calls = len(probed)
    with pytest.raises(RunError, match=r"new: the checkpoints .* `training.keep_last`, now 2, or"):
        plan()
    assert len(probed) == calls
    # The files of an unfinished run are replaced.
    run = tmp_path / "runs" / "new"
    run.mkdir(parents=True)
    (run / "some.safetensors").write_bytes(b"x")
    free[run] = free[tmp_path]
    plan()


def test_a_training_does_what_was_planned(
    config: Config, probed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = changed(config, max_updates=25, checkpoint_every=4, patience=None, average="off")
    run = tmp_path / "run"
    planned = plan_training(config, run)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    encoded = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache/pairs").iterdir()}
    sizes: list[int] = []
    prune = Checkpoints.prune

    def size(folder: Path) -> int:
        return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))

    def measured(checkpoints: Checkpoints, *arguments: Any) -> None:
        sizes.append(size(run))
        prune(checkpoints, *arguments)

    monkeypatch.setattr(Checkpoints, "prune", measured)
    train(config, run)
    # The encoded pairs are reused.
    assert encoded == {path: path.stat().st_mtime_ns for path in encoded}
    # The final model is validated, too, and `finish` prunes once more.
    assert planned.validations == len(journal(run, "validation")) + 1 == 4
    assert planned.checkpoints == len(sizes) - 1 == 3 + 5
    # A file has a header besides the numbers, which counts for so small a model.
    headers = size(max((run / "checkpoints").iterdir())) / planned.checkpoint_bytes
    assert 1 < headers < 1.15
    assert max(sizes) <= headers * planned.disk_bytes < 1.2 * max(sizes)


def test_recomputation_is_not_named_where_it_is_refused(plan: Plan) -> None:
    named = [*plan().memory_with]
    assert "recompute: on" in named
    named.remove("recompute: on")
    assert [*plan(guided_alignment=0.05).memory_with] == named
