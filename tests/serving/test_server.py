import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mt.decoding.translator import Translator
from mt.errors import RunError, UserError
from mt.serving import server
from mt.serving.requests import Access, Limits
from mt.serving.served_runs import ModelOptions
from mt.serving.server import serve_runs

Build = Callable[..., Translator]
Serve = Callable[..., Any]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(("name", "status"), [("SIGTERM", -15), ("SIGINT", 130), ("SIGILL", -4)])
def test_program_serves_an_export_until_a_signal(
    name: str, status: int, exported_run: Path
) -> None:
    lines = ["one two", "", "nine zero zero"]
    body = json.dumps({"texts": lines}).encode()
    with subprocess.Popen(
        [sys.executable, "-m", "mt", "serve", str(exported_run), "--port", "0"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Shells disable SIGINT for background jobs.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        assert "has no fitting calibration" in process.stderr.readline()
        line = process.stderr.readline()
        url = re.fullmatch(r"serving at (http://127\.0\.0\.1:\d+), until Ctrl-C\n", line)
        assert url, line
        with urllib.request.urlopen(f"{url[1]}/translate", body, timeout=30) as answer:
            answers = json.load(answer)["translations"]
        process.send_signal(signal.Signals[name])
        out, log = process.communicate(timeout=20)
    crash = "Fatal Python error: Illegal instruction" if name == "SIGILL" else ""
    assert (out, log.partition("\n")[0]) == ("", crash)
    assert process.returncode == status
    assert [answer["text"] for answer in answers] == Translator.load(exported_run).translate(lines)


def test_accepted_requests_are_answered_before_the_end(
    serve: Serve, backwards: Build, engine: Any
) -> None:
    client = serve(backwards(batch_size=1))
    engine.open.clear()
    with ThreadPoolExecutor() as clients:
        answer = clients.submit(client.texts, "ab", "cd")
        assert engine.begun.wait(10)
        client.stop()
        # A connection that arrives while the socket closes is reset.
        with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
            while client.thread.is_alive():
                client.connect().close()
        engine.open.set()
        assert answer.result() == ["ba", "dc"]


def test_waiting_requests_are_refused_after_the_grace_period(
    serve: Serve, backwards: Build, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.1)
    client = serve(backwards(batch_size=1))
    engine.open.clear()
    with ThreadPoolExecutor() as clients:
        current = clients.submit(client.texts, "ab")
        assert engine.begun.wait(10)
        waits = clients.submit(client.post, {"texts": ["cd"]})
        client.wait_for("mt_waiting_sentences", 1)
        client.stop()
        assert waits.result() == (503, {"error": "the server is being stopped"})
        engine.open.set()
        assert current.result() == ["ba"]


def test_silent_connections_are_aborted_at_the_end(
    serve: Serve, backwards: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(server, "LAST_SECONDS", 0.2)
    client = serve(backwards())
    with client.connect() as connection:
        connection.settimeout(10)
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        client.metrics()  # connections are accepted in turn
        began = time.monotonic()
        client.stop()
        with suppress(ConnectionResetError):  # an aborted connection may look so
            assert connection.recv(1000) == b""
        client.thread.join(10)
        assert not client.thread.is_alive()
        assert time.monotonic() - began < 5, "long before the body times out"


def test_unavailable_address_run_or_engine_is_an_error_before_requests(
    backwards: Build, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(run: Path, *address: Any) -> None:
        serve_runs([run], address, ModelOptions(), limits=Limits(), access=Access())

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=str(port)):
            start(tmp_path / "none", "127.0.0.1", port)
    with pytest.raises(UserError):
        start(tmp_path / "none", "1.2.3.4.5", 0)
    with pytest.raises(RunError):
        start(tmp_path / "none", "127.0.0.1", 0)
    monkeypatch.setattr("mt.serving.served_runs.TRIAL", "bell")
    monkeypatch.setattr(Translator, "from_stored", lambda *_, **__: backwards())
    monkeypatch.setattr(server, "build_server", lambda *_, **__: pytest.fail("it listens"))
    with pytest.raises(MemoryError):
        start(finished_run, "127.0.0.1", 0)
