"""Speed of subword sampling for an epoch, and the growth of the text in tokens.

    python bench/sampling.py --config configs/multi30k-en-de.yaml

Times are CPU time of one thread, which other programs disturb little. For comparison, SentencePiece
encodes the same text without sampling, also in one thread. Tables go to stdout.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from mt.config.loading import load_config
from mt.data.sources import open_source
from mt.data.store import Rows
from mt.data.subword_sampling import SAMPLERS, Sampler
from mt.data.tokenizer import Tokenizer, train_tokenizer
from mt.data.vocabulary import Vocabulary, escape

STRENGTHS = (0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Speed:
    """Time and tokens for both sides of some pairs."""

    name: str
    seconds: float
    tokens: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Train both kinds of tokenizer, encode, sample, and print the tables."""
    options = _parser().parse_args(arguments)
    config = load_config(options.config)
    source = open_source(config.data.train, config.data)
    pairs = list(islice(source.pairs(), options.pairs))
    sides = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
    for algorithm in SAMPLERS:
        settings = config.tokenizer.model_copy(update={"algorithm": algorithm})
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = train_tokenizer(
                lambda: iter(pairs), Path(folder), config=settings, seed=config.seed
            )
        speeds = measure(tokenizer, sides)
        print(f"{algorithm}, {len(pairs):,} pairs, {tokenizer.source_size:,} tokens\n")
        print(as_markdown(speeds, len(pairs)))
    return 0


def measure(tokenizer: Tokenizer, sides: list[list[str]]) -> list[Speed]:
    """Encode without sampling, then sample with each strength."""
    vocabularies = (tokenizer.source, tokenizer.target)
    plain: list[Rows] = []

    def encode(vocabulary: Vocabulary, lines: list[str]) -> list[list[int]]:
        escaped = [escape(line) for line in lines]
        ids: list[list[int]] = vocabulary.processor.encode(escaped, add_eos=True, num_threads=1)
        return ids

    def encoded() -> int:
        plain[:] = map(Rows.of, map(encode, vocabularies, sides))
        return sum(len(rows.values) for rows in plain)

    speeds = [_speed("SentencePiece, no sampling", encoded)]
    for strength in STRENGTHS:
        samplers = [Sampler(vocabulary, strength) for vocabulary in vocabularies]
        speeds.append(_speed(f"sampling {strength}", partial(_draw, samplers, plain)))
    return speeds


def _draw(samplers: list[Sampler], plain: list[Rows]) -> int:
    """Return the number of sampled tokens of both sides."""
    random = np.random.default_rng(1)
    return sum(
        len(sampler.sample(rows, random, max_tokens=sys.maxsize).values)
        for sampler, rows in zip(samplers, plain, strict=True)
    )


def as_markdown(speeds: Sequence[Speed], pairs: int) -> str:
    """Return a row for each measurement, with the tokens as a multiple of the first."""
    lines = ["| | pairs a second | tokens |", "| --- | ---: | ---: |"]
    for speed in speeds:
        growth = speed.tokens / speeds[0].tokens
        lines.append(f"| {speed.name} | {pairs / speed.seconds:,.0f} | {growth:.2f} x |")
    return "\n".join(lines) + "\n"


def _speed(name: str, work: Callable[[], int]) -> Speed:
    began = time.process_time()
    tokens = work()
    return Speed(name, time.process_time() - began, tokens)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="CONFIG")
    parser.add_argument("--pairs", type=int, default=29_000, help="the first of the corpus")
    return parser


if __name__ == "__main__":
    sys.exit(main())
