"""Setup of a session: agreement of the ranks and the largest number of updates."""

from pathlib import Path

import pytest
import torch

from mt.config import TrainingConfig
from mt.config.loading import load_config
from mt.errors import RunError
from mt.training.distributed import World
from mt.training.run_folder import RunFolder
from mt.training.setup import agree_on_folder, most_updates, weights_sha256
from tests.factories import learner


def test_rank_that_does_not_see_the_run_of_rank_0_is_an_error(
    tiny_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_recipe)
    second = World(rank=1, size=2)
    agree_on_folder(second, config, RunFolder(finished_run))
    agree_on_folder(World(), config, RunFolder(tmp_path / "elsewhere"))
    other = load_config(tiny_recipe, overrides=["training.learning_rate=0.5"])
    for known, folder in ((config, tmp_path / "elsewhere"), (other, finished_run)):
        with pytest.raises(RunError, match=r": the run of rank 0 is not there; put the"):
            agree_on_folder(second, known, RunFolder(folder))


def test_hash_of_the_weights_covers_every_bit() -> None:
    made = learner()
    before = weights_sha256(made)
    last = [*made.model.parameters()][-1].detach().view(-1)
    value = float(last[-1])
    last[-1] = torch.nextafter(last[-1], torch.tensor(9.0))
    assert weights_sha256(made) != before
    last[-1] = value
    assert weights_sha256(made) == before


@pytest.mark.parametrize(
    ("max_updates", "max_epochs", "expected"), [(None, 3, 30), (2, 3, 2), (None, None, None)]
)
def test_most_updates_is_the_smaller_limit(
    max_updates: int | None, max_epochs: int | None, expected: int | None
) -> None:
    training = TrainingConfig(max_updates=max_updates, max_epochs=max_epochs, patience=1)
    assert most_updates(training, 10) == expected
