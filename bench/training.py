"""Training speed of `mt` compared to the plain loop in plain.py, on this machine's CPU.

    python -m bench.training --pairs 5 --updates 20

Both train the same config on the same sentences, each run in a process of its own, in the order
plain mt mt plain plain mt ... The speed is target tokens per second, without padding. The rate of
fp32 matrix products is measured around each run: the speed of a shared machine varies, and a pair
of runs is marked if the rate changed by more than a tenth. If the corpus of the default config is
missing, the embedded corpus is used. The table goes to stdout, progress to stderr.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from bench.cost import MatrixProduct, list_products, measure_matmul_rate
from mt.config import Config
from mt.config.data import CorpusSource
from mt.config.loading import dump_config, load_config
from mt.data.corpus_files import find_supplied_files
from mt.data.sources import open_source
from mt.data.tokenizer import copy_tokenizer
from mt.data.tokenizer_training import train_tokenizer
from mt.errors import UserError, run_reporting_errors
from mt.tables import align_columns

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "configs" / "bench" / "reference.yaml"
EMBEDDED = ROOT / "configs" / "quickstart.yaml"
PLAIN = Path(__file__).parent / "plain.py"
STEADY = 1.1
"""Ratio of the largest to the smallest matrix-product rate above which a pair is marked."""


@dataclass(frozen=True)
class Run:
    """Measurement of one process; rates are per second."""

    target_tokens: int
    target_rate: float
    """Target tokens."""
    cpu_seconds: float
    """Of all threads, for the measured updates."""
    matmul_rates: tuple[float, float]
    """FLOPs of fp32 matrix products, before and after."""
    peak_memory_mib: float
    flops_per_target_token: float | None
    """Operations of the model in training; only mt counts them."""


@dataclass(frozen=True)
class Pair:
    """A run of each program, one after the other."""

    plain: Run
    mt: Run

    @property
    def ratio(self) -> float:
        """Speed of mt relative to plain."""
        return self.mt.target_rate / self.plain.target_rate

    @property
    def cpu_ratio(self) -> float:
        """The same by CPU time of all threads, which other programs disturb less."""
        return self.plain.cpu_seconds / self.mt.cpu_seconds

    @property
    def steady(self) -> bool:
        """Return whether the machine kept its speed."""
        rates = self.plain.matmul_rates + self.mt.matmul_rates
        return max(rates) <= STEADY * min(rates)

    def share(self, run: Run) -> float:
        """Return the model FLOPs of a run as a share of the matrix-product rate around it."""
        assert self.mt.flops_per_target_token is not None
        flops = run.target_rate * self.mt.flops_per_target_token
        return flops / statistics.mean(run.matmul_rates)


def main() -> int:
    """Alternate the two programs and print the table."""
    options = _parser().parse_args()
    config = choose_config(options.config)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        recipe, vocabulary = prepare(config, Path(folder))
        products = list_products(
            config.model,
            positions=config.training.target_tokens_per_update,
            vocabulary=vocabulary,
        )
        programs = commands(recipe, options.updates, options.threads)
        pairs = []
        for index in range(options.pairs):
            names = ("plain", "mt") if index % 2 == 0 else ("mt", "plain")
            runs = {name: measure(name, programs[name], products) for name in names}
            pairs.append(Pair(runs["plain"], runs["mt"]))
            _check_same_updates(pairs[-1])
    print(table(pairs))
    print(f"\n{summary(pairs, options.threads, options.updates)}")
    return 0


def choose_config(path: Path | None) -> Config:
    """Load a config, by default the reference; use the embedded corpus if its own is missing."""
    if path is not None:
        return load_config(path)
    config = load_config(REFERENCE)
    corpus = config.data.train
    assert isinstance(corpus, CorpusSource), "the reference has one corpus"
    if find_supplied_files(corpus, config.direction):
        return config
    _say(
        f"{corpus.corpus} is missing ($MT_CORPORA): training on the embedded corpus "
        "instead, whose figures are not comparable"
    )
    return config.changed(data=load_config(EMBEDDED).data)


def prepare(config: Config, folder: Path) -> tuple[Path, int]:
    """Train a tokenizer for both programs; return a config that names it, and its size."""
    pairs, place = open_source(config.data.train, config.direction), folder / "tokenizer"
    if config.tokenizer.from_ is not None:
        tokenizer = copy_tokenizer(config.tokenizer.from_, place)
    else:
        tokenizer = train_tokenizer(pairs.pairs, place, config=config.tokenizer)
    shared = config.tokenizer.changed(from_=place)
    training = config.training.changed(device="cpu", precision="fp32")
    recipe = folder / "config.yaml"
    recipe.write_text(
        dump_config(config.changed(tokenizer=shared, training=training)),
        encoding="utf-8",
    )
    return recipe, tokenizer.target_size


def commands(recipe: Path, updates: int, threads: int) -> dict[str, Callable[[], str]]:
    """Return functions that run each program and return its output."""
    arguments = {
        "plain": [str(PLAIN), str(recipe), "--updates", str(updates)],
        "mt": ["-m", "bench.training_speed", str(recipe), "--updates", str(updates), "--json"],
    }
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **counts, "PYTHONPATH": path}

    return {
        name: partial(_output, [sys.executable, *command], environment)
        for name, command in arguments.items()
    }


def _output(command: Sequence[str], environment: Mapping[str, str]) -> str:
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def measure(name: str, program: Callable[[], str], products: set[MatrixProduct]) -> Run:
    """Run a program between two measurements of the matrix-product rate."""
    cpu = torch.device("cpu")
    before = measure_matmul_rate(products, cpu, torch.float32)
    try:
        record = json.loads(program())
    except subprocess.CalledProcessError as error:
        raise UserError(
            f"{name} failed with status {error.returncode}; see its message above"
        ) from None
    run = Run(
        target_tokens=record["target_tokens"],
        target_rate=record["target_tokens_per_second"],
        cpu_seconds=record["cpu_seconds"],
        matmul_rates=(before, measure_matmul_rate(products, cpu, torch.float32)),
        peak_memory_mib=record["peak_memory_mib"],
        flops_per_target_token=record.get("flops_per_target_token"),
    )
    _say(f"{name}: {run.target_rate:,.0f} target tokens/s")
    return run


def _check_same_updates(pair: Pair) -> None:
    plain, mt = pair.plain.target_tokens, pair.mt.target_tokens
    if plain != mt:
        raise UserError(f"updates differ: {plain:,} target tokens in plain.py, {mt:,} in mt")


def table(pairs: Sequence[Pair]) -> str:
    """Return a line for each pair."""
    head = ("pair", "plain tok/s", "mt tok/s", "mt/plain", "by CPU time", "GEMM GFLOP/s")
    rows = [(*head, "plain share", "mt share")]
    for row, pair in enumerate(pairs, start=1):
        rates = pair.plain.matmul_rates + pair.mt.matmul_rates
        rows.append(
            (
                f"{row}{'' if pair.steady else ' *'}",
                f"{pair.plain.target_rate:,.0f}",
                f"{pair.mt.target_rate:,.0f}",
                f"{pair.ratio:.2f}",
                f"{pair.cpu_ratio:.2f}",
                f"{min(rates) / 1e9:,.0f}-{max(rates) / 1e9:,.0f}",
                f"{pair.share(pair.plain):.1%}",
                f"{pair.share(pair.mt):.1%}",
            )
        )
    return align_columns(rows, right=range(1, len(rows[0])))


def summary(pairs: Sequence[Pair], threads: int, updates: int) -> str:
    """Return the median ratio with its spread, and the share of the matrix-product rate."""
    lines = [f"{_median(pairs)} ({updates} updates a run, {threads} threads)", _last(pairs[-1])]
    steady = [pair for pair in pairs if pair.steady]
    if len(steady) < len(pairs):
        lines.append(f"* the matrix-product rate changed by more than {STEADY - 1:.0%} in the pair")
        if steady:
            lines.append(f"without these: {_median(steady)}")
    return "\n".join(lines)


def _median(pairs: Sequence[Pair]) -> str:
    ratios = [pair.ratio for pair in pairs]
    share = statistics.median(pair.share(pair.mt) for pair in pairs)
    return (
        f"mt/plain: median {statistics.median(ratios):.2f} of {len(ratios)}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}; mt at {share:.1%} of the matrix-product rate"
    )


def _last(pair: Pair) -> str:
    plain, mt = pair.plain, pair.mt
    return (
        f"of the last pair: peak memory {plain.peak_memory_mib:,.0f} MiB plain, "
        f"{mt.peak_memory_mib:,.0f} MiB mt"
    )


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="?", type=Path, help=f"by default {REFERENCE.name}")
    parser.add_argument("--pairs", type=int, default=4, help="runs of each program")
    parser.add_argument("--updates", type=int, default=20, help="updates measured in each run")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.exit(run_reporting_errors(main))
