"""bench/decoding.py: three translate the same sentences in turns, and the medians are told."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mt.export.export import export_ctranslate2

SCRIPT = Path(__file__).parents[2] / "bench" / "decoding.py"


def test_the_three_take_turns(
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
) -> None:
    exported, text = tmp_path / "exported", tmp_path / "text.en"
    assert export_ctranslate2(finished_run, exported, device="cpu").failure is None
    text.write_text("one two three\nfour five\n" * 9, encoding="utf-8")
    module = script("decoding")
    monkeypatch.setattr(
        sys, "argv", ["decoding.py", str(finished_run), str(exported), str(text), "--rounds", "3"]
    )
    module.main()
    *rounds, of_exported, of_run = capsys.readouterr().out.splitlines()
    rates = [list(map(float, re.findall(r" +([\d.]+)", line))) for line in rounds]
    assert [len(each) for each in rates] == [3, 3, 3]
    for line, name, place in ((of_exported, "exported", 1), (of_run, "run", 2)):
        found = re.fullmatch(
            name + r": ([\d.]+) times as fast .* median of 3, ([\d.]+) to ([\d.]+)", line
        )
        assert found is not None
        ratios = sorted(each[place] / each[0] for each in rates)
        told = [float(found[group]) for group in (2, 1, 3)]
        assert told == pytest.approx(ratios, rel=0.1, abs=0.011)
