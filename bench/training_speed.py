"""Training speed of a config on this machine; no model is kept.

python -m bench.training_speed configs/bench/reference.yaml --updates 20 --set seed=2
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch

from bench.cost import (
    count_training_flops,
    list_products,
    measure_matmul_rate,
    measure_peak_memory,
)
from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import TARGET
from mt.errors import run_reporting_errors
from mt.profiling.plan import temporary_trainer, time_updates
from mt.special_ids import PAD
from mt.tables import align_columns
from mt.training.loader import planned_updates
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


def main() -> int:
    """Measure a config and print its table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--updates", type=int, default=20, help="updates to measure")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    speed = measure_training(
        load_config(options.config, overrides=options.overrides), options.updates
    )
    if options.json:
        print(json.dumps(asdict(speed), indent=2))
        return 0
    device = f"cpu, {speed.threads} threads" if speed.device == "cpu" else speed.device
    peak = speed.peak_memory_mib
    rows = [
        ("target tokens/s", f"{speed.target_tokens_per_second:,.0f}"),
        ("model FLOPs", f"{speed.flops_per_target_token / 1e6:,.1f} million per target token"),
        ("matmul rate", f"{speed.matmul_flops_per_second / 1e9:,.0f} GFLOP/s"),
        ("share of matmul rate", f"{speed.matmul_share:.1%}"),
        ("peak memory", "unknown" if peak is None else f"{peak:,.0f} MiB"),
    ]
    print(f"{options.config}: {speed.updates} updates, {speed.precision} on {device}\n")
    print(align_columns(rows))
    return 0


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
