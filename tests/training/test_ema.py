"""The moving average of the weights: its numbers, what is validated and kept, and resuming."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mt.config.loading import load_config
from mt.training import trainer as spine
from mt.training.checkpoint import MODEL, OPTIMIZER
from mt.training.optimizer import MovingAverage, choose_average
from mt.training.run_folder import RunFolder
from mt.training.setup import Session
from mt.training.trainer import train
from mt.training.validation import validate

FINE, BAD = torch.tensor(1.0), torch.tensor(float("nan"))


class Death(BaseException):
    """What `kill -9` or a power cut is to a run: it ends at once, and saves nothing."""


def walk(weight: Tensor, steps: int) -> Iterator[tuple[int, Tensor]]:
    """Change a weight step by step, as an optimiser does."""
    for number in range(1, steps + 1):
        with torch.no_grad():
            weight += torch.randn(weight.shape)
        yield number, weight.detach().clone()


def test_the_average_follows_its_formula() -> None:
    weight = nn.Parameter(torch.randn(3))
    average = MovingAverage({"w": weight}, decay=0.7)
    expected = weight.detach().double()
    for number, now in walk(weight, 40):
        average.update(number, FINE)
        decay = (
            [2 / 11, 3 / 12, 4 / 13][number - 1] if number <= 3 else (1 + number) / (10 + number)
        )
        expected = min(decay, 0.7) * expected + (1 - min(decay, 0.7)) * now.double()
    torch.testing.assert_close(average.averages()["w"], expected.float())


def test_a_skipped_update_changes_nothing() -> None:
    weight = nn.Parameter(torch.randn(3))
    average = MovingAverage({"w": weight}, decay=0.7)
    for number, _ in walk(weight, 5):
        average.update(number, FINE)
    before = average.averages()["w"].clone()
    average.update(6, BAD)
    assert torch.equal(average.averages()["w"], before)
    average.update(7, FINE)
    assert not torch.equal(average.averages()["w"], before)


def test_the_model_has_the_averages_for_as_long_as_they_are_swapped_in() -> None:
    weight = nn.Parameter(torch.randn(3))
    average = MovingAverage({"w": weight}, decay=0.7)
    for number, _ in walk(weight, 5):
        average.update(number, FINE)
    learning, mean, address = weight.clone(), average.averages()["w"].clone(), weight.data_ptr()
    assert not torch.equal(learning, mean)
    with pytest.raises(ValueError, match="in the block"), average.swapped():
        assert torch.equal(weight, mean)
        assert torch.equal(average.averages()["w"], learning)
        raise ValueError("in the block")
    assert torch.equal(weight, learning)
    assert torch.equal(average.averages()["w"], mean)
    assert weight.data_ptr() == address


def test_what_is_frozen_is_not_followed_and_without_a_decay_nothing_is() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(requires_grad=False)
    assert choose_average(model, 0.9).averages().keys() == {"1.weight", "1.bias"}
    off = choose_average(model, None)
    before = [parameter.clone() for parameter in model.parameters()]
    off.update(1, FINE)
    with off.swapped():
        assert all(map(torch.equal, model.parameters(), before))
    assert off.averages() == off.weights() == {}


def train_with(recipe: Path, run: Path, *settings: str) -> str:
    overrides = [f"training.{each}" for each in settings]
    return train(load_config(recipe, overrides=overrides), run)


def test_the_averages_are_validated_and_kept_and_the_weights_learn_on(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training is the same with and without; what a checkpoint has as its model is not."""
    validated: dict[int, dict[str, Tensor]] = {}

    def seen(learner: Any, *rest: Any) -> Any:
        now = {name: each.detach().clone() for name, each in learner.model.named_parameters()}
        validated[len(validated)] = now
        return validate(learner, *rest)

    train_with(tiny_recipe, tmp_path / "off", "max_updates=20")
    monkeypatch.setattr(spine, "validate", seen)
    train_with(tiny_recipe, tmp_path / "on", "max_updates=20", "ema_decay=0.8", "average=off")
    off, on = (RunFolder(tmp_path / run).checkpoints.path(20) for run in ("off", "on"))
    model, other = load_file(on / MODEL), load_file(on / OPTIMIZER)
    for name, weight in load_file(off / MODEL).items():
        assert torch.equal(other[f"learning.{name}"], weight)
        assert torch.equal(validated[1][name], model[name])
    assert any(not torch.equal(model[name], other[f"learning.{name}"]) for name in model)
    assert (tmp_path / "on" / "model.safetensors").read_bytes() == (on / MODEL).read_bytes()


def test_a_run_that_dies_goes_on_as_the_same_run(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["max_updates=20", "validate_every=5", "ema_decay=0.95"]
    train_with(tiny_recipe, tmp_path / "whole", *settings)
    take_update = spine.take_update

    def die(session: Session, *rest: Any) -> None:
        if session.state.update == 13:
            raise Death
        take_update(session, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(spine, "take_update", die)
        with pytest.raises(Death):
            train_with(tiny_recipe, tmp_path / "killed", *settings)
    train_with(tiny_recipe, tmp_path / "killed", *settings)
    for file in (Path("checkpoints/update-000000020") / OPTIMIZER, Path("model.safetensors")):
        whole, killed = ((tmp_path / run / file).read_bytes() for run in ("whole", "killed"))
        assert whole == killed
