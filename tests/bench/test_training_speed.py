"""Counts and rates of training."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.training_speed import WARMUP_UPDATES, TrainingSpeed, measure_training
from mt.config import Config
from mt.config.loading import load_config
from mt.training.trainer import train
from tests.factories import journal

UPDATES = 4


@pytest.fixture(scope="module")
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe)


@pytest.fixture(scope="module")
def speed(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingSpeed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr("bench.cost.SAMPLE_SECONDS", 1e-4)
        torch.set_num_threads(1)
        yield measure_training(config, UPDATES)
        assert list(Path(tempfile.gettempdir()).glob("mt-*")) == []


def test_rates_are_counts_divided_by_times(speed: TrainingSpeed) -> None:
    rate = speed.target_tokens / speed.seconds
    assert speed.target_tokens_per_second == pytest.approx(rate)
    share = rate * speed.flops_per_target_token / speed.matmul_flops_per_second
    assert speed.matmul_share == pytest.approx(share)
    assert (speed.device, speed.precision, speed.threads) == ("cpu", "fp32", 1)
    assert speed.updates == UPDATES
    assert speed.cpu_seconds > 0
    assert (speed.peak_memory_mib or 0) > 50


def test_tokens_are_those_of_the_updates_after_the_warmup(
    config: Config, speed: TrainingSpeed, tmp_path: Path
) -> None:
    training = config.training.changed(max_updates=WARMUP_UPDATES + UPDATES, log_every=1)
    train(config.changed(training=training), tmp_path / "run")
    updates = journal(tmp_path / "run", "train")[WARMUP_UPDATES:]
    assert len(updates) == UPDATES
    assert speed.target_tokens == sum(update["target_tokens"] for update in updates)


def test_r_drop_doubles_the_operations(
    speed: TrainingSpeed, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.cost.SAMPLE_SECONDS", 1e-4)
    config = load_config(tiny_recipe, overrides=["training.r_drop=1.0"])
    doubled = measure_training(config, UPDATES)
    assert doubled.flops_per_target_token == 2 * speed.flops_per_target_token
