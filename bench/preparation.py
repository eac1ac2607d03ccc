"""CPU time a pair of each stage of preparation, beside plain SentencePiece.

    PYTHONPATH=. python -m bench.preparation --pairs 300000
    PYTHONPATH=. python -m bench.preparation my.yaml

A config, such as `mt init` writes, names the corpora and their cleaning. Without one, sentences of
random words are prepared. The time is that of all threads and processes, so other programs change
it little; the seconds on the clock show how many cores were busy.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import get_args

from bench.startup import write_corpus
from mt.config import Config
from mt.config.data import BrokenText, CleaningConfig
from mt.config.loading import load_config
from mt.data.batches import plan_updates
from mt.data.corpus_files import cache_folder
from mt.data.filters import Cleaning
from mt.data.processes import count_processes
from mt.data.store import join_stores, prepare_store
from mt.data.tokenizer_training import provide_tokenizer
from mt.training.data import read_corpora

CLEANINGS: dict[str, object] = {
    "control_characters": "strip",
    "normalize_spaces": True,
    "identical_sides": True,
    "min_characters": 1,
    "max_characters": 1000,
    "max_length_ratio": 2.5,
    "wrong_script": True,
    "numbers": True,
    "language": True,
    "duplicates": "pair",
}
ENCODED_PAIRS, CLEANED_PAIRS = 100_000, 5000
"""Pairs that SentencePiece alone encodes, and on which each key of the cleaning is measured."""


class Stages:
    """Table of stages, printed as they end."""

    def __init__(self) -> None:
        self.pairs = 0
        print("| stage | µs of CPU a pair | seconds |\n| --- | ---: | ---: |")

    @contextmanager
    def timed(self, name: str, pairs: int | None = None) -> Iterator[None]:
        """Measure a stage, of all pairs unless it has fewer."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        yield
        of_pair = (cpu_seconds() - cpu) / (pairs or self.pairs) * 1e6
        print(f"| {name} | {of_pair:.1f} | {time.perf_counter() - wall:.1f} |", flush=True)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the corpora of a config in a new cache, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("config", type=Path, nargs="?")
    parser.add_argument("--pairs", type=int, default=300_000, help="of random words")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        os.environ["MT_CACHE"] = name
        if options.config is None:
            write_corpus(Path(name), options.pairs)
            os.chdir(name)  # the paths in its config are relative
        measure(load_config(options.config or Path("recipe.yaml")), Path(name))


def measure(config: Config, folder: Path) -> None:
    """Prepare the training corpora of a config as `mt train` does."""
    stages = Stages()
    with stages.timed("reading, check, cleaning"):
        corpora = read_corpora(config)
        assert corpora.scan is not None, "a new run scans its corpora"
        stages.pairs = corpora.scan.pairs
    settings = config.tokenizer.changed(tags=config.reserved_tags)
    with stages.timed("learning the tokenizer"):
        tokenizer = provide_tokenizer(
            settings, folder / "tokenizer", origin=None, text=corpora.text
        )
    with stages.timed("encoding"):
        stores = [
            prepare_store(
                corpus.source,
                tokenizer.tagged(*corpus.tags),
                max_tokens=config.data.max_tokens,
                cache=cache_folder(),
                sums=corpora.checksums[corpus.key],
                cleaning=corpus.cleaning,
            )
            for corpus in corpora.training
        ]
    store = join_stores(stores)
    with stages.timed("planning an epoch"):
        plan_updates(store.lengths, config.training.target_tokens_per_update, seed=1, epoch=0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    first = corpora.training[0]
    sample = list(islice(first.pairs(), ENCODED_PAIRS))
    with stages.timed("plain `spm_encode`", len(sample)):
        for vocabulary, lines in (
            (tokenizer.source, [pair.source for pair in sample]),
            (tokenizer.target, [pair.target for pair in sample]),
        ):
            vocabulary.processor.encode(lines, num_threads=count_processes())
    for key, value in [*CLEANINGS.items(), *(("broken_text", [k]) for k in get_args(BrokenText))]:
        one = Cleaning(CleaningConfig.model_validate({key: value}), first.direction)
        few = sample[:CLEANED_PAIRS]
        list(one.clean(few[:10]))  # loads what it needs
        with stages.timed(f"cleaning by `{key}: {value}` alone", len(few)):
            list(one.clean(few))
    cores = count_processes()
    print(f"\n{stages.pairs:,} pairs, {cores} cores, largest resident set {peak:.2f} GiB")


if __name__ == "__main__":
    main()
