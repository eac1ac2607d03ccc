"""Decoding speed of a finished model, by search and batch size."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from tqdm import tqdm

from mt.config.decoding import ONE_SEARCH
from mt.config.loading import load_config
from mt.data.splits import open_split
from mt.decoding.translator import load_translator
from mt.model.device import keep_freed_memory, select_device
from mt.profiling.cost import measure_peak_memory
from mt.runs import CONFIG_FILE

BATCH_SIZES = (16, 64, 256)


@dataclass(frozen=True)
class SearchSpeed:
    """Speed of one search with one batch size, from text to text."""

    search: str
    beam: int
    batch_size: int
    words_per_second: float
    """Words of the source between spaces."""
    sentences_per_second: float


@dataclass(frozen=True)
class DecodingSpeed:
    """Decoding speed of a run's model on one of its splits, without loading the model."""

    split: str
    device: str
    threads: int
    sentences: int
    peak_memory_mib: float | None
    """Peak of the process, or of the tensors on a CUDA device; None if unknown."""
    searches: tuple[SearchSpeed, ...]


def measure_decoding(
    run: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> DecodingSpeed:
    """Time the translation of the first test split of a run, or else of `valid`.

    Each search is run with each of BATCH_SIZES, or with `decoding.batch_size` if `overrides` set
    it, after a first batch as warm-up. Raises the errors of `load_translator`.
    """
    keep_freed_memory()
    translator = load_translator(run, overrides=overrides, device=device)
    is_set = any(override.startswith("decoding.batch_size=") for override in overrides)
    batch_sizes = (translator.decoding.sentences_at_once,) if is_set else BATCH_SIZES
    data = load_config(run / CONFIG_FILE).data
    split = data.first_split()
    lines = [pair.source for pair in open_split(data, split).pairs()]
    words = sum(len(line.split()) for line in lines)
    speeds = []
    for search, size in tqdm([*product(("greedy", "beam"), batch_sizes)], "decoding", disable=None):
        settings = {"search": search, "batch_size": size, **ONE_SEARCH}
        translator.decoding = translator.decoding.changed(**settings)
        translator.translate(lines[:size])
        started_at = time.perf_counter()
        translator.translate(lines)
        seconds = time.perf_counter() - started_at
        beam = translator.decoding.beam if search == "beam" else 1
        speeds.append(SearchSpeed(search, beam, size, words / seconds, len(lines) / seconds))
    selected = select_device(device)
    return DecodingSpeed(
        split=split,
        device=selected.type,
        threads=torch.get_num_threads(),
        sentences=len(lines),
        peak_memory_mib=measure_peak_memory(selected),
        searches=tuple(speeds),
    )
