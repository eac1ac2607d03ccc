"""`mt plan`."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mt.cli.options import Overrides, load
from mt.cli.train import ConfigFile, RunOption, default_run
from mt.tables import aligned

if TYPE_CHECKING:
    from mt.config import Config
    from mt.profiling.plan import TrainingPlan
    from mt.profiling.probe import Spent

Refusals = dict[str, str | None]


def plan(
    config: ConfigFile,
    run: RunOption = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what a training will take: memory, disk, time."""
    recipe = load(config, overrides)
    from mt.profiling.plan import plan_training

    planned, refusals = plan_training(recipe, run or default_run(config)), _refusals(recipe)
    if as_json:
        typer.echo(_as_json(planned, refusals))
    else:
        typer.echo(_as_text(planned, config, refusals))


def _refusals(config: "Config") -> Refusals:
    """Say why `mt export` will refuse the model for each target, None where it will not."""
    from mt.decoding.engine import why_not_decoded
    from mt.export.marian import why_not_marian

    return {
        "ctranslate2": why_not_decoded(config.decoding),
        "huggingface": why_not_marian(config.model),
    }


def _as_json(planned: "TrainingPlan", refusals: Refusals) -> str:
    work, extent, disk, memory = planned.work, planned.extent, planned.disk, planned.memory
    measured, rates = planned.measured, planned.measured.matmul_rates
    spent = {
        "update": measured.update,
        "validation": measured.validation,
        "checkpoint": measured.checkpoint,
        "total": planned.total,
    }
    record: dict[str, Any] = {
        "device": planned.device,
        "precision": planned.precision,
        "threads": planned.threads,
        "parameters": work.parameters,
        "learning_parameters": work.learning,
        "pairs": work.pairs,
        "vocabularies": {"source": work.vocabularies[0], "target": work.vocabularies[1]},
        "updates_per_epoch": work.updates_per_epoch,
        **asdict(extent),
        "target_tokens_per_update": work.target_tokens_per_update,
        "share_of_the_papers_update": work.share_of_the_papers_update,
        "padding_efficiency": {"source": work.padding.source, "target": work.padding.target},
        "flops_per_target_token": work.flops_per_target_token,
        "flops_per_update": work.flops_per_update,
        "flops": work.flops_per_update * extent.updates,
        "heaviest_batch": asdict(memory.heaviest),
        "memory_bytes": memory.most_bytes,
        "memory_free_bytes": memory.free_bytes,
        "checkpoint_bytes": disk.checkpoint_bytes,
        "disk_bytes": disk.most_bytes,
        "disk_free_bytes": disk.free_bytes,
        "probed_updates": measured.updates,
        "matmul_flops_per_second": {"before": rates.before, "after": rates.after},
        "matmul_share": planned.matmul_share,
        "seconds": {name: each.seconds for name, each in spent.items()},
        "cpu_seconds": {name: each.cpu_seconds for name, each in spent.items()},
        "export_refused": refusals,
    }
    return json.dumps(record, indent=2)


def _as_text(planned: "TrainingPlan", config: Path, refusals: Refusals) -> str:
    threads = f", {planned.threads} threads" if planned.device == "cpu" else ""
    head = f"{config}: {planned.precision} on {planned.device}{threads}"
    exports = [f"no {to}: {why}" if why else to for to, why in refusals.items()]
    facts = aligned(
        [*_work_facts(planned), *_room_facts(planned), ("export to", "; ".join(exports))]
    )
    times = aligned(_time_rows(planned), right=(1, 2, 3))
    return "\n\n".join((head, facts, times, _note(planned)))


def _work_facts(planned: "TrainingPlan") -> list[tuple[str, str]]:
    work, updates = planned.work, planned.extent.updates
    frozen = work.parameters - work.learning
    source, target = work.vocabularies
    epochs = updates / work.updates_per_epoch
    return [
        ("parameters", f"{work.parameters:,}" + (f", {frozen:,} of them frozen" if frozen else "")),
        ("corpus", f"{work.pairs:,} pairs; vocabulary {source:,} / {target:,} tokens"),
        ("updates", f"{updates:,}, {epochs:,.1f} epochs of {work.updates_per_epoch:,}"),
        (
            "tokens an update",
            f"{work.target_tokens_per_update:,.0f} target, "
            f"{work.share_of_the_papers_update:.2g} of the paper's 25,000",
        ),
        (
            "padding efficiency",
            f"{work.padding.source:.1%} source, {work.padding.target:.1%} target",
        ),
        (
            "FLOPs",
            f"{_operations(work.flops_per_target_token)} a target token, "
            f"{_operations(work.flops_per_update)} an update, "
            f"{_operations(work.flops_per_update * updates)} in all",
        ),
    ]


def _room_facts(planned: "TrainingPlan") -> list[tuple[str, str]]:
    memory, disk = planned.memory, planned.disk
    batch = memory.heaviest
    most = "not known" if memory.most_bytes is None else _size(memory.most_bytes)
    free = "" if memory.free_bytes is None else f"; {_size(memory.free_bytes)} are free"
    return [
        (
            "heaviest batch",
            f"{batch.pairs:,} pairs of up to {batch.source_length} source and "
            f"{batch.target_length} target tokens",
        ),
        ("peak memory", f"{most}{free}"),
        ("checkpoint", _size(disk.checkpoint_bytes)),
        ("disk", f"at most {_size(disk.most_bytes)}; {_size(disk.free_bytes)} are free"),
    ]


def _time_rows(planned: "TrainingPlan") -> list[tuple[str, ...]]:
    extent, measured = planned.extent, planned.measured
    rows = [
        (name, _duration(each), f"{count:,}", _duration(each.times(count)))
        for name, each, count in (
            ("update", measured.update, extent.updates),
            ("validation", measured.validation, extent.validations),
            ("checkpoint", measured.checkpoint, extent.checkpoints),
        )
    ]
    bound = "" if planned.extent.bound == "exactly" else f"{planned.extent.bound} "
    total = ("in all", "", "", f"{bound}{_duration(planned.total)}")
    return [("time", "each", "number", "together"), *rows, total]


def _note(planned: "TrainingPlan") -> str:
    rates, share = planned.measured.matmul_rates, planned.matmul_share
    lines = [
        f"From {planned.measured.updates} updates at {share:.0%} of the rate of matrix products, "
        f"{rates.mean / 1e9:,.0f} GFLOP/s just then.",
        f"`{planned.extent.ends_by}` ends it.",
    ]
    if planned.extent.bound == "at most":
        lines[1] += " `training.patience` may do so before."
    if planned.extent.bound == "at least":
        lines[1] += " When, cannot be foreseen: this is if no validation betters the first."
    return "\n".join(lines)


def _operations(count: float) -> str:
    thousands = int(math.log10(count)) // 3
    return f"{count / 1000**thousands:,.3g} {('', 'K', 'M', 'G', 'T', 'P', 'E', 'Z')[thousands]}"


def _size(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


def _duration(spent: "Spent") -> str:
    seconds = spent.seconds
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 100 * 60:
        return f"{minutes} min"
    if seconds < 48 * 3600:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{hours // 24} d {hours % 24} h"
