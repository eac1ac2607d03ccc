"""Speed on this machine: of the training loop, timed from outside, and of decoding."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path

import torch
from tqdm import tqdm

from mt.config import Config, TrainingConfig
from mt.config.decoding import ONE_SEARCH
from mt.config.loading import load_config
from mt.data.batches import TARGET
from mt.data.splits import open_split
from mt.decoding.translator import load_translator
from mt.model.device import keep_freed_memory, select_device
from mt.profiling.cost import (
    count_training_flops,
    list_products,
    measure_matmul_rate,
    measure_peak_memory,
    synchronize,
)
from mt.profiling.engine_speed import time_lines
from mt.runs import CONFIG_FILE
from mt.special_ids import PAD
from mt.training.automatic import measure_corpora
from mt.training.data import prepare, read_corpora
from mt.training.distributed import World
from mt.training.loader import planned_updates
from mt.training.resolve import choose_sizes, with_settings
from mt.training.resources import measure_speed
from mt.training.run_folder import RunFolder
from mt.training.state import TrainState
from mt.training.trainer import Trainer

WARMUP_UPDATES = 5
"""Updates before the clock starts: memory is mapped, kernels are chosen, caches are filled."""


@dataclass(frozen=True)
class TrainingSpeed:
    """Training speed of a config; tokens and operations exclude padding."""

    device: str
    precision: str
    threads: int
    updates: int
    target_tokens: int
    seconds: float
    cpu_seconds: float
    """Time of all threads."""
    target_tokens_per_second: float
    flops_per_target_token: float
    """Operations, forward and backward, `training.freeze` disregarded."""
    matmul_flops_per_second: float
    """Rate of matrix products on this device in this precision."""
    matmul_share: float
    """Operations per second as a share of the rate of matrix products."""
    peak_memory_mib: float | None
    """Peak of the process, or of the tensors on a CUDA device; None if unknown."""


def measure_training(config: Config, updates: int) -> TrainingSpeed:
    """Train a config for some updates in a temporary folder, and measure it.

    Raises the errors of training for a config that cannot be trained here.
    """
    with temporary_trainer(config, WARMUP_UPDATES + updates) as (trainer, _):
        config = trainer.config
        rate = _measure_model_rate(trainer)
        seconds, cpu_seconds = time_updates(trainer, updates, warmup=WARMUP_UPDATES)
        rate = (rate + _measure_model_rate(trainer)) / 2  # the speed of a shared machine varies
        # The run is planned again to count the sentences of the measured updates.
        planned = planned_updates(trainer.training, trainer.data, TrainState(), torch.device("cpu"))
        measured = islice(planned, WARMUP_UPDATES, WARMUP_UPDATES + updates)
        sides = [
            torch.stack([(ids != PAD).sum(dim=1) for ids in (batch.source, batch.target_out)], 1)
            for update in measured
            for batch in update.batches
        ]
        lengths = torch.cat(sides).numpy()
        passes = 2 if config.training.r_drop else 1
        flops_of_pairs = count_training_flops(
            config.model, lengths, vocabularies=trainer.data.vocabularies
        )
        flops, target_tokens = passes * int(flops_of_pairs.sum()), int(lengths[:, TARGET].sum())
        return TrainingSpeed(
            device=trainer.device.type,
            precision=trainer.learner.precision.name,
            threads=torch.get_num_threads(),
            updates=updates,
            target_tokens=target_tokens,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            target_tokens_per_second=target_tokens / seconds,
            flops_per_target_token=flops / target_tokens,
            matmul_flops_per_second=rate,
            matmul_share=flops / seconds / rate,
            peak_memory_mib=measure_peak_memory(trainer.device),
        )


@contextmanager
def temporary_trainer(config: Config, updates: int) -> Iterator[tuple[Trainer, Config]]:
    """Yield a new training in a temporary folder, which ends after `updates`.

    The second value is its config with the end that was given.
    """
    keep_freed_memory()
    world = World(device_name=config.training.device)
    corpora = read_corpora(config)
    assert corpora.scan is not None, "the corpora of a new run are scanned"
    corpus = measure_corpora(corpora.scan, config.data.max_tokens)
    settings, _ = choose_sizes(config, corpus, world.device, partial(measure_speed, world=world))
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

    Returns the time of the updates and the CPU time of all threads, in seconds.
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


def _measure_model_rate(trainer: Trainer) -> float:
    """Return the rate of the model's matrix products in its precision, in FLOP/s."""
    training, device = trainer.training, trainer.device
    products = list_products(
        trainer.config.model,
        positions=min(training.target_tokens_per_update, training.max_tokens_per_batch),
        vocabulary=trainer.data.tokenizer.target_size,
    )
    with trainer.learner.precision.autocast():
        lowered = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if lowered else torch.float32
    return measure_matmul_rate(products, device, dtype)


BATCH_SIZES = (16, 64, 256)


@dataclass(frozen=True)
class SearchSpeed:
    """Speed of one search with one batch size, from text to text."""

    search: str
    beam: int
    batch_size: int
    words_per_second: float
    """Words of the source between spaces."""
    sentences_per_second: float


@dataclass(frozen=True)
class DecodingSpeed:
    """Decoding speed of a run's model on one of its splits, without loading the model."""

    split: str
    device: str
    threads: int
    sentences: int
    peak_memory_mib: float | None
    """Peak of the process, or of the tensors on a CUDA device; None if unknown."""
    searches: tuple[SearchSpeed, ...]


def measure_decoding(
    run: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> DecodingSpeed:
    """Time the translation of the first test split of a run, or else of `valid`.

    Each search is run with each of BATCH_SIZES, or with `decoding.batch_size` if `overrides` set
    it, after a first batch as warm-up. Raises the errors of `load_translator`.
    """
    keep_freed_memory()
    translator = load_translator(run, overrides=overrides, device=device)
    is_set = any(override.startswith("decoding.batch_size=") for override in overrides)
    batch_sizes = (translator.decoding.sentences_at_once,) if is_set else BATCH_SIZES
    data = load_config(run / CONFIG_FILE).data
    split = data.first_split()
    lines = [pair.source for pair in open_split(data, split).pairs()]
    speeds = []
    for search, size in tqdm([*product(("greedy", "beam"), batch_sizes)], "decoding", disable=None):
        settings = {"search": search, "batch_size": size, **ONE_SEARCH}
        translator.decoding = translator.decoding.changed(**settings)
        beam = translator.decoding.beam if search == "beam" else 1
        speeds.append(SearchSpeed(search, beam, size, *time_lines(translator, lines)))
    selected = select_device(device)
    return DecodingSpeed(
        split=split,
        device=selected.type,
        threads=torch.get_num_threads(),
        sentences=len(lines),
        peak_memory_mib=measure_peak_memory(selected),
        searches=tuple(speeds),
    )
