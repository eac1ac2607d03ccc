"""`mt bench train`: counts by hand and from the store, and the phases of an update."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import Batch, collate, plan_updates, split_update
from mt.data.sources import open_source
from mt.data.store import Example, PairStore, prepare_store
from mt.data.tokenizer import train_tokenizer
from mt.errors import DataError
from mt.profiling import training_speed as module
from mt.profiling.training_speed import (
    WARMUP_UPDATES,
    MatmulRates,
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
from tests.factories import examples, learner

UPDATES = 4


def test_workload_counts_tokens_and_padding() -> None:
    def pairs(*lengths: tuple[int, int]) -> Batch:
        return collate(
            [
                Example(i, np.full(source, 7, np.int32), np.full(target, 8, np.int32))
                for i, (source, target) in enumerate(lengths)
            ]
        )

    work = workload([pairs((2, 3), (4, 1)), pairs((5, 2))])
    assert work.lengths.tolist() == [[2, 3], [4, 1], [5, 2]]
    assert (work.source.tokens, work.target.tokens) == (11, 6)
    assert (work.source.positions, work.target.positions) == (2 * 4 + 5, 2 * 3 + 2)
    assert work.source.padding == pytest.approx(2 / 13)
    assert work.target.padding == pytest.approx(2 / 8)


@pytest.fixture(scope="module")
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr("mt.profiling.cost.SAMPLE_SECONDS", 1e-4)
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="module")
def measured(config: Config, quick: None) -> TrainingBenchmark:
    result = benchmark_training(config, UPDATES)
    assert list(Path(tempfile.gettempdir()).glob("mt-*")) == []
    return result


@pytest.fixture(scope="module")
def store(config: Config, tmp_path_factory: pytest.TempPathFactory) -> PairStore:
    folder = tmp_path_factory.mktemp("store")
    pairs = open_source(config.data.train, config.data)
    tokenizer = train_tokenizer(pairs.pairs, folder, config=config.tokenizer, seed=config.seed)
    return prepare_store(pairs, tokenizer, max_tokens=config.data.max_tokens, cache=folder)


def test_tokens_are_those_of_the_updates_after_the_warmup(
    measured: TrainingBenchmark, store: PairStore
) -> None:
    plan = [
        update
        for epoch in (0, 1, 2)
        for update in plan_updates(store.lengths, 150, seed=1, epoch=epoch)
    ][WARMUP_UPDATES : WARMUP_UPDATES + UPDATES]
    assert len(plan) == UPDATES
    tokens = sum(store.lengths[indices].sum(axis=0) for indices in plan)
    work = measured.work
    assert [work.source.tokens, work.target.tokens] == tokens.tolist()
    rectangles = np.zeros(2, dtype=int)
    for indices in plan:
        for batch in split_update(indices, store.lengths, max_tokens_per_batch=200, ranks=1)[0]:
            rectangles += len(batch) * store.lengths[batch].max(axis=0)
    assert [work.source.positions, work.target.positions] == rectangles.tolist()


def test_rates_are_counts_divided_by_times(measured: TrainingBenchmark) -> None:
    timing, phases, work = measured.timing, measured.phases, measured.work
    assert measured.target_tokens_per_second == work.target.tokens / timing.seconds
    assert measured.source_tokens_per_second == work.source.tokens / timing.seconds
    assert measured.flops_per_target_token == measured.flops / work.target.tokens
    mean = (measured.matmul_rates.before + measured.matmul_rates.after) / 2
    assert measured.matmul_share == pytest.approx(measured.flops / timing.seconds / mean)
    assert MatmulRates(1.0, 4.0).mean == 2.5
    assert (measured.device, measured.precision, measured.threads) == ("cpu", "fp32", 1)
    assert measured.updates == UPDATES
    assert 0 < timing.waited_seconds < timing.seconds
    assert timing.cpu_seconds > 0
    assert timing.peak_device_mib is None
    assert measured.peak_rss_mib is not None
    assert measured.peak_rss_mib > 50
    assert min(phases.forward, phases.loss, phases.backward, phases.optimiser, phases.data) > 0


def test_loss_is_that_of_training(
    config: Config, measured: TrainingBenchmark, tmp_path: Path
) -> None:
    changes = {"max_updates": WARMUP_UPDATES + UPDATES, "log_every": 1}
    training = config.training.model_copy(update=changes)
    train(config.model_copy(update={"training": training}), tmp_path / "run")
    journal = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    updates = [line for line in map(json.loads, journal) if line["event"] == "train"]
    assert len(updates) == WARMUP_UPDATES + UPDATES
    loss = sum(line["loss"] * line["target_tokens"] for line in updates[WARMUP_UPDATES:])
    assert measured.timing.loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    "setting",
    # Sampling runs in a process of its own, which takes seconds to start.
    ["training.r_drop=1.0", pytest.param("tokenizer.sampling=0.1", marks=pytest.mark.slow)],
)
def test_r_drop_and_sampling_change_the_work(
    setting: str, measured: TrainingBenchmark, tiny_recipe: Path
) -> None:
    """R-Drop passes each batch twice; sampled segmentations have more tokens."""
    other = benchmark_training(load_config(tiny_recipe, overrides=[setting]), UPDATES)
    if setting.startswith("training"):
        assert other.flops == 2 * measured.flops
    else:
        source, target = other.work.source, other.work.target
        assert len(source.lengths) == len(target.lengths)
        assert source.tokens / len(source.lengths) > 1.1 * measured.work.source.lengths.mean()


def test_a_missing_corpus_is_an_error_before_any_work(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "start", None)
    train = config.data.train.model_copy(update={"source": str(tmp_path / "gone.en")})
    data = config.data.model_copy(update={"train": train})
    with pytest.raises(DataError, match=r"gone\.en"):
        benchmark_training(config.model_copy(update={"data": data}), 1)


def test_phases_begin_in_order_and_change_nothing() -> None:
    batches = [collate(examples(3)), collate(examples(5))]
    plain, watched = learner(), learner()
    states, calls = watched.model.states, []

    def compiled(*batch: torch.Tensor) -> torch.Tensor:
        calls.append(len(batch))
        return states(*batch)

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
    first: list[Phase] = ["optimiser", "data"]
    second: list[Phase] = ["forward", "loss", "backward", "forward", "loss", "backward"]
    third: list[Phase] = ["forward", "loss"]
    for phase in [*first, *second, *first, *third, "data"]:
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
