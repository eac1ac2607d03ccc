"""Examples of Python use: each runs as its docstring says."""

from pathlib import Path

import pytest

from mt.config.loading import load_config
from tests.factories import load_script

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_a_file_is_translated_line_by_line(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("a b\n\nc\n", encoding="utf-8")
    arguments = ["translate_file.py", str(finished_run), str(source), str(target)]
    monkeypatch.setattr("sys.argv", arguments)
    load_script(EXAMPLES / "translate_file.py").main()
    lines = target.read_text(encoding="utf-8").split("\n")
    assert len(lines) == 4
    assert lines[1] == lines[3] == ""


def test_own_training_loop_learns(tiny_recipe: Path, tmp_path: Path) -> None:
    script = load_script(EXAMPLES / "training_loop.py")
    losses = [*script.train(load_config(tiny_recipe), 30, tmp_path)]
    assert len(losses) == 30
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
