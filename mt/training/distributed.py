"""Distributed data-parallel training: the ranks that torchrun starts, and their collectives.

torchrun's variables are read here, and for decoding in `mt/decoding/shards.py`.
DistributedDataParallel sums the gradients. GPU tensors travel by NCCL, everything else by gloo.
"""

import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from mt.errors import EXIT_USER_ERROR, UserError
from mt.model.device import select_device

T = TypeVar("T")
TIMEOUT = timedelta(minutes=10)
"""For the collectives of an update, and for the connection at the start."""
PATIENCE = timedelta(days=7)
"""For ranks that wait until rank 0 has prepared the corpus or validated."""
_ERROR_KEY = "mt/error"
"""Key of torchrun's store at which a rank that ends by an error leaves it for the others."""
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


@dataclass(frozen=True)
class World:
    """The ranks of a training, seen from one of them; with one rank, every method is local."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the processes of the same host."""
    device_name: str = "cpu"
    """Device that the config names."""
    group: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)
    """Process group of an update's collectives."""
    patient_group: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)
    """Process group of `broadcast` and `barrier`, on which ranks may wait for hours."""

    @cached_property
    def device(self) -> torch.device:
        """Device of this rank; raises UserError where this machine has none of its name."""
        return self.place(select_device(self.device_name))

    @property
    def is_main(self) -> bool:
        """Return True on the rank that prepares, validates, saves and prints."""
        return self.rank == 0

    def place(self, device: torch.device) -> torch.device:
        """Return the device of this rank: `cuda` becomes `cuda:<local rank>`.

        Raises UserError where the host has fewer GPUs than ranks, or the device cannot be shared.
        """
        if self.size == 1 or device.type == "cpu":
            return device
        if device.type != "cuda":
            raise UserError(
                f"device `{device.type}`: several ranks train on `cuda` or `cpu` only; set "
                "`training.device`"
            )
        count = torch.cuda.device_count()
        if self.local_rank >= count:
            raise UserError(
                f"host {platform.node()} has {count} GPUs, too few for rank {self.rank} (local "
                f"rank {self.local_rank}); lower torchrun's --nproc-per-node"
            )
        return torch.device("cuda", self.local_rank)

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks; the argument may be overwritten."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_reduce_max(self, value: int) -> int:
        """Return the largest of the ranks' values."""
        if self.size == 1:
            return value
        largest = torch.tensor(value, dtype=torch.int64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return int(largest)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        if self.size > 1:
            dist.barrier(group=self.patient_group)

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on all ranks; the arguments of the others are ignored."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.patient_group)
        return values[0]

    def rank0_first(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0, then on the first rank of each other host, then on all others.

        Later ranks find the files that earlier ones have written.
        """
        turn = 0 if self.is_main else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.barrier()
        result = work()
        for _ in range(2 - turn):
            self.barrier()
        return result

    def agree(self, facts: Mapping[str, str]) -> None:
        """Raise UserError with the name of the first fact that differs from rank 0's."""
        for name, first in self.broadcast(dict(facts)).items():
            if facts.get(name) != first:
                raise UserError(
                    f"{name} differs: {facts.get(name)} here, {first} on rank 0; all ranks must "
                    "train with the same"
                )

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose backward pass sums the gradients over the ranks.

        Call `fix_bucket_order` before the first update. The weights must be equal already.
        """
        if self.size == 1:
            return module
        # Position tables are computed, not learned, and may have grown on the validating rank.
        with warnings.catch_warnings():
            # torch 2.11 renames `broadcast_buffers`; older versions lack the new name.
            warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)
            wrapped = DistributedDataParallel(
                module,
                process_group=self.group,
                broadcast_buffers=False,
                init_sync=False,
                gradient_as_bucket_view=True,
            )
        wrapped.register_comm_hook(self.group, _sum_bucket)
        return wrapped


ALONE = World()


def _sum_bucket(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Sum a bucket of gradients: the loss is already divided by the target tokens of all ranks."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def fix_bucket_order(module: nn.Module, loss: Callable[[], Tensor]) -> None:
    """Run one backward pass and drop its gradients, so that a wrapped module fixes its buckets.

    DistributedDataParallel packs gradients in the order of the first backward pass, and the place
    of a number decides in which order the ranks' shares are added. A resumed run must add in the
    same order from its first update on.
    """
    if isinstance(module, DistributedDataParallel):
        loss().backward()  # type: ignore[no-untyped-call]
        module.zero_grad(set_to_none=True)


@contextmanager
def connect_ranks(device_name: str) -> Iterator[World]:
    """Connect the ranks that torchrun has started; without torchrun there is one.

    `device_name` is the value of `training.device`; `World.device` is chosen at its first use.
    UserErrors name the rank. Where a collective fails, the first rank of each host raises a
    UserError, with the error by which another rank has ended, and the others exit.
    """
    rank, size, local_rank = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    try:
        if size == 1:
            yield World(device_name=device_name)
            return
        device = World(rank, size, local_rank, device_name).device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            store: Store = next(rendezvous("env://", timeout=TIMEOUT))[0]
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"torchrun's store cannot be reached ({_first_line(error)}); torchrun's "
                "--local-addr sets the address of a host for the others"
            ) from None
        try:
            dist.init_process_group(
                _BACKENDS[device.type],
                store=PrefixStore("mt/group", store),
                rank=rank,
                world_size=size,
                timeout=TIMEOUT,
            )
            patient = dist.new_group(backend="gloo", timeout=PATIENCE)
            yield World(rank, size, local_rank, device_name, dist.group.WORLD, patient)
            dist.destroy_process_group()
        except (UserError, OSError) as error:
            store.set(_ERROR_KEY, f"rank {rank} on host {platform.node()}: {error}")
            raise
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            if local_rank:
                raise SystemExit(EXIT_USER_ERROR) from None  # the first rank of this host reports
            with suppress(RuntimeError):  # the store may have gone
                # Without an answer, `check` would wait for ever.
                if "by peer" in str(error) and store.check([_ERROR_KEY]):
                    reason = store.get(_ERROR_KEY).decode()
                    raise UserError(f"ended by an error of {reason}") from None
            raise UserError(
                f"a rank has failed or cannot be reached ({_first_line(error)}); torchrun names "
                "one that has failed, GLOO_SOCKET_IFNAME sets the network interface between hosts; "
                "the same command continues from the newest checkpoint"
            ) from None
    except UserError as error:
        if size == 1:
            raise
        raise UserError(f"rank {rank} on host {platform.node()}: {error}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
