"""Commands `mt info`, `mt plan`, `mt bench` and `mt plot`."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

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
from mt.cli.train import ConfigFile, RunOption, default_run
from mt.errors import UserError, install_hint
from mt.tables import align_columns, make_printable

if TYPE_CHECKING:
    from mt.evaluation.run_info import RunInfo
    from mt.profiling.plan import TrainingPlan

COUNTED_TOKENS = 25
"""Tokens of each side of the sentence pair whose operations are counted, end marks included."""
_Row = tuple[str, ...]


def info(
    source: Annotated[
        Path,
        typer.Argument(metavar="CONFIG|RUN", help="Config, or run folder, finished or not."),
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show the parts of a model with their parameters and FLOPs, and the content of a run folder.

    The files of a run are verified.
    """
    run = None
    if source.is_dir():
        from mt.evaluation.run_info import read_info

        _refuse_overrides(overrides)
        run = read_info(source)
    config = run.config if run else load(source, overrides)
    from mt.config.loading import open_keys
    from mt.profiling.cost import count_parts

    size = config.tokenizer.vocabulary_size
    sizes = size, size
    if run and run.tokenizer:
        sizes = run.tokenizer.source_size, run.tokenizer.target_size
    lengths = COUNTED_TOKENS, COUNTED_TOKENS
    parts = count_parts(config.model, lengths=lengths, vocabularies=sizes)
    if as_json:
        record = (
            run.as_record() if run else {"config": config.model_dump(mode="json", by_alias=True)}
        )
        record = {**record, "tokens": lengths, "parts": [asdict(part) for part in parts]}
        typer.echo(json.dumps(record, indent=2, ensure_ascii=False))
        return
    head, model = _run_rows(run) if run else [("config", str(source))], config.model
    variant = f"{model.residual} {model.norm}, {model.feed_forward}, {model.positional}"
    shape = (
        f"{model.encoder_layers} + {model.decoder_layers} layers, d_model {model.d_model}, "
        f"d_ff {model.d_ff}, heads {model.heads}, tied embeddings: {model.tie_embeddings}"
    )
    tables = [[*head, ("model", variant), ("sizes", shape)], *(_run_tables(run) if run else ())]
    texts = [align_columns([tuple(map(make_printable, row)) for row in rows]) for rows in tables]
    parameters, flops = sum(part.parameters for part in parts), sum(part.flops for part in parts)
    rows: list[_Row] = [("part", "parameters", "share", "MFLOPs", "share")]
    for part in parts:
        shares = f"{part.parameters / parameters:.1%}", f"{part.flops / flops:.1%}"
        millions = f"{part.flops / 1e6:,.2f}"
        rows.append((part.name, f"{part.parameters:,}", shares[0], millions, shares[1]))
    rows.append(("total", f"{parameters:,}", "100.0%", f"{flops / 1e6:,.2f}", "100.0%"))
    parts_table = align_columns(rows, right=range(1, 5))
    chosen = [key for key in open_keys(config) if key.startswith(("model.", "tokenizer."))]
    note = (
        f"FLOPs: matrix products of the forward pass of a pair of {COUNTED_TOKENS} + "
        f"{COUNTED_TOKENS} tokens, two operations per multiply-add; training takes three times as "
        "many. A shared matrix counts as an embedding."
    )
    if chosen:
        note += f" Counted by their defaults, which training may change: {', '.join(chosen)}."
    typer.echo("\n\n".join([*texts, parts_table, fill(note, 80)]))


def _refuse_overrides(overrides: Sequence[str] | None) -> None:
    if overrides:
        raise UserError("--set cannot be combined with a run, whose model is fixed; name a config")


def _run_rows(run: "RunInfo") -> list[_Row]:
    from mt.config.data import tags_as_text, trained_directions, trained_tags

    data, decoding = run.config.data, run.config.decoding
    rows: list[_Row] = [
        ("run", f"{run.run}, {run.state}"),
        ("languages", ", ".join(map(str, trained_directions(data)))),
    ]
    if tags := tags_as_text(trained_tags(data)):
        rows.append(("tags", ", ".join(tags)))
    if not run.exported:
        rows.append(("updates", f"{run.updates:,}"))
    settings = decoding.model_dump(mode="json", exclude_none=True).items()
    rows.append(("decoding", ", ".join(f"{key}={value}" for key, value in settings)))
    parts = {
        "model": run.model,
        "export": run.exported,
        "tokenizer": run.tokenizer,
        "training": run.environment,
    }
    for part, record in parts.items():
        if record:
            values = asdict(record).items()
            rows += [(f"{part} {key}".replace("_", " "), _describe(x)) for key, x in values if x]
    return rows


def _describe(value: object) -> str:
    """Return a value of a record as text."""
    if isinstance(value, dict):
        items = value.items()
        return ", ".join(
            f"{key} {item}" for key, item in items if isinstance(item, str | int | float)
        )
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _run_tables(run: "RunInfo") -> Iterator[list[_Row]]:
    rows: list[_Row] = [("split", "pairs", "SHA-256", "", "corpus")]
    for corpus in run.corpora:
        pairs = "" if corpus.pairs is None else f"{corpus.pairs:,}"
        sums = [(sha256 or "")[:12] for sha256 in (corpus.sha256_source, corpus.sha256_target)]
        rows.append((corpus.split, pairs, *sums, corpus.name or " ".join(corpus.places)))
    yield rows
    if not run.scores:
        return
    rows = [("split", "sentences", "metric", "score", "signature", "decoding")]
    for scored in run.scores:
        decoding = ", ".join(scored.overrides) or "as configured"
        if not scored.current:
            decoding += "; with different weights"
        scores = scored.bleu, scored.chrf
        bleu, chrf = [(score.name, f"{score.value:.2f}", score.signature) for score in scores]
        rows.append((scored.split, f"{scored.sentences:,}", *bleu, decoding))
        rows.append(("", "", *chrf, ""))
    yield rows


def plan(
    config: ConfigFile, run: RunOption = None, overrides: Overrides = None, as_json: AsJson = False
) -> None:
    """Estimate memory, disk space and time of a training."""
    loaded = load(config, overrides)
    from mt.decoding.ctranslate2_engine import describe_unsupported
    from mt.export.marian import why_not_marian
    from mt.profiling.plan import plan_training

    planned = plan_training(loaded, run or default_run(config))
    refused = {
        "ctranslate2": describe_unsupported(loaded.decoding),
        "huggingface": why_not_marian(loaded.model),
    }
    if as_json:
        typer.echo(json.dumps({**asdict(planned), "export_refused": refused}, indent=2))
        return
    exports = [f"no {target}: {why}" if why else target for target, why in refused.items()]
    rows: list[_Row] = [("time", "each", "number", "together")]
    for name, count in (
        ("update", planned.updates),
        ("validation", planned.validations),
        ("checkpoint", planned.checkpoints),
    ):
        seconds = planned.seconds[name]
        rows.append((name, _format_time(seconds), f"{count:,}", _format_time(seconds * count)))
    total = _format_time(planned.seconds["total"])
    if planned.bound != "exactly":
        total = f"{planned.bound} {total}"
    more = {
        "exactly": "",
        "at most": " `training.patience` may end it earlier.",
        "at least": " This is the shortest case: no validation improves on the first.",
    }
    texts = [
        f"{config}: {planned.precision} on {_describe_device(planned.device, planned.threads)}",
        align_columns([*_plan_rows(planned), ("export to", "; ".join(exports))]),
        align_columns([*rows, ("in all", "", "", total)], right=(1, 2, 3)),
        f"Extrapolated from {planned.probed_updates} updates on this machine.\n"
        f"`{planned.ends_by}` ends the training.{more[planned.bound]}",
    ]
    typer.echo("\n\n".join(texts))


def _plan_rows(planned: "TrainingPlan") -> Iterator[_Row]:
    parameters = f"{planned.parameters:,}"
    if frozen := planned.parameters - planned.learning_parameters:
        parameters += f", {frozen:,} of them frozen"
    yield "parameters", parameters
    sizes = " / ".join(f"{size:,}" for size in planned.vocabularies.values())
    yield "corpus", f"{planned.pairs:,} pairs; vocabulary {sizes} tokens"
    epochs = planned.updates / planned.updates_per_epoch
    yield "updates", f"{planned.updates:,}, {epochs:,.1f} epochs of {planned.updates_per_epoch:,}"
    yield "target tokens", f"{planned.target_tokens_per_update:,.0f} an update"
    padding, batch = planned.padding_efficiency, planned.heaviest_batch
    yield "padding efficiency", f"{padding.source:.1%} source, {padding.target:.1%} target"
    flops = planned.flops_per_target_token, planned.flops_per_update, planned.flops
    of_token, of_update, total = map(_format_count, flops)
    yield "FLOPs", f"{of_token} a target token, {of_update} an update, {total} in all"
    yield (
        "heaviest batch",
        f"{batch['pairs']:,} pairs of up to {batch['source_length']} source and "
        f"{batch['target_length']} target tokens",
    )
    peak, free = _format_size(planned.memory_bytes), planned.memory_free_bytes
    yield "peak memory", peak if free is None else f"{peak}; {_format_size(free)} are available"
    less = [f"{_format_size(size)} ({name})" for name, size in planned.memory_with.items()]
    yield "less memory", ", ".join(less)
    yield "checkpoint", _format_size(planned.checkpoint_bytes)
    disk, disk_free = _format_size(planned.disk_bytes), _format_size(planned.disk_free_bytes)
    yield "disk", f"at most {disk}; {disk_free} are available"


def _format_count(count: float) -> str:
    thousands = int(math.log10(count)) // 3
    return f"{count / 1000**thousands:,.3g} {('', 'K', 'M', 'G', 'T', 'P', 'E', 'Z')[thousands]}"


def _format_size(count: float | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


def _format_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


bench = command_group("bench", "Measure the speed of training and decoding.")


@bench.command("train")
def bench_train(
    config: ConfigFile,
    updates: Annotated[
        int, typer.Option(metavar="N", min=1, help="Updates to measure, after some warm-up.")
    ] = 20,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Measure the training speed of a config; no model is kept."""
    loaded = load(config, overrides)
    from mt.profiling.speed import measure_training

    speed = measure_training(loaded, updates)
    if as_json:
        typer.echo(json.dumps(asdict(speed), indent=2))
        return
    flops = speed.flops_per_target_token
    rows = [
        ("target tokens/s", f"{speed.target_tokens_per_second:,.0f}"),
        ("model FLOPs", f"{flops / 1e6:,.1f} million per target token"),
        ("matmul rate", f"{speed.matmul_flops_per_second / 1e9:,.0f} GFLOP/s"),
        ("share of matmul rate", f"{speed.matmul_share:.1%}"),
        ("peak memory", _format_peak(speed.peak_memory_mib)),
    ]
    device = _describe_device(speed.device, speed.threads)
    head = f"{config}: {speed.updates} updates, {speed.precision} on {device}"
    typer.echo(f"{head}\n\n{align_columns(rows)}")


@bench.command("decode")
def bench_decode(
    run: RunArgument,
    overrides: DecodingOverrides = None,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Measure the decoding speed of a run on its first test split.

    By search and batch size (16, 64 and 256, or that of --set decoding.batch_size=N), then with
    each engine at hand and the search of the run on one core and on all. JSON is one line.
    """
    checked = decoding_only(overrides)
    from mt.profiling.engine_speed import measure_engines
    from mt.profiling.speed import measure_decoding

    speed = measure_decoding(run, overrides=checked, device=device)
    engines = measure_engines(run, overrides=checked, device=speed.device)
    if as_json:
        record = {**asdict(speed), "engines": [asdict(engine) for engine in engines]}
        typer.echo(json.dumps(record))
        return
    searches: list[_Row] = [("search", "beam", "batch size", "source words/s", "sentences/s")]
    for search in speed.searches:
        rates = f"{search.words_per_second:,.0f}", f"{search.sentences_per_second:,.1f}"
        searches.append((search.search, str(search.beam), str(search.batch_size), *rates))
    rows: list[_Row] = [
        ("engine", "cores", "source words/s", "sentences/s", "load", "peak memory", "on disk")
    ]
    for engine in engines:
        rates = f"{engine.words_per_second:,.0f}", f"{engine.sentences_per_second:,.1f}"
        load, peak = f"{engine.load_seconds:.2f} s", _format_peak(engine.peak_memory_mib)
        disk = f"{engine.disk_mib:,.1f} MiB"
        rows.append((engine.engine, str(engine.cores), *rates, load, peak, disk))
    texts = [
        f"{run}: {speed.sentences:,} sentences of {speed.split}, "
        f"{_describe_device(speed.device, speed.threads)}",
        align_columns(searches, right=range(1, 5)),
        f"peak memory: {_format_peak(speed.peak_memory_mib)}",
        align_columns(rows, right=range(1, 7)),
    ]
    typer.echo("\n\n".join(texts))


def _format_peak(mib: float | None) -> str:
    return _format_size(mib and mib * 2**20)


def _describe_device(device: str, threads: int) -> str:
    return f"{device}, {threads} threads" if device == "cpu" else device


Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        writable=True,
        help="Output file, .png or .svg; an existing file is replaced.",
    ),
]
plot = command_group("plot", "Draw position encodings or attention.")


@plot.command()
def positions(
    source: Annotated[
        Path,
        typer.Argument(metavar="CONFIG|RUN", help="Config, or run folder with learned positions."),
    ],
    output: Output,
    overrides: Overrides = None,
) -> None:
    """Draw the position encoding, and the similarity of positions by distance."""
    config = None if source.is_dir() else load(source, overrides)
    _require_matplotlib()
    from mt.plotting.positions import plot_learned_positions, plot_positions

    if config is None:
        _refuse_overrides(overrides)
        plot_learned_positions(source, output)
    else:
        plot_positions(config.model, output, seed=config.seed, title=str(source))
    typer.echo(output)


@plot.command()
def attention(
    run: RunArgument,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="Sentence to translate.")],
    output: Output,
    overrides: DecodingOverrides = None,
) -> None:
    """Draw the attention of each head for a sentence: cross in FILE, FILE-encoder, FILE-decoder."""
    checked = decoding_only(overrides)
    _require_matplotlib()
    from mt.plotting.attention_maps import plot_attention

    for path in plot_attention(run, sentence, output=output, overrides=checked):
        typer.echo(path)


def _require_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise UserError(f"plots need matplotlib: {install_hint('plot')}")
