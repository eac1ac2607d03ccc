"""Training by several processes, on one host or many: `World` is all that the rest knows of it.

Started by torchrun, whose variables are read here and nowhere else. Gradients are added up by
DistributedDataParallel. What is on GPUs travels by NCCL, what is not, decisions above all, by gloo.
"""

import json
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.nn.parallel import DistributedDataParallel

from mt.errors import UserError
from mt.model.device import select_device
from mt.training.heartbeat import together
from mt.training.interruption import interruptible
from mt.training.meeting import MEETING_TIME, choose_interface, open_store

T = TypeVar("T")
LONGEST_WAIT = timedelta(days=14)
"""For one rank that prepares or validates while the rest wait; the heartbeat tells who is dead."""
_BACKENDS = {"cpu": "cpu:gloo", "cuda": "cpu:gloo,cuda:nccl"}


@dataclass(frozen=True)
class World:
    """The processes that train together, seen from one; alone, every method is the identity."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The rank among the processes of the same host."""
    group: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)
    """The connections between the ranks, on which they wait for each other however long."""

    @property
    def leads(self) -> bool:
        """Tell whether this is the rank that prepares, validates, saves and speaks."""
        return self.rank == 0

    def place(self, device: torch.device) -> torch.device:
        """Return this rank's own device of a kind: `cuda` becomes `cuda:<local rank>`.

        Raises UserError where this host has fewer GPUs than processes, or the device cannot be
        shared.
        """
        if self.size == 1 or device.type == "cpu":
            return device
        if device.type != "cuda":
            raise UserError(
                f"device `{device.type}`: several processes train on `cuda` or `cpu`; "
                "`training.device` names one"
            )
        count = torch.cuda.device_count()
        if self.local_rank >= count:
            raise UserError(
                f"host {platform.node()} has {count} GPUs, too few for rank {self.rank}, its "
                f"process {self.local_rank + 1}; lower torchrun's --nproc-per-node"
            )
        return torch.device("cuda", self.local_rank)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks; the argument may be overwritten."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def largest(self, number: int) -> int:
        """Return the largest of the numbers that the ranks give, so that all decide alike."""
        if self.size == 1:
            return number
        numbers = torch.tensor(number, dtype=torch.int64)
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group)
        return int(numbers)

    def wait(self) -> None:
        """Wait until every rank has come here."""
        self.largest(0)

    def share(self, value: T) -> T:
        """Return what rank 0 gives, plain JSON data; what the others give is ignored."""
        if self.size == 1:
            return value
        data = json.dumps(value if self.leads else None).encode()
        text = torch.zeros(self.largest(len(data)), dtype=torch.uint8)
        text[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(text, src=0, group=self.group)
        shared: T = json.loads(bytes(text.numpy()).rstrip(b"\0"))
        return shared

    def in_turn(self, work: Callable[[], T]) -> T:
        """Do work that leaves files behind: on rank 0, then once on each other host, then by all.

        What an earlier one has left on the disk, a later one finds there.
        """
        turn = 0 if self.leads else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.wait()
        result = work()
        for _ in range(2 - turn):
            self.wait()
        return result

    def agree(self, facts: Mapping[str, str]) -> None:
        """Make sure that what has to be equal on all ranks is; UserError names what is not."""
        for name, first in self.share(dict(facts)).items():
            if facts.get(name) != first:
                raise UserError(
                    f"{name} differs: {facts.get(name)} on rank {self.rank} (host "
                    f"{platform.node()}), {first} on rank 0; all must train with the same"
                )

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose backward pass sums gradients over the ranks.

        Call `settle` before the first update. The weights must be equal already (`agree`).
        """
        if self.size == 1:
            return module
        # The loss is divided by the target pieces of all ranks, so nothing is left to average;
        # position tables are computed, not learned, and may have grown on the rank that validates.
        with warnings.catch_warnings():
            # Newer releases of torch have another name for it, which older ones do not know.
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


def settle(module: nn.Module, loss: Callable[[], Tensor]) -> None:
    """Let a wrapped module find its order of gradients, by one backward pass that is thrown away.

    It packs gradients in the order in which the first backward pass yields them, and where a
    number is packed decides in which order the ranks' shares of it are added. A run that is
    resumed must add from its first update as the run that nobody stopped does.
    """
    if isinstance(module, DistributedDataParallel):
        loss().backward()  # type: ignore[no-untyped-call]
        module.zero_grad(set_to_none=True)


def accumulate(module: nn.Module, batches: Sequence[T]) -> Iterator[T]:
    """Yield an update's batches for one forward and backward pass each.

    Gradients gather on each rank; those of the last pass carry them to the other ranks.
    """
    *others, last = batches
    if isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield from others
    else:
        yield from others
    yield last


@contextmanager
def world(device_name: str) -> Iterator[World]:
    """Give the processes that torchrun has started, connected; without torchrun there is one.

    The block ends on all ranks where it fails on one; see `mt.training.heartbeat`.
    """
    rank, size, local_rank = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    if size == 1:
        yield ALONE
        return
    # Both before the heartbeat begins: the store looks up a name at each new connection, and while
    # a name server does not answer it serves nobody.
    store, store_of_group = open_store(), open_store()
    # A dead rank has torchrun stop those beside it: they shall live to say which one it was.
    with interruptible(), together(store, rank, size) as members:
        device = World(rank, size, local_rank).place(select_device(device_name))
        if device.type == "cuda":
            torch.cuda.set_device(device)
        choose_interface(members, members[rank])
        group = _connect(
            _BACKENDS[device.type], PrefixStore("mt/group", store_of_group), rank, size
        )
        yield World(rank, size, local_rank, group)
        dist.destroy_process_group()


def _connect(backend: str, store: Store, rank: int, size: int) -> dist.ProcessGroup:
    """Return a group of great patience, once one of little has shown that all can be reached."""
    try:
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=MEETING_TIME
        )
    except RuntimeError as error:
        raise UserError(
            f"the ranks cannot connect to each other ({str(error).partition(chr(10))[0]}); the "
            "variable GLOO_SOCKET_IFNAME names the network interface between them"
        ) from None
    group: dist.ProcessGroup = dist.new_group(backend=backend, timeout=LONGEST_WAIT)
    return group


def _sum_bucket(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]
