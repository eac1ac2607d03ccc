"""Serving a run: from its folder to a port that answers, and a stop that loses no answer."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn

from mt.config import DecodingConfig
from mt.decoding.run import load_translator
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.serving.app import build_app
from mt.serving.batching import Batcher
from mt.serving.messages import Limits
from mt.serving.metrics import Metrics

GRACE_SECONDS = 10.0
"""What has been accepted is translated for so long after the signal to stop."""
MOST_CONNECTIONS = 512
"""Below the 1,024 files that a process may usually have open."""
MOST_ALTERNATIVES = 9

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes one that is free."""

    host: str = "127.0.0.1"
    port: int = 8000


def serve_run(
    run: Path,
    address: Address,
    *,
    limits: Limits,
    overrides: Sequence[str] = (),
    device: str = "auto",
) -> None:
    """Answer requests with a run's model until SIGINT or SIGTERM, and end by that signal then.

    `overrides` are `decoding.KEY=VALUE`. Raises UserError for an address that is not free, limits
    that contradict each other, and what `load_translator` raises.
    """
    if limits.waiting < limits.sentences:
        raise UserError(
            f"--max-waiting {limits.waiting} is less than --max-sentences {limits.sentences}: "
            "a request of that many could never be taken"
        )
    with _bind(address) as listener:
        translator = load_translator(run, overrides=overrides, device=device)
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            _logger.warning("whoever reaches %s can use it: there is no password", address.host)
        build_server(translator, run.resolve().name, limits=limits).run(sockets=[listener])


def build_server(translator: Translator, name: str, *, limits: Limits) -> "Server":
    """Return a server that is ready to run on a bound socket."""
    limits = replace(limits, alternatives=_most_alternatives(translator.decoding))
    metrics = Metrics()
    batcher = Batcher(translator, metrics, most_waiting=limits.waiting)
    config = uvicorn.Config(
        build_app(batcher, metrics, name=name, limits=limits),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
    )
    return Server(config, batcher)


class Server(uvicorn.Server):
    """uvicorn, with its address told, and an end to what it waits for when it is stopped."""

    def __init__(self, config: uvicorn.Config, batcher: Batcher) -> None:
        super().__init__(config)
        self.batcher = batcher

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say where."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            _logger.info("serving at http://%s:%d, until Ctrl-C", host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what was accepted, but for GRACE_SECONDS at most."""
        refuse = asyncio.get_running_loop().call_later(GRACE_SECONDS, self.batcher.stop)
        await super().shutdown(sockets)
        refuse.cancel()


def _most_alternatives(decoding: DecodingConfig) -> int:
    found = {"greedy": 1, "beam": decoding.beam, "sample": MOST_ALTERNATIVES + 1}
    return min(found[decoding.search] - 1, MOST_ALTERNATIVES)


def _bind(address: Address) -> socket.socket:
    """Return a socket that is bound and does not listen yet: the model has still to be loaded."""
    host, port = address.host, address.port
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: no such address here ({error})") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError as error:
        listener.close()
        told = error.strerror.lower() if error.strerror else error
        raise UserError(f"cannot listen on {host}, port {port}: {told}; see --port") from None
    return listener
