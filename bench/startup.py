"""Time from the command to the first update on a prepared corpus, by stage.

    python bench/startup.py --pairs 300000

A random corpus is prepared by `mt train` in a temporary folder. Then runs are started that reuse
its tokenizer and encoded pairs, as a user's second run does, each in a process of its own. The
table on stdout shows the fastest run, because other programs can only slow a run down. Importing
torch is listed separately, as is the part of it that optimisers import later.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {source: train.en, target: train.de}
  valid: {source: valid.en, target: valid.de}
model: {preset: transformer-tiny}
training: {max_updates: 1, device: cpu}
"""
VALIDATION_PAIRS = 1000
WORDS = 20_000
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
IMPORTS = ("import torch", "import torch._dynamo")
LAST = "first update"
"""Stage that the others prepare."""


class FirstUpdateDoneError(BaseException):
    """Ends the command after the first update."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare the corpus, start the runs and print the table."""
    options = _parser().parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(options.measure, started_at=options.started_at)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder, options.pairs)
        _measured(folder, "prepared", [])
        prepared = ["--set", "tokenizer.from=runs/prepared"]
        rounds = [_measured(folder, f"run{n}", prepared) for n in range(options.rounds)]
    print(as_markdown(min(rounds, key=lambda stages: sum(stages.values()))))
    return 0


def write_corpus(folder: Path, pairs: int) -> None:
    """Write a recipe, and sentences of random words with Zipf's frequencies."""
    random = np.random.Generator(np.random.PCG64(1))
    words = ["".join(random.choice(LETTERS, size)) for size in random.integers(2, 10, WORDS)]
    for split, count in (("train", pairs), ("valid", VALIDATION_PAIRS)):
        for language in ("en", "de"):
            sizes = random.integers(5, 25, count)
            drawn = iter((random.zipf(1.2, int(sizes.sum())) % WORDS).tolist())
            lines = (" ".join(words[next(drawn)] for _ in range(size)) for size in sizes.tolist())
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")


def measure(command: list[str], *, started_at: float) -> dict[str, float]:
    """Run `mt` up to its first update; return the seconds of each stage.

    `started_at` is the `time.time()` at which this process was started.
    """
    stages: dict[str, float] = {"python itself": time.time() - started_at}
    for name in IMPORTS:
        with _timed(stages, name):
            __import__(name.removeprefix("import "))
    with _timed(stages, "import mt and the rest"):
        from mt.__main__ import main as mt
        from mt.training import trainer as trainer_module
        from mt.training.trainer import Trainer

    def timed(stage: str, name: str) -> Any:
        function = getattr(trainer_module, name)

        def call(*given: object) -> object:
            with _timed(stages, stage):
                return function(*given)

        return mock.patch.object(trainer_module, name, call)

    def first_update(*given: object) -> None:
        stages["config, first batch, and the rest"] = (
            time.time() - started_at - sum(stages.values())
        )
        with _timed(stages, LAST):
            run_update(*given)  # type: ignore[arg-type]
        raise FirstUpdateDoneError

    run_update = Trainer.run_update
    with (
        timed("corpora, tokenizer, encoded pairs", "prepare"),
        timed("model, optimiser", "begin_or_resume"),
        mock.patch.object(Trainer, "run_update", first_update),
        mock.patch.object(sys, "argv", ["mt", *command]),
    ):
        try:
            mt()
        except FirstUpdateDoneError:
            return stages
    raise RuntimeError("the command ended without an update")


def as_markdown(stages: dict[str, float]) -> str:
    """Return a table of the stages, and their sum without the imports of torch."""
    before = sum(seconds for name, seconds in stages.items() if name not in {*IMPORTS, LAST})
    rows = [*stages.items(), ("**start to first update, without the imports of torch**", before)]
    lines = ["| stage | seconds |", "| --- | ---: |"]
    return "\n".join([*lines, *(f"| {name} | {seconds:.2f} |" for name, seconds in rows)])


def _measured(folder: Path, run: str, settings: list[str]) -> dict[str, float]:
    """Measure one run in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--started-at", repr(time.time())]
    command += ["--measure", "train", "recipe.yaml", "--run", f"runs/{run}", *settings]
    environment = {**os.environ, "MT_CACHE": str(folder / "cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    stages: dict[str, float] = json.loads(done.stdout)
    return stages


@contextmanager
def _timed(stages: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    stages[name] = time.perf_counter() - began


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest is shown")
    parser.add_argument("--started-at", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
