"""Sections that start programs: interruption of a training, ranks, tests."""

import json
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.gpu.ranks import losses
from bench.gpu.runner import (
    Check,
    Settings,
    attempt,
    end_process,
    observe,
    python,
    require,
)
from bench.gpu.workload import ROOT, device_of, environment

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {source: train.en, target: train.de}
  valid: {source: valid.en, target: valid.de}
  tests:
    test: {source: test.en, target: test.de}
  max_tokens: 40
tokenizer: {algorithm: bpe, vocabulary: joint, vocabulary_size: 300}
model:
  {d_model: 64, d_ff: 128, heads: 4, encoder_layers: 2, decoder_layers: 2, dropout: 0.1,
  positional: sinusoidal, residual: post, feed_forward: relu, tie_embeddings: all}
training:
  max_updates: 1000000
  patience: null
  target_tokens_per_update: 500
  max_tokens_per_batch: 2000
  learning_rate: 1.0e-2
  schedule: inverse_sqrt
  warmup_updates: 50
  validate_every: 1000000
  average: off
  best_metric: loss
  log_every: 5
  compile: "off"
decoding: {beam: 2, max_length_extra: 10}
"""
STOP_SECONDS = 90.0
"""Limit for each program of the section."""


def write_corpus(folder: Path) -> Path:
    """Write numbers spelled digit by digit, with the reversed words as target, and a recipe."""
    for split, numbers in (
        ("train", range(1000, 10000, 7)),
        ("valid", range(1003, 9999, 311)),
        ("test", range(1004, 9999, 433)),
    ):
        spelled = [[DIGITS[int(digit)] for digit in str(number)] for number in numbers]
        for side, step in (("en", 1), ("de", -1)):
            text = "".join(f"{' '.join(words[::step])}\n" for words in spelled)
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8")
    recipe = folder / "numbers.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    return recipe


def resumed(settings: Settings) -> Iterator[Check]:
    """Interrupt a training by a signal, resume and finish it, and use its model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe, run = write_corpus(folder), folder / "run"
        call = partial(_mt, folder)
        train = ["train", recipe.name, "--run", run, "--set", f"training.device={settings.device}"]
        interrupted = attempt("training interrupted by SIGTERM", lambda: _interrupt(folder, train))
        yield interrupted
        if interrupted.status == "fail":
            return
        yield attempt("training resumed and finished", lambda: _resume(folder, run, train))
        device = ["--device", settings.device]
        lines = "one two\nthree four five\nsix\n"
        yield attempt(
            "mt translate",
            lambda: _same(len(call("translate", run, *device, lines=lines).splitlines()), 3),
        )
        if not settings.small:
            words = ["evaluate", run, "--split", "test", *device, "--json"]
            yield observe("mt evaluate, BLEU", lambda: str(json.loads(call(*words))["bleu"]))


def _same(found: int, expected: int) -> str:
    require(found == expected, f"{found} lines instead of {expected}")
    return f"{found} lines"


def _mt(folder: Path, *words: object, lines: str = "") -> str:
    """Run `mt` in a folder and return its stdout."""
    process = subprocess.run(
        python("-m", "mt", *words),
        cwd=folder,
        env=environment() | {"MT_CACHE": str(folder / "cache")},
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=STOP_SECONDS,
    )
    if process.returncode:
        raise RuntimeError(f"status {process.returncode}: {_end(process.stderr)}")
    return process.stdout


def _end(text: str) -> str:
    return " ".join(text.split())[-250:]


def _events(run: Path, event: str) -> list[dict[str, Any]]:
    journal = run / "metrics.jsonl"
    text = journal.read_text(encoding="utf-8") if journal.exists() else ""
    records = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [record for record in records if record["event"] == event]


def _interrupt(folder: Path, train: Sequence[object]) -> str:
    with (folder / "stderr").open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            python("-m", "mt", *train),
            cwd=folder,
            env=environment() | {"MT_CACHE": str(folder / "cache")},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        ends_at = time.monotonic() + STOP_SECONDS
        try:
            while process.poll() is None and not _events(folder / "run", "train"):
                require(time.monotonic() < ends_at, "no update within the time limit")
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            status = process.wait(timeout=STOP_SECONDS)
        finally:
            end_process(process)
        errors.seek(0)
        expected = 128 + signal.SIGTERM
        require(status == expected, f"status {status} instead of {expected}: {_end(errors.read())}")
    return f"status {status}"


def _resume(folder: Path, run: Path, train: Sequence[object]) -> str:
    done = max(event["update"] for event in _events(run, "train"))
    last = done + 40
    _mt(folder, *train, "--set", f"training.max_updates={last}")
    begun = [event["update"] for event in _events(run, "resume")]
    require(len(begun) == 1 and 0 < begun[0] <= last, f"resumed at {begun}")
    logged = [event["update"] for event in _events(run, "train")]
    require(logged == sorted(set(logged)), f"updates are logged twice: {logged}")
    require(logged[-1] == last, f"ended at update {logged[-1]} instead of {last}")
    require((run / "model.safetensors").is_file(), "no final model")
    loss = _events(run, "train")[-1]["loss"]
    return f"resumed after update {begun[0]}, finished at {last}, loss {loss:.2f}"


# Ranks.

RANK_SECONDS = 60.0


def ranks(settings: Settings) -> Iterator[Check]:
    """Train with one and two ranks on one device, by NCCL and, where it refuses, by gloo."""
    cases = [("gloo", 2)] if settings.small else [("nccl", 1), ("nccl", 2), ("gloo", 2)]
    for backend, count in cases:
        what = f"{backend} with {count} rank{'s' if count > 1 else ''} on one device"
        check = attempt(what, partial(_ranks, backend, count, settings.device))
        if (backend, count) == ("nccl", 2) and check.status == "fail":
            # NCCL documents that a communicator needs a device for each rank.
            check = check._replace(status="note", numbers=f"refused: {check.numbers}")
        yield check


def _ranks(backend: str, count: int, device: str) -> str:
    """Compare the losses of the ranks with those of this process alone."""
    single = losses(device_of(device))
    found = _rank_programs(backend=backend, count=count, device=device)
    pairs = zip(found, single, strict=True)
    worst = max(abs(one - other) / abs(other) for one, other in pairs)
    numbers = f"relative difference of the losses from one process at most {worst:.1e}"
    require(worst < 1e-3, numbers)
    return numbers


def _rank_programs(*, backend: str, count: int, device: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        errors = [(Path(folder) / f"stderr-{rank}").open("w+") for rank in range(count)]
        processes = [
            subprocess.Popen(
                python("-m", "bench.gpu.ranks", backend, device, folder),
                cwd=ROOT,
                # Rendezvous by a file; connections stay on this machine.
                env=environment()
                | {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": "0"}
                | {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                stderr=errors[rank],
                text=True,
                start_new_session=True,
            )
            for rank in range(count)
        ]
        try:
            ends_at = time.monotonic() + RANK_SECONDS
            # A rank that fails leaves the other one waiting.
            while any(process.poll() is None for process in processes):
                failed = any(process.poll() for process in processes)
                if failed or time.monotonic() > ends_at:
                    break
                time.sleep(0.05)
            statuses = [process.poll() for process in processes]
            if any(statuses) or None in statuses:
                reason = f"statuses {statuses}"
                for file in errors:
                    file.seek(0)
                    lines = re.findall(".*(?:Error|Duplicate).*", file.read())
                    reason += f" {' '.join(lines[-2:])}"
                raise RuntimeError(reason)
            assert processes[0].stdout is not None
            return [float(line) for line in processes[0].stdout.read().split()]
        finally:
            for process in processes:
                end_process(process)
            for file in errors:
                file.close()


# Tests.


def tests(settings: Settings) -> Iterator[Check]:
    """Run the tests that need a GPU; without one, only collect a few of them."""
    if find_spec("pytest") is None:
        yield Check("note", "pytest -m gpu", "pytest is not installed")
        return
    files = sorted(
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.gpu" in path.read_text(encoding="utf-8") and path.name != "test_architecture.py"
    )
    if settings.small:
        files = [path for path in files if path.name == "test_step.py"]
    words = ["-m", "gpu", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    words += ["--collect-only"] if settings.small else []
    process = subprocess.run(
        python("-m", "pytest", *words, *files),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=max(settings.seconds_left, 1.0),
    )
    lines = process.stdout.splitlines()
    for line in lines:
        if line.startswith(("FAILED ", "ERROR ")):
            yield Check("fail", "test", line[:300])
    summary = lines[-1].strip("= ") if lines else _end(process.stderr)
    yield Check("fail" if process.returncode else "pass", "pytest -m gpu", summary)
