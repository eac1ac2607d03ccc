"""`mt bench train`: what is counted, against counts made by hand and from the store."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from mt.config import Config, ModelConfig
from mt.config.loading import load_config
from mt.data.batches import Batch, collate, plan_updates, split_update
from mt.data.sources import open_source
from mt.data.store import Example, PairStore, prepare_store
from mt.data.tokenizer import train_tokenizer
from mt.errors import DataError
from mt.profiling import training_speed as module
from mt.profiling.cost import PairLengths, model_cost, training_flops
from mt.profiling.training_speed import (
    WARMUP_UPDATES,
    MatmulRates,
    Side,
    TrainingBenchmark,
    Workload,
    benchmark_training,
    workload,
)
from mt.training.trainer import train

UPDATES = 4


def examples(*lengths: tuple[int, int]) -> Batch:
    return collate(
        [
            Example(i, np.full(source, 7, np.int32), np.full(target, 8, np.int32))
            for i, (source, target) in enumerate(lengths)
        ]
    )


def test_the_work_of_batches_is_their_tokens_and_their_padding() -> None:
    work = workload([examples((2, 3), (4, 1)), examples((5, 2))])
    assert work.source.lengths.tolist() == [2, 4, 5]
    assert work.target.lengths.tolist() == [3, 1, 2]
    assert (work.source.tokens, work.target.tokens) == (11, 6)
    assert (work.source.positions, work.target.positions) == (2 * 4 + 5, 2 * 3 + 2)
    assert work.source.padding == pytest.approx(2 / 13)
    assert work.target.padding == pytest.approx(2 / 8)


def test_flops_are_those_of_a_count_by_hand() -> None:
    config = ModelConfig(d_model=8, d_ff=20, heads=2, encoder_layers=2, decoder_layers=3)
    work = Workload(Side(np.array([3, 5]), 10), Side(np.array([4, 2]), 8))
    matrix, inner, vocabulary = 8 * 8, 2 * 8 * 20, 50
    products = 0
    for s, t in ((3, 4), (5, 2)):
        products += 2 * (s * (4 * matrix + inner) + 2 * s * s * 8)
        products += 3 * (t * (4 * matrix + inner) + 2 * t * t * 8)
        products += 3 * (2 * t * matrix + 2 * s * matrix + 2 * s * t * 8)
        products += t * 8 * vocabulary
    # A multiply-add is two operations; forward, and twice as much backward.
    assert training_flops(config, work.lengths, vocabularies=(50, 50)).sum() == 3 * 2 * products


@pytest.mark.parametrize(
    "variant", [{}, {"positional": "relative"}, {"feed_forward": "swiglu", "kv_heads": 1}]
)
def test_flops_of_many_pairs_are_the_sum_over_the_pairs(variant: dict[str, object]) -> None:
    config = ModelConfig.model_validate(
        {"d_model": 16, "d_ff": 24, "heads": 4, "tie_embeddings": "decoder", **variant}
    )
    lengths = np.random.default_rng(1).integers(1, 90, (2, 25))
    work = Workload(Side(lengths[0], 1), Side(lengths[1], 1))
    one_by_one = [
        model_cost(
            config,
            PairLengths(source, target),
            source_vocabulary=31,
            target_vocabulary=47,
        )
        for source, target in lengths.T.tolist()
    ]
    expected = [
        round(cost.training_flops_per_target_token * cost.lengths.target) for cost in one_by_one
    ]
    assert training_flops(config, work.lengths, vocabularies=(31, 47)).tolist() == expected


@pytest.fixture(scope="module")
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe)


@pytest.fixture(scope="module")
def measured(config: Config, tmp_path_factory: pytest.TempPathFactory) -> TrainingBenchmark:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr("mt.profiling.cost.SAMPLE_SECONDS", 1e-4)
        torch.set_num_threads(1)
        result = benchmark_training(config, UPDATES)
        assert list(Path(tempfile.gettempdir()).glob("mt-*")) == []
    return result


@pytest.fixture(scope="module")
def store(config: Config, tmp_path_factory: pytest.TempPathFactory) -> PairStore:
    folder = tmp_path_factory.mktemp("store")
    pairs = open_source(config.data.train, config.data)
    tokenizer = train_tokenizer(pairs.pairs, folder, config=config.tokenizer, seed=config.seed)
    return prepare_store(pairs, tokenizer, max_tokens=config.data.max_tokens, cache=folder)


def test_the_tokens_are_those_of_the_updates_after_the_warm_up(
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


def test_what_follows_from_the_measured_numbers(measured: TrainingBenchmark) -> None:
    seconds, work = measured.timing.seconds, measured.work
    assert measured.target_tokens_per_second == work.target.tokens / seconds
    assert measured.source_tokens_per_second == work.source.tokens / seconds
    assert measured.flops_per_target_token == measured.flops / work.target.tokens
    mean = (measured.matmul_rates.before + measured.matmul_rates.after) / 2
    assert measured.matmul_share == pytest.approx(measured.flops / seconds / mean)
    assert MatmulRates(1.0, 4.0).mean == 2.5


def test_the_rest_is_plausible(measured: TrainingBenchmark) -> None:
    timing, phases = measured.timing, measured.phases
    assert (measured.device, measured.precision, measured.threads) == ("cpu", "fp32", 1)
    assert measured.updates == UPDATES
    assert 0 < timing.waited_seconds < timing.seconds
    assert timing.cpu_seconds > 0
    assert timing.peak_device_mib is None
    assert measured.peak_rss_mib is not None
    assert measured.peak_rss_mib > 50
    assert min(phases.forward, phases.loss, phases.backward, phases.optimiser, phases.data) > 0


def test_the_loss_is_the_one_that_training_tells_of_these_updates(
    config: Config, measured: TrainingBenchmark, tmp_path: Path
) -> None:
    changes = {"max_updates": WARMUP_UPDATES + UPDATES, "log_every": 1}
    training = config.training.model_copy(update=changes)
    train(config.model_copy(update={"training": training}), tmp_path / "run")
    journal = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    told = [line for line in map(json.loads, journal) if line["event"] == "train"]
    assert len(told) == WARMUP_UPDATES + UPDATES
    loss = sum(line["loss"] * line["target_tokens"] for line in told[WARMUP_UPDATES:])
    assert measured.timing.loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("setting", ["training.r_drop=1.0", "tokenizer.sampling=0.1"])
def test_other_recipes_are_measured_too(
    setting: str, measured: TrainingBenchmark, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-Drop passes each batch twice; sampled tokens are shorter, so there are more of them."""
    monkeypatch.setattr("mt.profiling.cost.SAMPLE_SECONDS", 1e-4)
    other = benchmark_training(load_config(tiny_recipe, overrides=[setting]), UPDATES)
    if setting.startswith("training"):
        assert other.flops == 2 * measured.flops
    else:
        source, target = other.work.source, other.work.target
        assert len(source.lengths) == len(target.lengths)
        assert source.tokens / len(source.lengths) > 1.1 * measured.work.source.lengths.mean()


def test_a_corpus_that_is_not_there_is_told_before_any_work(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "start", None)
    train = config.data.train.model_copy(update={"source": str(tmp_path / "gone.en")})
    data = config.data.model_copy(update={"train": train})
    with pytest.raises(DataError, match=r"gone\.en"):
        benchmark_training(config.model_copy(update={"data": data}), 1)
