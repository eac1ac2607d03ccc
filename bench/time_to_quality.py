"""BLEU of a finished run on a test split over time, for each checkpoint.

    mt train configs/multi30k-en-de.yaml --run runs/curve --set training.keep_last=100
    python bench/time_to_quality.py runs/curve --split test_2016_flickr

Each checkpoint in the run folder is decoded with the run's config. Minutes are those of training,
validations included. If other programs used the machine as well, `--rate` gives the minutes of the
updates at a fixed rate instead: the target tokens/s that `mt bench train` measures on an idle
machine.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mt.config.loading import load_config
from mt.data.splits import open_split
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import load_translator
from mt.errors import UserError, run_reporting_errors
from mt.evaluation.run_info import choose_split
from mt.evaluation.scores import evaluate, translate_pairs
from mt.model.weights import load_parameters
from mt.training.checkpoint import STATE
from mt.training.run_folder import RunFolder


@dataclass(frozen=True)
class Point:
    """One checkpoint."""

    update: int
    target_tokens: int
    seconds: float
    bleu: float
    signature: str


def curve(run: Path, split: str | None) -> Iterator[Point]:
    """Yield the points of a run's checkpoints, oldest first."""
    folder = RunFolder(run)
    config = load_config(folder.config)
    # As in validation: an early checkpoint repeats itself.
    translator = load_translator(run, overrides=["decoding.repair=off", "decoding.engine=torch"])
    assert isinstance(translator.engine, TorchEngine)
    pairs = tuple(open_split(config.data, choose_split(config.data, split)).pairs())
    checkpoints = folder.checkpoints
    for update in checkpoints.updates():
        path = checkpoints.path(update)
        load_parameters(translator.engine.model, checkpoints.weights(update), str(path))
        state = json.loads((path / STATE).read_text(encoding="utf-8"))["state"]
        scores = evaluate(
            [translation.text for translation in translate_pairs(translator, pairs)],
            [[pair.target for pair in pairs]],
            target_language=config.data.target_language,
            tokenizer=config.evaluation.bleu_tokenizer,
        )
        bleu = scores.bleu
        seconds = state["elapsed_seconds"]
        yield Point(update, state["target_tokens"], seconds, bleu.value, bleu.signature)


def main() -> int:
    """Print the curve as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", help="default: `test`, or the only test split")
    parser.add_argument("--rate", type=float, help="target tokens/s of the idle machine")
    options = parser.parse_args()
    if options.rate is not None and options.rate <= 0:
        raise UserError(f"--rate {options.rate}: must be above 0")
    print("| update | target tokens | minutes | BLEU |\n| ---: | ---: | ---: | ---: |")
    signature = ""
    for point in curve(options.run, options.split):
        seconds = point.target_tokens / options.rate if options.rate else point.seconds
        cells = f"{point.update:,} | {point.target_tokens:,} | {seconds / 60:.1f}"
        print(f"| {cells} | {point.bleu:.2f} |", flush=True)
        signature = point.signature
    print(f"\nBLEU signature: {signature}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_reporting_errors(main))
