"""The example notebook runs from its first cell to its last."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.factories import run_process

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_notebook_trains_a_model_that_translates(tmp_path: Path) -> None:
    for name in ("configs", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    notebook = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join([*cells, 'print("BLEU", evaluation.bleu.value)'])
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)}
    printed = run_process(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    assert float(printed.split("BLEU")[-1]) > 80
    assert "头盔" in printed  # "helmet", in the first translation
