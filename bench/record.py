"""BLEU after 5, 15 and 60 minutes with automatic settings: a row of docs/lab/records.md.

    python bench/record.py tatoeba-zh-en --tree ../older --minutes 1 5 --seeds 1

`mt train` and `mt evaluate` of the checkout `--tree` train and score a model for each budget and
seed, in build/records/. A score that is there for the same commit and number of threads is not
measured again, and a stopped training is resumed. The row goes to stdout, progress to stderr.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from mt.config.loading import dump_yaml, load_config
from mt.data.splits import open_split, open_training_corpora
from mt.data.tokenizer import Tokenizer
from mt.errors import UserError, run_reporting_errors
from mt.evaluation.run_info import read_events
from mt.files import write_json, write_text

ROOT = Path(__file__).parent.parent
say = partial(print, file=sys.stderr, flush=True)
BUDGETS = (5.0, 15.0, 60.0)
"""Minutes with a column in the table."""


@dataclass(frozen=True)
class Corpus:
    """Corpus with a table in docs/lab/records.md."""

    recipe: Path
    """Config whose languages and splits are used; of its tests, the first."""
    bleu: float
    """BLEU to which the minutes are given."""
    pairs: int | None = None
    """Number of training pairs, from the first; None: all."""


CORPORA = {
    "multi30k-en-de": Corpus(ROOT / "configs" / "multi30k-en-de.yaml", 35.0),
    "tatoeba-zh-en": Corpus(ROOT / "configs" / "tatoeba-zh-en.yaml", 30.0),
    "classical-modern": Corpus(ROOT / "configs" / "classical-modern.yaml", 14.0, pairs=30_000),
}


@dataclass(frozen=True)
class Score:
    """Scores of one model."""

    bleu: float
    signature: str
    bits: float
    """Cross-entropy of the validation references in bits per character."""
    processor: str


def main() -> int:
    """Train and score all models, and print the row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--minutes", type=float, nargs="+", default=BUDGETS, help="budgets")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to measure")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "records")
    options = parser.parse_args()
    threads, seeds = options.threads, sorted(set(options.seeds))
    if min(*options.minutes, threads) <= 0:
        raise UserError("--minutes, --threads: must be above 0")
    tree, corpus, output = options.tree.resolve(), CORPORA[options.corpus], options.output.resolve()
    commit = read_commit(tree)
    data = write_corpus(corpus, output / "corpora" / options.corpus)
    scores: dict[float, list[Score]] = {}
    for minutes in sorted(set(options.minutes)):
        for seed in seeds:
            name = f"{options.corpus}-{minutes:g}m-seed{seed}"
            config = {"seed": seed, "data": data, "training": {"budget": f"{minutes:g}m"}}
            folder = output / f"{commit}-{threads}-threads" / name
            score = measure(folder, config, tree, threads)
            say(f"{name}: BLEU {score.bleu:.2f} ({score.signature}), {score.bits:.3f} bits")
            scores.setdefault(minutes, []).append(score)
        say(f"{minutes:g} minutes: BLEU {_format_bleu(scores[minutes])}")
    processors = sorted({score.processor for models in scores.values() for score in models})
    machine = f"{', '.join(processors)}, {threads} thread{'' if threads == 1 else 's'}"
    first = [commit, "automatic", machine, ", ".join(map(str, seeds))]
    print(format_row(first, scores, goal=corpus.bleu))
    return 0


def read_commit(tree: Path) -> str:
    """Return the short hash of a checkout; raise UserError if its code has changes."""

    def call_git(*words: str) -> str:
        command = ["git", "-C", str(tree), *words]
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()

    try:
        changes, commit = call_git("status", "-s", "--", "mt"), call_git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{tree}: no git checkout; a record needs a commit") from None
    if changes or not (tree / "mt" / "__main__.py").exists():
        fault = "has changes; commit them" if changes else "missing; choose a checkout of mt"
        raise UserError(f"{tree / 'mt'}: {fault}")
    return commit[:7]


def write_corpus(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """Write the splits of a corpus as text files; return the config section that names them."""
    data = load_config(corpus.recipe).data
    sources = {"valid": open_split(data, "valid"), "test": open_split(data, next(iter(data.tests)))}
    (sources["train"],) = open_training_corpora(data)
    languages = {"source": data.source_language, "target": data.target_language}
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, source in sources.items():
        pairs = [*source.pairs()][: corpus.pairs if name == "train" else None]
        files[name] = {side: str(folder / f"{name}.{code}") for side, code in languages.items()}
        for side, path in files[name].items():
            write_text(Path(path), "".join(f"{getattr(pair, side)}\n" for pair in pairs))
    sides = {f"{side}_language": code for side, code in languages.items()}
    return {**sides, "tests": {"test": files.pop("test")}, **files}


def measure(folder: Path, config: Mapping[str, Any], tree: Path, threads: int) -> Score:
    """Train and score a model with the code of a checkout, unless its score is there."""
    run, recipe, path = folder / "run", folder / "config.yaml", folder / "score.json"
    if path.exists():
        return Score(**json.loads(path.read_bytes()))
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)),
        "CUDA_VISIBLE_DEVICES": "",
        "MT_CACHE": str(folder / "cache"),  # each training encodes its corpus within its budget
        "PYTHONPATH": str(tree),
    }

    def call_mt(*words: object) -> str:
        command = [sys.executable, "-P", "-m", "mt", *map(str, words)]  # -P: only of the tree
        try:
            return subprocess.check_output(command, env=environment, text=True)
        except subprocess.CalledProcessError as error:
            raise UserError(f"{folder.name}: `mt {words[0]}` failed, see above") from error

    folder.mkdir(parents=True, exist_ok=True)
    write_text(recipe, dump_yaml(config))
    began = time.monotonic()
    call_mt("train", recipe, "--run", run)
    say(f"{folder.name}: trained in {(time.monotonic() - began) / 60:.1f} minutes")
    bleu = json.loads(call_mt("evaluate", run, "--split", "test", "--json"))["bleu"]
    final = [event for event in read_events(run / "metrics.jsonl") if event["event"] == "final"]
    lines = Path(config["data"]["valid"]["target"]).read_bytes().decode().split("\n")[:-1]
    tokens = sum(map(len, Tokenizer.load(run / "tokenizer").encode_target(lines)))
    bits = final[-1]["loss"] * tokens / math.log(2) / sum(map(len, lines))
    machine = json.loads((run / "environment.json").read_bytes())
    score = Score(bleu["score"], bleu["signature"], bits, machine["processor"])
    write_json(path, asdict(score))
    return score


def format_row(
    first: Sequence[str], scores: Mapping[float, Sequence[Score]], *, goal: float
) -> str:
    """Return a row of docs/lab/records.md; a budget without scores has a dash."""
    columns = [scores.get(minutes, ()) for minutes in BUDGETS]
    bits = [f"{mean(score.bits for score in models):.3f}" if models else "–" for models in columns]
    means = {minutes: mean(score.bleu for score in models) for minutes, models in scores.items()}
    cells = [*first, *map(_format_bleu, columns), find_minutes(means, goal), ", ".join(bits)]
    return f"| {' | '.join(cells)} |"


def _format_bleu(scores: Sequence[Score]) -> str:
    values = [score.bleu for score in scores]
    return f"{mean(values):.2f} ({max(values) - min(values):.2f})" if values else "–"


def find_minutes(means: Mapping[float, float], goal: float) -> str:
    """Return the budget whose mean BLEU is the goal, interpolated in the logarithm of the time."""
    budgets = sorted(means)
    reached = next((minutes for minutes in budgets if means[minutes] >= goal), None)
    if reached is None:
        return f"over {budgets[-1]:g}"
    if reached == budgets[0]:
        return f"at most {reached:g}"
    before = budgets[budgets.index(reached) - 1]
    share = (goal - means[before]) / (means[reached] - means[before])
    return f"{before * (reached / before) ** share:.1f}"


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
