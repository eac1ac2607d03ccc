"""Small test set, and systems of known quality."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mt.compare.systems import EvaluationSet, System

_NAMES = ("Anna", "Bert", "Clara", "David", "Emma", "Frank", "Greta", "Hugo")
_THINGS = ("a red ball", "two old books", "the blue car", "some fresh bread", "a small dog")
REFERENCES = tuple(f"{name} has seen {thing} today." for name in _NAMES for thing in _THINGS)
SOURCES = tuple(f"{name} hat heute {thing} gesehen." for name in _NAMES for thing in _THINGS)

WriteLines = Callable[[str, Sequence[str]], Path]


def broken(lines: Sequence[str], every: int, *, start: int = 0) -> tuple[str, ...]:
    """Reverse the words of every `every`-th line."""
    return tuple(
        " ".join(line.split()[::-1]) if index % every == start else line
        for index, line in enumerate(lines)
    )


@pytest.fixture
def test_set() -> EvaluationSet:
    """Return forty sentences, from pseudo-German into English."""
    return EvaluationSet("test", SOURCES, (REFERENCES,), "de", "en", tokenizer="13a")


@pytest.fixture
def systems() -> tuple[System, System, System]:
    """Return a system that is wrong in every fourth line, a right one, and one like the first."""
    return (
        System("first", broken(REFERENCES, 4)),
        System("right", REFERENCES),
        System("other", broken(REFERENCES, 4, start=1)),
    )


@pytest.fixture
def write_lines(tmp_path: Path) -> WriteLines:
    def write(name: str, lines: Sequence[str]) -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write
