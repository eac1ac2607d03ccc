"""Fixtures for tests with several ranks: one program runs all their scenarios."""

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mt.model.device import DEVICE_TRAITS
from mt.training import loss
from tests.factories import run_process

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
    printed = run_process(sys.executable, SCENARIOS, env=environment)
    return {
        scenario: {int(rank): Rank(**report) for rank, report in ranks.items()}
        for scenario, ranks in json.loads(printed).items()
    }


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut chunks of three rows, so that the last of seven is alone."""
    monkeypatch.setattr(loss, "LEAST_ROWS", 3)
    monkeypatch.setitem(DEVICE_TRAITS, "cpu", replace(DEVICE_TRAITS["cpu"], max_logits=1))
