"""The ranks of a training introduce themselves to each other, and find the network between them."""

import json
import os
import platform
import socket
import struct
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from mt.errors import UserError, listed

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
