"""Training by several processes, on one host or many: `World` is all that the rest knows of it.

Started by torchrun, whose variables are read here and nowhere else. Gradients are added up by
DistributedDataParallel. What is on GPUs travels by NCCL, what is not, decisions above all, by gloo.
"""

import json
import os
import platform
import socket
import struct
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import compress
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from mt.errors import EXIT_USER_ERROR, UserError, listed
from mt.model.device import select_device
from mt.training.interruption import interruptible

CONNECTION_TIME = timedelta(minutes=1)
"""How long to try to reach the store, which is there before the ranks are; torch tries twice."""
MEETING_TIME = timedelta(minutes=5)
"""How long the first rank waits for the last one, which may sit behind a slow file system."""
_MEMBER = "mt/member/"
_GET_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


@dataclass(frozen=True)
class Member:
    """One process of the training."""

    rank: int
    host: str
    process: int
    address: str
    """The IP address with which it reaches the store of torchrun."""

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, process {self.process})"


def open_store() -> Store:
    """Connect to the store that torchrun keeps on the host of rank 0."""
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store: Store = next(rendezvous("env://", timeout=CONNECTION_TIME))[0]
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the store of torchrun at {address} cannot be reached ({_first_line(error)}); "
            "torchrun's --local-addr names the address under which a host is known to the others"
        ) from None
    return store


def meet(store: Store, rank: int, size: int) -> list[Member]:
    """Introduce this rank, and return all of them once each has done so.

    Raises UserError naming the ranks that have not come within `MEETING_TIME`.
    """
    own = Member(rank, platform.node(), os.getpid(), _address_towards(os.environ["MASTER_ADDR"]))
    store.set(f"{_MEMBER}{rank}", json.dumps(asdict(own)))
    keys = [f"{_MEMBER}{other}" for other in range(size)]
    try:
        store.wait(keys, MEETING_TIME)
    except RuntimeError:
        missing = [str(other) for other in range(size) if not store.check([keys[other]])]
        raise UserError(
            f"no sign of rank {listed(missing)} of {size} within {MEETING_TIME}"
        ) from None
    return [Member(**json.loads(member)) for member in store.multi_get(keys)]


def choose_interface(members: list[Member], own: Member) -> None:
    """Tell gloo which network interface leads to the other ranks, unless the user has.

    By itself it takes the one that the host's own name resolves to; that is often the loopback
    (`127.0.1.1 myhost` in /etc/hosts), which no other host can reach.
    """
    far = [member.address for member in members if not _is_loopback(member.address)]
    address = _address_towards(far[0]) if far else own.address
    interface = _interface_of(address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _address_towards(host: str) -> str:
    """Return the address that this host uses to reach `host`; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _is_loopback(address: str) -> bool:
    return address == "" or address.startswith("127.")


def _interface_of(address: str) -> str | None:
    """Return the name of the interface that has an IPv4 address; None where that is unknown."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _GET_INTERFACE_ADDRESS, request)
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


BEAT_SECONDS = 1.0
SILENT_BEATS = 20
"""So long a rank may say nothing. Below the 30 s after which torchrun kills the ranks beside a
dead one, and above what encoding or a sort can keep Python from its threads."""
SUSPECTED_BEATS = 6
"""The same once a connection between ranks has broken."""
_BEAT, _FAILURE = "mt/beat/", "mt/failure"
_STDERR = 2


@dataclass(frozen=True)
class Failure:
    """Why the training ends."""

    line: str
    rank: int | None
    """The rank whose user has been told already; None where each rank is to tell its own."""


class Heartbeat:
    """Ends this process with a line on stderr where another rank has died or failed."""

    def __init__(self, store: Store, members: list[Member], own: Member) -> None:
        self._store = store
        self._members = members
        self._own = own
        self._counts = [0] * len(members)
        self._patience = SILENT_BEATS
        self._verdict: Failure | None = None
        """What the looking thread has found, for the other one to post."""
        self._stopped = threading.Event()
        self._ending = threading.Lock()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._exchange, self._look)
        ]

    def start(self) -> None:
        """Begin to beat and to look."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads; what happens to other ranks is of no concern from here on."""
        with self._ending:
            self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=2 * BEAT_SECONDS)

    def await_cause(self) -> None:
        """Wait until it is known whose end has broken a connection, which ends this process.

        Returns where nobody else has died or failed: then the fault is here.
        """
        self._patience = SUSPECTED_BEATS
        self._stopped.wait((SUSPECTED_BEATS + 6) * BEAT_SECONDS)

    def fail(self, message: str) -> None:
        """Let the others know why this rank fails; SystemExit where one of them was first."""
        failure = Failure(f"{self._own}: {message}", self._own.rank)
        if self._first(failure) != failure:
            raise SystemExit(EXIT_USER_ERROR) from None

    def _first(self, failure: Failure) -> Failure:
        """Return the failure that ends the training: this one, unless there was one before."""
        with suppress(RuntimeError):  # the store may be what has failed
            known = self._store.compare_set(_FAILURE, "", json.dumps(asdict(failure)))
            return Failure(**json.loads(known))
        return failure

    def _exchange(self) -> None:
        """Count on in the store and fetch the counts of all, again and again."""
        keys = [*(f"{_BEAT}{member.rank}" for member in self._members), _FAILURE]
        count = 0
        while not self._stopped.wait(BEAT_SECONDS):
            count += 1
            try:
                self._store.set(keys[self._own.rank], str(count))
                *counts, failure = self._store.multi_get(keys)
            except RuntimeError:
                self._end(self._unreachable())
                return
            self._counts = [int(each) for each in counts]
            if failure:
                self._end(Failure(**json.loads(failure)))
            if self._verdict is not None:
                self._end(self._first(self._verdict))

    def _look(self) -> None:
        """Count the looks at which a rank's count stood still, until they are too many."""
        before, looks = self._counts, [0] * len(self._members)
        while not self._stopped.wait(BEAT_SECONDS):
            now = self._counts
            looks = [
                still + 1 if count == old else 0
                for still, count, old in zip(looks, now, before, strict=True)
            ]
            before = now
            if looks[self._own.rank] >= self._patience:
                self._end(self._unreachable())
            # Counts that are not fresh say nothing of the others.
            elif looks[self._own.rank] == 0 and max(looks) >= self._patience:
                silent = [still > self._patience // 2 for still in looks]
                names = ", ".join(map(str, compress(self._members, silent)))
                self._verdict = Failure(_ended(names), None)

    def _unreachable(self) -> Failure:
        first = self._members[0].host
        return Failure(_ended(f"host {first}, that of rank 0 and of torchrun's store"), None)

    def _end(self, failure: Failure) -> None:
        """Leave at once, whatever the main thread is waiting for."""
        with self._ending:
            if self._stopped.is_set():
                return
            if self._tells(failure):
                os.write(_STDERR, f"\nerror: {failure.line}\n".encode())
            os._exit(EXIT_USER_ERROR)

    def _tells(self, failure: Failure) -> bool:
        """Tell whether this rank prints a failure: where one has, it is one on each other host."""
        if failure.rank is None:
            return True
        here = [member.rank for member in self._members if member.host == self._own.host]
        return failure.rank not in here and self._own.rank == min(here)


def _ended(who: str) -> str:
    return (
        f"{who}: died, or cannot be reached any more; "
        "the same command goes on from the newest checkpoint"
    )


@contextmanager
def together(store: Store, rank: int, size: int) -> Iterator[list[Member]]:
    """Run a block that ends on all ranks where it ends with an error, or by death, on one.

    Gives the members. `store` is a connection for this alone. An error of one rank is told by that
    rank alone, and once on each other host.
    """
    if rank == 0:
        store.set(_FAILURE, "")
    store.set(f"{_BEAT}{rank}", "0")
    members = meet(store, rank, size)
    heartbeat = Heartbeat(store, members, members[rank])
    heartbeat.start()
    try:
        yield members
    except UserError as error:
        heartbeat.fail(str(error))
        raise
    except RuntimeError as error:  # among others, what a broken connection comes as
        heartbeat.await_cause()
        heartbeat.fail(_described(error))
        raise
    except Exception as error:
        heartbeat.fail(_described(error))
        raise
    finally:
        heartbeat.stop()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


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
    def is_main(self) -> bool:
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

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks; the argument may be overwritten."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_reduce_max(self, number: int) -> int:
        """Return the largest of the numbers that the ranks give, so that all decide alike."""
        if self.size == 1:
            return number
        numbers = torch.tensor(number, dtype=torch.int64)
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group)
        return int(numbers)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.all_reduce_max(0)

    def broadcast(self, value: T) -> T:
        """Return what rank 0 gives, plain JSON data; what the others give is ignored."""
        if self.size == 1:
            return value
        data = json.dumps(value if self.is_main else None).encode()
        text = torch.zeros(self.all_reduce_max(len(data)), dtype=torch.uint8)
        text[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(text, src=0, group=self.group)
        shared: T = json.loads(bytes(text.numpy()).rstrip(b"\0"))
        return shared

    def rank0_first(self, work: Callable[[], T]) -> T:
        """Do work that leaves files behind: on rank 0, then once on each other host, then by all.

        What an earlier one has left on the disk, a later one finds there.
        """
        turn = 0 if self.is_main else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.barrier()
        result = work()
        for _ in range(2 - turn):
            self.barrier()
        return result

    def agree(self, facts: Mapping[str, str]) -> None:
        """Make sure that what has to be equal on all ranks is; UserError names what is not."""
        for name, first in self.broadcast(dict(facts)).items():
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
        # The loss is divided by the target tokens of all ranks, so nothing is left to average;
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

    The block ends on all ranks where it fails on one; see `mt.training.distributed`.
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
