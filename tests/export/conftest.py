"""Fixtures of the exports."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run; the default output is a folder in it."""
    copy = tmp_path / "run"
    shutil.copytree(finished_run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    return copy
