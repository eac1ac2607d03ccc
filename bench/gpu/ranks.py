"""One rank of the section on ranks: prints the losses of some updates, one a line.

Arguments: backend, device, folder of the rendezvous. All ranks share one device.
"""

import os
import sys
from dataclasses import replace

import torch
from torch import Tensor
from torch import distributed as dist

from bench.gpu.workload import SMALL_VOCABULARY, TINY, device_of, examples, learner, lengths
from mt.data.batches import collate
from mt.training.distributed import ALONE, World, fix_bucket_order
from mt.training.step import count_tokens, fetch_metrics, train_step

UPDATES = 3


def losses(device: torch.device, rank: int = 0, size: int = 1, world: World = ALONE) -> list[float]:
    """Train on a rank's share of two batches; return the loss of each update over all ranks."""
    pairs = examples(lengths(24, longest=30), vocabulary=SMALL_VOCABULARY)
    batches = [collate(pairs[:12]), collate(pairs[12:])]
    made = learner(TINY, device, vocabulary=SMALL_VOCABULARY, precision="fp32")
    wrapped = world.wrap(made.training_pass)

    def loss() -> Tensor:
        return wrapped(batches[0].to(device)).objective  # type: ignore[no-any-return]

    fix_bucket_order(wrapped, loss)
    made = replace(made, training_pass=wrapped)
    share, tokens = [batch.to(device) for batch in batches[rank::size]], count_tokens(batches)
    results = [train_step(made, share, 1e-3, tokens=tokens) for _ in range(UPDATES)]
    return [metrics.nll for metrics in fetch_metrics(results, world)]


def main() -> None:
    """Join the other ranks, train, and print the losses on rank 0."""
    backend, name, folder = sys.argv[1:]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = f"file://{folder}/rendezvous"
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=size)
    # A world of one rank has no collectives; here it must have them.
    world = World(rank, max(size, 2), group=dist.group.WORLD)
    found = losses(device_of(name), rank, size, world)
    if rank == 0:
        print(*found, sep="\n", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
