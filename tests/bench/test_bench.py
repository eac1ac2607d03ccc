"""Each script of bench/ runs with tiny settings and prints its table."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mt.config.loading import load_config
from mt.errors import UserError
from mt.export.export import export_ctranslate2
from mt.training.trainer import train

BENCH = Path(__file__).parents[2] / "bench"


class Script:
    """A script of bench/, called with arguments."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch = patch
        self.capsys = capsys

    def load(self, name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        self.patch.setitem(sys.modules, module.__name__, module)
        spec.loader.exec_module(module)
        return module

    def run(self, name: str, *arguments: object, **constants: Any) -> list[str]:
        """Return the lines on stdout; `constants` replace those of the module."""
        module = self.load(name)
        for key, value in constants.items():
            self.patch.setattr(module, key, value)
        self.patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        assert not module.main()
        return self.capsys.readouterr().out.splitlines()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    return Script(monkeypatch, capsys)


def test_plain(script: Script, tiny_recipe: Path) -> None:
    (line,) = script.run("plain", tiny_recipe, "--updates", 2, "--warmup", 1, "--threads", 1)
    found = json.loads(line)
    assert (found["updates"], found["threads"]) == (2, 1)
    assert 4 < found["loss"] < 7


@pytest.mark.slow  # starts two programs
def test_training(script: Script, tiny_recipe: Path) -> None:
    script.patch.setattr("mt.profiling.cost.SAMPLE_SECONDS", 1e-4)
    lines = script.run("training", tiny_recipe, "--pairs", 1, "--updates", 2, "--threads", 1)
    assert any(line.startswith("mt/plain: median ") for line in lines)


@pytest.mark.slow  # starts two programs
def test_startup(script: Script) -> None:
    script.patch.setenv("PYTHONPATH", str(BENCH.parent))
    lines = script.run("startup", "--pairs", 200, "--rounds", 1)
    assert [line.split(" | ")[0] for line in lines[2:]][-2] == "| first update"


def test_decoding(script: Script, finished_run: Path, tmp_path: Path) -> None:
    exported, text = tmp_path / "exported", tmp_path / "text.en"
    assert export_ctranslate2(finished_run, exported, device="cpu").failure is None
    text.write_text("one two three\nfour five\n" * 9, encoding="utf-8")
    *rounds, of_exported, of_run, of_torch = script.run(
        "decoding", finished_run, exported, text, "--rounds", 2
    )
    assert len(rounds) == 2
    assert of_exported.startswith("exported: ")
    assert of_run.startswith("run: ")
    assert of_torch.startswith("run in PyTorch: ")


def test_lengths(script: Script, tmp_path: Path) -> None:
    arguments = ("--lengths", 8, 4, "--rounds", 1, "--device", "cpu", "-o", tmp_path / "cost.svg")
    lines = script.run("lengths", *arguments, POSITIONS_A_ROUND=1)
    assert lines.count("| part | 4 | 8 |") == 4
    assert (tmp_path / "cost.svg").exists()


def test_length_generalisation(script: Script, tiny_recipe: Path, tmp_path: Path) -> None:
    sizes = ("data.max_tokens=10", "model.d_model=16", "training.max_updates=2")
    settings = [f"--set={each}" for each in (*sizes, "decoding.max_length_extra=3")]
    arguments = ("--config", tiny_recipe, "--runs", tmp_path, "--kinds", "none", "--pairs", 5)
    lines = script.run("length_generalisation", *arguments, "--ends", 40, *settings)
    assert lines.count("| positional | 1-10 | 11-40 |") == 3


def test_time_to_quality(script: Script, tiny_recipe: Path, tmp_path: Path) -> None:
    settings = ["training.max_updates=20", "training.keep_last=9"]
    train(load_config(tiny_recipe, overrides=settings), tmp_path / "run")
    lines = script.run("time_to_quality", tmp_path / "run")
    assert [line.split()[1] for line in lines[2:4]] == ["10", "20"]
    assert lines[-1].startswith("BLEU signature: ")


def test_tags(script: Script, finished_run: Path) -> None:
    module = script.load("tags")
    golds = module.gold_alignment()
    assert len(golds) == 491
    first = next(gold for gold in golds if gold.source.startswith("Please put my son's brown"))
    assert [
        (first.source[slice(*each.source)], first.target[slice(*each.target)])
        for each in first.phrases
    ] == [
        ("my son's", "我儿子"),
        ("brown", "棕色"),
        ("pillow", "枕头"),
        ("in the suitcase", "行李箱里"),
    ]
    perfect = [[(each.source, each.target) for each in gold.phrases] for gold in golds]
    assert module.alignment_error_rate(golds, perfect) == 0.0
    assert module.tag_shares(golds, perfect) == {"tags": 1999, "covered": 1.0, "exact": 1.0}
    wrong = [[(each.source, golds[0].phrases[0].target) for each in g.phrases] for g in golds]
    assert module.alignment_error_rate(golds, wrong) > 0.7
    with pytest.raises(UserError, match="no translation equals its reference"):
        script.run("tags", finished_run)
