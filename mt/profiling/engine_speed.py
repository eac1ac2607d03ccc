"""Decoding speed of each engine of a run, in a process of its own; exports without torch."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from mt.config.decoding import IN_TORCH, ONE_SEARCH
from mt.config.loading import load_config
from mt.data.splits import open_split
from mt.decoding.ctranslate2_engine import count_cores, describe_unsupported
from mt.decoding.load import StoredModel, require_ctranslate2
from mt.decoding.translator import Translator, load_translator
from mt.errors import UserError
from mt.evaluation.passport import list_model_files
from mt.runs import CONFIG_FILE, Quantization, export_folder, read_exported, read_verified_export


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
    speeds = []
    for folder, engine, count in tqdm(jobs, "engines", disable=None):
        # For PyTorch; an export is its own engine in any case.
        settings = [device, str(time.monotonic()), *overrides, *IN_TORCH]
        done = subprocess.run(
            [sys.executable, "-m", __name__, folder, *settings],
            env={**os.environ, "OMP_NUM_THREADS": str(count)},
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            raise UserError(f"{folder}: the process that translates with it has failed")
        disk = sum(path.stat().st_size for _, path in list_model_files(folder) if path.exists())
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
            require_ctranslate2()
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
    repair = [f"decoding.{key}={value}" for key, value in ONE_SEARCH.items()]
    translator = load_translator(run, overrides=[*overrides, *repair], device=device)
    load_seconds = time.monotonic() - started_at
    data = load_config(run / CONFIG_FILE).data
    rates = time_lines(
        translator, [pair.source for pair in open_split(data, data.first_split()).pairs()]
    )
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


if __name__ == "__main__":
    folder, device, started_at, *settings = sys.argv[1:]
    values = time_translation(Path(folder), device, float(started_at), settings)
    sys.stdout.write(json.dumps(values))
