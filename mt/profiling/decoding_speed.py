"""Decoding speed of a finished model, by search and batch size."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from mt.config import DecodingConfig
from mt.config.decoding import ONE_SEARCH
from mt.config.loading import load_config
from mt.data.splits import open_split
from mt.decoding.engine import Engine, Hypothesis, TargetPrefixes
from mt.decoding.translator import load_translator
from mt.model.device import keep_freed_memory, select_device
from mt.runs import CONFIG_FILE

Search = Literal["greedy", "beam"]
SEARCHES: tuple[Search, Search] = ("greedy", "beam")


@dataclass(frozen=True, slots=True)
class DecodingSpeed:
    """Measurement of one search with one batch size."""

    search: Search
    beam: int
    """Hypotheses per sentence, 1 for greedy search."""
    batch_size: int
    sentences: int
    target_tokens: int
    """Tokens of the translations, including EOS of those that are finished."""
    seconds: float

    @property
    def sentences_per_second(self) -> float:
        """Sentences per second from text to text, without loading the model."""
        return self.sentences / self.seconds

    @property
    def target_tokens_per_second(self) -> float:
        """Tokens of the translations per second, likewise."""
        return self.target_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class DecodingBenchmark:
    """Decoding speed of a run's model on one of its splits."""

    split: str
    device: str
    threads: int
    speeds: tuple[DecodingSpeed, ...]


def benchmark_decoding(
    run: Path,
    *,
    batch_sizes: Sequence[int],
    overrides: Sequence[str] = (),
    device: str = "auto",
) -> DecodingBenchmark:
    """Time the translation of the first test split of a run, or else of `valid`.

    Each search is run with each batch size, after a first batch as warm-up. `overrides` are
    `decoding.KEY=VALUE`; search and batch size are set here. Raises the errors of
    `load_translator`.
    """
    keep_freed_memory()
    translator = load_translator(run, overrides=overrides, device=device)
    translator.engine = counting = _Counting(translator.engine)
    data = load_config(run / CONFIG_FILE).data
    split = data.first_split()
    lines = [pair.source for pair in open_split(data, split).pairs()]
    speeds = []
    for search, size in tqdm([*product(SEARCHES, batch_sizes)], "decoding", disable=None):
        settings = {"search": search, "batch_size": size, **ONE_SEARCH}
        translator.decoding = translator.decoding.model_copy(update=settings)
        translator.translate(lines[:size])
        counting.target_tokens = 0
        started_at = time.perf_counter()
        translator.translate(lines)
        seconds = time.perf_counter() - started_at
        beam = translator.decoding.beam if search == "beam" else 1
        speeds.append(
            DecodingSpeed(search, beam, size, len(lines), counting.target_tokens, seconds)
        )
    threads, where = torch.get_num_threads(), select_device(device).type
    return DecodingBenchmark(split, where, threads, tuple(speeds))


class _Counting(Engine):
    """An engine that counts the target tokens of another one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.target_tokens = 0

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        found = self.engine.n_best_ids(sources, decoding, count, prefixes=prefixes)
        self.target_tokens += sum(len(best.ids) + best.finished for best, *_ in found)
        return found
