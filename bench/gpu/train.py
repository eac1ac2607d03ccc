"""Train a recipe for some minutes, score it, and append speed and scores to a report.

    python -m bench.gpu.train multi30k-en-de --minutes 20

The recipe keeps its keys, except for those that depend on the length of the training: they follow
from the time and the measured speed. The run folder is runs/gpu-RECIPE; the same command resumes.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.gpu.runner import python
from bench.gpu.workload import ROOT, environment
from mt.config.data import needed_tags
from mt.config.loading import load_config
from mt.errors import UserError, did_you_mean, run_reporting_errors

LENGTH_KEYS = ("max_updates", "warmup_updates", "decay_updates", "validate_every")
"""Automatic keys of `training` that follow from a budget."""


def main() -> int:
    """Train, evaluate each test split, and append a section to the report."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help="name of a file in configs/, without .yaml")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--report", type=Path, default=Path("build/gpu-train.md"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    recipe = find_recipe(options.recipe)
    run = Path("runs") / f"gpu-{recipe.stem}"
    settings = [f"training.{key}=auto" for key in LENGTH_KEYS]
    settings += ["training.max_epochs=null", f"training.device={options.device}"]
    settings += [f"training.budget={options.minutes}m"]
    words = [word for setting in settings for word in ("--set", setting)]
    mt("train", recipe, "--run", run, *words)
    title = f"{recipe.stem}, {options.minutes:g} minutes on {options.device}"
    lines = [f"## {title}", "", *(f"- {line}" for line in facts(run))]
    config = load_config(run / "config.yaml")
    if not (config.decoding.tag is None and needed_tags(config.data)):
        for split in [*config.data.tests] or ["valid"]:
            found = mt("evaluate", run, "--split", split, "--device", options.device, "--json")
            lines.append(f"- {split}: {scores(json.loads(found))}")
    options.report.parent.mkdir(parents=True, exist_ok=True)
    with options.report.open("a", encoding="utf-8") as report:
        report.write("\n".join(lines) + "\n\n")
    print("\n".join(lines))
    return 0


def find_recipe(name: str) -> Path:
    """Return the path of a recipe, or raise UserError with the nearest name."""
    recipes = {path.stem: path for path in sorted((ROOT / "configs").glob("*.yaml"))}
    if name not in recipes:
        raise UserError(f"configs/{name}.yaml: no such recipe{did_you_mean(name, [*recipes])}")
    return recipes[name]


def mt(*words: object) -> str:
    """Run `mt` and return its stdout; progress goes to stderr."""
    process = subprocess.run(
        python("-m", "mt", *words),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if process.returncode:
        raise UserError(f"mt {words[0]} ended with status {process.returncode}; see its messages")
    return process.stdout


def facts(run: Path) -> Iterator[str]:
    """Yield lines with machine, speed and losses of a run from its journal."""
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_name.setdefault(event["event"], []).append(event)
    (first, *_), trained = by_name["start"], by_name.get("train", [])
    yield f"{datetime.now(UTC).isoformat(timespec='minutes')}, {first['device']}"
    yield f"torch {first['packages'].get('torch')}, precision {first['precision']}"
    if trained:
        # The first half has the compilation and the growth of the allocator.
        later = trained[len(trained) // 2 :]
        speed = statistics.median(event["target_tokens_per_second"] for event in later)
        waited = statistics.median(event["data_wait_share"] for event in later)
        yield f"{speed:,.0f} target tokens/s (median), {waited:.1%} of the time waiting for data"
        yield f"{trained[-1]['update']:,} updates, last training loss {trained[-1]['loss']:.3f}"
    for each in by_name.get("validation", [])[-1:]:
        yield f"last validation: loss {each['loss']:.3f}, after {each['elapsed_seconds']:,.0f} s"


def scores(found: dict[str, Any]) -> str:
    """Return the scores of an evaluation with their signatures."""
    named = {name: each for name, each in found.items() if isinstance(each, dict)}
    return "; ".join(
        f"{name} {each['score']:.2f} ({each['signature']})"
        for name, each in named.items()
        if "score" in each and "signature" in each
    )


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
