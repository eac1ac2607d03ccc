"""What a training will take: counted from its config and corpus, and timed by a little of it."""

import math
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from mt.config import Config, TrainingConfig
from mt.config.loading import load_config
from mt.data.batches import TARGET, Indices, PaddingEfficiency
from mt.model.device import keep_freed_memory, select_device
from mt.profiling.cost import training_flops
from mt.profiling.probe import (
    MOST_UPDATES,
    MOST_WARMUP_UPDATES,
    Disk,
    HeaviestBatch,
    Memory,
    Probe,
    Spent,
    expected_bytes,
    free_memory,
    probe,
    process_bytes,
    require_disk,
)
from mt.profiling.training_speed import with_end
from mt.training.data import Corpus, first_plan, prepare
from mt.training.memory import heaviest
from mt.training.progress import planned_padding
from mt.training.run_folder import RunFolder, differences
from mt.training.setup import Session, most_updates, start

PAPER_TOKENS_PER_UPDATE = 25_000
"""Vaswani et al. 2017, section 5.1, on each side."""
_TOKENIZER_KEYS = ("seed", "data.", "tokenizer.", "training.init_from")
"""The beginnings of the keys on which a tokenizer depends."""

Bound = Literal["exactly", "at most", "at least"]


@dataclass(frozen=True)
class Work:
    """What is counted without training; tokens and operations leave padding out."""

    parameters: int
    learning: int
    """Of the parameters, those that are not frozen."""
    pairs: int
    vocabularies: tuple[int, int]
    updates_per_epoch: int
    target_tokens_per_update: float
    flops_per_update: float
    padding: PaddingEfficiency

    @property
    def flops_per_target_token(self) -> float:
        """Operations of an update by its target tokens."""
        return self.flops_per_update / self.target_tokens_per_update

    @property
    def share_of_the_papers_update(self) -> float:
        """Target tokens of an update by those of the paper's."""
        return self.target_tokens_per_update / PAPER_TOKENS_PER_UPDATE


@dataclass(frozen=True)
class Extent:
    """How long a training is, and what of it takes time."""

    ends_by: str
    """The key that ends it."""
    bound: Bound
    """What the following numbers are."""
    updates: int
    validations: int
    """That of the final model among them."""
    checkpoints: int


@dataclass(frozen=True)
class TrainingPlan:
    """What a training takes from its beginning to its end."""

    device: str
    precision: str
    threads: int
    work: Work
    extent: Extent
    memory: Memory
    disk: Disk
    measured: Probe

    @property
    def matmul_share(self) -> float:
        """Model FLOPs a second, during updates, as a share of the rate of matrix products."""
        rate = self.work.flops_per_update / self.measured.update.seconds
        return rate / self.measured.matmul_rates.mean

    @property
    def total(self) -> Spent:
        """Time from the first update to the final model."""
        extent, measured = self.extent, self.measured
        return (
            measured.update.times(extent.updates)
            .plus(measured.validation.times(extent.validations))
            .plus(measured.checkpoint.times(extent.checkpoints))
        )


def plan_training(config: Config, run: Path) -> TrainingPlan:
    """Count what a training takes, and try a little of it in a folder that is then removed.

    `run` is where it is going to be; nothing is written there. Raises what training raises where a
    config cannot be trained here, and UserError where memory or disk are too small for it.
    """
    keep_freed_memory()
    device = select_device(config.training.device)
    free, program = free_memory(device), process_bytes() or 0
    with ExitStack() as stack:
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mt-"))))
        _borrow_tokenizer(RunFolder(run), folder, config)
        corpus = prepare(config, folder)
        stack.callback(corpus.close)
        likely = program + expected_bytes(config, corpus) if device.type == "cpu" else 0
        short = with_end(config, MOST_WARMUP_UPDATES + MOST_UPDATES)
        session = start(short, folder, corpus, device, [])
        stack.enter_context(session.progress)
        return _plan(config, session, run, free=free, likely=likely)


def _plan(
    config: Config, session: Session, run: Path, *, free: int | None, likely: int
) -> TrainingPlan:
    training, corpus = config.training, session.corpus
    lengths, updates = corpus.epoch_store(0).lengths, first_plan(corpus, config)
    extent = _extent(training, len(updates))
    flops = _update_flops(config, corpus, updates)
    work = _work(session, updates, flops)
    disk = require_disk(
        training,
        run,
        parameters=work.parameters,
        learning=work.learning,
        checkpoints=extent.checkpoints,
    )
    batch = heaviest(updates, lengths, max_tokens_per_batch=training.max_tokens_per_batch)
    # A batch that is not all of its update meets the gradients of the others.
    alone = any(len(update) == len(batch) and batch[0] in update for update in updates)
    measured = probe(
        session,
        heaviest=[batch] if alone else [batch, batch],
        update_flops=flops,
        averaged=_averaged(training, extent),
    )
    return TrainingPlan(
        device=session.device.type,
        precision=session.learner.precision.name,
        threads=torch.get_num_threads(),
        work=work,
        extent=extent,
        memory=Memory(HeaviestBatch.of(lengths[batch]), _most(measured, likely), free),
        disk=disk,
        measured=measured,
    )


def _most(measured: Probe, likely: int) -> int | None:
    """Return the memory of a whole training: what was measured, or what is likely if that is more.

    The heap of a long training has more gaps than that of a short one.
    """
    if measured.peak_bytes is None:
        return None
    return max(measured.peak_bytes, likely + measured.validation_bytes)


def _borrow_tokenizer(run: RunFolder, folder: RunFolder, config: Config) -> None:
    """Copy the tokenizer of a run that has begun with this config, so as not to train it again."""
    if not run.config.exists() or not any(run.tokenizer.glob("*.json")):
        return
    changed = differences(load_config(run.config), config)
    if not any(key.startswith(_TOKENIZER_KEYS) for key in changed):
        shutil.copytree(run.tokenizer, folder.tokenizer)


def _extent(training: TrainingConfig, updates_per_epoch: int) -> Extent:
    """Return how long the longest training is that the config allows.

    Where there is none, since patience alone ends it, return the shortest.
    """
    most, patience = most_updates(training, updates_per_epoch), training.patience
    if most is None:
        assert patience is not None, "the config demands an end"
        # The first validation is a gain; each of the others may be none.
        return _until((patience + 1) * training.validate_every, training, "patience", "at least")
    key = "max_updates" if most == training.max_updates else "max_epochs"
    early = patience is not None and (patience + 1) * training.validate_every < most
    return _until(most, training, key, "at most" if early else "exactly")


def _until(updates: int, training: TrainingConfig, key: str, bound: Bound) -> Extent:
    validations = -(-updates // training.validate_every)  # the last update is always validated
    between = 0
    if every := training.checkpoint_every:
        between = updates // every - updates // math.lcm(every, training.validate_every)
    return Extent(
        ends_by=f"training.{key}",
        bound=bound,
        updates=updates,
        validations=validations + 1,
        checkpoints=validations + between,
    )


def _averaged(training: TrainingConfig, extent: Extent) -> int:
    """Return of how many checkpoints the final model is the mean."""
    kept = {"best": training.keep_best, "last": training.keep_last, "off": 1}
    return min(kept[training.average], extent.checkpoints)


def _update_flops(config: Config, corpus: Corpus, plan: list[Indices]) -> NDArray[np.float64]:
    """Return the operations of each update [U]; R-Drop passes twice over each batch."""
    sizes = corpus.tokenizer.source_size, corpus.tokenizer.target_size
    pairs = training_flops(config.model, corpus.epoch_store(0).lengths, vocabularies=sizes)
    passes = 2 if config.training.r_drop else 1
    return np.array([passes * pairs[update].sum() for update in plan], np.float64)


def _work(session: Session, plan: list[Indices], flops: NDArray[np.float64]) -> Work:
    corpus, model = session.corpus, session.learner.model
    lengths = corpus.epoch_store(0).lengths
    taken = np.concatenate(plan)
    parameters = [*model.parameters()]
    return Work(
        parameters=sum(each.numel() for each in parameters),
        learning=sum(each.numel() for each in parameters if each.requires_grad),
        pairs=len(taken),
        vocabularies=(corpus.tokenizer.source_size, corpus.tokenizer.target_size),
        updates_per_epoch=len(plan),
        target_tokens_per_update=float(lengths[taken, TARGET].sum(dtype=int)) / len(plan),
        flops_per_update=float(flops.mean()),
        padding=planned_padding(plan, lengths, session.config),
    )
