"""Each script of bench/ runs with tiny settings and prints its table."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mt.config.loading import load_config
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

    def run(self, name: str, *arguments: object) -> list[str]:
        """Return the lines on stdout."""
        module = self.load(name)
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
    run, text = tmp_path / "run", tmp_path / "text.en"
    shutil.copytree(finished_run, run)
    exported = run / "ctranslate2"
    assert export_ctranslate2(run, exported, device="cpu").failure is None
    text.write_text("one two three\nfour five\n" * 9, encoding="utf-8")
    *rounds, of_exported, of_run, of_torch = script.run(
        "decoding", run, exported, text, "--rounds", 2
    )
    assert len(rounds) == 2
    assert of_exported.startswith("exported: ")
    assert of_run.startswith("run: ")
    assert of_torch.startswith("run in PyTorch: ")


def test_time_to_quality(script: Script, tiny_recipe: Path, tmp_path: Path) -> None:
    settings = ["training.max_updates=20", "training.keep_last=9"]
    train(load_config(tiny_recipe, overrides=settings), tmp_path / "run")
    lines = script.run("time_to_quality", tmp_path / "run")
    assert [line.split()[1] for line in lines[2:4]] == ["10", "20"]
    assert lines[-1].startswith("BLEU signature: ")
