"""The probe behind `mt plan`: a little of a training, and what is concluded from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import SOURCE, TARGET, Batch
from mt.decoding.engine import Hypothesis
from mt.decoding.torch_engine import TorchEngine
from mt.profiling import probe as module
from mt.profiling.probe import Probe, Spent, probe
from mt.profiling.training_speed import Timing, with_end
from mt.training.checkpoint import Checkpoints
from mt.training.data import prepare
from mt.training.run_folder import RunFolder
from mt.training.setup import Session, start
from mt.training.step import train_step

FLOPS = np.array([10.0, 20.0, 30.0, 40.0])


@pytest.fixture
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe)


@pytest.fixture
def session(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(module, "session_matmul_rate", lambda _: 1e9)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    begun = start(with_end(config, 70), folder, prepare(config, folder), torch.device("cpu"), [])
    with begun.progress:
        yield begun


def timing(seconds: float, cpu_seconds: float) -> Timing:
    return Timing(seconds, cpu_seconds, waited_seconds=0.0, loss=1.0, peak_device_mib=None)


def probed(session: Session, heaviest: int = 1, averaged: int = 1) -> Probe:
    pairs = [np.array([4, 9, 2])] * heaviest
    return probe(session, pairs, update_flops=FLOPS, averaged=averaged)


@pytest.mark.parametrize(
    ("seconds", "updates"),
    [(0.001, 60), (0.1, 60), (0.2, 30), (1.0, 6), (2.9, 2), (100.0, 2)],
)
def test_so_many_updates_are_timed(seconds: float, updates: int) -> None:
    """They are to take 15 seconds, at two fifths of the rate of matrix products."""
    assert module._affordable(seconds) == updates


@pytest.mark.parametrize(
    ("affordable", "warmup", "taken"),
    # The updates 1 and 2; then 5 to 15, of which the first epoch has 1, 2, 3, 0 twice and a half.
    [(2, 1, [20, 30]), (11, 5, [20, 30, 40, 10, 20, 30, 40, 10, 20, 30, 40])],
)
def test_the_time_of_an_update_is_that_of_one_with_the_mean_operations(
    affordable: int,
    warmup: int,
    taken: list[float],
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, int]] = []

    def timed(_: Session, updates: int, *, warmup: int) -> Timing:
        calls.append((updates, warmup))
        return timing(6.0, 3.0)

    monkeypatch.setattr(module, "timed", timed)
    monkeypatch.setattr(module, "_affordable", lambda _: affordable)
    found = probed(session)
    assert calls == [(affordable, warmup)]
    assert found.updates == affordable
    share = 25.0 / sum(taken)
    assert found.update.seconds == pytest.approx(6.0 * share)
    assert found.update.cpu_seconds == pytest.approx(3.0 * share)
    assert (found.matmul_rates.before, found.matmul_rates.after) == (1e9, 1e9)


def test_everything_is_done_for_real(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_affordable", lambda _: 3)
    tried: list[list[Batch]] = []
    average = Checkpoints.average
    means: list[list[int]] = []

    def remember(learner: Any, batches: list[Batch], rate: float) -> Any:
        tried.append(batches)
        return train_step(learner, batches, rate)

    def keep(checkpoints: Any, updates: list[int]) -> Any:
        means.append(updates)
        return average(checkpoints, updates)

    monkeypatch.setattr(module, "train_step", remember)
    monkeypatch.setattr(Checkpoints, "average", keep)
    found = probed(session, heaviest=2, averaged=3)
    assert session.state.update == 4  # a warm-up, and those that are timed
    assert [[batch.index.tolist() for batch in batches] for batches in tried] == [[[4, 9, 2]] * 2]
    assert session.folder.checkpoints.updates() == [4]
    assert means == [[4, 4, 4]]
    for spent in (found.update, found.validation, found.checkpoint):
        assert 0 < spent.seconds < 60
        assert 0 <= spent.cpu_seconds < 60
    assert found.peak_bytes is not None
    assert 50 * 2**20 < found.peak_bytes < 2**34


def test_a_validation_decodes_as_much_as_the_references_hold(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With EOS forbidden, every translation runs to a limit that follows from the source."""
    found: list[tuple[list[int], Hypothesis]] = []
    n_best_ids = TorchEngine.n_best_ids

    def remember(
        engine: TorchEngine, sources: Any, decoding: Any, count: int, **named: Any
    ) -> list[list[Hypothesis]]:
        hypotheses = n_best_ids(engine, sources, decoding, count, **named)
        found.extend((source, best) for source, (best,) in zip(sources, hypotheses, strict=True))
        return hypotheses

    monkeypatch.setattr(TorchEngine, "n_best_ids", remember)
    with torch.no_grad():  # a model that would end at once
        session.learner.model.output.weight[:] = 0.0
    spent, share = module._time_validation(session)
    lengths = session.corpus.valid_lengths
    assert sorted(len(source) for source, _ in found) == sorted(lengths[:, SOURCE])
    assert not any(hypothesis.finished for _, hypothesis in found)
    written = sum(len(hypothesis.ids) for _, hypothesis in found)
    assert lengths[:, TARGET].sum() <= written <= lengths[:, TARGET].sum() + 2 * len(found)
    assert spent.seconds > 0
    assert share == 1
    assert not session.learner.model.output._forward_hooks


def test_a_sample_of_a_validation_stands_for_all_of_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_sample", lambda *_: [1, 4])
    monkeypatch.setattr(module, "_timed", lambda *_: Spent(2.0, 1.0))
    target = session.corpus.valid_lengths[:, TARGET]
    share = (target[1] + target[4]) / target.sum()
    assert module._time_validation(session) == (Spent(2.0 / share, 1.0 / share), share)


@pytest.mark.parametrize(
    ("sentences", "batches"),
    [(3, [0]), (60, [0, 1, 2, 3, 4, 5]), (121, [1, 4, 7, 10]), (64, [1, 3, 5])],
)
def test_a_sample_is_some_batches_spread_over_the_lengths(
    sentences: int, batches: list[int]
) -> None:
    lengths = np.random.default_rng(1).permutation(sentences)  # no two alike
    chosen = module._sample(lengths, batch_size=10)
    longest_first = np.split(np.argsort(-lengths), range(10, sentences, 10))
    assert chosen == [number for batch in batches for number in longest_first[batch].tolist()]


def test_seconds_add_up() -> None:
    assert Spent(1.0, 2.0).times(3).plus(Spent(0.5, 0.25)) == Spent(3.5, 6.25)


def test_what_a_validation_adds_to_the_process_is_told_of_a_whole_one(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_affordable", lambda _: 2)
    monkeypatch.setattr(module, "process_bytes", iter([1000, 1030, 1500]).__next__)
    monkeypatch.setattr(module, "_time_validation", lambda _: (Spent(2.0, 1.0), 0.25))
    found = probed(session)
    assert (found.validation_bytes, found.peak_bytes) == (120, 1500)
