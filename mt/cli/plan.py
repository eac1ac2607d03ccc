"""`mt plan`."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import Overrides, load
from mt.cli.train import ConfigFile, RunOption, default_run
from mt.tables import aligned

if TYPE_CHECKING:
    from mt.profiling.plan import TrainingPlan


def plan(
    config: ConfigFile,
    run: RunOption = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate memory, disk space and time of a training."""
    recipe = load(config, overrides)
    from mt.decoding.engine import describe_unsupported
    from mt.export.marian import why_not_marian
    from mt.profiling.plan import plan_training

    planned = plan_training(recipe, run or default_run(config))
    refused = {
        "ctranslate2": describe_unsupported(recipe.decoding),
        "huggingface": why_not_marian(recipe.model),
    }
    if as_json:
        typer.echo(json.dumps({**asdict(planned), "export_refused": refused}, indent=2))
        return
    threads = f", {planned.threads} threads" if planned.device == "cpu" else ""
    exports = [f"no {target}: {why}" if why else target for target, why in refused.items()]
    parts = [
        f"{config}: {planned.precision} on {planned.device}{threads}",
        aligned([*_facts(planned), ("export to", "; ".join(exports))]),
        aligned(_time_rows(planned), right=(1, 2, 3)),
        _note(planned),
    ]
    typer.echo("\n\n".join(parts))


def _facts(planned: "TrainingPlan") -> list[tuple[str, str]]:
    frozen = planned.parameters - planned.learning_parameters
    epochs = planned.updates / planned.updates_per_epoch
    padding, batch = planned.padding_efficiency, planned.heaviest_batch
    memory, free = planned.memory_bytes, planned.memory_free_bytes
    facts = {
        "parameters": f"{planned.parameters:,}"
        + (f", {frozen:,} of them frozen" if frozen else ""),
        "corpus": f"{planned.pairs:,} pairs; vocabulary {planned.vocabularies['source']:,} / "
        f"{planned.vocabularies['target']:,} tokens",
        "updates": f"{planned.updates:,}, {epochs:,.1f} epochs of {planned.updates_per_epoch:,}",
        "tokens an update": f"{planned.target_tokens_per_update:,.0f} target, "
        f"{planned.share_of_the_papers_update:.2g} of the paper's 25,000",
        "padding efficiency": f"{padding.source:.1%} source, {padding.target:.1%} target",
        "FLOPs": f"{_operations(planned.flops_per_target_token)} a target token, "
        f"{_operations(planned.flops_per_update)} an update, {_operations(planned.flops)} in all",
        "heaviest batch": f"{batch['pairs']:,} pairs of up to {batch['source_length']} source and "
        f"{batch['target_length']} target tokens",
        "peak memory": ("unknown" if memory is None else _size(memory))
        + ("" if free is None else f"; {_size(free)} are available"),
        "less memory": ", ".join(
            f"{_size(most)} ({name})" for name, most in planned.memory_with.items()
        ),
        "checkpoint": _size(planned.checkpoint_bytes),
        "disk": f"at most {_size(planned.disk_bytes)}; {_size(planned.disk_free_bytes)} are "
        "available",
    }
    return [*facts.items()]


def _time_rows(planned: "TrainingPlan") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("time", "each", "number", "together")]
    for name, count in (
        ("update", planned.updates),
        ("validation", planned.validations),
        ("checkpoint", planned.checkpoints),
    ):
        seconds = planned.seconds[name]
        rows.append((name, _duration(seconds), f"{count:,}", _duration(seconds * count)))
    bound = "" if planned.bound == "exactly" else f"{planned.bound} "
    return [*rows, ("in all", "", "", f"{bound}{_duration(planned.seconds['total'])}")]


def _note(planned: "TrainingPlan") -> str:
    more = {
        "exactly": "",
        "at most": " `training.patience` may end it earlier.",
        "at least": " This is the shortest case: no validation improves on the first.",
    }
    return (
        f"Extrapolated from {planned.probed_updates} updates on this machine.\n"
        f"`{planned.ends_by}` ends the training.{more[planned.bound]}"
    )


def _operations(count: float) -> str:
    thousands = int(math.log10(count)) // 3
    return f"{count / 1000**thousands:,.3g} {('', 'K', 'M', 'G', 'T', 'P', 'E', 'Z')[thousands]}"


def _size(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 100 * 60:
        return f"{minutes} min"
    if seconds < 48 * 3600:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{hours // 24} d {hours % 24} h"
