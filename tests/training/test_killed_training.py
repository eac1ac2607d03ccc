"""A run that is killed at any moment, again and again, is the run that was not."""

import random
import sys
from pathlib import Path

import pytest

from mt.config.loading import load_config
from tests.training.killed_training import (
    events_by_update,
    outcome,
    plan_kills,
    train_killed,
    train_whole,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has loaded torch"),
    # The forks compute in one thread; the other threads of this process are idle.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
COMMON = ["max_updates=60", "max_tokens_per_batch=60", "gradient_clip=0.5", "validate_every=6"]
COMMON += ["checkpoint_every=4", "log_every=1", "keep_last=1"]
PATIENCE = ["best_metric=bleu", "patience=2"]
AVERAGE = ["max_epochs=9", "ema_decay=0.9", "average=last"]


@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        pytest.param(AVERAGE, 3, id="few kills"),
        pytest.param(AVERAGE, 20, id="moving average", marks=pytest.mark.slow),
        pytest.param(PATIENCE, 20, id="patience", marks=pytest.mark.slow),
    ],
)
def test_killed_run_is_bit_for_bit_the_uninterrupted_one(
    settings: list[str], kills: int, tiny_recipe: Path, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(2**31)
    sys.stdout.write(f"seed of the kills: {seed}\n")  # pytest prints it with a failure
    dropouts = ["model.attention_dropout=0.1", "model.feed_forward_dropout=0.1"]
    sampling = (
        ["tokenizer.subword_dropout=[0.05, 0.05]", "data.augmentation=on"] if kills > 3 else []
    )
    training = [f"training.{setting}" for setting in (*COMMON, *settings)]
    config = load_config(tiny_recipe, overrides=[*dropouts, *sampling, *training])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    updates = train_whole(config, whole)
    hits = train_killed(config, killed, plan_kills(kills, updates, seed=seed))
    assert hits > kills / 2  # the last ones may come too late
    assert outcome(killed) == outcome(whole)
    assert events_by_update(killed, "train") == events_by_update(whole, "train")
    assert [*events_by_update(whole, "train")] == [*range(1, updates + 1)]
