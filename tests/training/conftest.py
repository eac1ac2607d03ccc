"""Fixtures for tests with several ranks: one program runs all their scenarios."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCENARIOS = Path(__file__).with_name("rank_scenarios.py")


@dataclass(frozen=True)
class Rank:
    """How one rank of a scenario ended."""

    status: int | str
    stderr: str
    result: Any

    @property
    def errors(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]


@pytest.fixture(scope="session")
def scenarios() -> dict[str, dict[int, Rank]]:
    """Return the end of each rank of each scenario."""
    if sys.platform == "win32":
        pytest.skip("needs fork")
    environment = {**os.environ, "PYTHONPATH": str(SCENARIOS.parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCENARIOS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        scenario: {int(rank): Rank(**report) for rank, report in ranks.items()}
        for scenario, ranks in json.loads(done.stdout).items()
    }
