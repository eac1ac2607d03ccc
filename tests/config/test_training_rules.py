"""Rules across the keys of `training`: one line each, with the keys in full and where it is."""

from pathlib import Path

import pytest

from mt.config import TrainingConfig
from mt.config.loading import load_config
from mt.errors import ConfigError

RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {corpus: c/train}
  valid: {corpus: c/valid}
training:
  warmup_updates: 100
  max_updates: 5000
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    return file


def load(recipe: Path, *settings: str) -> TrainingConfig:
    return load_config(recipe, overrides=[f"training.{setting}" for setting in settings]).training


NEEDS_AN_END = (
    "needs `training.decay_updates`, the update at which it has come down: as a rule that of "
    "`training.max_updates`"
)
NOTHING_LEARNED = (
    "learns nothing after `training.decay_updates` 5000: set `training.max_updates` to no more, "
    "or `training.final_learning_rate` above 0"
)

WRONG = {
    "a cosine without an end": (
        ["schedule=cosine"],
        f"--set training.schedule: `training.schedule: cosine` {NEEDS_AN_END}, 5000",
    ),
    "a line without any end": (
        ["schedule=linear", "max_updates=null"],
        f"--set training.max_updates: `training.schedule: linear` {NEEDS_AN_END}",
    ),
    "an end within the warm-up": (
        ["schedule=linear", "decay_updates=100", "final_learning_rate=1e-5"],
        "--set training.decay_updates: `training.warmup_updates` 100 must be below "
        "`training.decay_updates` 100",
    ),
    "an end above the peak": (
        ["schedule=cosine", "decay_updates=5000", "final_learning_rate=1e-3"],
        "--set training.final_learning_rate: `training.final_learning_rate` 0.001 is above "
        "`training.learning_rate` 0.0005",
    ),
    "updates after a rate of 0": (
        ["schedule=cosine", "decay_updates=5000", "max_updates=5001"],
        f"--set training.max_updates: `training.schedule: cosine` {NOTHING_LEARNED}",
    ),
    "no end of the updates after a rate of 0": (
        ["schedule=linear", "decay_updates=5000", "max_updates=null"],
        f"--set training.max_updates: `training.schedule: linear` {NOTHING_LEARNED}",
    ),
}


@pytest.mark.parametrize(("settings", "told"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_told_in_one_line(settings: list[str], told: str, recipe: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(recipe, *settings)
    assert str(error.value) == told


RIGHT = {
    "a cosine to the end": ["schedule=cosine", "decay_updates=5000"],
    "a run that ends before its schedule": ["schedule=linear", "decay_updates=9000"],
    "updates at a final rate": [
        "schedule=cosine",
        "decay_updates=300",
        "final_learning_rate=5e-4",
        "max_updates=null",
    ],
    "the shortest descent": ["schedule=linear", "decay_updates=101", "max_updates=101"],
    "an end that nothing uses": ["decay_updates=3", "final_learning_rate=7.0"],
}


@pytest.mark.parametrize("settings", RIGHT.values(), ids=RIGHT)
def test_what_can_be_is_read(settings: list[str], recipe: Path) -> None:
    training = load(recipe, *settings)
    for setting in settings:
        key, _, value = setting.partition("=")
        assert str(getattr(training, key)) == {"null": "None", "5e-4": "0.0005"}.get(value, value)
