"""Commands `mt bench train` and `mt bench decode`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mt.cli.options import (
    AsJson,
    DecodingOverrides,
    Device,
    Overrides,
    RunArgument,
    command_group,
    decoding_only,
    load,
)
from mt.cli.train import ConfigFile
from mt.tables import aligned

if TYPE_CHECKING:
    from mt.profiling.decoding_speed import DecodingBenchmark
    from mt.profiling.training_speed import TrainingBenchmark

BATCH_SIZES = (16, 64, 256)

bench = command_group("bench", "Measure the speed of training and decoding.")


@bench.command()
def train(
    config: ConfigFile,
    updates: Annotated[
        int, typer.Option(metavar="N", min=1, help="Updates to measure, after some warm-up.")
    ] = 20,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Measure the training speed of a config; no model is kept."""
    loaded = load(config, overrides)
    from mt.profiling.training_speed import benchmark_training

    measured = benchmark_training(loaded, updates)
    typer.echo(_training_json(measured) if as_json else _training_text(measured, config))


@bench.command()
def decode(
    run: RunArgument,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="Sentences decoded at once; repeatable."),
    ] = None,
    overrides: DecodingOverrides = None,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Measure the decoding speed of a run on its first test split, by search and batch size."""
    checked = decoding_only(overrides)
    from mt.profiling.decoding_speed import benchmark_decoding

    measured = benchmark_decoding(
        run, batch_sizes=batch_size or BATCH_SIZES, overrides=checked, device=device
    )
    typer.echo(_decoding_json(measured) if as_json else _decoding_text(measured, run))


def _training_json(measured: "TrainingBenchmark") -> str:
    work, timing = measured.work, measured.timing
    record: dict[str, Any] = {
        "device": measured.device,
        "precision": measured.precision,
        "threads": measured.threads,
        "updates": measured.updates,
        "source_tokens": work.source.tokens,
        "target_tokens": work.target.tokens,
        "source_tokens_per_second": measured.source_tokens_per_second,
        "target_tokens_per_second": measured.target_tokens_per_second,
        "flops_per_target_token": measured.flops_per_target_token,
        "matmul_flops_per_second": asdict(measured.matmul_rates),
        "matmul_share": measured.matmul_share,
        "source_padding_share": work.source.padding,
        "target_padding_share": work.target.padding,
        "data_wait_share": timing.waited_seconds / timing.seconds,
        "seconds": timing.seconds,
        "cpu_seconds": timing.cpu_seconds,
        "phase_seconds": asdict(measured.phases),
        "loss": timing.loss / work.target.tokens,
        "peak_rss_mib": measured.peak_rss_mib,
        "peak_device_mib": timing.peak_device_mib,
    }
    return json.dumps(record, indent=2)


def _training_text(measured: "TrainingBenchmark", config: Path) -> str:
    threads = f", {measured.threads} threads" if measured.device == "cpu" else ""
    head = f"{config}: {measured.updates} updates, {measured.precision} on {measured.device}"
    phases = asdict(measured.phases)
    whole = sum(phases.values())
    rows = [("phase", "ms/update", "share")]
    for name, seconds in phases.items():
        rows.append((name, f"{1000 * seconds:,.1f}", f"{seconds / whole:.1%}"))
    facts = aligned(_training_facts(measured))
    return f"{head}{threads}\n\n{facts}\n\n{aligned(rows, right=(1, 2))}"


def _training_facts(measured: "TrainingBenchmark") -> list[tuple[str, str]]:
    work, timing, rates = measured.work, measured.timing, measured.matmul_rates
    flops = measured.flops_per_target_token
    peaks = {"in the process": measured.peak_rss_mib}
    peaks["of tensors on the device"] = timing.peak_device_mib
    memory = [f"{mib:,.0f} MiB {place}" for place, mib in peaks.items() if mib is not None]
    return [
        ("target tokens/s", f"{measured.target_tokens_per_second:,.0f}"),
        ("source tokens/s", f"{measured.source_tokens_per_second:,.0f}"),
        ("model FLOPs", f"{flops / 1e6:,.1f} million per target token"),
        ("model FLOP/s", _giga(flops * measured.target_tokens_per_second)),
        ("matmul rate", f"{_giga(rates.before)} before, {_giga(rates.after)} after"),
        ("share of matmul rate", f"{measured.matmul_share:.1%}"),
        ("padding", f"{work.source.padding:.1%} source, {work.target.padding:.1%} target"),
        ("waiting for data", f"{timing.waited_seconds / timing.seconds:.2%}"),
        ("peak memory", ", ".join(memory) or "unknown"),
        ("loss", f"{timing.loss / work.target.tokens:.3f}"),
    ]


def _giga(rate: float) -> str:
    return f"{rate / 1e9:,.0f} GFLOP/s"


def _decoding_json(measured: "DecodingBenchmark") -> str:
    record = asdict(measured)
    for entry, speed in zip(record["speeds"], measured.speeds, strict=True):
        entry["sentences_per_second"] = speed.sentences_per_second
        entry["target_tokens_per_second"] = speed.target_tokens_per_second
    return json.dumps(record, indent=2)


def _decoding_text(measured: "DecodingBenchmark", run: Path) -> str:
    threads = f", {measured.threads} threads" if measured.device == "cpu" else ""
    sentences = measured.speeds[0].sentences
    rows = [("search", "beam", "batch size", "sentences/s", "target tokens/s")]
    for speed in measured.speeds:
        rates = f"{speed.sentences_per_second:,.1f}", f"{speed.target_tokens_per_second:,.0f}"
        rows.append((speed.search, str(speed.beam), str(speed.batch_size), *rates))
    head = f"{run}: {sentences:,} sentences of {measured.split}, {measured.device}{threads}"
    return f"{head}\n\n{aligned(rows, right=range(1, 5))}"
