"""The probe behind `mt plan`: timed parts of a training, and the extrapolation from them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mt.config.loading import load_config
from mt.data.batches import SOURCE, TARGET
from mt.decoding.engine import Hypothesis
from mt.decoding.torch_engine import TorchEngine
from mt.profiling import probe as module
from mt.profiling.probe import probe
from mt.profiling.training_speed import Timing, temporary_session
from mt.special_ids import EOS
from mt.training.setup import Session

FLOPS = np.array([10.0, 20.0, 30.0, 40.0])
TIMING = Timing(1.0, 1.0, waited_seconds=0.0, loss=1.0, peak_device_mib=None)


@pytest.fixture
def session(tiny_recipe: Path) -> Iterator[Session]:
    with temporary_session(load_config(tiny_recipe), 70) as begun:
        yield begun


@pytest.mark.parametrize(
    ("seconds", "updates", "taken"),
    # An update before and one to warm up: the first timed update is the second, 20.
    [(100.0, 1, [20]), (5.0, 3, [20, 30, 40]), (0.001, 57, 14 * [20, 30, 40, 10] + [20])],
)
def test_update_time_is_scaled_to_the_mean_operations(
    seconds: float,
    updates: int,
    taken: list[int],
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def timed(_: Session, updates: int, *, warmup: int) -> Timing:
        calls.append(updates)
        assert warmup == 1
        return replace(TIMING, seconds=seconds)

    monkeypatch.setattr(module, "timed", timed)
    found = probe(session, update_flops=FLOPS)
    assert calls == [1, updates]
    assert found.updates == updates
    assert found.update == pytest.approx(seconds * 25.0 / sum(taken))


def test_a_whole_probe_of_a_session(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UPDATES", 6)
    found = probe(session, update_flops=FLOPS)
    assert (found.updates, session.state.update) == (3, 6)
    assert session.folder.checkpoints.updates() == [6]
    assert all(0 < each < 60 for each in (found.update, found.validation, found.checkpoint))


@pytest.mark.parametrize(("batch_size", "places"), [(64, range(7)), (1, [1, 4])])
def test_validation_translates_batches_spread_over_the_lengths_to_the_length_of_references(
    batch_size: int, places: Sequence[int], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[list[int], Hypothesis]] = []
    n_best_ids = TorchEngine.n_best_ids

    def remember(engine: TorchEngine, sources: Any, *rest: Any, **named: Any) -> object:
        hypotheses = n_best_ids(engine, sources, *rest, **named)
        found.extend((source, best) for source, (best,) in zip(sources, hypotheses, strict=True))
        return hypotheses

    monkeypatch.setattr(TorchEngine, "n_best_ids", remember)
    monkeypatch.setattr(module, "VALIDATION_BATCHES", 3)
    monkeypatch.setattr(module, "timed", lambda *_, warmup: TIMING)
    monkeypatch.setattr(module, "_timed", lambda _, work: (work(), 2.0)[1])
    session.learner.model.output.register_forward_hook(
        lambda _module, _inputs, logits: logits.index_fill(-1, torch.tensor([EOS]), 100.0)
    )
    decoding = session.config.decoding.model_copy(update={"batch_size": batch_size})
    config = session.config.model_copy(update={"decoding": decoding})
    measured = probe(replace(session, config=config), update_flops=FLOPS)
    lengths = session.corpus.valid_lengths
    chosen = np.argsort(-lengths[:, SOURCE], kind="stable")[list(places)]
    assert sorted(len(source) for source, _ in found) == sorted(lengths[chosen, SOURCE])
    assert not any(hypothesis.finished for _, hypothesis in found)
    written, wanted = sum(len(each.ids) for _, each in found), lengths[chosen, TARGET].sum()
    assert abs(written - wanted) <= 3 * len(found)
    assert measured.validation == pytest.approx(2.0 * lengths[:, TARGET].sum() / wanted)
    assert len(session.learner.model.output._forward_hooks) == 1
