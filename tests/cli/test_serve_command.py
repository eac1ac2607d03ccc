"""`mt serve`: what it passes on, and how it fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.serving.app import Limits
from mt.serving.server import Address

Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(
        "mt.serving.server.serve_run", lambda *given, **named: calls.append((given, named))
    )
    return calls


def test_the_options(program: Program, calls: list[Any]) -> None:
    assert program("serve", "r") == (0, "", "")
    address = ["--host", "::1", "--port", "0", "--device", "cpu", "--set", "decoding.beam=2"]
    limits = ["--max-sentences", "1", "--max-characters", "2", "--max-waiting", "3"]
    assert program("serve", "r", *address, *limits) == (0, "", "")
    assert calls == [
        (
            (Path("r"), Address("127.0.0.1", 8000)),
            {"limits": Limits(256, 20_000, 1024), "overrides": (), "device": "auto"},
        ),
        (
            (Path("r"), Address("::1", 0)),
            {"limits": Limits(1, 2, 3), "overrides": ["decoding.beam=2"], "device": "cpu"},
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("serve", "Missing argument 'RUN'."),
        ("serve r --port 99999", "'--port': "),
        ("serve r --set beam=2", "only keys of `decoding` can be set here"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: str, told: str, program: Program, calls: list[Any]
) -> None:
    status, out, err = program(*arguments.split())
    assert (status, out, calls) == (2, "", [])
    assert err.startswith("error: ")
    assert told in err
    assert err.count("\n") == 1


def test_the_extra_is_named_where_it_is_missing(
    program: Program, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.cli.translate.find_spec", lambda name: None)
    told = 'error: serving needs FastAPI and uvicorn: pip install "mt[serve]"\n'
    assert program("serve", "r") == (2, "", told)
    assert calls == []
