import shutil
from pathlib import Path

import pytest


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run."""
    without = shutil.ignore_patterns("checkpoints")
    return Path(shutil.copytree(finished_run, tmp_path / "copy", ignore=without))
