from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def test_both_algorithms_are_measured_with_every_strength(
    tiny_recipe: Path, script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("sampling")
    assert module.main(["--config", str(tiny_recipe), "--pairs", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith("tokens")] == [
        "bpe, 40 pairs, 300 tokens",
        "unigram, 40 pairs, 286 tokens",
    ]
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    growth = {name: float(value.removesuffix(" x")) for name, _, value in rows[2:6]}
    assert growth.pop("SentencePiece, nothing drawn") == 1.0
    assert list(growth) == ["sampling 0.1", "sampling 0.2", "sampling 0.5"]
    assert 1.0 < growth["sampling 0.1"] < growth["sampling 0.2"] < growth["sampling 0.5"]
