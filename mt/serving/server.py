"""HTTP server for runs: startup, listening, and a stop that answers accepted requests."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from mt.errors import UserError
from mt.serving.batching import Batcher, Metrics
from mt.serving.requests import Access, Limits
from mt.serving.served_runs import ModelOptions, Pairs, ServedRun
from mt.serving.service import build_app

GRACE_SECONDS = 5.0
"""Time to answer accepted requests after the signal to stop."""
LAST_SECONDS = 8.0
"""Time until open connections are aborted; below the 10 s grace period of containers."""
HEAD_SECONDS = 30.0
"""Time until a connection without a request is closed."""

_logger = logging.getLogger(__name__)


def serve_runs(
    runs: Sequence[Path],
    address: tuple[str, int],
    options: ModelOptions,
    *,
    limits: Limits,
    access: Access,
    keep: int | None = None,
) -> None:
    """Serve the models of runs until SIGINT or SIGTERM, then end by that signal.

    `address` is host and port, where 0 takes a free one. The model of one run is loaded at once,
    those of several on first use. At most `keep` stay in memory, by default all. Raises UserError
    for an unavailable address, and the errors of `ServedRun.read` and `Pairs`.
    """
    host, port = address
    with _bind(host, port) as listener:
        one = len(runs) == 1
        served = [ServedRun.read(run, options, with_model=one) for run in runs]
        if options.memory is not None and not any(run.options.memory for run in served):
            raise UserError(f"--memory {options.memory}: cannot be used for a pair of these runs")
        pairs = Pairs(served, keep)
        is_local = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
        if not is_local and not access.keys:
            _logger.warning("%s is open to other machines, without an API key", host)
        access = replace(access, host=host.lower())
        server = build_server(pairs, limits=limits, access=access)
        listener.listen()
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        if not one:
            _logger.info("%s", pairs)
        _logger.info("serving at http://%s:%d, until Ctrl-C", host, port)
        server.run(sockets=[listener])


def build_server(pairs: Pairs, *, limits: Limits, access: Access) -> "Server":
    """Return a server to run on a bound socket; see `build_app`."""
    most = min(run.alternatives for route in pairs.routes for run in route.runs)
    limits = replace(limits, alternatives=most)
    batcher = Batcher(Metrics(), most_waiting=limits.waiting)
    config = uvicorn.Config(
        build_app(batcher, pairs, limits=limits, access=access),
        loop="asyncio",
        http=_TimedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    return Server(config, batcher)


class Server(uvicorn.Server):
    """uvicorn server that limits the time of a shutdown."""

    def __init__(self, config: uvicorn.Config, batcher: Batcher) -> None:
        super().__init__(config)
        self.batcher = batcher

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening; answer accepted requests for at most GRACE_SECONDS."""

        def hang_up() -> None:
            for connection in list(self.server_state.connections):
                connection.transport.abort()

        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(GRACE_SECONDS, self.batcher.stop),
            loop.call_later(LAST_SECONDS, hang_up),
        ]
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()


class _TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol; closes connections without a request after HEAD_SECONDS."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)

        def close_if_silent() -> None:
            if self.cycle is None:
                transport.close()

        self.loop.call_later(HEAD_SECONDS, close_if_silent)


def _bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet, because the model is loaded first."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: no such address on this machine ({error})") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError as error:
        listener.close()
        reason = error.strerror.lower() if error.strerror else error
        raise UserError(f"cannot listen on {host}, port {port}: {reason}; see --port") from None
    return listener
