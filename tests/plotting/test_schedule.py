"""Plot of learning rates: the values, and the picture."""

from pathlib import Path

import numpy as np
import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.plotting.schedule import last_update, plot_schedules, rates, shown_updates


@pytest.fixture
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe, overrides=["training.warmup_updates=100"])


def test_rates_are_those_of_the_schedules(config: Config, tiny_recipe: Path) -> None:
    updates = np.array([1, 50, 100, 400])
    assert rates(config, updates) == pytest.approx([1e-4, 5e-3, 1e-2, 5e-3])
    settings = ["schedule=noam", "learning_rate=2.0", "warmup_updates=100"]
    overrides = ["model.d_model=64", *(f"training.{setting}" for setting in settings)]
    noam = load_config(tiny_recipe, overrides=overrides)
    assert rates(noam, updates) == pytest.approx([2 / 8 / 1000, 50 / 4000, 1 / 40, 1 / 80])


def test_all_of_few_updates_are_shown_and_the_peak_of_many(config: Config) -> None:
    assert shown_updates(config, 7).tolist() == [1, 2, 3, 4, 5, 6, 7]
    many = shown_updates(config, 1_000_000)
    assert (many[0], many[-1], len(many)) == (1, 1_000_000, 1001)
    assert 100 in many


def test_a_decaying_schedule_is_shown_to_its_end(tiny_recipe: Path) -> None:
    settings = ["schedule=cosine", "warmup_updates=100", "decay_updates=2777", "max_updates=null"]
    settings += ["max_epochs=9", "final_learning_rate=1.0e-3"]
    ending = load_config(tiny_recipe, overrides=[f"training.{setting}" for setting in settings])
    assert last_update(ending) == 2777
    assert {100, 2777} < set(shown_updates(ending, 10_000).tolist())
    assert shown_updates(ending, 50)[-1] == 50
    found = rates(ending, np.array([50, 100, 2777, 9000]))
    assert found == pytest.approx([5e-3, 1e-2, 1e-3, 1e-3])


def test_a_picture_is_written(config: Config, tmp_path: Path) -> None:
    place = tmp_path / "a.png"
    configs = {"one.yaml": config, "二.yaml": config}
    assert plot_schedules(configs, place, updates=1) == place
    assert place.stat().st_size > 10_000
