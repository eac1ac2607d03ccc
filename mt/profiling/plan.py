"""Memory, disk space and time of a training, estimated before it starts."""

import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from mt.config import Config, TrainingConfig
from mt.config.loading import with_values
from mt.data.batches import SOURCE, TARGET, PaddingEfficiency
from mt.errors import RunError
from mt.model.device import available_memory, keep_freed_memory, select_device
from mt.training.automatic import measure_corpora
from mt.training.data import prepare, read_corpora
from mt.training.distributed import World
from mt.training.loader import heaviest
from mt.training.progress import measure_padding
from mt.training.resolve import choose_length, choose_settings, with_settings
from mt.training.resources import estimate_memory, measure_speed, measure_validation
from mt.training.run_folder import RunFolder
from mt.training.setup import most_updates
from mt.training.trainer import Trainer

PROBE_SECONDS = 15.0
MAX_UPDATES = 60

_SAVES_MEMORY: dict[str, dict[str, Any]] = {
    "recompute: on": {"recompute": "on"},
    "optimizer: adafactor": {"optimizer": "adafactor"},
    "precision: pure_bf16": {"precision": "pure_bf16", "weight_decay": 0.0},
    "lora: 16": {"lora": 16},
}
"""Settings of `training` that save memory."""


@dataclass(frozen=True)
class TrainingPlan:
    """Cost of a training; tokens exclude padding."""

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
    ends_at = time.perf_counter() + (config.training.budget_seconds or 0.0)
    device = select_device(config.training.device)
    free = available_memory() if device.type == "cpu" else None
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    with temporary_trainer(config, MAX_UPDATES) as (trainer, sized):
        data = trainer.data
        measure = partial(measure_speed, world=trainer.world)
        length = choose_length(sized, data, device, measure, ends_at=ends_at)
        config = with_values(sized, length)
        training = config.training
        plan, lengths = data.plan_epoch(), data.epoch_store(0).lengths
        updates = [np.concatenate(update) for update in plan]
        tokens = np.array([lengths[indices].sum(axis=0, dtype=int) for indices in updates])
        parameters = list(trainer.learner.model.parameters())

        # The longest training that the config allows; the shortest if only patience ends it.
        count, earliest = most_updates(training, len(plan)), None
        if training.patience is not None:  # the first validation is always an improvement
            earliest = (training.patience + 1) * training.validate_every
        ends_by = "training.patience"
        bound: Literal["exactly", "at most", "at least"] = "at least"
        if count is not None:
            ends_by = f"training.max_{'updates' if count == training.max_updates else 'epochs'}"
            bound = "at most" if earliest is not None and earliest < count else "exactly"
        given = sized.training.max_updates, sized.training.decay_updates
        if training.budget is not None and training.max_updates == count not in given:
            ends_by = "training.budget"
        count = count or earliest
        assert count is not None, "the config requires an end"
        validations = -(-count // training.validate_every)  # the last update is always validated
        checkpoints = validations
        if every := training.checkpoint_every:
            checkpoints += count // every - count // math.lcm(every, training.validate_every)
        disk = _require_disk(training, run, parameters, checkpoints=checkpoints)

        # On a GPU, `temporary_trainer` has trained on the heaviest batch.
        budget = trainer.fitter.tokens
        heavy = lengths[heaviest(plan, lengths, max_tokens_per_batch=budget)]
        longest, memory = heavy.max(axis=0).tolist(), None
        estimate = partial(
            estimate_memory,
            trainer.config.model,
            lengths=heavy,
            vocabularies=data.vocabularies,
            trains_embeddings=trainer.config.learns_tokens,
            corpus=lengths,
        )
        if device.type == "cpu":
            memory = estimate(trainer.training)
        elif device.type == "cuda":
            memory = torch.cuda.max_memory_reserved(device)
        less = {}
        for name, keys in _SAVES_MEMORY.items():
            with suppress(ValidationError):  # a setting may be refused with others
                changed = trainer.training.changed(**keys)
                if changed != trainer.training:
                    less[name] = estimate(trainer.config.changed(training=changed).training)

        probed_updates, seconds = probe_training(trainer, update_tokens=tokens.sum(axis=1))
        # The mean of all, and of the final one, in parts of the split.
        every, final = training.validation_pairs, training.final_pairs
        sizes = [min(n or len(data.valid), len(data.valid)) for n in (every, final)]
        scored = (validations * sizes[0] + sizes[1]) / (validations + 1)
        seconds = {**seconds, "validation": seconds["validation"] * scored / len(data.valid)}
        numbers = {"update": count, "validation": validations + 1, "checkpoint": checkpoints}
        total = sum(seconds[name] * number for name, number in numbers.items())
        return TrainingPlan(
            device=device.type,
            precision=trainer.learner.precision.name,
            threads=torch.get_num_threads(),
            parameters=sum(tensor.numel() for tensor in parameters),
            learning_parameters=sum(x.numel() for x in parameters if x.requires_grad),
            pairs=sum(map(len, updates)),
            vocabularies=dict(zip(("source", "target"), data.vocabularies, strict=True)),
            updates_per_epoch=len(plan),
            ends_by=ends_by,
            bound=bound,
            **{f"{name}s": number for name, number in numbers.items()},
            target_tokens_per_update=float(tokens[:, TARGET].mean()),
            padding_efficiency=measure_padding(plan, lengths, training.max_tokens_per_batch),
            heaviest_batch={
                "pairs": len(heavy),
                "source_length": longest[SOURCE],
                "target_length": longest[TARGET],
            },
            memory_bytes=memory,
            memory_with=less,
            memory_free_bytes=free,
            **disk,
            probed_updates=probed_updates,
            seconds={**seconds, "total": min(total, training.budget_seconds or total)},
        )


def _require_disk(
    training: TrainingConfig, run: Path, parameters: Sequence[nn.Parameter], *, checkpoints: int
) -> dict[str, Any]:
    """Return the size of the checkpoints; raise RunError where the disk of `run` is too small."""
    weights = sum(tensor.nbytes for tensor in parameters)
    learning = [tensor for tensor in parameters if tensor.requires_grad]
    checkpoint = weights
    for tensor in learning:
        if training.optimizer == "adam":  # two numbers for each number
            checkpoint += 2 * tensor.nbytes
        elif tensor.dim() < 2:
            checkpoint += tensor.nbytes
        else:  # Adafactor keeps a row and a column of a matrix
            rows, columns = tensor.shape[-2:]
            checkpoint += tensor.nbytes * (rows + columns) // (rows * columns)
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


@contextmanager
def temporary_trainer(config: Config, updates: int) -> Iterator[tuple[Trainer, Config]]:
    """Yield a training of some updates in a temporary folder, and its config with its own end."""
    keep_freed_memory()
    world = World(device_name=config.training.device)
    corpora = read_corpora(config)
    assert corpora.scan is not None, "the corpora of a new run are scanned"
    corpus = measure_corpora(corpora.scan, config.data.max_tokens)
    measure = partial(measure_speed, world=world)
    settings, _ = choose_settings(config, corpus, world.device, measure)
    sized = with_settings(config, settings)
    config = sized.changed(training=end_after(sized.training, updates))
    with ExitStack() as stack:
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mt-"))))
        data = prepare(config, folder, corpora)
        stack.callback(data.close)
        trainer = Trainer(config, folder, data, world)
        trainer.begin()
        stack.enter_context(trainer.progress)
        trainer.fit_batches()
        yield trainer, sized


def end_after(training: TrainingConfig, updates: int) -> TrainingConfig:
    """Return settings that end after `updates`, without validation or checkpoint before."""
    return training.changed(
        max_updates=updates,
        max_epochs=None,
        patience=None,
        validate_every=updates + 1,
        checkpoint_every=None,
        schedule="inverse_sqrt",  # others may refuse an end after their last update
    )


def time_updates(trainer: Trainer, updates: int, *, warmup: int) -> tuple[float, float]:
    """Run `warmup` >= 1 updates and then `updates` that are timed, from the state of the training.

    Return the time of the updates and the CPU time of all threads, in seconds.
    """
    state, began_at = trainer.state, list[tuple[float, float]]()
    first = state.update + warmup

    def start_clock(*_: object) -> None:
        if state.update == first and not began_at:
            synchronize(trainer.device)
            began_at.append((time.perf_counter(), time.process_time()))

    trainer.training = end_after(trainer.training, first + updates)
    with trainer.learner.training_pass.register_forward_pre_hook(start_clock):
        trainer.run_updates()
        synchronize(trainer.device)
    ((seconds, cpu_seconds),) = began_at
    return time.perf_counter() - seconds, time.process_time() - cpu_seconds


def probe_training(
    trainer: Trainer, *, update_tokens: NDArray[np.integer]
) -> tuple[int, dict[str, float]]:
    """Return the number of timed updates of a new training, and times in seconds.

    They are of an `update` of the mean size, a `validation` of the whole split and a `checkpoint`.
    `update_tokens` [U] are the tokens of each update of the first epoch.
    """
    first, _ = time_updates(trainer, 1, warmup=1)
    updates = int(np.clip(PROBE_SECONDS / first, 1, MAX_UPDATES - 3))
    begin = trainer.state.update + 1
    seconds, _ = time_updates(trainer, updates, warmup=1)
    tokens = np.take(update_tokens, np.arange(begin, begin + updates), mode="wrap").sum()
    validation, _ = measure_validation(trainer.config, trainer.data, trainer.device, seconds=4.0)
    began_at = time.perf_counter()
    trainer.save()
    return updates, {
        "update": seconds * float(update_tokens.mean() / tokens),
        "validation": validation * len(trainer.data.valid),
        "checkpoint": time.perf_counter() - began_at,
    }


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; no-op on a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
