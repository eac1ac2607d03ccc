import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def startup(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("startup")


STAGES = [
    "python itself",
    "import torch",
    "import torch._dynamo",
    "import mt and the rest",
    "corpora, tokenizer, encoded pairs",
    "model, optimiser, plan",
    "config, first batch, and the rest",
    "first update",
]


def rows(table: str) -> dict[str, float]:
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return {name: float(value) for name, value in cells[2:]}


def test_every_stage_up_to_the_first_update_is_timed(
    startup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(startup, "VALIDATION_PAIRS", 5)
    startup.write_corpus(tmp_path, 200)
    monkeypatch.chdir(tmp_path)
    began = time.time()
    stages = startup.measure(["train", "recipe.yaml", "--run", "runs/one"], started_at=began)
    assert [*stages] == STAGES
    assert min(stages.values()) >= 0
    assert stages["first update"] > 0
    assert sum(stages.values()) <= time.time() - began


def test_the_imports_of_torch_and_the_update_stand_apart(startup: ModuleType) -> None:
    seconds = {name: float(10**number) for number, name in enumerate(STAGES)}
    *stages, (_, total) = rows(startup.as_markdown(seconds)).items()
    assert dict(stages) == seconds
    assert total == 1 + 1000 + 10_000 + 100_000 + 1_000_000


@pytest.mark.slow
def test_runs_of_a_prepared_corpus_are_measured(
    startup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent))
    assert startup.main(["--pairs", "200", "--rounds", "1"]) == 0
    assert [*rows(capsys.readouterr().out)][:-1] == STAGES
