"""Whether this machine has room for a training: memory for its heaviest batch, disk for the run."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from mt.config import Config, TrainingConfig
from mt.data.batches import Lengths
from mt.errors import RunError
from mt.model.cost import BYTES_PER_NUMBER
from mt.training.corpus import Corpus
from mt.training.environment import peak_memory_mib
from mt.training.machine_memory import available_bytes
from mt.training.memory import corpus_memory, require_memory


@dataclass(frozen=True)
class HeaviestBatch:
    """The batch that takes the most memory."""

    pairs: int
    source_length: int
    """Pieces of the longest source, end mark included."""
    target_length: int

    @classmethod
    def of(cls, lengths: Lengths) -> "HeaviestBatch":
        """Describe a batch of pairs of these lengths [B 2]."""
        source, target = lengths.max(axis=0).tolist()
        return cls(len(lengths), source, target)


@dataclass(frozen=True)
class Memory:
    """That of the process on a CPU, of the device elsewhere; None where it is not known."""

    heaviest: HeaviestBatch
    most_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True)
class Disk:
    """What the run folder will hold at most, which is while a checkpoint is written."""

    checkpoint_bytes: int
    most_bytes: int
    free_bytes: int


def process_bytes() -> int | None:
    """Return the most memory that this process has had; None where the system does not say."""
    peak = peak_memory_mib()
    return None if peak is None else int(peak * 2**20)


def free_memory(device: torch.device) -> int | None:
    """Return what a device has to give, of a CPU what the machine has; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_bytes() if device.type == "cpu" else None


def expected_bytes(config: Config, corpus: Corpus) -> int:
    """Return what training on a CPU is likely to add to the program before it.

    What the counting itself takes is part of it, as it is of training. Raises UserError where the
    machine surely has too little.
    """
    before = process_bytes() or 0
    require_memory(config, corpus)
    _, needed = corpus_memory(config, corpus)
    return needed.likely + (process_bytes() or 0) - before


def require_disk(
    training: TrainingConfig, run: Path, *, parameters: int, learning: int, checkpoints: int
) -> Disk:
    """Return what a training with so many checkpoints takes of the disk where `run` is to be.

    Of the parameters, `learning` are not frozen. Raises RunError where there is too little room.
    """
    weights = BYTES_PER_NUMBER * parameters
    # Adam keeps two numbers for each that learns; beside an average, its latest value is kept.
    others = 2 if training.ema_decay is None else 3
    checkpoint = weights + others * BYTES_PER_NUMBER * learning
    whole = min(training.keep_last + 1, checkpoints)
    best = min(training.keep_best, checkpoints)
    most = whole * checkpoint + best * weights
    near = next(each for each in (run.absolute(), *run.absolute().parents) if each.is_dir())
    there = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    free = shutil.disk_usage(near).free
    if most > free + there:
        raise RunError(
            f"{run}: the checkpoints of this training take up to {_gib(most)}, and {_gib(free)} "
            f"are free there: lower `training.keep_last`, now {training.keep_last}, or "
            f"`training.keep_best`, now {training.keep_best}, make room, or name a folder on "
            "another disk with --run"
        )
    return Disk(checkpoint, most, free)


def _gib(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB"
