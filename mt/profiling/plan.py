"""Memory, disk space and time of a training, estimated before it starts."""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from mt.config import Config, TrainingConfig
from mt.data.batches import SOURCE, TARGET, PaddingEfficiency, Update
from mt.errors import RunError
from mt.model.device import select_device
from mt.profiling.cost import count_training_flops, synchronize
from mt.profiling.speed import temporary_trainer, time_updates
from mt.special_ids import EOS
from mt.training.loader import heaviest
from mt.training.progress import measure_padding
from mt.training.resolve import choose_length, with_settings
from mt.training.resources import available_memory, estimate_memory, measure_speed
from mt.training.setup import most_updates
from mt.training.trainer import Trainer

PROBE_SECONDS = 15.0
MAX_UPDATES = 60
VALIDATION_BATCHES = 6
"""Batches that are decoded to time a validation, spread evenly over the lengths."""

_SAVES_MEMORY: dict[str, dict[str, Any]] = {
    "recompute: on": {"recompute": "on"},
    "optimizer: adafactor": {"optimizer": "adafactor"},
    "precision: pure_bf16": {"precision": "pure_bf16", "weight_decay": 0.0},
    "lora: {rank: 16}": {"lora": {}},
}
"""Settings of `training` that save memory."""


@dataclass(frozen=True)
class TrainingPlan:
    """Cost of a training; tokens and operations (FLOPs) exclude padding."""

    device: str
    precision: str
    threads: int
    parameters: int
    learning_parameters: int
    pairs: int
    vocabularies: dict[str, int]
    updates_per_epoch: int
    ends_by: str
    bound: Literal["exactly", "at most", "at least"]
    """Meaning of `updates`, `validations` and `checkpoints`."""
    updates: int
    validations: int
    """Including that of the final model."""
    checkpoints: int
    target_tokens_per_update: float
    padding_efficiency: PaddingEfficiency
    flops_per_target_token: float
    flops_per_update: float
    flops: float
    heaviest_batch: dict[str, int]
    memory_bytes: int | None
    """Peak of the device: estimated on a CPU, measured on a GPU, else None."""
    memory_with: dict[str, int]
    """Estimated peak on a CPU with other settings that save memory, by `training` setting."""
    memory_free_bytes: int | None
    checkpoint_bytes: int
    disk_bytes: int
    """Largest size of the run folder, while a checkpoint is written."""
    disk_free_bytes: int
    probed_updates: int
    seconds: dict[str, float]
    """Time of an `update`, a `validation` and a `checkpoint`, and of the training in `total`."""


def plan_training(config: Config, run: Path) -> TrainingPlan:
    """Estimate a training: count its work, and time a few updates in a temporary folder.

    Nothing is written to `run`. Raises the errors of training for a config that cannot be trained
    here, and RunError where the disk of `run` is too small.
    """
    device = select_device(config.training.device)
    free = available_memory() if device.type == "cpu" else None
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    with temporary_trainer(config, MAX_UPDATES) as (trainer, sized):
        data = trainer.data
        ends_at = time.perf_counter() + (config.training.budget_seconds or 0.0)
        measure = partial(measure_speed, world=trainer.world)
        length = choose_length(sized, data, device, measure, ends_at=ends_at)
        config = with_settings(sized, length)
        training = config.training
        plan, lengths = data.plan_epoch(), data.epoch_store(0).lengths
        sizes = data.vocabularies
        passes = 2 if training.r_drop else 1
        of_pairs = passes * count_training_flops(config.model, lengths, vocabularies=sizes)
        updates = [np.concatenate(update) for update in plan]
        flops = np.array([of_pairs[indices].sum() for indices in updates], np.float64)
        tokens = float(lengths[np.concatenate(updates), TARGET].sum(dtype=int)) / len(plan)
        parameters = list(trainer.learner.model.parameters())
        counts: dict[str, Any] = {
            "parameters": sum(x.numel() for x in parameters),
            "learning_parameters": sum(x.numel() for x in parameters if x.requires_grad),
        }
        extent = _plan_extent(training, len(plan))
        disk = _require_disk(training, run, parameters, checkpoints=extent["checkpoints"])
        probed_updates, seconds = probe_training(trainer, update_flops=flops)
        total = sum(seconds[name] * extent[f"{name}s"] for name in seconds)
        return TrainingPlan(
            device=device.type,
            precision=trainer.learner.precision.name,
            threads=torch.get_num_threads(),
            pairs=sum(map(len, updates)),
            vocabularies={"source": sizes[0], "target": sizes[1]},
            updates_per_epoch=len(plan),
            target_tokens_per_update=tokens,
            padding_efficiency=measure_padding(plan, lengths, training.max_tokens_per_batch),
            flops_per_target_token=float(flops.mean()) / tokens,
            flops_per_update=float(flops.mean()),
            flops=float(flops.mean()) * extent["updates"],
            memory_free_bytes=free,
            probed_updates=probed_updates,
            seconds={**seconds, "total": total},
            **counts,
            **extent,
            **disk,
            **_plan_memory(trainer, plan),
        )


def _plan_extent(training: TrainingConfig, updates_per_epoch: int) -> dict[str, Any]:
    """Return the longest training that the config allows; the shortest if only patience ends it."""
    most, earliest = most_updates(training, updates_per_epoch), None
    if training.patience is not None:  # the first validation is always an improvement
        earliest = (training.patience + 1) * training.validate_every
    updates = most or earliest
    assert updates is not None, "the config requires an end"
    if most is None:
        key, bound = "patience", "at least"
    else:
        key = "max_updates" if most == training.max_updates else "max_epochs"
        bound = "at most" if earliest is not None and earliest < most else "exactly"
    validations = -(-updates // training.validate_every)  # the last update is always validated
    checkpoints = validations
    if every := training.checkpoint_every:
        checkpoints += updates // every - updates // math.lcm(every, training.validate_every)
    return {
        "ends_by": f"training.{key}",
        "bound": bound,
        "updates": updates,
        "validations": validations + 1,
        "checkpoints": checkpoints,
    }


def _plan_memory(trainer: Trainer, plan: list[Update]) -> dict[str, Any]:
    """Return the size of the heaviest batch, and the peak memory of training on it.

    On a GPU, `temporary_trainer` has trained on it.
    """
    config, data, device = trainer.config, trainer.data, trainer.device
    training, lengths = trainer.training, data.epoch_store(0).lengths
    budget = training.max_tokens_per_batch
    lengths = lengths[heaviest(plan, lengths, max_tokens_per_batch=budget)]
    longest, most = lengths.max(axis=0).tolist(), None
    estimate = partial(
        estimate_memory,
        config.model,
        lengths=lengths,
        vocabularies=data.vocabularies,
        trains_embeddings=config.learns_tokens,
    )
    if device.type == "cpu":
        most = estimate(training)
    elif device.type == "cuda":
        most = torch.cuda.max_memory_reserved(device)
    sizes = {
        "pairs": len(lengths),
        "source_length": longest[SOURCE],
        "target_length": longest[TARGET],
    }
    less = {}
    for name, settings in _SAVES_MEMORY.items():
        # A setting may be refused with others.
        with suppress(ValidationError):
            changed = training.changed(**settings)
            if changed != training:
                less[name] = estimate(config.changed(training=changed).training)
    return {"heaviest_batch": sizes, "memory_bytes": most, "memory_with": less}


def _require_disk(
    training: TrainingConfig, run: Path, parameters: Sequence[nn.Parameter], *, checkpoints: int
) -> dict[str, Any]:
    """Return the size of the checkpoints; raise RunError where the disk of `run` is too small."""
    weights = sum(tensor.nbytes for tensor in parameters)
    learning = [tensor for tensor in parameters if tensor.requires_grad]
    checkpoint = weights + sum(_state_bytes(tensor, training.optimizer) for tensor in learning)
    if training.ema_decay is not None:  # an average keeps the latest value
        checkpoint += sum(tensor.nbytes for tensor in learning)
    whole = min(training.keep_last + 1, checkpoints)
    most = whole * checkpoint + min(training.keep_best, checkpoints) * weights
    existing = next(path for path in (run.absolute(), *run.absolute().parents) if path.is_dir())
    held = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    free = shutil.disk_usage(existing).free
    if most > free + held:
        raise RunError(
            f"{run}: the checkpoints of this training take up to {most / 2**30:,.2f} GiB, and "
            f"{free / 2**30:,.2f} GiB are free: lower `training.keep_last`, now "
            f"{training.keep_last}, or `training.keep_best`, now {training.keep_best}, free some "
            "space, or choose a folder on another disk with --run"
        )
    return {"checkpoint_bytes": checkpoint, "disk_bytes": most, "disk_free_bytes": free}


def _state_bytes(parameter: nn.Parameter, optimizer: str) -> int:
    """Return the size of the state of an optimizer for a parameter.

    Adam keeps two numbers for each number; Adafactor keeps a row and a column of a matrix.
    """
    if optimizer == "adam":
        return 2 * parameter.nbytes
    if parameter.dim() < 2:
        return parameter.nbytes
    *_, rows, columns = parameter.shape
    return parameter.nbytes * (rows + columns) // (rows * columns)


def probe_training(
    trainer: Trainer, *, update_flops: NDArray[np.float64]
) -> tuple[int, dict[str, float]]:
    """Return the number of timed updates of a new training, and times in seconds.

    They are of an `update` of mean work, a `validation` of the whole split and a `checkpoint`.
    `update_flops` [U] are the operations of each update of the first epoch.
    """
    first, _ = time_updates(trainer, 1, warmup=1)
    updates = int(np.clip(PROBE_SECONDS / first, 1, MAX_UPDATES - 3))
    begin = trainer.state.update + 1
    seconds, _ = time_updates(trainer, updates, warmup=1)
    flops = np.take(update_flops, np.arange(begin, begin + updates), mode="wrap").sum()
    return updates, {
        "update": seconds * float(update_flops.mean() / flops),
        "validation": _time_validation(trainer),
        "checkpoint": _time(trainer, trainer.save),
    }


def _time_validation(trainer: Trainer) -> float:
    """Return the time of a validation, extrapolated from a sample of the split.

    Each translation gets the mean length of the references: the output of an untrained model ends
    anywhere.
    """
    data, decoding = trainer.data, trainer.validator.decoding
    lengths, batch_size = data.valid_lengths, decoding.sentences_at_once
    order = np.argsort(-lengths[:, SOURCE], kind="stable")
    batches = np.split(order, range(batch_size, len(order), batch_size))
    step = -(-len(batches) // VALIDATION_BATCHES)
    sample = np.concatenate(batches[step // 2 :: step]).tolist()
    part = replace(
        data,
        valid=tuple(data.valid[index] for index in sample),
        valid_examples=tuple(data.valid_examples[index] for index in sample),
    )
    source, target = lengths.sum(axis=0, dtype=int).tolist()
    decoding = decoding.changed(max_length_ratio=target / source, max_length_extra=1)
    validator = replace(trainer.validator, data=part, decoding=decoding)

    def forbid_eos(_module: nn.Module, _inputs: object, logits: Tensor) -> Tensor:
        logits[..., EOS] = float("-inf")  # so that each translation reaches its length limit
        return logits

    with trainer.learner.model.output.register_forward_hook(forbid_eos):
        seconds = _time(trainer, validator.run)
    return seconds * float(target / lengths[sample, TARGET].sum())


def _time(trainer: Trainer, work: Callable[[], object]) -> float:
    synchronize(trainer.device)
    began = time.perf_counter()
    work()
    synchronize(trainer.device)
    return time.perf_counter() - began
