"""A small test set, and systems of known worth on it."""

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
    """Return the lines, words of each `every`-th in reverse order."""
    return tuple(
        " ".join(line.split()[::-1]) if number % every == start else line
        for number, line in enumerate(lines)
    )


@pytest.fixture
def common() -> EvaluationSet:
    """Return forty sentences, English from something like German."""
    return EvaluationSet("test", SOURCES, (REFERENCES,), "de", "en", tokenizer="13a")


@pytest.fixture
def systems() -> tuple[System, System, System]:
    """Return one that is right in three of four lines, one always right, one as good as the first.

    The third one fails in other lines.
    """
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
