"""A server on a free port of this machine, with an engine that a test can block."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.translator import Translator
from mt.serving.requests import Access, Limits
from mt.serving.served_runs import Pairs, ServedRun
from mt.serving.server import build_server
from tests.decoding.fakes import build_translator, text_of

NO_KEY = Access()


class Backwards(Engine):
    """Reverses a text; alternatives get longer and longer; the text "bell" raises an error."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[str]]] = []
        self.threads: set[str] = set()
        self.begun = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def n_best_ids(self, sources: Any, decoding: Any, count: int, *, prefixes: Any = ()) -> Any:
        texts = [text_of(source[:-1]) for source in sources]
        self.calls.append((count, texts))
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self.open.wait(30)
        if "bell" in texts:
            raise MemoryError("too much for one")
        return [
            [
                Hypothesis(tuple(map(ord, text[::-1] + "!" * rank)), -2.0, -1.0 - rank, True)
                for rank in range(count)
            ]
            for text in texts
        ]


@pytest.fixture
def engine() -> Backwards:
    return Backwards()


@pytest.fixture
def backwards(engine: Backwards) -> Callable[..., Translator]:
    """Return a function from keys of the decoding config to a translator with the engine."""
    return lambda **decoding: build_translator(
        engine, longest=1000, **{"repair": "off", **decoding}
    )


class Client:
    """Client of a server, with a connection for each request."""

    def __init__(self, port: int, thread: threading.Thread, stop: Callable[[], None]) -> None:
        self.port = port
        self.thread = thread
        self.stop = stop

    def request(
        self, method: str, path: str, body: Any = None, headers: Any = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response, response.read()

    def post(self, body: Any, path: str = "/translate", headers: Any = None) -> tuple[int, Any]:
        """Send bytes, chunks or an object as JSON; return the status and the JSON answer."""
        sent = json.dumps(body).encode() if isinstance(body, dict | list) else body
        response, answer = self.request("POST", path, sent, headers)
        return response.status, json.loads(answer)

    def assert_refused(self, body: Any, status: int, named: str, path: str = "/translate") -> None:
        answered, answer = self.post(body, path)
        assert (answered, list(answer)) == (status, ["error"]), body
        assert named in answer["error"]
        assert "\n" not in answer["error"]

    def texts(self, *texts: str) -> list[str]:
        status, answer = self.post({"texts": texts})
        assert status == 200, answer
        return [text["text"] for text in answer["translations"]]

    def metrics(self) -> dict[str, float]:
        text = self.request("GET", "/metrics")[1].decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def wait_for(self, metric: str, value: float) -> None:
        end = time.monotonic() + 10
        while self.metrics().get(metric) != value:
            assert time.monotonic() < end, f"{metric} is {self.metrics().get(metric)}"
            time.sleep(0.01)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))


def served(translator: Translator, name: str = "my run") -> ServedRun:
    """Return a run with a model in memory."""
    most = translator.decoding.beam - 1
    direction = translator.direction
    return ServedRun(Path(name), direction, "test, BLEU 9", most, translator=translator)


@contextmanager
def running(model: Translator | Pairs, access: Access = NO_KEY, **limits: int) -> Iterator[Client]:
    pairs = model if isinstance(model, Pairs) else Pairs([served(model)])
    server = build_server(pairs, limits=Limits(**limits), access=access)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})

    def stop() -> None:
        server.should_exit = True

    thread.start()
    _threads.append(thread)
    try:
        yield Client(port, thread, stop)
    finally:
        stop()


_threads: list[threading.Thread] = []


@pytest.fixture(scope="session", autouse=True)
def _all_servers_end() -> Iterator[None]:
    """Wait for the stopped servers once, as each takes a part of a second."""
    yield
    for thread in _threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Callable[..., Client]]:
    """Return a function that serves a translator until the test ends, and returns a client."""
    with ExitStack() as servers:
        yield lambda *arguments, **limits: servers.enter_context(running(*arguments, **limits))


@pytest.fixture(scope="module")
def strict() -> Iterator[tuple[Client, Backwards]]:
    """Return a client of a server with low limits, and its engine, for the tests of a file."""
    engine = Backwards()
    translator = build_translator(engine, longest=1000, repair="off")
    with running(translator, characters=100, sentences=3) as client:
        yield client, engine
