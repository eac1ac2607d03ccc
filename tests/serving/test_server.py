"""From a run folder to a port, and a stop."""

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
from pathlib import Path
from typing import Any

import pytest

from mt.decoding.run import load_translator
from mt.decoding.translator import Translator
from mt.errors import RunError, UserError
from mt.serving import server
from mt.serving.messages import Limits
from mt.serving.server import Address, serve_run

Build = Callable[..., Translator]
Serve = Callable[..., Any]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),  # each starts a program
        (signal.SIGTERM, -15),
    ],
)
def test_the_program_serves_until_a_signal(number: int, status: int, finished_run: Path) -> None:
    command = [sys.executable, "-m", "mt", "serve", str(finished_run), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        found = re.fullmatch(r"serving at (http://127\.0\.0\.1:\d+), until Ctrl-C\n", told)
        assert found, told
        body = json.dumps({"texts": ["one two", ""]}).encode()
        with urllib.request.urlopen(f"{found[1]}/translate", body, timeout=30) as answer:
            translations = json.load(answer)["translations"]
        assert [each["text"] for each in translations] == load_translator(finished_run).translate(
            ["one two", ""]
        )
        process.send_signal(number)
        assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == status


def test_what_was_accepted_is_answered_before_the_end(
    serve: Serve, backwards: Build, engine: Any
) -> None:
    client = serve(backwards(batch_size=1))
    engine.open.clear()
    with ThreadPoolExecutor() as clients:
        answer = clients.submit(client.texts, "ab", "cd")
        assert engine.begun.wait(10)
        client.stop()
        time.sleep(0.3)
        with pytest.raises(ConnectionRefusedError):
            client.connect()
        engine.open.set()
        assert answer.result() == ["ba", "dc"]


def test_the_end_does_not_wait_for_ever(
    serve: Serve, backwards: Build, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.1)
    client = serve(backwards(batch_size=1))
    engine.open.clear()
    with ThreadPoolExecutor() as clients:
        at_hand = clients.submit(client.texts, "ab")
        assert engine.begun.wait(10)
        waits = clients.submit(client.post, {"texts": ["cd"]})
        time.sleep(0.2)
        client.stop()
        assert waits.result() == (503, {"error": "the server is being stopped"})
        engine.open.set()
        assert at_hand.result() == ["ba"]


def test_an_address_that_is_not_free_is_told_before_the_run_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on 127.0.0.1, port {port}: address "):
            serve_run(tmp_path / "none", Address(port=port), limits=Limits())
    with pytest.raises(UserError, match=r"--host 1\.2\.3\.4\.5: no such address here"):
        serve_run(tmp_path / "none", Address("1.2.3.4.5", 0), limits=Limits())
    with pytest.raises(RunError, match="none: no such run folder"):
        serve_run(tmp_path / "none", Address(port=0), limits=Limits())


def test_limits_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--max-waiting 10 is less than --max-sentences 11:"):
        serve_run(tmp_path, Address(port=0), limits=Limits(sentences=11, waiting=10))


@pytest.mark.parametrize(
    ("host", "warnings"),
    [
        ("0.0.0.0", ["whoever reaches 0.0.0.0 can use it: there is no password"]),
        ("127.0.0.1", []),
        ("localhost", []),
    ],
)
def test_who_opens_it_to_others_is_told(
    host: str,
    warnings: list[str],
    backwards: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    translator = backwards()
    monkeypatch.setattr(server, "load_translator", lambda *_, **__: translator)
    monkeypatch.setattr(server.Server, "run", lambda *_, **__: None)
    serve_run(tmp_path, Address(host, 0), limits=Limits())
    assert caplog.messages == warnings
