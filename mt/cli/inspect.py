"""Commands `mt info`, `mt plan` and `mt plot`."""

import json
from collections.abc import Iterator
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
    Overrides,
    RunArgument,
    command_group,
    decoding_only,
    load,
)
from mt.cli.train import ConfigFile, RunOption
from mt.errors import UserError, install_hint
from mt.files import default_run
from mt.tables import align_columns, make_printable

if TYPE_CHECKING:
    from mt.profiling.plan import TrainingPlan

COUNTED_TOKENS = 25
"""Tokens of each side of the sentence pair whose operations are counted, end marks included."""
_Row = tuple[str, ...]


def info(
    source: Annotated[
        Path, typer.Argument(metavar="CONFIG|RUN", help="Config, or run folder, finished or not.")
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show the parts of a model with their parameters and FLOPs, and the content of a run folder.

    The files of a run are verified.
    """
    if source.is_dir() and overrides:
        raise UserError("--set does not go with a run, whose model is fixed; name a config")
    given = None if source.is_dir() else load(source, overrides)  # before torch is imported
    from mt.config.loading import load_config, open_keys
    from mt.evaluation.run_info import describe_architecture, list_rows, read_info
    from mt.profiling.cost import count_parts
    from mt.runs import CONFIG_FILE

    if given is None:
        record = read_info(source)
        config = load_config(source / CONFIG_FILE, as_recorded=True)
    else:
        config = given
        record = {
            "path": str(source),
            "architecture": describe_architecture(config.model),
            "config": config.model_dump(mode="json", by_alias=True),
        }
    size = config.tokenizer.vocabulary_size
    tokenizer = record.get("tokenizer") or {"source_size": size, "target_size": size}
    parts = count_parts(
        config.model,
        lengths=(COUNTED_TOKENS, COUNTED_TOKENS),
        vocabularies=(tokenizer["source_size"], tokenizer["target_size"]),
    )
    if as_json:
        lengths = {"tokens": [COUNTED_TOKENS] * 2, "parts": [asdict(part) for part in parts]}
        typer.echo(json.dumps({**record, **lengths}, indent=2, ensure_ascii=False))
        return
    decoding = {key: x for key, x in record.pop("config")["decoding"].items() if x is not None}
    record["decoding"] = [f"{key}={value}" for key, value in decoding.items()]
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
    described = align_columns([tuple(map(make_printable, row)) for row in list_rows(record)])
    typer.echo("\n\n".join([described, parts_table, fill(note, 80)]))


def plan(
    config: ConfigFile, run: RunOption = None, overrides: Overrides = None, as_json: AsJson = False
) -> None:
    """Estimate memory, disk space and time of a training."""
    loaded = load(config, overrides)
    from mt.decoding.ctranslate2_engine import describe_unsupported
    from mt.export.bergamot import why_not_bergamot
    from mt.export.marian import why_not_marian
    from mt.profiling.plan import plan_training

    planned = plan_training(loaded, run or default_run(config))
    refused = {
        "ctranslate2": describe_unsupported(loaded.decoding),
        "huggingface": why_not_marian(loaded.model),
        "bergamot": why_not_bergamot(loaded.model),
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
    end = f"`{planned.ends_by}` ends the training.{more[planned.bound]}"
    if planned.ends_by == "training.budget":
        end += f" It also pays for preparation and export: {loaded.training.budget} in all."
    device = planned.device
    if device == "cpu":
        device += f", {planned.threads} threads"
    texts = [
        f"{config}: {planned.precision} on {device}",
        align_columns([*_plan_rows(planned), ("export to", "; ".join(exports))]),
        align_columns([*rows, ("in all", "", "", total)], right=(1, 2, 3)),
        f"Extrapolated from {planned.probed_updates} updates on this machine.\n{end}",
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


def _format_size(count: float | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


def _format_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


plot = command_group("plot", "Draw the curves of trainings, or the attention of a sentence.")
_Picture = typer.Option(
    "--output",
    "-o",
    metavar="FILE",
    writable=True,
    help="Picture, .png or .svg; an existing file is replaced.",
)


@plot.command()
def training(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.")],
    output: Annotated[Path | None, _Picture] = None,
) -> None:
    """Draw loss, validation scores and learning rate of runs, by default as RUN/training.png."""
    if find_spec("matplotlib") is None:
        raise UserError(f"plots need matplotlib: {install_hint('plot')}")
    from mt.plotting.pictures import plot_trainings

    typer.echo(plot_trainings(runs, output))


@plot.command()
def attention(
    run: RunArgument,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="Sentence to translate.")],
    output: Annotated[Path, _Picture],
    overrides: DecodingOverrides = None,
) -> None:
    """Draw the attention of each head for a sentence: cross-attention, encoder, decoder."""
    checked = decoding_only(overrides)
    if find_spec("matplotlib") is None:
        raise UserError(f"plots need matplotlib: {install_hint('plot')}")
    from mt.plotting.attention_maps import plot_attention

    plot_attention(run, sentence, output=output, overrides=checked)
    typer.echo(output)
