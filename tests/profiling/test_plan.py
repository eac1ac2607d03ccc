"""`mt plan`: what it counts against what a training does, what it refuses, what it leaves alone."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import split_update
from mt.data.tokenizer import train_tokenizer as tokenizer_training
from mt.errors import RunError
from mt.profiling import plan as module
from mt.profiling.cost import training_flops
from mt.profiling.plan import Extent, plan_training
from mt.profiling.probe import HeaviestBatch, Probe, Spent
from mt.profiling.training_speed import MatmulRates
from mt.training.checkpoint import Checkpoints
from mt.training.data import first_plan, prepare
from mt.training.run_folder import RunFolder
from mt.training.trainer import train

PROBE = Probe(
    updates=4,
    update=Spent(0.5, 1.0),
    validation=Spent(3.0, 6.0),
    checkpoint=Spent(0.25, 0.125),
    matmul_rates=MatmulRates(4e9, 6e9),
    validation_bytes=2**20,
    peak_bytes=2**33,
)
Tried = list[dict[str, Any]]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Tried:
    """Put a recorder in the place of the probe; return what it was asked for."""
    calls: Tried = []

    def record(_session: object, **asked: Any) -> Probe:
        calls.append(asked)
        return PROBE

    monkeypatch.setattr(module, "probe", record)
    return calls


@pytest.fixture
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe)


def changed(config: Config, **training: object) -> Config:
    """Return the config with other keys of `training`."""
    values = config.training.model_copy(update=training)
    return config.model_copy(update={"training": values})


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return what a folder holds, and when each file was written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"max_updates": 40, "validate_every": 10}, ("max_updates", "exactly", 40, 5, 4)),
        ({"max_updates": 41, "validate_every": 10}, ("max_updates", "exactly", 41, 6, 5)),
        ({"max_epochs": 2, "max_updates": None}, ("max_epochs", "exactly", 14, 3, 2)),
        ({"max_epochs": 2, "max_updates": 13}, ("max_updates", "exactly", 13, 3, 2)),
        # Patience may end it after the first validation and three more.
        ({"max_updates": 41, "patience": 3}, ("max_updates", "at most", 41, 6, 5)),
        ({"max_updates": 40, "patience": 3}, ("max_updates", "exactly", 40, 5, 4)),
        ({"max_updates": None, "patience": 3}, ("patience", "at least", 40, 5, 4)),
        # 7, 14, 21, 28 besides 10, 20, 30; of 30 and 60 there is one.
        ({"max_updates": 30, "checkpoint_every": 7}, ("max_updates", "exactly", 30, 4, 7)),
        ({"max_updates": 60, "checkpoint_every": 15}, ("max_updates", "exactly", 60, 7, 8)),
    ],
)
def test_how_long_a_training_is(
    training: dict[str, object], expected: tuple[str, str, int, int, int], config: Config
) -> None:
    key, *rest = expected
    whole = changed(config, **{"patience": None, "validate_every": 10, **training}).training
    assert module._extent(whole, updates_per_epoch=7) == Extent(f"training.{key}", *rest)  # type: ignore[arg-type]


def test_a_training_does_what_was_counted_and_takes_the_disk_that_was_told(
    config: Config, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changed(config, max_updates=25, checkpoint_every=4, patience=None, average="off")
    run = tmp_path / "run"
    planned = plan_training(config, run)
    sizes: list[int] = []
    prune = Checkpoints.prune

    def measured(checkpoints: Checkpoints, *arguments: Any) -> None:
        sizes.append(sum(file.stat().st_size for file in run.rglob("*.safetensors")))
        prune(checkpoints, *arguments)

    monkeypatch.setattr(Checkpoints, "prune", measured)
    train(config, run)
    journal = (run / "metrics.jsonl").read_text()
    # The final model is validated, too; `finish` prunes once more.
    assert planned.extent.validations == journal.count('"event": "validation"') + 1 == 4
    assert planned.extent.checkpoints == len(sizes) - 1 == 3 + 5
    newest = max((run / "checkpoints").iterdir())
    held = sum(file.stat().st_size for file in newest.glob("*.safetensors"))
    # Beside the numbers a file has a header, which shows with so small a model.
    headers = held / planned.disk.checkpoint_bytes
    assert 1 < headers < 1.15
    assert max(sizes) <= headers * planned.disk.most_bytes < 1.2 * max(sizes)


def test_the_work_is_that_of_the_corpus(config: Config, tried: Tried, tmp_path: Path) -> None:
    planned = plan_training(config, tmp_path / "run")
    prepared = prepare(config, RunFolder(_folder(tmp_path / "other")))
    lengths, updates = prepared.store.lengths, first_plan(prepared, config)
    work = planned.work
    sizes = prepared.tokenizer.source_size, prepared.tokenizer.target_size
    assert (work.pairs, work.vocabularies) == (60, sizes)
    assert work.updates_per_epoch == len(updates)
    assert work.target_tokens_per_update * len(updates) == pytest.approx(lengths[:, 1].sum())
    flops = training_flops(config.model, lengths, vocabularies=sizes)
    assert work.flops_per_update * len(updates) == pytest.approx(flops.sum())
    assert work.flops_per_target_token == pytest.approx(flops.sum() / lengths[:, 1].sum())
    assert work.share_of_the_papers_update == pytest.approx(work.target_tokens_per_update / 25000)
    (asked,) = tried
    assert asked["update_flops"].tolist() == [flops[update].sum() for update in updates]
    assert work.learning == work.parameters > 10_000


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_r_drop_passes_twice_and_frozen_parts_have_no_moments(
    config: Config, tried: Tried, tmp_path: Path
) -> None:
    plain = plan_training(config, tmp_path / "run")
    doubled = plan_training(changed(config, r_drop=1.0), tmp_path / "run")
    assert doubled.work.flops_per_update == 2 * plain.work.flops_per_update
    frozen = plan_training(changed(config, freeze=("encoder",), ema_decay=0.9), tmp_path / "run")
    work = frozen.work
    assert work.parameters == plain.work.parameters
    assert 0 < work.learning < work.parameters
    assert plain.disk.checkpoint_bytes == 4 * 3 * work.parameters
    assert frozen.disk.checkpoint_bytes == 4 * (work.parameters + 3 * work.learning)


def test_the_heaviest_batch_is_tried_with_gradients_where_its_update_has_others(
    config: Config, tried: Tried, tmp_path: Path
) -> None:
    planned = plan_training(changed(config, max_tokens_per_batch=100), tmp_path / "run")
    plan_training(config, tmp_path / "run")
    prepared = prepare(config, RunFolder(_folder(tmp_path / "other")))
    lengths, updates = prepared.store.lengths, first_plan(prepared, config)
    batches = [
        batch
        for update in updates
        for batch in split_update(update, lengths, max_tokens_per_batch=100, ranks=1)[0]
    ]
    heaviest = max(batches, key=lambda batch: len(batch) * lengths[batch].max(axis=0).sum())
    first, second = (asked["heaviest"] for asked in tried)
    assert [batch.tolist() for batch in first] == [heaviest.tolist()] * 2
    assert len(second) == 1
    assert sorted(second[0]) in [sorted(update) for update in updates]
    source, target = lengths[heaviest].max(axis=0).tolist()
    assert planned.memory.heaviest == HeaviestBatch(len(heaviest), source, target)


@pytest.mark.parametrize(
    ("training", "averaged"),
    [
        ({}, 2),
        ({"keep_best": 9}, 4),
        ({"average": "last", "keep_last": 3}, 3),
        ({"average": "off"}, 1),
    ],
)
def test_so_many_checkpoints_are_averaged(
    training: dict[str, object], averaged: int, config: Config, tried: Tried, tmp_path: Path
) -> None:
    plan_training(changed(config, **training), tmp_path / "run")
    assert [asked["averaged"] for asked in tried] == [averaged]


def test_times_add_up(config: Config, tried: Tried, tmp_path: Path) -> None:
    planned = plan_training(config, tmp_path / "run")
    assert planned.extent == Extent("training.max_updates", "exactly", 40, 5, 4)
    assert planned.total == Spent(40 * 0.5 + 5 * 3.0 + 4 * 0.25, 40 * 1.0 + 5 * 6.0 + 4 * 0.125)
    assert planned.matmul_share == pytest.approx(planned.work.flops_per_update / 0.5 / 5e9)


def test_nothing_is_written_where_the_run_is_to_be(
    config: Config, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(_folder(tmp_path / "temporary")))
    plan_training(config, tmp_path / "runs" / "new")
    assert not (tmp_path / "runs").exists()
    assert [*(tmp_path / "temporary").iterdir()] == []


def test_a_run_that_is_there_lends_its_tokenizer_and_stays_as_it_is(
    config: Config,
    tried: Tried,
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    before = files(run)
    trained: list[object] = []

    def train_tokenizer(*arguments: Any, **named: Any) -> Any:
        trained.append(arguments)
        return original(*arguments, **named)

    original = tokenizer_training
    monkeypatch.setattr("mt.data.tokenizer.train_tokenizer", train_tokenizer)
    plan_training(changed(config, max_updates=77, learning_rate=0.5), run)
    assert trained == []
    smaller = config.tokenizer.model_copy(update={"vocabulary_size": 280})
    planned = plan_training(config.model_copy(update={"tokenizer": smaller}), run)
    assert len(trained) == 1
    assert planned.work.vocabularies == (280, 280)
    assert files(run) == before


def test_the_training_finds_the_pairs_that_were_encoded(
    config: Config, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    plan_training(config, tmp_path / "run")
    before = files(tmp_path / "cache" / "pairs")
    assert len(before) == 1
    train(changed(config, max_updates=1), tmp_path / "run")
    assert files(tmp_path / "cache" / "pairs") == before


def test_drawn_tokens_are_deleted(
    config: Config, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    sampling = config.tokenizer.model_copy(update={"sampling": 0.1})
    plan_training(config.model_copy(update={"tokenizer": sampling}), tmp_path / "run")
    assert len(tried) == 1
    (pairs,) = (path for path in files(tmp_path / "cache") if path.startswith("pairs"))
    assert [path for path in files(tmp_path / "cache") if path.endswith(".arrow")] == [pairs]


def test_too_little_disk_is_told_before_anything_is_tried(
    config: Config, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "a"
    asked: list[Path] = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=most + margin)

    most = plan_training(config, run).disk.most_bytes
    monkeypatch.setattr(shutil, "disk_usage", usage)
    margin = 0
    assert plan_training(config, run).disk.free_bytes == most
    assert set(asked) == {tmp_path}
    margin = -1
    tried.clear()
    with pytest.raises(RunError, match=r"a: the checkpoints .* `training.keep_last`, now 2, or"):
        plan_training(config, run)
    assert tried == []
    # What an unfinished run already has there, it need not be given again.
    run.mkdir(parents=True)
    (run / "some.safetensors").write_bytes(b"x")
    plan_training(config, run)


def test_memory_is_what_was_measured_or_what_is_likely_if_that_is_more(
    config: Config, tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "process_bytes", lambda: 5 * 2**30)
    monkeypatch.setattr(module, "expected_bytes", lambda *_: 3 * 2**30 - 2**21)
    assert plan_training(config, tmp_path / "run").memory.most_bytes == 2**33
    monkeypatch.setattr(module, "expected_bytes", lambda *_: 3 * 2**30 + 7)
    assert plan_training(config, tmp_path / "run").memory.most_bytes == 2**33 + 7 + 2**20
    monkeypatch.setattr(module, "probe", lambda *_, **__: replace(PROBE, peak_bytes=None))
    assert plan_training(config, tmp_path / "run").memory.most_bytes is None
