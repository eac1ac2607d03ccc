"""Golden losses: small runs give the numbers in golden.json.

After a change of the arithmetic on purpose, write the file again with
`WRITE_GOLDEN=1 .venv/bin/pytest tests/training/test_golden.py` and add a line to CHANGELOG.md.

Another processor, BLAS or number of threads rounds sums differently, which changed losses by less
than 1e-6, and norms by 2e-4 where a value is near the bend of ReLU. For comparison, beta_2 0.981
instead of 0.98 changes the losses by 3e-4. The numbers of dropout may change with torch, so runs
with dropout are compared for one version only.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from mt.config.loading import load_config
from mt.training.trainer import train
from tests.factories import journal

GOLDEN = Path(__file__).with_name("golden.json")
UPDATES = 30
SETTINGS = (
    f"max_updates={UPDATES}",
    "max_tokens_per_batch=100",
    "learning_rate=2e-3",
    "gradient_clip=1e-3",  # with gradients so small, Adam's epsilon counts
    "log_every=1",
    "validate_every=1000",
    "precision=fp32",
)
SIZES = "d_model: 32, d_ff: 64, heads: 2, encoder_layers: 2, decoder_layers: 2"
RUNS = {
    "default": "dropout: 0.0",
    "default, dropout": "attention_dropout: 0.1, feed_forward_dropout: 0.1",
    "modern": "preset: modern, dropout: 0.0",
    "modern, dropout": "preset: modern",
}
"""Keys of `model` beside SIZES."""
TOLERANCES = {
    "epoch": 0.0,
    "target_tokens": 0.0,
    "skipped_updates": 0.0,
    "learning_rate": 1e-6,
    "loss": 1e-5,
    "nll": 1e-5,
    "gradient_norm": 1e-3,
}
"""Relative tolerance of each number in the journal's lines on updates."""


@pytest.mark.parametrize("name", RUNS)
def test_runs_give_the_golden_numbers(name: str, tiny_recipe: Path, tmp_path: Path) -> None:
    stored = json.loads(GOLDEN.read_text(encoding="utf-8"))
    release = ".".join(torch.__version__.split(".")[:2])
    is_written = "WRITE_GOLDEN" in os.environ
    if "dropout" in name and stored["torch"] != release and not is_written:
        pytest.skip(f"the golden numbers with dropout are those of torch {stored['torch']}")
    settings = [f"model={{{SIZES}, {RUNS[name]}}}", *(f"training.{key}" for key in SETTINGS)]
    train(load_config(tiny_recipe, overrides=settings), tmp_path / "run")
    lines = journal(tmp_path / "run", "train")
    found = {key: [seven_digits(line[key]) for line in lines] for key in TOLERANCES}
    if is_written:
        GOLDEN.write_text(as_text({**stored, "torch": release, name: found}), encoding="utf-8")
        return
    assert len(found["loss"]) == UPDATES
    for key, tolerance in TOLERANCES.items():
        assert found[key] == pytest.approx(stored[name][key], rel=tolerance, abs=0.0), (
            f"{key} of the run {name!r}: the arithmetic changed"
        )


def seven_digits(number: float) -> float:
    return number if isinstance(number, int) else float(f"{number:.7g}")


def as_text(golden: dict[str, Any]) -> str:
    """Return JSON with a line for each list."""
    runs = [f' "torch": "{golden["torch"]}"']
    for name in RUNS:
        lists = ",\n".join(f'  "{key}": {json.dumps(golden[name][key])}' for key in TOLERANCES)
        runs.append(f' "{name}": {{\n{lists}\n }}')
    text = ",\n".join(runs)
    return f"{{\n{text}\n}}\n"
