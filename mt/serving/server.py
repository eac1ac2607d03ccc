"""Serving a run: from its folder to a port that answers, and a stop that loses no answer."""

import asyncio
import ipaddress
import logging
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mt.config import DecodingConfig
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.serving.app import Limits, build_app
from mt.serving.batching import Batcher
from mt.serving.metrics import Metrics

GRACE_SECONDS = 5.0
"""What has been accepted is translated for so long after the signal to stop."""
LAST_SECONDS = 8.0
"""Whoever still sends or reads by then is cut off; below the 10 s that containers are given."""
HEAD_SECONDS = 30.0
"""A connection on which no request has come by then is closed."""
MOST_CONNECTIONS = 4096
"""Where the system permits; those beyond the requests that are taken are told so."""
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
    that contradict each other, and what `Translator.load` raises.
    """
    if limits.waiting < limits.sentences:
        raise UserError(
            f"--max-waiting {limits.waiting} is less than --max-sentences {limits.sentences}: "
            "a request of that many could never be taken"
        )
    _allow_connections()
    with _bind(address) as listener:
        translator = Translator.load(run, overrides=overrides, device=device)
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
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
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
        call_later = asyncio.get_running_loop().call_later
        refuse = call_later(GRACE_SECONDS, self.batcher.stop)
        hang_up = call_later(LAST_SECONDS, self._hang_up)
        await super().shutdown(sockets)
        refuse.cancel()
        hang_up.cancel()

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _Protocol(H11Protocol):
    """uvicorn's HTTP, without connections that stay open and never ask anything."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.close()


def _most_alternatives(decoding: DecodingConfig) -> int:
    found = {"greedy": 1, "beam": decoding.beam, "sample": MOST_ALTERNATIVES + 1}
    return min(found[decoding.search] - 1, MOST_ALTERNATIVES)


def _allow_connections() -> None:
    """Let as many files be open as MOST_CONNECTIONS need; usually 1,024 may be, on request more."""
    if sys.platform == "win32":  # has no such limit
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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
