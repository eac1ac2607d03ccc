"""Fixtures for commands: a recipe and recorded functions."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.factories import RECIPE


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


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a recipe, whose corpora do not exist, and return it."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(RECIPE)
    return Path("tiny.yaml")


@pytest.fixture
def result() -> Callable[..., SimpleNamespace]:
    """Return a function that makes the result of a command, with further attributes."""

    def make(**attributes: Any) -> SimpleNamespace:
        usual = {"passed": True, "exit_status": 0, "text": "30 ± 1"}
        forms = {"as_text": lambda: "30 ± 1", "as_record": lambda: {}}
        return SimpleNamespace(**{**usual, **forms, **attributes})

    return make
