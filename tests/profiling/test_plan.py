"""`mt plan` against counts by hand and against what a training does."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import TARGET
from mt.decoding.engine import length_limit
from mt.decoding.torch_engine import TorchEngine
from mt.errors import RunError
from mt.profiling import plan as module
from mt.profiling.plan import TrainingPlan, plan_training, probe_training, temporary_trainer
from mt.training.checkpoint import Checkpoints
from mt.training.data import TrainingData, prepare
from mt.training.loader import heaviest
from mt.training.resources import measure_validation
from mt.training.run_folder import RunFolder
from mt.training.trainer import Trainer, train
from tests.factories import CPU, journal

PROBE = 4, {"update": 0.5, "validation": 3.0, "checkpoint": 0.25}
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
    return config.changed(training=config.training.changed(**training))


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.integer]]:
    """Replace the probe; return the list of the tokens that it is called with."""
    calls: list[NDArray[np.integer]] = []

    def probe(_: object, *, update_tokens: NDArray[np.integer]) -> tuple[int, dict[str, float]]:
        calls.append(update_tokens)
        return PROBE

    monkeypatch.setattr(module, "probe_training", probe)
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
    monkeypatch.setattr("mt.profiling.plan.prepare", lambda *_: corpus)
    return lambda **keys: plan_training(changed(config, **keys), tmp_path / "runs" / "new")


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"max_updates": 40}, ("max_updates", "exactly", 40, 5, 4)),
        ({"max_updates": 41, "patience": 3}, ("max_updates", "at most", 41, 6, 5)),
        ({"max_updates": None, "patience": 3}, ("patience", "at least", 40, 5, 4)),
        ({"max_updates": None, "max_epochs": 2}, ("max_epochs", "exactly", 8, 2, 1)),
        # 7, 14, 21, 28 besides 10, 20, 30; 30 and 60 are counted once.
        ({"max_updates": 30, "checkpoint_every": 7}, ("max_updates", "exactly", 30, 4, 7)),
        ({"max_updates": 60, "checkpoint_every": 15}, ("max_updates", "exactly", 60, 7, 8)),
    ],
)
def test_extent_follows_from_updates_and_patience(
    training: dict[str, object], expected: tuple[str, str, int, int, int], plan: Plan
) -> None:
    planned = plan(**training)
    assert planned.ends_by == f"training.{expected[0]}"
    counts = planned.updates, planned.validations, planned.checkpoints
    assert (planned.bound, *counts) == expected[1:]
    times = planned.updates * 0.5 + planned.validations * 3.0 + planned.checkpoints * 0.25
    assert planned.seconds == {"update": 0.5, "validation": 3.0, "checkpoint": 0.25, "total": times}


def test_a_budget_limits_the_time(plan: Plan) -> None:
    planned = plan(max_updates=None, budget="40s")
    assert (planned.ends_by, planned.seconds["total"]) == ("training.budget", 40)
    assert plan(max_updates=12, budget="1h").ends_by == "training.max_updates"


def test_counts_are_those_of_the_corpus(
    corpus: TrainingData, plan: Plan, probed: list[NDArray[np.integer]]
) -> None:
    planned = plan()
    lengths, updates = corpus.store.lengths, corpus.plan_epoch()
    sizes = corpus.tokenizer.source_size, corpus.tokenizer.target_size
    assert (planned.pairs, planned.updates_per_epoch) == (60, len(updates))
    assert planned.vocabularies == {"source": sizes[0], "target": sizes[1]}
    tokens = planned.target_tokens_per_update * len(updates)
    assert tokens == pytest.approx(lengths[:, TARGET].sum())
    assert probed[0].tolist() == [lengths[np.concatenate(update)].sum() for update in updates]


def test_frozen_parameters_have_no_moments(plan: Plan) -> None:
    plain = plan()
    frozen = plan(freeze=("encoder",), ema_decay=0.9)
    assert plain.learning_parameters == plain.parameters == frozen.parameters
    assert 0 < frozen.learning_parameters < frozen.parameters
    assert plain.checkpoint_bytes == 4 * 3 * plain.parameters
    assert frozen.checkpoint_bytes == 4 * (frozen.parameters + 3 * frozen.learning_parameters)
    half = plan(precision="pure_bf16", ema_decay=None)
    assert half.checkpoint_bytes == 2 * 3 * plain.parameters
    assert plan(optimizer="adafactor").checkpoint_bytes < 1.2 * 4 * plain.parameters


def test_memory_is_estimated_for_the_heaviest_batch(
    config: Config, corpus: TrainingData, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def estimate_memory(
        *_: object, lengths: Any, vocabularies: tuple[int, int], **__: object
    ) -> int:
        calls.append((lengths.tolist(), vocabularies))
        return 2**33

    monkeypatch.setattr(module, "estimate_memory", estimate_memory)
    monkeypatch.setattr(module, "available_memory", lambda: 7)
    planned = plan(max_tokens_per_batch=100)
    lengths = corpus.store.lengths
    lengths = lengths[heaviest(corpus.plan_epoch(), lengths, max_tokens_per_batch=100)]
    # As configured, and with the settings that save memory.
    assert calls == [(lengths.tolist(), corpus.vocabularies)] * (1 + len(planned.memory_with))
    assert len(planned.memory_with) == 3
    assert [*planned.heaviest_batch.values()] == [len(lengths), *lengths.max(axis=0)]
    assert (planned.memory_bytes, planned.memory_free_bytes) == (2**33, 7)


@pytest.mark.gpu
def test_memory_of_a_gpu_is_measured(plan: Plan) -> None:
    planned = plan(device="cuda")
    assert planned.memory_bytes is not None
    assert planned.memory_free_bytes is not None
    assert 4 * planned.parameters < planned.memory_bytes < planned.memory_free_bytes


def test_too_little_disk_is_an_error_before_the_probe(
    plan: Plan, probed: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {tmp_path: plan().disk_bytes}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    assert plan().disk_free_bytes == free[tmp_path]
    free[tmp_path] -= 1
    calls = len(probed)
    with pytest.raises(RunError, match="`training.keep_last`, now 2, or"):
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


@pytest.fixture
def trainer(config: Config) -> Iterator[Trainer]:
    with temporary_trainer(config, 70) as (trainer, _):
        yield trainer


@pytest.mark.parametrize(
    ("seconds", "updates", "taken"),
    # An update before and one to warm up: the first timed update is the second, 20.
    [(100.0, 1, [20]), (5.0, 3, [20, 30, 40]), (0.001, 57, 14 * [20, 30, 40, 10] + [20])],
)
def test_update_time_is_scaled_to_the_mean_tokens(
    seconds: float,
    updates: int,
    taken: list[int],
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def time_updates(_: Trainer, updates: int, *, warmup: int) -> tuple[float, float]:
        calls.append(updates)
        assert warmup == 1
        return seconds, seconds

    monkeypatch.setattr(module, "time_updates", time_updates)
    probed, times = probe_training(trainer, update_tokens=np.array([10, 20, 30, 40]))
    assert calls == [1, updates]
    assert probed == updates
    assert times["update"] == pytest.approx(seconds * 25.0 / sum(taken))


def test_a_whole_probe_of_a_session(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UPDATES", 6)
    updates, times = probe_training(trainer, update_tokens=np.array([10, 20]))
    assert (updates, trainer.state.update) == (3, 6)
    assert trainer.folder.checkpoints.updates() == [6]
    assert all(0 < seconds < 60 for seconds in times.values())


def test_timed_translations_reach_the_limit_and_then_have_the_length_of_the_references(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[tuple[int, int]] = []
    n_best_ids = TorchEngine.n_best_ids

    def record(engine: TorchEngine, sources: Any, *rest: Any, **named: Any) -> object:
        hypotheses = n_best_ids(engine, sources, *rest, **named)
        assert not any(best.finished for best, *_ in hypotheses)
        written = sum(len(best.ids) for best, *_ in hypotheses)
        limits = sum(length_limit(len(source), decoding) for source in sources)
        passes.append((written, limits))
        return hypotheses

    decoding, lengths = trainer.validator.decoding, trainer.data.valid_lengths
    monkeypatch.setattr(TorchEngine, "n_best_ids", record)
    new, trained = measure_validation(trainer.config, trainer.data, CPU, seconds=0.01)
    assert min(new, trained) > 0
    _, (written, limits), (shorter, _) = passes  # the first is of one pair
    assert abs(written - limits) <= len(lengths)
    assert abs(shorter - lengths[:, TARGET].sum()) <= 3 * len(lengths)
