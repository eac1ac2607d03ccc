"""`mt bench train`: counts, rates, and the phases of an update."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import collate
from mt.data.store import Example
from mt.profiling import training_speed as module
from mt.profiling.cost import training_flops
from mt.profiling.training_speed import (
    WARMUP_UPDATES,
    Phase,
    PhaseClock,
    PhaseSeconds,
    TrainingBenchmark,
    benchmark_training,
    marked,
    workload,
)
from mt.training.step import train_step
from mt.training.trainer import train
from tests.factories import examples, journal, learner

UPDATES = 4


def test_workload_counts_tokens_and_padding() -> None:
    pairs = [
        Example(number, np.full(source, 7, np.int32), np.full(target, 8, np.int32))
        for number, (source, target) in enumerate([(2, 3), (4, 1), (5, 2)])
    ]
    work = workload([collate(pairs[:2]), collate(pairs[2:])])
    assert work.lengths.tolist() == [[2, 3], [4, 1], [5, 2]]
    assert (work.source.tokens, work.target.tokens) == (11, 6)
    assert (work.source.positions, work.target.positions) == (2 * 4 + 5, 2 * 3 + 2)
    assert work.source.padding == pytest.approx(2 / 13)
    assert work.target.padding == pytest.approx(2 / 8)


@pytest.fixture(scope="module")
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe)


@pytest.fixture(scope="module")
def measured(
    config: Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrainingBenchmark]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr("mt.profiling.cost.SAMPLE_SECONDS", 1e-4)
        torch.set_num_threads(1)
        yield benchmark_training(config, UPDATES)
        assert list(Path(tempfile.gettempdir()).glob("mt-*")) == []


def test_rates_are_counts_divided_by_times(measured: TrainingBenchmark) -> None:
    timing, work, rates = measured.timing, measured.work, measured.matmul_rates
    assert measured.target_tokens_per_second == work.target.tokens / timing.seconds
    assert measured.source_tokens_per_second == work.source.tokens / timing.seconds
    assert measured.flops_per_target_token == measured.flops / work.target.tokens
    rate = (rates.before + rates.after) / 2
    assert measured.matmul_share == pytest.approx(measured.flops / timing.seconds / rate)
    assert (measured.device, measured.precision, measured.threads) == ("cpu", "fp32", 1)
    assert measured.updates == UPDATES
    assert 0 < timing.waited_seconds < timing.seconds
    assert timing.cpu_seconds > 0
    assert timing.peak_device_mib is None
    assert (measured.peak_rss_mib or 0) > 50
    assert min(vars(measured.phases).values()) > 0


def test_loss_and_tokens_after_the_warmup_are_those_of_training(
    config: Config, measured: TrainingBenchmark, tmp_path: Path
) -> None:
    changes = {"max_updates": WARMUP_UPDATES + UPDATES, "log_every": 1}
    training = config.training.model_copy(update=changes)
    train(config.model_copy(update={"training": training}), tmp_path / "run")
    updates = journal(tmp_path / "run", "train")[WARMUP_UPDATES:]
    assert len(updates) == UPDATES
    target, source_rates, target_rates, losses = (
        np.array([line[key] for line in updates])
        for key in ("target_tokens", "source_tokens_per_second", "target_tokens_per_second", "loss")
    )
    assert measured.work.target.tokens == target.sum()
    source = (target * source_rates / target_rates).sum()
    assert measured.work.source.tokens == pytest.approx(source)
    assert measured.timing.loss == pytest.approx((losses * target).sum(), rel=1e-5)


def test_r_drop_passes_each_batch_twice_and_samples_have_more_tokens(
    measured: TrainingBenchmark, tiny_recipe: Path
) -> None:
    settings = ["training.r_drop=1.0", "tokenizer.sampling=0.1"]
    config = load_config(tiny_recipe, overrides=settings)
    other = benchmark_training(config, UPDATES)
    once = training_flops(config.model, other.work.lengths, vocabularies=(300, 300)).sum()
    assert other.flops == 2 * once
    assert other.work.source.lengths.mean() > 1.1 * measured.work.source.lengths.mean()


def test_phases_begin_in_order_and_change_nothing() -> None:
    batches = [collate(examples(3)), collate(examples(5))]
    plain, watched = learner(), learner()
    states, calls = watched.model.states, []

    def compiled(*batch: torch.Tensor, source_tokens: int) -> torch.Tensor:
        calls.append(len(batch))
        return states(*batch, source_tokens=source_tokens)

    watched.model.states = compiled  # type: ignore[method-assign, assignment]
    begun: list[Phase] = []
    with marked(watched, begun.append) as marking:
        for _ in range(2):
            train_step(plain, batches, 0.1)
            train_step(marking, batches, 0.1)
    of_a_batch: list[Phase] = ["forward", "loss", "backward"]
    assert begun == 2 * [*of_a_batch, *of_a_batch, "optimiser", "data"]
    assert calls == 4 * [3], "what may be compiled is called as it is"
    assert watched.model.states is compiled
    train_step(watched, batches, 0.1)
    assert len(begun) == 16
    train_step(plain, batches, 0.1)
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_clock_sums_each_phase_from_the_end_of_the_first_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([2.0, 3.0, 5.0, 9.0, 10.0, 10.5, 12.0, 13.0, 14.0, 15.0, 16.0, 20.0, 21.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    clock = PhaseClock(torch.device("cpu"))
    batch: list[Phase] = ["forward", "loss", "backward"]
    end: list[Phase] = ["optimiser", "data"]
    for phase in [*end, *batch, *batch, *end, *batch[:2], "data"]:
        clock.begin(phase)
    # Marks:  - 2 | data 3, forward 5, loss 9, backward 10, forward 10.5, loss 12, backward 13,
    # optimiser 14, data 15, forward 16, loss 20, data 21
    assert clock.updates == 2
    assert clock.mean() == PhaseSeconds(
        data=(2 + 1) / 2,
        forward=(4 + 1.5 + 4) / 2,
        loss=(1 + 1 + 1) / 2,
        backward=(0.5 + 1) / 2,
        optimiser=1 / 2,
    )
