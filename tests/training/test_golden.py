"""Golden losses: small runs give the numbers in golden.json.

After a change of the arithmetic on purpose, write the file again with
`python tests/training/test_golden.py` and add a line to CHANGELOG.md.

Another processor, BLAS or number of threads rounds sums differently, which changed losses by less
than 1e-6, and norms by 2e-4 where a value is near the bend of ReLU. For comparison, beta_2 0.981
instead of 0.98 changes the losses by 3e-4. The numbers of dropout may change with torch, so runs
with dropout are compared for one version only.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from mt.config import Config
from mt.training.run_folder import RunFolder
from mt.training.trainer import train

GOLDEN = Path(__file__).with_name("golden.json")
CHANGED = (
    "the arithmetic changed: if on purpose, run `python tests/training/test_golden.py` and add a "
    "line to CHANGELOG.md"
)
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
UPDATES = 30

RUNS: dict[str, dict[str, Any]] = {
    "default": {"dropout": 0.0},
    "default, dropout": {"attention_dropout": 0.1, "feed_forward_dropout": 0.1},
    "modern": {"preset": "modern", "dropout": 0.0},
    "modern, dropout": {"preset": "modern"},
}
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


def golden_config(folder: Path, model: dict[str, Any]) -> Config:
    """Write a corpus of digits and their reverse, and return the config of a training on it."""
    for split, numbers in (("train", range(1000, 10000, 151)), ("valid", range(1111, 9999, 4481))):
        spelled = [[DIGITS[int(digit)] for digit in str(number)] for number in numbers]
        for language, step in (("en", 1), ("de", -1)):
            text = "".join(f"{' '.join(words[::step])}\n" for words in spelled)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    shape = {"d_model": 32, "d_ff": 64, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    return Config.model_validate(
        {
            "data": {
                "source_language": "en",
                "target_language": "de",
                "train": {"source": f"{folder}/train.en", "target": f"{folder}/train.de"},
                "valid": {"source": f"{folder}/valid.en", "target": f"{folder}/valid.de"},
                "max_tokens": 40,
            },
            "tokenizer": {"algorithm": "bpe", "vocabulary": "joint", "vocabulary_size": 300},
            "model": {**shape, **model},
            "training": {
                "max_updates": UPDATES,
                "target_tokens_per_update": 150,
                "max_tokens_per_batch": 100,
                "learning_rate": 2e-3,
                "schedule": "inverse_sqrt",
                "warmup_updates": 10,
                "gradient_clip": 1e-3,  # with gradients so small, Adam's epsilon counts
                "log_every": 1,
                "validate_every": 1000,
                "device": "cpu",
                "precision": "fp32",
            },
            "decoding": {"max_length_ratio": 1.0, "max_length_extra": 5},
        }
    )


def numbers_of(name: str, folder: Path) -> dict[str, list[float]]:
    """Train one of RUNS and return its numbers, to seven digits, by key."""
    torch.set_num_threads(1)
    train(golden_config(folder, RUNS[name]), folder / "run")
    lines = RunFolder(folder / "run").metrics.read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "train"]
    return {key: [_seven_digits(event[key]) for event in events] for key in TOLERANCES}


def _seven_digits(number: float) -> float:
    return number if isinstance(number, int) else float(f"{number:.7g}")


@pytest.mark.parametrize("name", RUNS)
def test_runs_give_the_golden_numbers(name: str, tmp_path: Path) -> None:
    stored = json.loads(GOLDEN.read_text(encoding="utf-8"))
    if "dropout" in name and stored["torch"] != release():
        pytest.skip(
            f"the golden numbers with dropout are those of torch {stored['torch']}, not {release()}"
        )
    found, expected = numbers_of(name, tmp_path), stored[name]
    assert [*found] == [*expected]
    assert len(found["loss"]) == UPDATES
    for key, tolerance in TOLERANCES.items():
        assert found[key] == pytest.approx(expected[key], rel=tolerance, abs=0.0), (
            f"{key} of the run {name!r}: {CHANGED}"
        )


def release() -> str:
    """Return torch's major and minor version."""
    return ".".join(torch.__version__.split(".")[:2])


def write_golden() -> None:
    """Write golden.json with a line for each list."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MT_CACHE"] = folder
        for number, name in enumerate(RUNS):
            place = Path(folder) / str(number)
            place.mkdir()
            numbers = numbers_of(name, place)
            lists = ",\n".join(f'  "{key}": {json.dumps(each)}' for key, each in numbers.items())
            runs.append(f' "{name}": {{\n{lists}\n }}')
    text = ",\n".join([f' "torch": "{release()}"', *runs])
    GOLDEN.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden()
