"""Fixtures for commands: refused calls and recorded functions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.factories import Program


@pytest.fixture
def refused(program: Program) -> Callable[..., str]:
    """Return a function that runs `mt`, expects one `error:` line, and returns its message."""

    def run(*arguments: str | Path) -> str:
        status, out, err = program(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err.removeprefix("error: ").rstrip("\n")

    return run


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return a function that replaces another by a recorder of its calls."""

    def replace(target: str, result: Any = None) -> list[Any]:
        calls: list[Any] = []

        def record(*arguments: Any, **named: Any) -> Any:
            calls.append((arguments, named))
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(target, record)
        return calls

    return replace
