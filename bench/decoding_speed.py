"""Decoding speed of a run on its first test split; JSON is one line.

    python -m bench.decoding_speed runs/quickstart --set decoding.beam=4 --json

By search and batch size (16, 64 and 256, or that of --set decoding.batch_size=N), then with each
engine at hand and the search of the run on one core and on all, each in a process of its own.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from tqdm import tqdm

from bench.cost import measure_peak_memory
from mt.config.decoding import PYTORCH_ONLY
from mt.config.loading import load_config, require_section
from mt.data.splits import open_split
from mt.decoding.ctranslate2_engine import count_cores, describe_unsupported
from mt.decoding.load import StoredModel
from mt.decoding.translator import Translator
from mt.errors import UserError, run_reporting_errors
from mt.model.device import keep_freed_memory, select_device
from mt.runs import CONFIG_FILE, Quantization, export_folder, read_exported, read_verified_export
from mt.tables import align_columns

ROOT = Path(__file__).parent.parent
MODEL_FILES = ("model.*", "config.*", "export.json", "*_vocabulary.json", "tokenizer/*")
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
    it, after a first batch as warm-up. Raises the errors of `Translator.load`.
    """
    keep_freed_memory()
    translator = Translator.load(run, overrides=overrides, device=device)
    is_set = any(override.startswith("decoding.batch_size=") for override in overrides)
    batch_sizes = (translator.decoding.sentences_at_once,) if is_set else BATCH_SIZES
    data = load_config(run / CONFIG_FILE).data
    split = next(iter(data.tests), "valid")
    lines = [pair.source for pair in open_split(data, split).pairs()]
    speeds = []
    for search, size in tqdm([*product(("greedy", "beam"), batch_sizes)], "decoding", disable=None):
        settings = {"search": search, "batch_size": size, "repair": "off"}
        translator.decoding = translator.decoding.changed(**settings)
        beam = translator.decoding.beam if search == "beam" else 1
        speeds.append(SearchSpeed(search, beam, size, *time_lines(translator, lines)))
    selected = select_device(device)
    return DecodingSpeed(
        split=split,
        device=selected.type,
        threads=torch.get_num_threads(),
        sentences=len(lines),
        peak_memory_mib=measure_peak_memory(selected),
        searches=tuple(speeds),
    )


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Speed of an engine on some cores, from text to text, with the search of the run."""

    engine: str
    cores: int
    disk_mib: float
    """Size of the files of the model."""
    words_per_second: float
    """Words of the source between spaces."""
    sentences_per_second: float
    load_seconds: float
    """Time from the start of the process to a loaded model, imports included."""
    peak_memory_mib: float | None
    """Largest resident set; None if unknown."""


def measure_engines(
    run: Path, *, overrides: Sequence[str] = (), device: str = "cpu"
) -> list[EngineSpeed]:
    """Time the engines at hand on the first test split of a run, on one core and on all.

    These are PyTorch and the exports in the run, or an export alone if `run` is one. On another
    device than the CPU it is PyTorch alone. Raises UserError if a process fails.
    """
    cores = sorted({1, count_cores()}) if device == "cpu" else [count_cores()]
    jobs = [(*engine, count) for engine in _list_engines(run, overrides, device) for count in cores]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    speeds = []
    for folder, engine, count in tqdm(jobs, "engines", disable=None):
        # For PyTorch; an export is its own engine in any case.
        settings = [device, str(time.monotonic()), *overrides, *PYTORCH_ONLY]
        done = subprocess.run(
            [sys.executable, __file__, "--process", folder, *settings],
            env={**os.environ, "OMP_NUM_THREADS": str(count), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            raise UserError(f"{folder}: the process that translates with it has failed")
        disk = sum(path.stat().st_size for name in MODEL_FILES for path in folder.glob(name))
        speeds.append(EngineSpeed(engine, count, disk / 2**20, *json.loads(done.stdout)))
    return speeds


def _list_engines(run: Path, overrides: Sequence[str], device: str) -> Iterator[tuple[Path, str]]:
    """Yield the folder and the engine, with its quantization, of each model that can be used."""
    stored = StoredModel.read(run, overrides)
    if stored.record.is_of_export:
        yield run, f"ctranslate2 {read_exported(run).quantization}".removesuffix(" none")
        return
    yield run, "torch"
    if device != "cpu" or describe_unsupported(stored.config.decoding):
        return
    quantizations: tuple[Quantization, ...] = ("none", "int8")
    for quantization in quantizations:
        folder = export_folder(run, quantization)
        with suppress(UserError):
            read_verified_export(folder, stored.record, quantization)
            yield folder, f"ctranslate2 {quantization}".removesuffix(" none")


def time_translation(
    run: Path, device: str, started_at: float, overrides: Sequence[str]
) -> tuple[float | None, ...]:
    """Load a model, translate the first test split of its config, and return the measured values.

    The process started at `started_at` by the monotonic clock, and keeps to `OMP_NUM_THREADS`
    cores.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: count_cores()])
    overrides = [*overrides, "decoding.repair=off"]
    translator = Translator.load(run, overrides=overrides, device=device)
    load_seconds = time.monotonic() - started_at
    data = load_config(run / CONFIG_FILE).data
    split = next(iter(data.tests), "valid")
    rates = time_lines(translator, [pair.source for pair in open_split(data, split).pairs()])
    # Unlike that of `getrusage`, this peak does not include the parent before the start.
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    return *rates, load_seconds, int(peak[1]) / 2**10 if peak else None


def time_lines(translator: Translator, lines: Sequence[str]) -> tuple[float, float]:
    """Return the source words and the lines translated in a second, after a batch in advance."""
    translator.translate(lines[: translator.decoding.sentences_at_once])
    started_at = time.perf_counter()
    translator.translate(lines)
    seconds = time.perf_counter() - started_at
    return sum(len(line.split()) for line in lines) / seconds, len(lines) / seconds


def main() -> int:
    """Measure a run and print its tables, or JSON."""
    if sys.argv[1] == "--process":
        folder, device, started_at, *settings = sys.argv[2:]
        values = time_translation(Path(folder), device, float(started_at), settings)
        print(json.dumps(values))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    require_section(options.overrides, "decoding")
    speed = measure_decoding(options.run, overrides=options.overrides, device=options.device)
    engines = measure_engines(options.run, overrides=options.overrides, device=speed.device)
    if options.json:
        print(json.dumps({**asdict(speed), "engines": [asdict(engine) for engine in engines]}))
        return 0
    searches = [("search", "beam", "batch size", "source words/s", "sentences/s")]
    for search in speed.searches:
        rates = f"{search.words_per_second:,.0f}", f"{search.sentences_per_second:,.1f}"
        searches.append((search.search, str(search.beam), str(search.batch_size), *rates))
    rows = [("engine", "cores", "source words/s", "sentences/s", "load", "peak memory", "on disk")]
    for engine in engines:
        rates = f"{engine.words_per_second:,.0f}", f"{engine.sentences_per_second:,.1f}"
        load, peak = f"{engine.load_seconds:.2f} s", _format_size(engine.peak_memory_mib)
        rows.append(
            (engine.engine, str(engine.cores), *rates, load, peak, f"{engine.disk_mib:,.1f} MiB")
        )
    device = f"cpu, {speed.threads} threads" if speed.device == "cpu" else speed.device
    texts = [
        f"{options.run}: {speed.sentences:,} sentences of {speed.split}, {device}",
        align_columns(searches, right=range(1, 5)),
        f"peak memory: {_format_size(speed.peak_memory_mib)}",
        align_columns(rows, right=range(1, 7)),
    ]
    print("\n\n".join(texts))
    return 0


def _format_size(mib: float | None) -> str:
    return "unknown" if mib is None else f"{mib:,.0f} MiB"


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
