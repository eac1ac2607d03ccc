"""The curve of a run: its checkpoints, and the scores that the run itself found."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "time_to_quality.py"


def test_each_checkpoint_has_the_score_that_validation_found(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[str], ModuleType],
) -> None:
    from mt.config.loading import load_config
    from mt.training.trainer import train

    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    module = script("time_to_quality")
    settings = ["training.keep_last=9", "training.best_metric=bleu"]
    alike = ["training.validation_search=beam"]  # as the curve decodes
    run = tmp_path / "run"
    train(load_config(tiny_recipe, overrides=[*settings, *alike]), run)
    points = list(module.curve(run, "valid"))
    journal = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validations = [event for event in journal if event["event"] == "validation"]
    assert [point.update for point in points] == [10, 20, 30, 40]
    for point, event in zip(points, validations, strict=True):
        assert point.target_tokens == event["target_tokens"]
        assert point.seconds == event["elapsed_seconds"]
        assert point.bleu == event["bleu"]
        assert point.signature == event["bleu_signature"]
    assert len({point.bleu for point in points}) > 1
