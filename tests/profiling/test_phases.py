"""The phases of an update: in which order they begin, and how their times add up."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mt.config.loading import load_config
from mt.data.batches import Batch, collate
from mt.data.store import Example
from mt.model.transformer import Transformer
from mt.profiling import training_speed as module
from mt.profiling.training_speed import Phase, PhaseClock, PhaseSeconds, marked
from mt.training.optimizer import build_optimizer, choose_precision
from mt.training.step import Learner, TrainingPass, train_step

CPU = torch.device("cpu")


@pytest.fixture
def learner(tiny_recipe: Path) -> Learner:
    return new_learner(tiny_recipe)


def new_learner(recipe: Path) -> Learner:
    config = load_config(recipe)
    torch.manual_seed(3)
    model = Transformer(config.model, source_vocabulary=20, target_vocabulary=20)
    return Learner(
        model=model,
        training_pass=TrainingPass(model, 0.1),
        optimizer=build_optimizer(model, CPU),
        precision=choose_precision("fp32", CPU),
        gradient_clip=1.0,
    )


def batch(length: int) -> Batch:
    ids = torch.arange(4, 4 + length).numpy().astype("int32")
    return collate([Example(0, ids, ids)])


def test_the_phases_of_an_update_begin_in_their_order(learner: Learner) -> None:
    begun: list[Phase] = []
    with marked(learner, begun.append) as watched:
        for _ in range(2):
            train_step(watched, [batch(3), batch(5)], 0.1)
    forward_and_back: list[Phase] = ["forward", "loss", "backward"]
    assert begun == 2 * [*forward_and_back, *forward_and_back, "optimiser", "data"]
    train_step(learner, [batch(3)], 0.1)
    assert len(begun) == 16


def test_watching_changes_nothing(tiny_recipe: Path) -> None:
    alone = new_learner(tiny_recipe)
    train_step(alone, [batch(4)], 0.01)
    seen = new_learner(tiny_recipe)
    with marked(seen, lambda _: None) as watched:
        train_step(watched, [batch(4)], 0.01)
    for expected, parameter in zip(alone.model.parameters(), seen.model.parameters(), strict=True):
        assert torch.equal(expected, parameter)


def test_what_may_be_compiled_is_called_as_it_is_and_put_back(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, calls = learner.model.states, []

    def compiled(*batch: torch.Tensor) -> torch.Tensor:
        calls.append(len(batch))
        return states(*batch)

    monkeypatch.setattr(learner.model, "states", compiled)
    with marked(learner, lambda _: None) as watched:
        train_step(watched, [batch(3)], 0.1)
    assert calls == [3]
    assert learner.model.states is compiled


def test_the_clock_adds_up_each_phase_from_the_end_of_the_first_update_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([2.0, 3.0, 5.0, 9.0, 10.0, 10.5, 12.0, 13.0, 14.0, 15.0, 16.0, 20.0, 21.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    clock = PhaseClock(CPU)
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
